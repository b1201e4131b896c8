"""A learner of several processes, driven as one stage: every call goes to all of them in the same order, and the first one's answer counts.

They are this process's own, on this machine, and end with it. When one dies, hangs or fails the others wait for it in vain, so all are ended: a
death or a hang is StageLost, and `renew` builds them anew as they were at the start; an error of the stage is raised as itself. They hang when they
owe an answer and all together have used next to no CPU for `timeout` seconds: who works uses some, and who waits for one that was stopped does not.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable

from envs.process import THREADS
from envs.worker import die_with_parent
from scheduler.backends.base import Call, Outcome, StageLost
from scheduler.backends.host import Failure

STAGE = "learn"
LOOK = 1.0  # seconds after which those that owe an answer are looked at
IDLE = 0.01  # of a core, of all of them together: below it nobody works
FOLDER = "m2flow-ranks-"


class Ranks:
    """A StageWorker (scheduler/backends/base.py) and what the program asks of a learner."""

    def __init__(self, make: Callable[[int, str], Any], count: int, threads: int, timeout: float, start_timeout: float) -> None:
        """make(rank, store): the stage of a process, to be run there; `store` is a file's name for the processes to find each other by, and both travel
        by pickle. threads: CPU threads of each. timeout, start_timeout: seconds that nobody may work for, and for building all of them.
        Raises StageLost, or what building raised."""
        self._make, self._count, self._threads, self._timeout, self._start_timeout = make, count, threads, timeout, start_timeout
        self._members: list[_Member] = []
        self._folder: str | None = None
        self._waiting: deque[Call] = deque()  # one at a time is under way: the first
        self.renew()

    def renew(self) -> None:
        """Ends what there is and builds every process anew."""
        self.close()
        _sweep()
        self._folder = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-")
        store = os.path.join(self._folder, "store")
        self._members = [_Member(rank, self._threads) for rank in range(self._count)]
        deadline = time.monotonic() + self._start_timeout
        self._send(self._make, store)
        self._gather(deadline)

    def start(self, call: Call) -> None:
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._submit()

    def ready(self, timeout: float | None) -> list[tuple[Call, Outcome]]:
        """The call that has ended in every process, if it has within `timeout` seconds (None: wait for it). Raises StageLost or the stage's error."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._waiting or not self._collected(deadline):
            return []
        call, outcome = self._waiting.popleft(), self._members[0].answer
        if self._waiting:
            self._submit()
        return [(call, outcome)]

    def connections(self) -> list[Any]:
        return [member.connection for member in self._members if member.owes]

    def abandon(self) -> None:
        while self._waiting:  # what is under way ends first: its sums are let go of afterwards
            self.ready(None)
        self._all("abandon")

    def save(self, *arguments: Any) -> None:
        self._all("save", *arguments)

    def restore(self, *arguments: Any) -> int:
        return self._all("restore", *arguments)

    def older(self) -> list[int]:
        return self._all("older")

    def resident(self) -> int:
        """Bytes that the first process holds."""
        return self._all("resident")

    def load(self) -> None:
        """Its parts stay where they are."""

    def unload(self) -> None:
        """Its parts stay where they are."""

    def close(self) -> None:
        for member in self._members:
            member.end()
        self._members = []
        self._waiting.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _submit(self) -> None:
        self._send("start", self._waiting[0])

    def _all(self, method: str, *arguments: Any) -> Any:
        self._send(method, *arguments)
        self._gather(None)
        return self._members[0].answer

    def _send(self, what: Any, *arguments: Any) -> None:
        """what: the method to call; at first, what makes the stage."""
        data = pickle.dumps((what, arguments), protocol=5)
        self._since, self._spent = time.monotonic(), 0.0
        for member in self._members:
            member.ask(data)

    def _gather(self, deadline: float | None) -> None:
        if not self._collected(deadline):
            self.close()
            raise StageLost(STAGE, f"the learner's {self._count} processes took more than {self._start_timeout:g} s to be built (sim.start_timeout); they were ended")

    def _collected(self, deadline: float | None) -> bool:
        """Whether every process has answered by then. The first failure ends all."""
        while owing := [member for member in self._members if member.owes]:
            left = LOOK if deadline is None else min(LOOK, max(0.0, deadline - time.monotonic()))
            found = wait([member.connection for member in owing], left)
            for member in owing:
                failure = member.receive() if member.connection in found else None
                if failure is not None:
                    self.close()
                    raise failure
            if not found and self._idle() > self._timeout:
                stopped = [str(member.rank) for member in owing if member.state == "T"]
                self.close()
                raise StageLost(STAGE, f"the learner hung{f': process {stopped[0]} was stopped' if stopped else ''}: none of its {self._count} processes worked for {self._timeout:g} s (sim.timeout); they were ended")
            if deadline is not None and not found and time.monotonic() >= deadline:
                return False
        return True

    def _idle(self) -> float:
        """Seconds that they have used next to no CPU for."""
        now, spent = time.monotonic(), sum(member.cpu for member in self._members)
        if spent - self._spent > IDLE * (now - self._since):
            self._since, self._spent = now, spent
        return now - self._since


class _Member:
    """One process, and what it owes an answer to."""

    def __init__(self, rank: int, threads: int) -> None:
        self.rank, self.owes, self.answer = rank, False, None
        self.connection, theirs = Pipe()
        program = f"import sys; sys.path[:] = {sys.path!r}; from embodied.wiring.ranks import main; main({theirs.fileno()}, {rank})"
        environment = {**os.environ, **dict.fromkeys(THREADS, str(threads)), "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program], stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=environment,
                start_new_session=True,  # a Ctrl-C at the terminal is the parent's to handle
            )  # fmt: skip
        finally:
            theirs.close()

    def ask(self, data: bytes) -> None:
        self.owes = True
        try:
            self.connection.send_bytes(data)
        except OSError:
            return  # it died: `receive` says so

    def receive(self) -> Exception | None:
        """Takes its answer; what to raise where there is none."""
        try:
            self.answer, failure = self.connection.recv()
        except (EOFError, OSError):
            return StageLost(STAGE, f"process {self.rank} of the learner died ({self._death()})")
        self.owes = False
        return None if failure is None else failure.error()

    @property
    def state(self) -> str:
        """The kernel's letter for what it does: R, S, D, T (stopped) ...; empty where there is no /proc."""
        return (self._stat() or [""])[0]

    @property
    def cpu(self) -> float:
        """Seconds of CPU used so far; where there is no /proc, those since it began, so that nothing is ever taken for hung."""
        found = self._stat()
        return time.monotonic() if found is None else (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")

    def _stat(self) -> list[str] | None:
        try:
            return Path("/proc", str(self._process.pid), "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()  # it holds nothing that would have to be put away
        self._process.wait()
        self.connection.close()

    def _death(self) -> str:
        try:
            code = self._process.wait(2.0)  # the pipe may end a moment before the process does
        except subprocess.TimeoutExpired:
            return "it closed its pipe but lives on; it was ended"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def main(pipe: int, rank: int) -> None:
    """A process of the learner: builds its stage, then does what it is told until the pipe ends."""
    die_with_parent()
    connection = Connection(pipe)
    stage = None
    while True:
        answer, failure = None, None
        try:
            what, arguments = connection.recv()
            if stage is None:
                stage = what(rank, *arguments)
            else:
                answer = getattr(stage, what)(*arguments)
        except EOFError:
            return
        except Exception as error:  # whatever it is, it is the caller's to handle
            failure = Failure.of(error, STAGE)
        connection.send_bytes(pickle.dumps((answer if rank == 0 else None, failure), protocol=5))


def _sweep() -> None:
    """Takes away what programs left that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        owner = folder.name.removeprefix(FOLDER).split("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists() and Path("/proc").exists():
            shutil.rmtree(folder, ignore_errors=True)
