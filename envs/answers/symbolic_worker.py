"""The process that does algebra: it imports math-verify once, and forks a child that answers questions until one takes too long.

The time limit is the kernel's: the child's own timer ends it, in whatever code it is, so nothing has to be caught and no thread is needed.
It counts processor time, so that a verdict does not hang on what else the machine does; the clock is only the second limit.
A new child is forked in milliseconds, without importing again. Both end with the process that asked: its pipe closes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from multiprocessing import Pipe
from multiprocessing.connection import Connection

MEMORY = 4 * 2**30  # bytes of address space of a child; a question that wants more is ended by it
PATIENCE = 2.5  # times its limit of processor time that a question may take by the clock, where the machine is busy
DECIMALS = 9  # to which irrational numbers must agree
# Asked before any child is forked: what sympy imports late and remembers, no child has to import within its time.
WARM = (
    (r"\sqrt[3]{8}", "2"),
    (r"\sin(\frac{\pi}{6})+x", "0.5+x"),
    (r"\{\sqrt{12}, 1\}", r"\{1, 2\sqrt{3}\}"),
    (r"(\sqrt{12}, 1)", r"(2\sqrt{3}, 1)"),
    (r"(-\infty, \sqrt{2}]", r"(-\infty, \sqrt{3}]"),
    ("y=(x+1)^2", "y=x^2+2x+1"),
    (r"\begin{pmatrix}1 & 2\\3 & x\end{pmatrix}", r"\begin{pmatrix}1 & 2\\3 & y\end{pmatrix}"),
    (r"x\le\sqrt{2}", r"x<\sqrt{2}"),
    (r"e^{x}\log_{2}(8)", r"3e^{x}"),
    ("5!+n", "120+n"),
)


def main(descriptor: int) -> None:
    """Answers `same` or `other` to every question that comes by the pipe, until it closes."""
    asker = Connection(descriptor)
    try:
        for found, sought in WARM:
            equal(found, sought)
    except Exception as error:  # a broken installation may fail in any way; the asker says how
        asker.send_bytes(f"import failed: {error!r}".encode())
        return
    child = _fork(asker)
    asker.send_bytes(b"ready")
    try:
        while True:
            question = asker.recv_bytes()
            answer = _pass_on(question, child[1])
            asker.send_bytes(answer or b"other")
            if answer is None:
                _reap(child)
                child = _fork(asker)
    except (EOFError, OSError):
        _reap(child)


def equal(found: str, sought: str) -> bool:
    """What math-verify says of two answers. May hang, and may raise anything."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    kinds = (LatexExtractionConfig(), ExprExtractionConfig())
    first, second = (parse(f"${text}$", kinds, fallback_mode="no_fallback", parsing_timeout=None) for text in (found, sought))
    if not first or not second or any(_undefined(parsed) for parsed in (*first, *second)):
        return False
    return bool(verify(second, first, float_rounding=DECIMALS, timeout_seconds=None))


def _undefined(parsed: object) -> bool:
    import sympy

    return isinstance(parsed, sympy.Basic) and parsed.has(sympy.zoo, sympy.nan)


def _fork(asker: Connection) -> tuple[int, Connection]:
    ours, theirs = Pipe()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        ours.close()
        asker.close()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for ended_by in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(ended_by, signal.SIG_DFL)
        _answer(theirs)
    finally:
        os._exit(0)


def _answer(questions: Connection) -> None:
    while True:
        try:
            found, sought, limit = json.loads(questions.recv_bytes())
        except (EOFError, OSError):
            return
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, limit * PATIENCE)
        try:
            verdict = equal(found, sought)
        except Exception:  # a text may break a parser in any way: what cannot be read is not equal
            verdict = False
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0.0)
        questions.send_bytes(b"same" if verdict else b"other")


def _pass_on(question: bytes, child: Connection) -> bytes | None:
    """The child's answer; None where its time ran out, or it died otherwise."""
    try:
        child.send_bytes(question)
        return child.recv_bytes()
    except (EOFError, OSError):
        return None


def _reap(child: tuple[int, Connection]) -> None:
    pid, connection = child
    connection.close()
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(pid, 0)
