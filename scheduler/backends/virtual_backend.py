"""A clock that does not wait: the executor's calls take the seconds a profile gives them, and cores and devices are shared as on a machine.

Cores are a fluid: when the tasks that run want more cores than there are, each goes on at the same share of its speed (what an operating
system's fair scheduler does). A lane runs one task at a time, in order. An inline call holds up the caller, as in the local backend: what
ends meanwhile is told afterwards. Everything is a function of the stages and the seed. A call whose stage gives it no task takes no time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Mapping, Protocol

from scheduler.backends.base import Call, Event, Outcome

TINY = 1e-12  # seconds: what is left of a task that is over


@dataclass(frozen=True)
class Task:
    lane: str  # a process, or a set of devices: one task at a time
    seconds: float  # alone
    cores: float = 0.0  # cores it keeps busy meanwhile; 0 = it runs on accelerators


@dataclass(frozen=True)
class Part:
    """Tasks that begin together; the outcome is told when all are over. A call is a sequence of parts, the last one with `done`."""

    tasks: tuple[Task, ...]
    outcome: Outcome


class VirtualStage(Protocol):
    inline: bool  # runs in the caller's process

    def parts(self, call: Call) -> list[Part]: ...


@dataclass
class _Running:
    call: Call
    start: float
    parts: deque[Part]
    left: int = 0  # tasks of the present part that are not over


class VirtualBackend:
    def __init__(self, stages: Mapping[str, VirtualStage], cores: float, overhead: float = 0.0) -> None:
        """overhead: seconds the caller itself spends on each call."""
        if cores <= 0:
            raise ValueError(f"found {cores} cores, wanted more than 0")
        self._stages, self._cores, self._overhead = dict(stages), cores, overhead
        self._clock = 0.0
        self._lanes: dict[str, deque[tuple[_Running, Task]]] = {}
        self._heads: dict[str, list] = {}  # lane -> [seconds left alone, task, running]
        self._events: list[Event] = []
        self._outstanding: set[int] = set()

    def now(self) -> float:
        return self._clock

    def submit(self, call: Call) -> None:
        stage = self._stages[call.stage]
        self._idle(self._overhead)
        running = _Running(call, self._clock, deque(stage.parts(call)))
        self._outstanding.add(call.number)
        self._next_part(running)
        while stage.inline and call.number in self._outstanding:
            self._advance()

    def wait(self, block: bool) -> list[Event]:
        """The events so far; with `block`, the clock goes on to the next one when there is none."""
        while block and not self._events and self._outstanding:
            self._advance()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Holds nothing that must be closed."""

    def _next_part(self, running: _Running) -> None:
        """Starts the next part; a part without tasks is over at once."""
        while running.parts and not running.parts[0].tasks:
            self._tell(running)
        if not running.parts:
            return
        running.left = len(running.parts[0].tasks)
        for task in running.parts[0].tasks:
            lane = self._lanes.setdefault(task.lane, deque())
            lane.append((running, task))
            if task.lane not in self._heads:
                self._head(task.lane)

    def _head(self, lane: str) -> None:
        waiting = self._lanes[lane]
        if waiting:
            running, task = waiting.popleft()
            self._heads[lane] = [task.seconds, task, running]

    def _tell(self, running: _Running) -> None:
        outcome = running.parts.popleft().outcome
        if outcome.done:
            self._outstanding.discard(running.call.number)
        self._events.append(Event(running.call, outcome, running.start, self._clock))

    def _speed(self) -> float:
        wanted = sum(task.cores for _, task, _ in self._heads.values())
        return min(1.0, self._cores / wanted) if wanted else 1.0

    def _advance(self) -> None:
        """To the end of the task that is over first; tasks that end with it are over too."""
        speed = self._speed()
        step = min(left / (speed if task.cores else 1.0) for left, task, _ in self._heads.values())
        self._pass(step, speed)

    def _idle(self, seconds: float) -> None:
        """The caller is busy by itself for so long; the others go on."""
        until = self._clock + seconds
        while until - self._clock > TINY:
            speed = self._speed()
            ends = [left / (speed if task.cores else 1.0) for left, task, _ in self._heads.values()]
            self._pass(min([until - self._clock, *ends]), speed)

    def _pass(self, step: float, speed: float) -> None:
        self._clock += step
        over = []
        for lane, head in self._heads.items():
            head[0] -= step * (speed if head[1].cores else 1.0)
            if head[0] <= TINY:
                over.append(lane)
        finished = [self._heads.pop(lane)[2] for lane in over]
        for lane in over:
            self._head(lane)
        for running in finished:
            running.left -= 1
            if running.left == 0:
                self._tell(running)
                self._next_part(running)
