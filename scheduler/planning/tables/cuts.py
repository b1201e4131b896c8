"""What a graph and a machine leave to choose: the stages as nodes, the cuts of every set of them, and the numbers of units a set may be asked about.

A set of nodes is a mask. Units are numbered accelerators * (cores there are + 1) + cores; a pool that nobody in a set uses counts as 0.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple, Sequence

import numpy as np

from scheduler.graph import GraphError, MacroGraph
from scheduler.planning.cost import Units
from scheduler.profile import ACCELERATORS, CORES, Profile, StageProfile

FEW = 16  # up to so many units every split is tried; above, only sizes that divide the work, and what they leave
MOST_SIZES = 16  # ... and of those that divide so many
MOST_CUTS = 12  # folded stages


@dataclass(frozen=True)
class Node:
    """A stage, or a loop of two folded into one."""

    first: str
    second: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)


class Cut(NamedTuple):
    up: int
    down: int
    waits: bool  # everything that takes from `up` waits for the last item
    connected: bool  # an edge leads from one to the other
    switch_s: float  # load and unload seconds of both
    mixes: bool  # both use cores, and not both accelerators


class Shape:
    def __init__(self, graph: MacroGraph, profile: Profile, granules: Sequence[int], whole: Units) -> None:
        self.profile, self.whole = profile, whole
        self.nodes = folded(graph)
        if len(self.nodes) > MOST_CUTS:
            raise GraphError(f"found {len(self.nodes)} stages, the planner takes up to {MOST_CUTS}")
        self.everything = (1 << len(self.nodes)) - 1
        index = {name: i for i, node in enumerate(self.nodes) for name in node.names}
        self.before = [0] * len(self.nodes)  # node -> mask of nodes with an edge to it
        for edge in graph.edges:
            if edge.lag is None and index[edge.source] != index[edge.target]:
                self.before[index[edge.target]] |= 1 << index[edge.source]
        on = [{profile.stage(name).on for name in node.names} for node in self.nodes]
        self.cores, self.accelerators = (sum(1 << i for i, kinds in enumerate(on) if pool in kinds) for pool in (CORES, ACCELERATORS))  # masks of who uses them
        self.sizes = tuple(np.array(_sizes(total, profile, granules), int) for total in whole)
        self.cuts, self.needed = functools.cache(self._cuts), functools.cache(self._needed)

    def units(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(accelerators, cores) of numbered units."""
        return keys // (self.whole.cores + 1), keys % (self.whole.cores + 1)

    def number(self, accelerators: np.ndarray, cores: np.ndarray) -> np.ndarray:
        return accelerators * (self.whole.cores + 1) + cores

    def projected(self, mask: int, keys: np.ndarray) -> np.ndarray:
        """The same units without the pools that nobody in the set uses."""
        accelerators, cores = self.units(keys)
        return self.number(accelerators * bool(mask & self.accelerators), cores * bool(mask & self.cores))

    def _needed(self, splits: bool) -> tuple[dict[int, np.ndarray], dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """(mask -> the units it may be asked about, (mask, cut) -> which of those units are split, into what). splits: also of a pool that both sides use."""
        asked = {self.everything: [self.projected(self.everything, np.array([self.number(*self.whole)]))]}
        found, ways = {}, {}
        while asked:
            mask = max(asked, key=int.bit_count)
            keys = found[mask] = np.unique(np.concatenate(asked.pop(mask)))
            for number, cut in enumerate(self.cuts(mask) if mask & (mask - 1) else ()):
                for side in (cut.up, cut.down):
                    asked.setdefault(side, []).append(self.projected(side, keys))
                if not splits and any(cut.up & pool and cut.down & pool for pool in (self.accelerators, self.cores)):
                    continue
                which, up, down = ways[mask, number] = self._splits(cut, keys)
                asked[cut.up].append(up)
                asked[cut.down].append(down)
        return found, ways

    def _splits(self, cut: Cut, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ways to give each side units of its own; a pool that only one side uses is wholly that side's."""
        which, sides = np.arange(len(keys)), []
        for total, sizes, pool in zip(self.units(keys), self.sizes, (self.accelerators, self.cores)):
            total = total[which]
            if cut.up & pool and cut.down & pool:
                at, size = np.nonzero(sizes[None, :] < total[:, None])
                which, sides = which[at], [(up[at], down[at]) for up, down in sides]
                sides.append((sizes[size], total[at] - sizes[size]))
            else:
                sides.append((total * bool(cut.up & pool), total * bool(cut.down & pool)))
        (a, b), (c, d) = sides
        return which, self.number(a, c), self.number(b, d)

    def _cuts(self, mask: int) -> list[Cut]:
        """Every (upstream, downstream) pair with no edge leading back."""
        found, up = [], (mask - 1) & mask
        while up:
            down = mask ^ up
            if all(not up >> i & 1 or not before & down for i, before in enumerate(self.before)):
                takers = [i for i, before in enumerate(self.before) if down >> i & 1 and before & up]
                waits = bool(takers) and all(not self.profile.stage(self.nodes[i].first).streams for i in takers)
                mixes = bool(up & self.cores and down & self.cores) and not (up & self.accelerators and down & self.accelerators)
                found.append(Cut(up, down, waits, bool(takers), sum(stage.load_s + stage.unload_s for stage in self._loaded(mask)), mixes))
            up = (up - 1) & mask
        return found

    def _loaded(self, mask: int) -> list[StageProfile]:
        stages = [self.profile.stage(name) for i, node in enumerate(self.nodes) if mask >> i & 1 for name in node.names]
        return [stage for stage in stages if stage.on == ACCELERATORS]

    def tight(self, memory: int) -> bool:
        """Whether memory could decide: all stages loaded on every accelerator, and the greediest at work with everything, would not fit."""
        held, most = self._loaded(self.everything), max(self.profile.round.items, self.profile.round.slots)
        working = [stage.memory(most, units) for stage in held for units in {1, *(point.units for point in stage.points)}]
        return sum(stage.resident for stage in held) + max(working, default=0) > memory


def folded(graph: MacroGraph) -> list[Node]:
    """The graph's stages in order, each loop as one node."""
    partner = {loop.first: loop.second for loop in graph.loops}
    second = set(partner.values())
    return [Node(name, partner.get(name)) for name in graph.order() if name not in second]


def _sizes(total: int, profile: Profile, granules: Sequence[int]) -> list[int]:
    if total <= FEW:
        return list(range(1, total + 1))
    round_ = profile.round
    dividing = {n for size in (round_.items, round_.slots, *(round_.items // count for count in granules)) for n in _divisors(size) if n <= total}
    return sorted({n for d in _some(sorted(dividing)) | {total} for n in (d, total - d) if n > 0})


def _some(sizes: list[int]) -> set[int]:
    """At most MOST_SIZES of them, as evenly as their ratios go: what can be reached with many grows faster than what it gains."""
    if len(sizes) <= MOST_SIZES:
        return set(sizes)
    wanted = np.geomspace(sizes[0], sizes[-1], MOST_SIZES)
    return {min(sizes, key=lambda size: abs(np.log(size / each))) for each in wanted.tolist()}


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
