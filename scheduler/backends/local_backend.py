"""This process and its workers under the wall clock. Inline stages run inside `submit`; the others run in worker processes meanwhile, or
in `ready`, while nothing may be submitted: so what a stage can take in before it works, it has been given."""

from __future__ import annotations

import time
from collections import deque
from multiprocessing.connection import wait as wait_for
from typing import Any, Mapping

from scheduler.backends.base import Call, Event, Outcome, StageWorker, close_all

TURN = 0.05  # seconds at a time for a stage whose work is done in `ready`, while others are waited for too
SLICE = 1.0  # seconds after which stages that are waited for together are looked at though nothing came in: they notice their own timeouts then


class LocalBackend:
    def __init__(self, stages: Mapping[str, StageWorker]) -> None:
        self._stages = dict(stages)
        self._origin = time.perf_counter()
        self._started: dict[int, tuple[Call, float]] = {}
        self._events: deque[Event] = deque()

    def now(self) -> float:
        return time.perf_counter() - self._origin

    def submit(self, call: Call) -> None:
        stage = self._stages[call.stage]
        self._started[call.number] = (call, self.now())
        if call.kind in ("load", "unload"):
            getattr(stage, call.kind)()
            outcome: Outcome | None = Outcome()
        else:
            outcome = stage.start(call)
        if outcome is not None:
            self._record(call, outcome)

    def wait(self, block: bool) -> list[Event]:
        """Every event known; with `block`, at least one while a call is outstanding."""
        waiting = self._outstanding_stages()
        for stage in waiting:
            self._collect(stage, 0.0)
        while block and not self._events and waiting:
            if len(waiting) == 1:
                self._collect(waiting[0], None)
                continue
            connections = {stage: self._stages[stage].connections() for stage in waiting}
            busy = [stage for stage, its in connections.items() if not its]  # their work is done in `ready`
            if not busy:
                wait_for([connection for its in connections.values() for connection in its], SLICE)
            for stage in waiting:
                self._collect(stage, TURN if stage in busy else 0.0)
        events = list(self._events)
        self._events.clear()
        return events

    def ask(self, stage: str, method: str, *arguments: Any) -> list[Any]:
        return [getattr(self._stages[stage], method)(*arguments)]

    def arrange(self, groups: int) -> None:
        """Every group's calls go to the one worker of their stage."""

    def restart(self, stage: str) -> set[str]:
        """The stage keeps all but what it lost; one that has `renew` lost all it had, and is as new."""
        self._started.clear()
        self._events.clear()
        for name, worker in self._stages.items():
            renew = getattr(worker, "renew", None) if name == stage else None
            again = renew or getattr(worker, "restart" if name == stage else "abandon", None)
            if again is not None:
                again()
        return {stage} if getattr(self._stages[stage], "renew", None) else set()

    def close(self) -> None:
        close_all(self._stages.values())

    def _outstanding_stages(self) -> list[str]:
        return sorted({call.stage for call, _ in self._started.values()})

    def _collect(self, stage: str, timeout: float | None) -> None:
        for call, outcome in self._stages[stage].ready(timeout):
            self._record(call, outcome)

    def _record(self, call: Call, outcome: Outcome) -> None:
        _, start = self._started[call.number]
        if outcome.done:
            del self._started[call.number]
        self._events.append(Event(call, outcome, start, self.now()))
