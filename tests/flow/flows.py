"""Random flows on the virtual clock, and a recording of all that passes between the executor and the backend.

A case is a function of its seed; what an item takes of a stage is a function of the case's seed, the stage, the round and the item
alone, so two flows that differ in who calls when have the same work to do.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field

from scheduler.backends.base import Backend, Call, Event, Item, Outcome
from scheduler.backends.virtual_backend import Part, Task, VirtualBackend
from scheduler.running.execute import RoundResult, execute
from scheduler.running.flow import Flow, Link

ENDLESS = 5_000  # calls and events: no case needs a third of them


@dataclass(frozen=True)
class Case:
    flow: Flow
    seed: int
    items: int  # of a round
    slots: int  # of all groups; a group plays its share of them at once
    rounds: int = 1
    first: int = 0
    inline: frozenset[str] = frozenset()
    backwards: frozenset[str] = frozenset()  # stages that give the items of a call from the last to the first
    apart: bool = False  # every slot group has a lane of its own
    least: float = 0.1  # seconds that an item takes at the least; 0 = one in eight takes none
    cores: float = 100.0
    overhead: float = 0.0

    def seconds(self, stage: str, *what: object) -> float:
        draw = random.Random(f"{self.seed}/{stage}/{what}")
        return 0.0 if not self.least and draw.random() < 0.125 else (self.least + draw.expovariate(1.0)) * pace(self.seed, stage)

    def turns(self, round_number: int, item: int) -> int:
        return random.Random(f"{self.seed}/turns/{round_number}/{item}").choice((1, 1, 2, 3, 6))


@functools.lru_cache(maxsize=100)
def pace(seed: int, stage: str) -> float:
    """The mean seconds of a stage: any one may be the slow one."""
    return random.Random(f"{seed}/{stage}").choice((0.1, 1.0, 1.0, 10.0))


@dataclass
class Recording:
    """A Backend that hands on to another one. log: a Call where it was submitted, an Event where it was told."""

    case: Case
    backend: Backend
    log: list[Call | Event] = field(default_factory=list)
    results: list[RoundResult] = field(default_factory=list)
    error: Exception | None = None

    def submit(self, call: Call) -> None:
        if len(self.log) > ENDLESS:
            raise RuntimeError("calls without end")
        self.log.append(call)
        self.backend.submit(call)

    def wait(self, block: bool) -> list[Event]:
        events = self.backend.wait(block)
        self.log.extend(events)
        return events

    def now(self) -> float:
        return self.backend.now()

    def close(self) -> None:
        self.backend.close()

    def calls(self, stage: str, kind: str) -> list[Call]:
        return [entry for entry in self.log if isinstance(entry, Call) and (entry.stage, entry.kind) == (stage, kind)]


class Staged:
    """What the stages of a case have in common. All take and give back their devices in some time."""

    def __init__(self, case: Case, name: str) -> None:
        self.case, self.name = case, name
        self.inline = name in case.inline
        self.devices = case.flow.devices.get(name, ())

    def parts(self, call: Call) -> list[Part]:
        if call.kind in ("load", "unload"):
            return [Part(self.tasks(call, self.case.seconds(self.name, call.kind)), Outcome())]
        return self.work(call)

    def tasks(self, call: Call, seconds: float) -> tuple[Task, ...]:
        lane = "+".join(self.devices) or ("main" if self.inline else self.name)
        if self.case.apart and call.group is not None and not self.devices and not self.inline:
            lane = f"{self.name} {call.group}"
        return (Task(lane, seconds, 0.0 if self.devices else 1.0),)

    def one_by_one(self, call: Call, items: list[int], last: Outcome, told: bool = True) -> list[Part]:
        """Each item as it is through; `last` is told when all are."""
        items = items[::-1] if self.name in self.case.backwards else items
        each = [
            Part(self.tasks(call, self.case.seconds(self.name, call.round, item)), Outcome(items=(Item(item, call.round),) if told else (), done=False))
            for item in items
        ]
        return [*each, Part((), last)]

    def work(self, call: Call) -> list[Part]:
        raise NotImplementedError


class Source(Staged):
    """With a partner: a group's slots step the items they play, and each begins the next one when its own is through. Without: a call
    plays as many items as the group has slots, each to its end."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, case.flow.source)
        self._next: dict[int, int] = {}
        self._playing: dict[int, list[tuple[int | None, int]]] = {}  # group -> (item, turns left) of its busy slots, in their order; absent: all are free

    def work(self, call: Call) -> list[Part]:
        slots = self.case.slots // self.case.flow.groups
        if self.case.flow.partner is None:
            items = [item for item in (self._begin(call.round) for _ in range(slots)) if item is not None]
            return self.one_by_one(call, items, Outcome("more" if len(items) == slots else None))
        ended: list[Item] = []
        playing: list[tuple[int | None, int]] = []
        seconds = 0.0
        for item, left in self._playing.pop(call.group, [(None, 1)] * slots):
            if item is not None:
                seconds += self.case.seconds(self.name, call.round, item, left)
                ended += [Item(item, call.round)] if left == 1 else []
            following = self._begin(call.round) if left == 1 else None
            if left > 1:
                playing.append((item, left - 1))
            elif following is not None:
                playing.append((following, self.case.turns(call.round, following)))
                seconds += self.case.seconds(self.name, call.round, following, "begin")
        if playing:
            self._playing[call.group] = playing
        return [Part(self.tasks(call, seconds) if seconds else (), Outcome(tuple(playing) or None, tuple(ended)))]

    def _begin(self, round_number: int) -> int | None:
        item = self._next.get(round_number, 0)
        self._next[round_number] = item + 1
        return item if item < self.case.items else None


class Partner(Staged):
    def work(self, call: Call) -> list[Part]:
        seconds = sum(self.case.seconds(self.name, call.round, item, left) for item, left in call.payload)
        return [Part(self.tasks(call, seconds), Outcome("reply"))]


class Consumer(Staged):
    def work(self, call: Call) -> list[Part]:
        if call.kind == "update":
            return [Part(self.tasks(call, self.case.seconds(self.name, call.round, "update")), Outcome(("report", call.round)))]
        return self.one_by_one(call, [item.order for item in call.payload], Outcome(), told=self.name != self.case.flow.sink)


def record(case: Case) -> Recording:
    """The case run to its end, or to the error it met."""
    flow = case.flow
    stages: dict[str, Staged] = {flow.source: Source(case)}
    if flow.partner:
        stages[flow.partner] = Partner(case, flow.partner)
    stages.update({link.target: Consumer(case, link.target) for link in flow.links})
    recording = Recording(case, VirtualBackend(stages, case.cores, case.overhead))
    try:
        recording.results.extend(execute(flow, recording, case.first, case.first + case.rounds))
    except (RuntimeError, KeyError, ValueError) as error:
        recording.error = error
    return recording


def chain(draw: random.Random, length: int, granules: tuple, capacities: tuple, ordered: tuple[bool, ...]) -> tuple[Link, ...]:
    names = ["sim", *(f"stage{number}" for number in range(length))]
    return tuple(Link(one, two, draw.choice(granules), draw.choice(capacities), draw.choice(ordered)) for one, two in zip(names, names[1:]))


def any_case(seed: int) -> Case:
    """Everything that a flow may be, at random."""
    draw = random.Random(seed)
    groups = draw.randint(1, 4)
    links = chain(draw, draw.randint(0, 3), (None, 1, 1, 2, 3, 5), (None, 1, 1, 2), (True, True, False))
    partner = draw.choice((None, "act", "act"))
    names = ["sim", *([partner] if partner else []), *(link.target for link in links)]
    pool = [f"gpu{number}" for number in range(draw.randint(0, 3))]
    devices = {name: tuple(draw.sample(pool, draw.randint(1, len(pool)))) for name in names if pool and draw.random() < 0.6}
    flow = Flow("sim", partner, groups, links, draw.choice((None, 0, 0, 1, 2)), devices)
    return Case(
        flow, seed, items=draw.choice((0, 1, 2, 4, 7, 10)), slots=groups * draw.randint(1, 3), rounds=draw.randint(1, 3), first=draw.choice((0, 0, 3)),
        inline=frozenset(name for name in names if draw.random() < 0.3), backwards=frozenset(name for name in names if draw.random() < 0.3),
        apart=draw.random() < 0.5, least=draw.choice((0.0, 0.1)), cores=draw.choice((1.0, 2.5, 100.0)), overhead=draw.choice((0.0, 0.0, 0.05)),
    )
