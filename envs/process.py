"""The caller's hold on a worker: starting it, asking it, noticing that it died or hung, and ending it.

`Process` is a spawned one; `Local` has the same methods and runs the envs here, one operation per `receive`.
The shared memory is a file without a name, so nothing has to be unlinked whoever dies first.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any, Callable

import gymnasium

from envs.spec import EnvSpec
from envs.worker import Reply, Slots, slot_bytes

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # read when the libraries load, so set before
TRACE_BYTES = 65536


class EnvError(RuntimeError):
    """An env raised, or its worker died or hung. The message says everything; the attributes are for code."""

    def __init__(self, what: str, worker: int, slot: int | None, episode: str, phase: str, trace: str | None = None):
        where = f"env worker {worker}" + ("" if slot is None else f", slot {slot}") + (f", episode ({episode})" if episode else "")
        super().__init__(f"{where}, phase {phase}: {what}" + (f"\n{trace.rstrip()}" if trace else ""))
        self.what, self.worker, self.slot, self.episode = what, worker, slot, episode
        self.phase = phase  # "start" | "reset" | "step" | "close"
        self.trace = trace  # the worker's own traceback, or where it hung; None where it left none

    def __reduce__(self) -> tuple:
        return EnvError, (self.what, self.worker, self.slot, self.episode, self.phase, self.trace)


class WorkerLost(EnvError):
    """The worker died, or hung and was ended: no fault of the episode, as far as can be told. `VectorEnv.mend` builds it anew."""

    def __reduce__(self) -> tuple:
        return WorkerLost, super().__reduce__()[1]


@dataclass(frozen=True)
class Asked:
    slot: int
    kind: str  # "reset" | "step"
    episode: str  # for messages


class Local:
    """The slots of this process. `connection` is None: what was asked runs when it is received."""

    connection = None
    lost = False

    def __init__(self, make_env: Callable[[], gymnasium.Env], slots: list[int]):
        self.index, self.slots, self.waiting = 0, slots, deque()
        self._make_env = make_env
        self.restart()

    def restart(self) -> None:
        self.waiting.clear()
        try:
            self._envs = Slots(self._make_env, self.slots)
        except Exception as error:  # any env may fail in any way; the cause is chained
            raise EnvError(f"building the env raised {error!r}", 0, None, "", "start") from error
        self.buffer = bytearray(len(self.slots) * slot_bytes(self._envs.spec))
        self._envs.attach(self.buffer)

    def await_ready(self, deadline: float, allowed: float) -> EnvSpec:
        return self._envs.spec

    def ask(self, asked: Asked, arguments: tuple) -> None:
        self.waiting.append((asked, arguments))

    def receive(self, readable: bool, timeout: float) -> list[tuple[Asked, Reply]]:
        asked, arguments = self.waiting.popleft()
        return [(asked, self._envs.run(asked.kind, asked.slot, *arguments))]

    def ask_to_end(self) -> None:
        self.waiting.clear()

    def end(self, deadline: float) -> list[tuple[int, str]]:
        return self._envs.close()

    def kill(self) -> None:
        self._envs.close()


@dataclass(frozen=True)
class Job:
    """What every worker of one VectorEnv is given."""

    make_env: bytes
    slots: int  # of all workers together
    threads: int | None
    memory: int  # descriptor of the shared file


class Process:
    """One spawned worker and the operations it has yet to answer, which it takes in order."""

    def __init__(self, index: int, slots: list[int], job: Job):
        self.index, self.slots, self.waiting = index, slots, deque()
        self._job = job
        self._start()

    def _start(self) -> None:
        self.waiting.clear()
        self.buffer: Any = None
        self._spec: EnvSpec | None = None
        self._since = 0.0  # when the operation at the head could begin
        self._trace = tempfile.TemporaryFile()
        self.connection, theirs = Pipe()
        watched, self._lifeline = os.pipe()
        inherited = (theirs.fileno(), self._job.memory, self._trace.fileno(), watched)
        program = f"import sys; sys.path[:] = {sys.path!r}; from envs.worker import main; main{inherited!r}"
        threads = {} if self._job.threads is None else dict.fromkeys(THREADS, str(self._job.threads))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                env={**os.environ, **threads},
                start_new_session=True,  # a Ctrl-C at the terminal is the parent's to handle
            )
        finally:
            theirs.close()
            os.close(watched)
        try:
            self.connection.send((pickle.loads(self._job.make_env), self.slots, self._job.slots))
        except OSError:
            return  # it died at once: await_ready says so

    def restart(self) -> None:
        self.kill()
        self._start()

    @property
    def lost(self) -> bool:
        """Whether it has ended without being asked to."""
        return self._spec is None or self._process.poll() is not None

    def await_ready(self, deadline: float, allowed: float) -> EnvSpec:
        """The spec of its envs, once they are built. Raises EnvError."""
        if self._spec is None:
            if not self.connection.poll(max(0.0, deadline - time.monotonic())):
                trace = self._where()
                self.kill()
                raise WorkerLost(f"building the envs took more than {allowed:g} s", self.index, None, "", "start", trace)
            try:
                word, found = self.connection.recv()
            except (EOFError, OSError):
                raise WorkerLost(self._death(), self.index, None, "", "start", self._left_behind()) from None
            if word == "failed":
                self.kill()
                raise EnvError("building the envs raised", self.index, None, "", "start", found)
            self._spec = found
            size = self._job.slots * slot_bytes(found)
            self.buffer = mmap.mmap(self._job.memory, size) if size else b""
        return self._spec

    def ask(self, asked: Asked, arguments: tuple) -> None:
        """Raises EnvError where the worker is gone."""
        if self._spec is None:
            gone = f"the worker has ended; restart({self.index}) builds its envs anew"
            raise WorkerLost(gone, self.index, asked.slot, asked.episode, asked.kind)
        if not self.waiting:
            self._since = time.monotonic()
        self.waiting.append(asked)
        try:
            self.connection.send((asked.kind, asked.slot, *arguments))
        except OSError:
            return  # it died: the next receive says so, with what it left behind

    def receive(self, readable: bool, timeout: float) -> list[tuple[Asked, Reply]]:
        """Every answer that has come. Raises EnvError where the worker died, or has been at one operation for more than `timeout` s."""
        replies = []
        try:
            while self.waiting and (readable or self.connection.poll()):
                reply, readable = self.connection.recv(), False
                replies.append((self.waiting.popleft(), reply))
                self._since = time.monotonic()
            died = not replies and self._process.poll() is not None and not self.connection.poll()
        except (EOFError, OSError):
            died = True
        if replies or not self.waiting:
            return replies  # a death is still there to be seen the next time
        head = self.waiting[0]
        if died:
            raise WorkerLost(self._death(), self.index, head.slot, head.episode, head.kind, self._left_behind())
        if not readable and time.monotonic() - self._since > timeout:
            trace = self._where()
            self.kill()
            raise WorkerLost(f"hung: more than {timeout:g} s without an answer; the worker was ended", self.index, head.slot, head.episode, head.kind, trace)
        return []

    def ask_to_end(self) -> None:
        self.waiting.clear()
        try:
            self.connection.send(None)
        except OSError:
            return  # already gone

    def end(self, deadline: float) -> list[tuple[int, str]]:
        """Waits for the worker's end until `deadline`, then forces it. Returns (slot, traceback) of the envs whose close raised."""
        raised: list[tuple[int, str]] = []
        try:
            while self.connection.poll(max(0.0, deadline - time.monotonic())):
                message = self.connection.recv()
                if isinstance(message, tuple) and message[0] == "closed":
                    raised = message[1]
        except (EOFError, OSError):
            pass  # the pipe's end: it has ended, or is about to
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.kill()
        return raised

    def kill(self) -> None:
        """Ends the process at once and lets go of everything that belongs to it. Idempotent."""
        self.waiting.clear()
        self._spec = None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if not self.connection.closed:
            self.connection.close()
            self._trace.close()
            os.close(self._lifeline)
        self.buffer = None

    def _death(self) -> str:
        try:
            code = self._process.wait(2.0)  # the pipe may end a moment before the process does
        except subprocess.TimeoutExpired:
            return "the worker closed its pipe but lives on; it was ended"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the worker died ({how})"

    def _left_behind(self) -> str | None:
        """What the worker's fault handler wrote before it ended."""
        text = os.pread(self._trace.fileno(), TRACE_BYTES, 0).decode(errors="replace")
        self.kill()
        return text or None

    def _where(self) -> str | None:
        """The Python stacks of a worker that does not answer."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            text = os.pread(self._trace.fileno(), TRACE_BYTES, 0).decode(errors="replace")
            if text:
                return text[max(0, text.find("Current thread")) :]  # the others only carry messages
            time.sleep(0.02)
        return None
