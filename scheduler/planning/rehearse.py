"""A plan run on the virtual clock: the executor itself, with the durations of a profile. This is the planner's judge.

The source plays its items in slots as the real one does: a slot that is through with an item begins the next one in the same turn.
Items take the profile's turns; calls its seconds, with its spread drawn from a seed. Nothing is waited for.
"""

from __future__ import annotations

import functools
import heapq
import math
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Sequence

from scheduler.backends.base import Call, Item, Outcome
from scheduler.backends.virtual_backend import Part, Task, VirtualBackend
from scheduler.graph import MacroGraph
from scheduler.planning.schedule import Plan, StagePlan
from scheduler.profile import CORES, Profile, Round, StageProfile
from scheduler.resources import Cluster
from scheduler.running.execute import RoundResult, execute

MAIN = "main"  # the lane of the program's own process
MANY_PROCESSES = 64  # above this a slot group's processes are one lane with their cores
MANY_ITEMS = 2048  # a round of more is rehearsed in bundles
ALIKE_ITEMS = 8  # ... of more than these where all take as many turns: nothing is lost by it


@dataclass(frozen=True)
class Setting:
    """What every stage of a rehearsal looks at."""

    plan: Plan
    profile: Profile
    seed: int = 0
    bundle: int = 1  # items that are played, handed on and counted as one: the same calls, and fewer numbers to keep
    known: dict[tuple[str, int, int], float] = field(default_factory=dict, compare=False)  # what the profile said

    def seconds(self, stage: str, items: int, units: int, call: Call) -> float:
        """items: in bundles."""
        found, asked = self.profile.stage(stage), (stage, items, units)
        if asked not in self.known:
            self.known[asked] = found.seconds(items * self.bundle, units)
        plain = self.known[asked]
        if found.spread == 0 or plain == 0:
            return plain
        sigma = math.sqrt(math.log1p(found.spread**2))
        return plain * math.exp(random.Random(f"{self.seed}/{stage}/{call.number}").gauss(0.0, sigma) - sigma * sigma / 2)


def rehearse(graph: MacroGraph, plan: Plan, profile: Profile, cluster: Cluster, rounds: int = 1, seed: int = 0) -> list[RoundResult]:
    """Rounds 0 to `rounds` - 1 of the plan, with their timelines."""
    bundle = bundle_of(plan, profile, graph.order()[0])
    stages = stages_of(graph, plan, profile, cluster, seed, bundle)
    placed = {name: replace(stage, granule=stage.granule and stage.granule // bundle) for name, stage in plan.stages.items()}
    return list(execute(replace(plan, stages=placed).flow(graph), VirtualBackend(stages, cluster.cores, profile.call_s), 0, rounds))


def bundle_of(plan: Plan, profile: Profile, source: str) -> int:
    """The smallest bundle that keeps a round below MANY_ITEMS (of items alike: ALIKE_ITEMS) and divides everything; 1 where the slots live in processes of their own."""
    placed = plan.stages[source]
    if not placed.devices and placed.processes <= MANY_PROCESSES:
        return 1
    common = math.gcd(profile.round.items, plan.slots // plan.slot_groups, *(stage.granule for stage in plan.stages.values() if stage.granule))
    most = MANY_ITEMS if len(set(profile.round.turns)) > 1 else ALIKE_ITEMS
    return next((n for n in range(1, common + 1) if common % n == 0 and profile.round.items // n <= most), common)


def stages_of(graph: MacroGraph, plan: Plan, profile: Profile, cluster: Cluster, seed: int = 0, bundle: int = 1) -> dict[str, _Stage]:
    """What each stage of the plan would do and for how long, call by call."""
    flow, setting = plan.flow(graph), Setting(plan, profile, seed, bundle)
    stages: dict[str, _Stage] = {flow.source: Source(setting, flow.source, flow.partner)}
    if flow.partner:
        stages[flow.partner] = Partner(setting, flow.partner)
    for link in flow.links:
        stages[link.target] = Consumer(setting, link.target, link.source, f"{link.source}->{link.target}", cluster.bandwidth, last=link.target == flow.sink)
    return stages


class _Stage(ABC):
    def __init__(self, setting: Setting, name: str) -> None:
        self.setting, self.name = setting, name
        self.placed: StagePlan = setting.plan.stages[name]
        self.measured: StageProfile = setting.profile.stage(name)
        self.inline = self.placed.processes == 0
        self.on_cores = self.measured.on == CORES

    @functools.cached_property
    def lane(self) -> str:
        if self.on_cores:
            return MAIN if self.inline else self.name
        return "+".join(self.placed.devices) or self.name

    def task(self, seconds: float) -> Task:
        return Task(self.lane, seconds, float(self.placed.threads) if self.on_cores else 0.0)

    def parts(self, call: Call) -> list[Part]:
        if call.kind in ("load", "unload"):
            spent = 0.0 if self.setting.plan.together is None else getattr(self.measured, f"{call.kind}_s")
            return [Part((self.task(spent),), Outcome())]
        return self.work(call)

    @abstractmethod
    def work(self, call: Call) -> list[Part]:
        """What a call that is no load or unload does."""


class Partner(_Stage):
    """The other half of a loop: answers what the source asks."""

    def work(self, call: Call) -> list[Part]:
        return [Part((self.task(self.setting.seconds(self.name, call.payload, self.placed.units, call)),), Outcome("chunk"))]


class Consumer(_Stage):
    """A stage behind an edge: works off granules; what cannot stream is worked off at the end of the round."""

    def __init__(self, setting: Setting, name: str, source: str, edge: str, bandwidth: float | None, last: bool) -> None:
        super().__init__(setting, name)
        self._last = last
        self._held: dict[int, int] = defaultdict(int)
        nodes = [_nodes(setting.plan.stages[stage]) for stage in (source, name)]
        apart = bandwidth is not None and nodes[0] and nodes[1] and nodes[0] != nodes[1]
        self._transfer = setting.bundle * setting.profile.edges.get(edge, 0) / bandwidth if apart else 0.0

    def work(self, call: Call) -> list[Part]:
        if call.kind == "update":
            items = self._held.pop(call.round, 0)
            spent = 0.0 if self.measured.streams else self.setting.seconds(self.name, items, self.placed.units, call)
            return [Part((self.task(spent + self.measured.update_s),), Outcome("report"))]
        count = len(call.payload)
        self._held[call.round] += count
        moved = [Part((Task(f"to {self.name}", count * self._transfer),), Outcome(done=False))] if self._transfer else []
        # Only the last stage is told that the round is over: any other that waits for it is handed the whole round at once.
        spent = self.setting.seconds(self.name, count, self.placed.units, call) if self.measured.streams or not self._last else 0.0
        spent += 0.0 if self._last or self.placed.granule else self.measured.update_s
        return [*moved, Part((self.task(spent),), Outcome(items=() if self._last else call.payload))]


def _nodes(placed: StagePlan) -> set[str]:
    return {device.rsplit("/", 1)[0] for device in placed.devices}


class Source(_Stage):
    """The stage where rounds begin: slots that play items turn by turn with a partner, or by itself in one streaming call."""

    def __init__(self, setting: Setting, name: str, partner: str | None) -> None:
        super().__init__(setting, name)
        self._partner, self._round = partner, setting.profile.round
        plan, self._bundle = setting.plan, setting.bundle
        self._slots, self._turns = plan.slots // self._bundle, bundled(self._round, self._bundle)
        self._items = len(self._turns)
        per_group = self._slots // plan.slot_groups
        self._members = [range(g * per_group, (g + 1) * per_group) for g in range(plan.slot_groups)]
        self._next: dict[int, int] = {}  # round -> the item that begins next
        self._playing: dict[int, tuple[int, int]] = {}  # slot -> (item, turns left)
        processes = self.placed.processes
        self._owner = [slot * processes // self._slots for slot in range(self._slots)] if processes else [0] * self._slots
        self._pooled = processes > MANY_PROCESSES or not self.on_cores

    def work(self, call: Call) -> list[Part]:
        if self._partner is None:
            return self._alone(call)
        ended: list[Item] = []
        stepping, beginning = [], []
        if call.payload is None:
            self._next.setdefault(call.round, 0)
            beginning = [slot for slot in self._members[call.group] if self._begin(slot, call.round)]
        else:
            for slot in self._members[call.group]:
                if slot not in self._playing:
                    continue
                stepping.append(slot)
                item, left = self._playing.pop(slot)
                if left > 1:
                    self._playing[slot] = (item, left - 1)
                    continue
                ended.append(Item(item, None))
                if self._begin(slot, call.round):
                    beginning.append(slot)
        playing = sum(slot in self._playing for slot in self._members[call.group])
        return [Part(self._tasks(call, stepping, beginning), Outcome(playing or None, tuple(ended)))]

    def _begin(self, slot: int, round_number: int) -> bool:
        item = self._next[round_number]
        if item >= self._items:
            return False
        self._next[round_number] = item + 1
        self._playing[slot] = (item, self._turns[item])
        return True

    def _tasks(self, call: Call, stepping: list[int], beginning: list[int]) -> tuple[Task, ...]:
        """One task per process the group's slots live in; a pooled source is one task with the group's share of cores."""
        begin_s = self.measured.begin_s
        if self._pooled:
            units = max(1, self.placed.units // self.setting.plan.slot_groups) if self.on_cores else self.placed.units
            begin = len(beginning) * self._bundle
            busy = self.setting.seconds(self.name, len(stepping), units, call) + math.ceil(begin / units) * begin_s
            lane = f"{self.name} {call.group}" if self.on_cores else self.lane
            return (Task(lane, busy, float(min(units, max(len(stepping) * self._bundle, begin))) if self.on_cores else 0.0),)
        processes = max(1, self.placed.processes)
        tasks = []
        for owner in sorted({self._owner[slot] for slot in (*stepping, *beginning)}):
            own = sum(self._owner[slot] == owner for slot in stepping)
            # Every process has as many slots to step when it counts: that is how the profile measured them.
            busy = self.setting.seconds(self.name, own * processes, processes, call) + sum(self._owner[slot] == owner for slot in beginning) * begin_s
            tasks.append(Task(MAIN if self.inline else f"{self.name} {owner}", busy, float(self.placed.threads)))
        return tuple(tasks)

    def _alone(self, call: Call) -> list[Part]:
        """All items of the round from one call, each told as it is through: continuous batching in `slots` places."""
        if call.payload is not None or self._next.get(call.round, 0) >= self._items:
            return [Part((), Outcome())]
        self._next[call.round] = self._items
        units, parts, turn = self.placed.units, [], 0
        for at, active, items in finishes(self._turns, self._items, self._slots):
            seconds = (at - turn) * self.setting.seconds(self.name, active, units, call)
            parts.append(Part((self.task(seconds),), Outcome(items=tuple(Item(item, None) for item in items), done=False)))
            turn = at
        return [*parts, Part((), Outcome())]


def bundled(round_: Round, bundle: int) -> tuple[int, ...]:
    """Turns of each bundle of a round: the mean of its items, rounded."""
    if min(round_.turns) == max(round_.turns):
        return (round_.turns[0],) * (round_.items // bundle)
    return tuple(max(1, round(sum(round_.turns_of(i) for i in range(first, first + bundle)) / bundle)) for first in range(0, round_.items - bundle + 1, bundle))


@functools.lru_cache(maxsize=64)
def finishes(turns: tuple[int, ...], items: int, slots: int) -> list[tuple[int, int, Sequence[int]]]:
    """Items begun in order in the first free slot: (turn, slots busy until then, items that end at it), by turn."""
    if min(turns) == max(turns):
        waves = [range(first, min(first + slots, items)) for first in range(0, items, slots)]
        return [((number + 1) * turns[0], len(wave), wave) for number, wave in enumerate(waves)]
    heap: list[tuple[int, int]] = []
    begun, ended = 0, []
    now = 0
    while begun < items or heap:
        while begun < items and len(heap) < slots:
            heapq.heappush(heap, (now + turns[begun % len(turns)], begun))
            begun += 1
        now, active, over = heap[0][0], len(heap), []
        while heap and heap[0][0] == now:
            over.append(heapq.heappop(heap)[1])
        ended.append((now, active, sorted(over)))
    return ended
