"""The recursion: over every cut of the graph, share the units or split them in every way, and keep what nothing else beats.

Exact for the rules of `cost`: every join is nondecreasing in what it joins, so of two placements of the same stages on the same units
one that is worse in every respect (lead, each, work, memory) is in no best plan. A table for each set of stages, smaller sets first,
holds the fronts for all units and all numbers of granules that a larger set may ask for.
After RLinf (OSDI 2026), section on scheduling; there one time per subgraph is kept, here the front of all that may yet win.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import numpy as np

from scheduler.graph import MacroGraph
from scheduler.planning import cost
from scheduler.planning.cost import Columns, Option, Units
from scheduler.planning.tables.cuts import Cut, Shape
from scheduler.planning.tables.fronts import Table, crossed, table
from scheduler.planning.tables.singles import Singles
from scheduler.profile import Profile

KINDS = cost.JOINS  # a row's first mark, where it is a join; the others are rows of the two tables and the cut


class Found(NamedTuple):
    """One run of the recursion. Set of stages -> its units, as numbers, and their fronts; (set, cut) -> ways to split its units."""

    needed: Mapping[int, np.ndarray]
    splits: Mapping[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]
    tables: dict[int, Table]


class Search:
    """Placements of a graph for some numbers of granules. memory: bytes an accelerator has. processes: of a loop's first stage on cores, where that is given."""

    def __init__(self, graph: MacroGraph, profile: Profile, granules: Sequence[int], whole: Units, memory: int, slot_groups: Sequence[int], processes: int | None = None) -> None:
        self.granules, self.memory, self.processes = tuple(granules), memory, processes
        self.shape = Shape(graph, profile, self.granules, whole)
        self.singles = Singles(profile, self.shape, self.granules, memory, slot_groups, processes)
        self._later = np.array(self.granules) - 1
        self._runs: dict[tuple[frozenset[str], float], Found] = {}
        many_on_cores = self.shape.cores.bit_count() > 1
        self._compared = (1, *((2,) if many_on_cores else ()), *((3, 4) if self.shape.tight(memory) else ()))

    def best(self, joins: frozenset[str] = frozenset(cost.JOINS), bound: float = np.inf) -> dict[int, list[Option]]:
        """Number of granules -> the front over all stages and all units, fastest first; empty when nothing fits. bound: seconds; what is slower need not be found."""
        found = self.run(joins, bound)
        every = found.tables[self.shape.everything]
        options = {}
        for v, count in enumerate(self.granules):
            rows = np.arange(every.start[v], every.start[v + 1])
            totals = self._totals(every, rows, v)
            options[count] = [self.option(found, self.shape.everything, row) for row in rows[np.argsort(totals, kind="stable")]]
        return options

    def ahead(self, joins: frozenset[str], bound: float = np.inf, most: int = 2) -> dict[int, list[tuple[float, Option]]]:
        """Number of granules -> the `most` placements that pay most where sampling may run ahead of learning, with the seconds of an iteration.

        Of every cut, the two sides on units of their own: each is busy with a round of its own, and the slower one sets the pace. By the
        rules for one round such a placement may be far behind.
        """
        found, every = self.run(joins, bound), self.shape.everything
        options = {}
        for v, count in enumerate(self.granules):
            ways = []
            for number, cut in enumerate(self.shape.cuts(every)):
                _, ups, downs = found.splits.get((every, number), ((), (), ()))
                for one, two in zip(ups, downs):
                    s, t = self._fastest(found, cut.up, one, v), self._fastest(found, cut.down, two, v)
                    ways.append((max(s[0], t[0]), s[0] + t[0], cut, s[1], t[1]))
            ways = sorted((way for way in ways if way[0] < np.inf), key=lambda way: way[:2])[:most]
            options[count] = [(pace, self._beside(self.option(found, cut.up, one), self.option(found, cut.down, two), count)) for pace, _, cut, one, two in ways]
        return options

    @staticmethod
    def _beside(s: Option, t: Option, count: int) -> Option:
        return Option(s.total(count) + t.lead, t.each, s.work + t.work, max(s.resident, t.resident), max(s.peak, t.peak), ("split", s, t))

    def _fastest(self, found: Found, mask: int, units: int, v: int) -> tuple[float, int]:
        """(seconds of a round, row) of the fastest placement on these units; infinite where there is none."""
        of = found.tables[mask]
        group = np.searchsorted(found.needed[mask], units) * len(self.granules) + v
        rows = np.arange(of.start[group], of.start[group + 1])
        totals = self._totals(of, rows, v)
        return min(zip(totals.tolist(), rows.tolist()), default=(np.inf, -1))

    def _totals(self, of: Table, rows: np.ndarray, v: int) -> np.ndarray:
        return of.values[0, rows] + self._later[v] * of.values[1, rows]

    def run(self, joins: frozenset[str], bound: float = np.inf) -> Found:
        if (joins, bound) not in self._runs:
            self._runs[joins, bound] = self._run(joins, bound)
        return self._runs[joins, bound]

    def _run(self, joins: frozenset[str], bound: float) -> Found:
        needed, splits = self.shape.needed("split" in joins)
        found = Found(needed, splits, {})
        bounds = np.full(len(self.granules), bound)
        if "turns" in joins:
            bounds = np.minimum(bounds, self.singles.in_turn(joins))
        for mask in sorted(needed, key=int.bit_count):
            keys = needed[mask]
            if mask & (mask - 1) == 0:
                found.tables[mask] = self.singles.table(mask.bit_length() - 1, keys, joins, bounds, self._compared)
                continue
            parts = []
            for number, cut in enumerate(self.shape.cuts(mask)):
                if joins - {"split"}:
                    parts += self._same_units(found, mask, number, cut, joins, bounds)
                if (mask, number) in splits:
                    parts += self._own_units(found, mask, number, cut, splits[mask, number], bounds)
            found.tables[mask] = table(parts, len(keys) * len(self.granules), self._compared)
        return found

    def option(self, found: Found, mask: int, row: int) -> Option:
        """A row as what it stands for."""
        of = found.tables[mask]
        lead, each, work, resident, peak = of.values[:, row].tolist()
        kind, one, two, number = of.marks[:, row].tolist()
        if mask & (mask - 1) == 0:
            how = self.singles.leaf(mask.bit_length() - 1, kind, one, two, number)
        else:
            cut = self.shape.cuts(mask)[number]
            how = KINDS[kind], self.option(found, cut.up, one), self.option(found, cut.down, two)
        return Option(lead, each, work, int(resident), int(peak), how)

    def _same_units(self, found: Found, mask: int, number: int, cut: Cut, joins: frozenset[str], bounds: np.ndarray) -> list:
        keys = found.needed[mask]
        groups = [self._groups(np.searchsorted(found.needed[side], self.shape.projected(side, keys))) for side in (cut.up, cut.down)]
        i, j, group = crossed(found.tables[cut.up], groups[0], found.tables[cut.down], groups[1])
        s, t = found.tables[cut.up].columns(i), found.tables[cut.down].columns(j)
        v = group % len(self.granules)
        later, cores = self._later[v], np.maximum(1, self.shape.units(keys)[1])[group // len(self.granules)]
        parts = []
        for kind, columns in cost.joined(s, t, later, cores, cut.waits, cut.connected, cut.switch_s, cut.mixes):
            if kind in joins:
                news = later > 0 if kind in ("interleaved", "mixed") else True  # of one granule they say nothing new
                parts.append(self._kept(columns, news, kind, i, j, number, group, bounds))
        return parts

    def _own_units(self, found: Found, mask: int, number: int, cut: Cut, split: tuple[np.ndarray, np.ndarray, np.ndarray], bounds: np.ndarray) -> list:
        which, ups, downs = split
        one, two = self._groups(np.searchsorted(found.needed[cut.up], ups)), self._groups(np.searchsorted(found.needed[cut.down], downs))
        i, j, at = crossed(found.tables[cut.up], one, found.tables[cut.down], two)
        group = self._groups(which)[at]
        later = self._later[group % len(self.granules)]
        columns = cost.apart(found.tables[cut.up].columns(i), found.tables[cut.down].columns(j), later, cut.waits, cut.connected)
        return [self._kept(columns, True, "split", i, j, number, group, bounds)]

    def _groups(self, keys: np.ndarray) -> np.ndarray:
        """The group of each of these units and every number of granules."""
        count = len(self.granules)
        return (keys[:, None] * count + np.arange(count)).ravel()

    def _kept(self, columns: Columns, besides: np.ndarray | bool, kind: str, one: np.ndarray, two: np.ndarray, number: int, group: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        v = group % len(self.granules)
        kept = np.flatnonzero((columns.lead + self._later[v] * columns.each <= bounds[v]) & (columns.peak <= self.memory) & besides)
        values = np.stack([column[kept] for column in columns])
        marks = np.stack([np.full(len(kept), KINDS.index(kind)), one[kept], two[kept], np.full(len(kept), number)])
        return values, marks, group[kept]
