"""The smallest pieces of a placement: a stage, or a loop of two, on every number of units it may be asked about, from `cost`'s rules."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from scheduler.planning import cost
from scheduler.planning.cost import Columns, Leaf, LoopLeaf, Units
from scheduler.planning.tables.cuts import FEW, Shape
from scheduler.planning.tables.fronts import Table, listed, table, unbeaten
from scheduler.profile import ACCELERATORS, CORES, Profile

PARTS = 24  # above FEW, a loop is split at so many places and at as many sizes from either end
LOOPS = ("turns", "split", "mixed")  # a loop's first mark; then the units of both, and the slot groups


class Singles:
    """memory: bytes an accelerator has. processes: of a loop's first stage on cores, where that is given."""

    def __init__(self, profile: Profile, shape: Shape, granules: Sequence[int], memory: int, slot_groups: Sequence[int], processes: int | None) -> None:
        self.profile, self.shape, self.granules, self.memory = profile, shape, granules, memory
        self.slot_groups, self.processes = slot_groups, processes
        self._known: dict[tuple, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def in_turn(self, joins: frozenset[str]) -> np.ndarray:
        """Number of granules -> seconds of the plan in which every stage has all units in turn, all loaded: what is slower need not be looked at. Infinite where that does not fit."""
        whole = np.array([self.shape.number(*self.shape.whole)])
        totals, resident, peaks = [], [], []
        for index in range(len(self.shape.nodes)):
            values, _, group = self._rows(index, self.shape.projected(1 << index, whole), joins)
            fastest = np.stack([np.full(len(self.granules), filling) for filling in (np.inf, 0.0, 0.0)])
            for v, count in enumerate(self.granules):
                own = values[:, (group == v) & (values[4] <= self.memory)]
                if own.size:
                    seconds = own[0] + (count - 1) * own[1]
                    at = np.argmin(seconds)
                    fastest[:, v] = seconds[at], own[3, at], own[4, at]
            for kept, column in zip((totals, resident, peaks), fastest):
                kept.append(column)
        held = sum(resident)
        worst = np.max([held + peak - own for peak, own in zip(peaks, resident)], axis=0)
        return np.where(worst <= self.memory, sum(totals) * (1 + 1e-9), np.inf)

    def table(self, index: int, keys: np.ndarray, joins: frozenset[str], bounds: np.ndarray, compared: Sequence[int]) -> Table:
        """The fronts of a node: whoever has more units may leave some idle, so every size below counts too."""
        counts, later = len(self.granules), np.array(self.granules) - 1
        which, smaller = np.arange(len(keys)), []
        for pool, sizes, used in zip(self.shape.units(keys), self.shape.sizes, (self.shape.accelerators, self.shape.cores)):
            pool, own = pool[which], np.array([], int) if not used >> index & 1 else sizes
            at, size = np.nonzero(np.column_stack([own[None, :] < pool[:, None], np.ones(len(pool), bool)]))
            which, smaller = which[at], [each[at] for each in smaller]
            smaller.append(np.append(own, 0)[size] + pool[at] * (size == len(own)))
        asked, place = np.unique(self.shape.number(*smaller), return_inverse=True)
        values, marks, group = self._rows(index, asked, joins)
        kept = np.flatnonzero((values[0] + later[group % counts] * values[1] <= bounds[group % counts]) & (values[4] <= self.memory) & np.isfinite(values[0]))
        own = table([(values[:, kept], marks[:, kept], group[kept])], len(asked) * counts, compared)
        into = (which[:, None] * counts + np.arange(counts)).ravel()
        rows, at = listed(own, (place.reshape(-1)[:, None] * counts + np.arange(counts)).ravel())
        return table([(own.values[:, rows], own.marks[:, rows], into[at])], len(keys) * counts, compared)

    def leaf(self, index: int, join: int, one: int, two: int, groups: int) -> Leaf | LoopLeaf:
        """What a row of `table` stands for, by its marks."""
        node = self.shape.nodes[index]
        leaves = [Leaf(name, Units(units, 0) if self.profile.stage(name).on == ACCELERATORS else Units(0, units)) for name, units in zip(node.names, (one, two))]
        return leaves[0] if node.second is None else LoopLeaf(leaves[0], leaves[1], LOOPS[join], groups)

    def _rows(self, index: int, keys: np.ndarray, joins: frozenset[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(values, marks, group) of a node on exactly these units; a row that is no placement has an infinite lead."""
        node, counts, parts = self.shape.nodes[index], len(self.granules), []
        asked = index, keys.tobytes(), joins.intersection(LOOPS) if node.second else None
        if asked in self._known:
            return self._known[asked]
        if node.second is None:
            units = self.shape.units(keys)[self.profile.stage(node.first).on == CORES]
            source = self.shape.before[index] == 0 and self.profile.round.turns != (1,)
            for v, count in enumerate(self.granules):
                columns = (cost.alone if source else cost.leaves)(self.profile, node.first, units, count)
                marks = np.stack([0 * units, units, 0 * units, 0 * units])
                parts.append((np.stack(columns), marks, np.arange(len(keys)) * counts + v))
        else:
            values, marks, group = self._loops(node.first, node.second, keys, joins)
            for v, count in enumerate(self.granules):
                parts.append((np.stack(cost.parted(Columns(*values), self.profile.round, count)), marks, group * counts + v))
        self._known[asked] = tuple(np.concatenate(each, axis=-1) for each in zip(*parts))
        return self._known[asked]

    def _loops(self, first: str, second: str, keys: np.ndarray, joins: frozenset[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As of one granule, with the place of their units in `keys`: of each the best ways to split or share them."""
        a, b = self.profile.stage(first), self.profile.stage(second)
        pools = self.shape.units(keys)
        one, two = pools[a.on == CORES], pools[b.on == CORES]
        every, ways = np.arange(len(keys)), []
        if a.on != b.on:
            ways.append(("split", every, one, two))
        else:
            which, part = _parts(one)
            ways += [("split", which, part, one[which] - part), ("turns", every, one, one)] + [("mixed", every, one, one)] * (a.on == CORES)
        parts = []
        for groups in self.slot_groups:
            for join, which, n, m in ways:
                if a.on == b.on and join not in joins or join == "turns" and groups > 1:
                    continue
                staffed = self._staffed(n, exactly=join == "split" and a.on == b.on) if a.on == CORES else slice(None)
                which, n, m = which[staffed], n[staffed], m[staffed]
                columns = cost.loop(self.profile, first, second, n, m, pools[1][which], join, groups)
                marks = np.stack([np.full(len(n), LOOPS.index(join)), _filled(a.most_units, n), _filled(b.most_units, m), np.full(len(n), groups)])
                parts.append((np.stack(columns), marks, which))
        if not parts:
            return np.empty((5, 0)), np.empty((4, 0), int), np.empty(0, int)
        values, marks, group = (np.concatenate(each, axis=-1) for each in zip(*parts))
        kept = np.flatnonzero(np.isfinite(values[0]) & (values[4] <= self.memory))
        kept = kept[unbeaten(values[:, kept], group[kept], (2, 3, 4))]
        return values[:, kept], marks[:, kept], group[kept]

    def _staffed(self, cores: np.ndarray, exactly: bool) -> np.ndarray:
        """Whether the given number of processes is what these cores are for."""
        if self.processes is None:
            return np.ones(len(cores), bool)
        wanted = min(max(1, self.processes), self.shape.whole.cores)
        return cores == wanted if exactly else cores >= wanted


def _parts(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(which total, the part of it that the first of a loop gets) of every split."""
    few, part = np.arange(1, FEW), np.arange(1, PARTS)
    total = totals[:, None]
    some = np.concatenate([np.where(total <= FEW, few, 0), *(np.where(total > FEW, sizes, 0) for sizes in (part, total - part, total * part // PARTS))], axis=1)
    which, at = np.nonzero((some > 0) & (some < total))
    return which, some[which, at]


def _filled(most: int | None, units: np.ndarray) -> np.ndarray:
    return units if most is None else np.minimum(units, most)
