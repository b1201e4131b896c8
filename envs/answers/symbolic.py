"""Asking math-verify whether two answers are equal, where the exact rules do not say.

`equal` answers within a second (two where the machine is busy) whatever the texts are, from any thread and any process, and says False where there was no time, no
package or no mathematics. The algebra runs in one process of its own, begun by the first question and ended with this one: `symbolic_worker`.
A process that is forked from this one begins its own. Expressions that could only explode are not asked at all.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import lru_cache
from multiprocessing import Pipe

LIMIT = 0.8  # seconds of processor time of one question: with what ending it takes, less than one by the clock of a machine that is not busy
START = 120.0  # seconds for the process to begin: it takes two or three, many times that on a busy machine at the low priority that Ray gives
HUNG = 5.0  # seconds after which the process itself, which keeps the limits, counts as hung
STARTS = 3  # that may fail in a row before math-verify counts as missing
LONGEST = 300  # characters
DEGREE = 5000  # to which powers of sums may come together when they are multiplied out
NESTED = 24  # brackets in brackets
DIGITS = 60  # of one number

_EXPLOSIVE = re.compile(
    r"""[0-9][ })]*\^[ {(]*-?[0-9]+[ })]*\^[ {(]*-?[0-9]  # a tower of numbers
    | \^[ {(]*-?[0-9]{5,}                                 # a power that is itself a large number
    | [0-9]{4,}[ })]*!  | ![ })]*!                        # a large factorial, or one of a factorial
    | \^[^!]{0,40}[})]!                                   # the factorial of a power
    | \([^()]*[a-z][^()]*\)\^[ {(]*[0-9]{3,}              # a sum to a power that nobody writes out
    | \\(?:sum|prod|int|binom|gcd|lcm|lfloor|operatorname).*(?:[0-9]{5,}|[0-9]{2,}[ })]*\^[ {(]*[0-9])""",
    re.VERBOSE,
)
_POWERED = re.compile(r"\)\^[ {(]*([0-9]{1,4})")


class Prover:
    """The caller's hold on the process. Used by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._connection = None
        self._fresh = False  # no question has been put to it yet
        self._failures = 0
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process else None

    def ask(self, found: str, sought: str) -> bool:
        """What math-verify says; False where it does not say in time."""
        question = json.dumps([found, sought, LIMIT]).encode()
        with self._lock:
            for _ in range(2):  # one that was killed between two questions is not the question's fault
                if not self._ready():
                    return False
                fresh = self._fresh
                self._fresh = False
                try:
                    self._connection.send_bytes(question)
                    if self._connection.poll(HUNG):
                        return self._connection.recv_bytes() == b"same"
                    self._end()
                    return False
                except (EOFError, OSError):
                    self._end()
                    if fresh:
                        return False
        return False

    def _ready(self) -> bool:
        if self._owner != os.getpid():
            self.forget()
        if self._process is None and self._failures < STARTS:
            self._start()
        return self._process is not None

    def _start(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            return self._give_up("math-verify is not installed (pip install 'math-verify[antlr4_9_3]>=0.9')")
        connection, theirs = Pipe()
        program = f"import sys; sys.path[:] = {sys.path!r}; from envs.answers.symbolic_worker import main; main({theirs.fileno()})"
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # so that it and what it forks are ended together, and a Ctrl-C is ours alone
            )
        except OSError as error:
            connection.close()
            return self._give_up(f"its process did not start: {error}")
        finally:
            theirs.close()
        self._process, self._connection, self._fresh = process, connection, True
        try:
            said = connection.recv_bytes().decode() if connection.poll(START) else f"its process took more than {START:g} s to begin"
        except (EOFError, OSError):
            said = "its process died at once"
        if said == "ready":
            self._failures = 0
            return None
        self._end()
        self._failures += 1
        return self._give_up(said) if self._failures >= STARTS or said.startswith("import") else None

    def _give_up(self, why: str) -> None:
        self._failures = STARTS
        warnings.warn(f"answers are graded by the exact rules alone, without algebra: {why}", RuntimeWarning, stacklevel=6)

    def _end(self) -> None:
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                process.kill()
            process.wait()

    def close(self) -> None:
        """Ends the process, where it is this one's. The next question begins another."""
        if self._owner == os.getpid():
            with self._lock:
                self._end()

    def forget(self) -> None:
        """In a forked process: the process is the parent's; let go of it without ending it."""
        if self._process is not None:
            self._process.returncode = 0  # not ours to wait for
        if self._connection is not None:
            self._connection.close()  # or the parent's death would go unseen
        self._process = self._connection = None
        self._owner = os.getpid()


_prover = Prover()
atexit.register(_prover.close)


def _after_fork() -> None:
    _prover._lock = threading.Lock()  # another thread may have held it
    _prover.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@lru_cache(maxsize=4096)
def equal(found: str, sought: str) -> bool:
    """Whether algebra makes `found` and `sought`, both as `clean` leaves them, the same."""
    if not all(map(worth_asking, (found, sought))):
        return False
    return _prover.ask(found, sought)


def worth_asking(text: str) -> bool:
    """Whether `text` is mathematics of a size that can be worked out."""
    if not text or len(text) > LONGEST or re.search(rf"[0-9]{{{DIGITS},}}", text):
        return False
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
        if depth < 0:
            return False
    if math.prod(int(power) for power in _POWERED.findall(text)) > DEGREE:
        return False
    return depth == 0 and deepest <= NESTED and not _EXPLOSIVE.search(text)


def seconds_of(found: str, sought: str) -> float:
    """How long one question takes, past any memory of it; for measuring."""
    start = time.perf_counter()
    _prover.ask(found, sought)
    return time.perf_counter() - start
