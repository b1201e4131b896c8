"""The recursion: over every cut of the graph, share the units or split them in every way, and keep what nothing else beats.

Exact for the rules of `cost`: every join is nondecreasing in what it joins, so of two placements of the same stages on the same units
one that is worse in every respect (lead, each, work, memory) is in no best plan. Memoised on (stages, accelerators, cores).
After RLinf (OSDI 2026), section on scheduling; there one time per subgraph is kept, here the front of all that may yet win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Iterator, Sequence

from scheduler.graph import GraphError, MacroGraph
from scheduler.planning import cost
from scheduler.planning.cost import Option, Units
from scheduler.profile import ACCELERATORS, CORES, Profile

PARTS = 24  # above FEW, a loop is split at so many places and at as many sizes from either end
FEW = 16  # up to so many units every split is tried; above, only sizes that divide the work, and what they leave
MOST_CUTS = 12  # folded stages


@dataclass(frozen=True)
class Node:
    """A stage, or a loop of two folded into one."""

    first: str
    second: str | None = None


@dataclass
class Search:
    """Fronts of one granule size. `memory`: bytes an accelerator has."""

    graph: MacroGraph
    profile: Profile
    granules: int
    whole: Units
    memory: int
    slot_groups: Sequence[int]
    joins: frozenset[str] = frozenset(cost.JOINS)  # the ways that may be used
    processes: int | None = None  # of a loop's first stage on cores, where that is given
    _known: dict[tuple[int, int, int], list[Option]] = field(default_factory=dict)
    _cut: dict[int, list] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = folded(self.graph)
        if len(self.nodes) > MOST_CUTS:
            raise GraphError(f"found {len(self.nodes)} stages, the planner takes up to {MOST_CUTS}")
        index = {name: i for i, node in enumerate(self.nodes) for name in (node.first, node.second) if name}
        self._before = [0] * len(self.nodes)  # node -> mask of nodes with an edge to it
        for edge in self.graph.edges:
            if edge.lag is None and index[edge.source] != index[edge.target]:
                self._before[index[edge.target]] |= 1 << index[edge.source]
        self._granule = self.profile.round.items // self.granules
        on = [{self.profile.stage(name).on for name in (node.first, node.second) if name} for node in self.nodes]
        self._cores, self._accelerators = (sum(1 << i for i, kinds in enumerate(on) if pool in kinds) for pool in (CORES, ACCELERATORS))  # masks of who uses them
        self._compared = (1, *((2,) if self._cores.bit_count() > 1 else ()), *((3, 4) if self._tight() else ()))
        self._bound = math.inf
        self._accelerator_sizes, self._core_sizes = self._sizes(self.whole.accelerators), self._sizes(self.whole.cores)

    def best(self) -> list[Option]:
        """The front over all stages and all units, fastest first. Empty when nothing fits."""
        everything = (1 << len(self.nodes)) - 1
        self._bound = math.inf
        if self.joins >= {"turns"}:
            self._bound = self._simple(everything)
        return sorted(self.front(everything, self.whole), key=lambda option: option.total(self.granules))

    def _simple(self, mask: int) -> float:
        """Seconds of the plan in which every stage has all units in turn, all loaded: what is slower need not be looked at. Infinite where that does not fit."""
        option = None
        for index in range(len(self.nodes)):
            own = [found for found in self._single(index, self.whole) if found.peak <= self.memory]
            if not own:
                return math.inf
            fastest = min(own, key=lambda found: found.total(self.granules))
            option = fastest if option is None else cost.joined(option, fastest, self.granules, max(1, self.whole.cores), False, True, 0.0, False)[0]
        return option.total(self.granules) * (1 + 1e-9) if option.peak <= self.memory else math.inf

    def front(self, mask: int, units: Units) -> list[Option]:
        """Every placement of the stages in `mask` on at most `units` that may yet win. A pool that nobody in it uses is 0."""
        accelerators, cores = units
        key = (mask, accelerators if mask & self._accelerators else 0, cores if mask & self._cores else 0)
        found = self._known.get(key)
        if found is None:
            units = Units(key[1], key[2])
            more, bound = self.granules - 1, self._bound
            fitting = [o for o in self._options(mask, units) if o[4] <= self.memory and o[0] + more * o[1] <= bound]
            found = self._known[key] = pareto(fitting, self._compared)
        return found

    def _options(self, mask: int, units: Units) -> Iterator[Option]:
        smaller = self._below(units)
        for less in smaller:
            yield from self.front(mask, less)
        if mask & (mask - 1) == 0:
            yield from self._single(mask.bit_length() - 1, units)
            return
        for up, down, waits, connected, switch, mixes in self._cuts(mask):
            for s in self.front(up, units):
                for t in self.front(down, units):
                    yield from (o for o in cost.joined(s, t, self.granules, max(1, units.cores), waits, connected, switch, mixes) if o.how[0] in self.joins)
            for one, two in self._splits(up, down, units):
                if one.accelerators and two.accelerators or one.cores and two.cores:
                    if "split" not in self.joins:
                        continue
                ahead = self.front(up, one)
                if ahead:
                    behind = self.front(down, two)
                    yield from (cost.apart(s, t, self.granules, waits, connected) for s in ahead for t in behind)

    def _single(self, index: int, units: Units) -> Iterator[Option]:
        node = self.nodes[index]
        if node.second is None:
            source = self._before[index] == 0 and self.profile.round.turns != (1,)
            found = cost.alone(self.profile, node.first, units, self.granules) if source else cost.leaf(self.profile, node.first, units, self._granule, self.granules)
            if found is not None:
                yield found
            return
        a, b = self.profile.stage(node.first).on, self.profile.stage(node.second).on
        for groups in self.slot_groups:
            ways = [("split", *pair) for pair in self._loop_splits(a, b, units)]
            if a == b:
                ways += [("turns", units, units)] + ([("mixed", units, units)] if a == CORES else [])
            for join, one, two in ways:
                if join == "turns" and groups > 1 or a == b and join not in self.joins or not self._staffed(a, b, join, one):
                    continue
                found = cost.loop(self.profile, node.first, node.second, one, two, join, groups, self.granules)
                if found is not None:
                    yield found

    def _staffed(self, a: str, b: str, join: str, one: Units) -> bool:
        """Whether the given number of processes is what these cores are for."""
        if self.processes is None or a != CORES:
            return True
        wanted = min(max(1, self.processes), self.whole.cores)
        return one.cores == wanted if join == "split" and a == b else one.cores >= wanted

    def _loop_splits(self, a: str, b: str, units: Units) -> Iterator[tuple[Units, Units]]:
        if a != b:
            yield (units, units)
            return
        pool = 0 if a == ACCELERATORS else 1
        total = units[pool]
        for n in range(1, total) if total <= FEW else sorted({n for part in range(1, PARTS) for n in (part, total - part, total * part // PARTS)} - {0, total}):
            rest = units[pool] - n
            yield (Units(n, 0), Units(rest, 0)) if pool == 0 else (Units(0, n), Units(0, rest))

    def _splits(self, up: int, down: int, units: Units) -> Iterator[tuple[Units, Units]]:
        """Ways to give each side units of its own; a pool that only one side uses is wholly that side's."""
        pools = []
        for total, sizes, used in ((units.accelerators, self._accelerator_sizes, self._accelerators), (units.cores, self._core_sizes, self._cores)):
            both = up & used and down & used
            pools.append([(n, total - n) for n in sizes if n < total] if both else [(total if up & used else 0, total if down & used else 0)])
        yield from ((Units(a, c), Units(b, d)) for a, b in pools[0] for c, d in pools[1])

    def _sizes(self, total: int) -> list[int]:
        if total <= FEW:
            return list(range(1, total + 1))
        round_ = self.profile.round
        dividing = {n for size in (self._granule, round_.items, round_.slots) for n in _divisors(size) if n <= total}
        return sorted({n for d in dividing | {total} for n in (d, total - d) if n > 0})

    def _below(self, units: Units) -> list[Units]:
        """The next smaller sizes: whoever has more units may leave some idle."""
        found = []
        for pool, sizes in ((0, self._accelerator_sizes), (1, self._core_sizes)):
            less = [n for n in sizes if n < units[pool]]
            if less:
                found.append(Units(less[-1], units.cores) if pool == 0 else Units(units.accelerators, less[-1]))
        return found

    def _cuts(self, mask: int) -> list[tuple[int, int, bool, bool, float, bool]]:
        """Every (upstream, downstream) pair with no edge leading back; whether downstream waits, whether an edge joins them, load and unload seconds, whether they can share cores at once."""
        if mask not in self._cut:
            found, up = [], (mask - 1) & mask
            while up:
                down = mask ^ up
                if all(not (up >> i & 1) or not self._before[i] & down for i in range(len(self.nodes))):
                    mixes = bool(up & self._cores and down & self._cores) and not (up & self._accelerators and down & self._accelerators)
                    found.append((up, down, self._waits(up, down), self._connected(up, down), self._switch(mask), mixes))
                up = (up - 1) & mask
            self._cut[mask] = found
        return self._cut[mask]

    def _connected(self, up: int, down: int) -> bool:
        return any(down >> i & 1 and self._before[i] & up for i in range(len(self.nodes)))

    def _waits(self, up: int, down: int) -> bool:
        """Whether everything that takes from `up` waits for the last item."""
        takers = [i for i in range(len(self.nodes)) if down >> i & 1 and self._before[i] & up]
        return bool(takers) and all(not self.profile.stage(self.nodes[i].first).streams for i in takers)

    def _tight(self) -> bool:
        """Whether memory could decide: all stages loaded on every accelerator, and the greediest at work with everything, would not fit."""
        found = [self.profile.stage(name) for node in self.nodes for name in (node.first, node.second) if name]
        held = [stage for stage in found if stage.on == ACCELERATORS]
        most = max(self.profile.round.items, self.profile.round.slots)
        working = [stage.memory(most, units) for stage in held for units in {1, *(point.units for point in stage.points)}]
        return sum(stage.resident for stage in held) + max(working, default=0) > self.memory

    def _switch(self, mask: int) -> float:
        stages = [self.profile.stage(name) for i, node in enumerate(self.nodes) if mask >> i & 1 for name in (node.first, node.second) if name]
        return sum(stage.load_s + stage.unload_s for stage in stages if stage.on == ACCELERATORS)


def folded(graph: MacroGraph) -> list[Node]:
    """The graph's stages in order, each loop as one node."""
    partner = {loop.first: loop.second for loop in graph.loops}
    second = set(partner.values())
    return [Node(name, partner.get(name)) for name in graph.order() if name not in second]


def pareto(options: list[Option], compared: Sequence[int] = (1, 2, 3, 4)) -> list[Option]:
    """Those that no other one matches or beats in lead and in the fields `compared` (1 each, 2 work, 3 resident, 4 peak)."""
    kept: list[Option] = []
    options.sort(key=itemgetter(0, *compared))
    if tuple(compared) == (1,):
        fastest = math.inf
        for option in options:
            if option[1] < fastest:
                kept.append(option)
                fastest = option[1]
        return kept
    for option in options:
        if not any(all(k[field] <= option[field] for field in compared) for k in kept):
            kept.append(option)
    return kept


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
