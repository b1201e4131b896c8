"""The inside of a stage process: one thread runs all of its stages, a call at a time, and gathers what their workers answer.

Guarantees: every method of a stage, from its making to its close, runs on that one thread. Calls begin in the order they come in;
of a stage that answers from `ready` several may be under way. What a call gave is in its box as soon as it is known, in order.
After `abandon` nothing of the calls before it runs or is told any more. A process whose thread ends, ends.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from queue import SimpleQueue
from typing import Any, Callable, Mapping

from scheduler.backends.base import Call, Outcome, StageLost, StageWorker, close_all

SLICE = 1.0  # seconds after which stages that are waited for are looked at though nothing came in: they notice their own timeouts then
TURN = 0.05  # seconds at a time for a stage whose work is done in `ready`


@dataclass(frozen=True)
class Failure:
    """A stage's error as it travels between processes: the error itself where pickle gives it back, else a RuntimeError in its words."""

    pickled: bytes
    trace: str

    @classmethod
    def of(cls, error: BaseException, stage: str) -> Failure:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            copy = pickle.loads(pickle.dumps(error))
            same = type(copy) is type(error) and str(copy) == str(error)
        except Exception:  # pickling runs the error's own code, which may raise anything
            same = False
        if not same:
            return cls(pickle.dumps(RuntimeError(f"{type(error).__name__}: {error} (in stage {stage!r})")), trace)
        plain = type(copy).__str__ is Exception.__str__ and len(copy.args) == 1 and isinstance(copy.args[0], str)
        if plain and not isinstance(copy, StageLost) and stage not in copy.args[0]:
            copy.args = (f"{copy.args[0]} (in stage {stage!r})",)
        return cls(pickle.dumps(copy), trace)

    def error(self) -> Exception:
        """The error, with the words of where it was raised as its cause."""
        error = pickle.loads(self.pickled)
        error.__cause__ = RuntimeError(f"in the stage's process:\n{self.trace}")
        return error


@dataclass(frozen=True)
class Told:
    """What is known of a call: an outcome, or why there is none. seconds: since the call began here."""

    value: Any
    failure: Failure | None
    seconds: float
    gone: str | None = None  # something that the call needs is lost with another process: what is known of it

    @property
    def over(self) -> bool:
        return not (isinstance(self.value, Outcome) and not self.value.done)


@dataclass
class _Running:
    call: Call
    box: SimpleQueue
    begun: float


class StageThread:
    def __init__(
        self, make: Callable[[], Mapping[str, StageWorker]], before: Callable[[Call], Call], after: Callable[[Call, Outcome], Outcome],
        is_gone: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:  # fmt: skip
        """before, after: what fetches a call's data and stores an outcome's, on the thread. is_gone: whether an error says that such data is lost."""
        self.epoch = 0  # calls of another one are dropped
        self._make, self._before, self._after, self._is_gone = make, before, after, is_gone
        self._stages: Mapping[str, StageWorker] = {}
        self._running: dict[int, _Running] = {}  # by id of the call that the stage was given
        self._commands: deque[Callable[[], None]] = deque()
        self._wake, self._waker = os.pipe()  # one byte for each command
        threading.Thread(target=self._run, name="stages", daemon=True).start()

    def run(self, epoch: int, call: Call) -> SimpleQueue:
        """The call's box: a Told for each outcome, the last one with `over`."""
        box: SimpleQueue = SimpleQueue()
        self._post(lambda: self._start(epoch, call, box))
        return box

    def do(self, stage: str, work: Callable[[], Any]) -> SimpleQueue:
        """Work that is no call, once those before it have begun. The box gets one Told."""
        box: SimpleQueue = SimpleQueue()
        self._post(lambda: self._work(stage, work, box))
        return box

    def build(self) -> SimpleQueue:
        def build() -> None:
            self._stages = self._make()

        return self.do("", build)

    def ask(self, stage: str, method: str, arguments: tuple, then: Callable[[Any], Any] = lambda value: value) -> SimpleQueue:
        return self.do(stage, lambda: then(getattr(self._stages[stage], method)(*arguments)))

    def abandon(self, epoch: int, hurt: str | None = None) -> SimpleQueue:
        """Drops every call so far, those that are under way once they can be; from now on calls of `epoch` count.

        hurt: a stage that lost something of its own and builds that anew. The box gets whether it could.
        """
        self.epoch = epoch
        return self.do("", lambda: self._clean(hurt))

    def close(self) -> SimpleQueue:
        """Closes every stage, also when one fails to; the first failure is told."""
        return self.do("", lambda: close_all(self._stages.values()))

    def _post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        os.write(self._waker, b"x")

    def _run(self) -> None:
        try:
            while True:
                self._collect()
                if self._running:
                    connections, busy = self._connections()
                    if self._wake not in wait_for([self._wake, *connections], 0.0 if busy else SLICE):
                        continue
                os.read(self._wake, 1)
                self._commands.popleft()()
        finally:
            traceback.print_exc()
            os._exit(1)  # without its thread the process would take calls and never answer

    def _start(self, epoch: int, call: Call, box: SimpleQueue) -> None:
        begun = time.perf_counter()
        if epoch != self.epoch:
            box.put(Told(None, None, 0.0))
            return
        running = None
        try:
            stage = self._stages[call.stage]
            if call.kind in ("load", "unload"):
                getattr(stage, call.kind)()
                box.put(Told(Outcome(), None, time.perf_counter() - begun))
                return
            call = self._before(call)
            running = self._running[id(call)] = _Running(call, box, begun)
            outcome = stage.start(call)
            if outcome is not None:
                self._tell(running, outcome)
        except Exception as error:  # the stage's own error: it is the caller's to handle
            self._fail(running or _Running(call, box, begun), error)

    def _work(self, stage: str, work: Callable[[], Any], box: SimpleQueue) -> None:
        begun = time.perf_counter()
        try:
            box.put(Told(work(), None, time.perf_counter() - begun))
        except Exception as error:  # as in _start
            self._fail(_Running(Call(0, stage, "ask", 0), box, begun), error)

    def _waiting(self) -> list[str]:
        return sorted({running.call.stage for running in self._running.values()})

    def _connections(self) -> tuple[list[Any], bool]:
        """What turns readable when something has come in, and whether a stage has no such thing: its work is done in `ready`."""
        found, busy = [], False
        for stage in self._waiting():
            try:
                its = self._stages[stage].connections()
                found += its
                busy = busy or not its
            except Exception as error:  # as in _start
                self._fail_all(stage, error)
        return found, busy

    def _collect(self) -> None:
        """Takes what has come in from the stages whose calls are under way."""
        for stage in self._waiting():
            try:
                worker = self._stages[stage]
                for call, outcome in worker.ready(0.0 if worker.connections() else TURN):
                    running = self._running.get(id(call))
                    if running is not None and running.call is call:
                        self._tell(running, outcome)
            except Exception as error:  # as in _start; which call it belongs to only the stage knows
                self._fail_all(stage, error)

    def _tell(self, running: _Running, outcome: Outcome) -> None:
        outcome = self._after(running.call, outcome)
        if outcome.done:
            self._running.pop(id(running.call), None)
        running.box.put(Told(outcome, None, time.perf_counter() - running.begun))

    def _fail(self, running: _Running, error: Exception) -> None:
        self._running.pop(id(running.call), None)
        gone = f"{type(error).__name__}: {error}" if self._is_gone(error) else None
        running.box.put(Told(None, Failure.of(error, running.call.stage), time.perf_counter() - running.begun, gone))

    def _fail_all(self, stage: str, error: Exception) -> None:
        for running in [running for running in self._running.values() if running.call.stage == stage]:
            self._fail(running, error)

    def _clean(self, hurt: str | None) -> bool:
        for name, stage in self._stages.items():
            again = getattr(stage, "restart" if name == hurt else "abandon", None)
            if again is not None:
                again()
                self._drop(name)
            elif name == hurt:
                return False
        while self._running:  # a stage that cannot abandon its calls ends them
            self._collect()
            if self._running:
                connections, busy = self._connections()
                wait_for(connections, 0.0 if busy else SLICE)
        return True

    def _drop(self, stage: str) -> None:
        for key in [key for key, running in self._running.items() if running.call.stage == stage]:
            self._running.pop(key).box.put(Told(None, None, 0.0))
