"""Placements in columns, many at once: groups of rows crossed with each other, and of each group what no other row of it beats.

A table's rows lie group by group. Numbers are floats, bytes too: whole up to 2**53.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np

from scheduler.planning.cost import Columns

SORTED_AT_ONCE = 1000  # rows


@dataclass
class Table:
    values: np.ndarray  # [5, rows]: the fields of Columns
    marks: np.ndarray  # [4, rows] whole numbers: how a row came about
    start: np.ndarray  # group -> its first row; one more at the end

    def columns(self, rows: np.ndarray) -> Columns:
        return Columns(*self.values[:, rows])

    def sizes(self, groups: np.ndarray) -> np.ndarray:
        return self.start[groups + 1] - self.start[groups]


def table(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], groups: int, compared: Sequence[int]) -> Table:
    """Of (values, marks, group) of some rows each: the rows that are worth keeping, by group."""
    values, marks, group = (np.concatenate(each, axis=-1) for each in zip(*parts)) if parts else (np.empty((5, 0)), np.empty((4, 0), int), np.empty(0, int))
    kept = unbeaten(values, group, compared)
    start = np.searchsorted(group[kept], np.arange(groups + 1))
    return Table(values[:, kept], marks[:, kept], start)


def listed(of: Table, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All rows of the groups, one group after the other: (row, which of `groups`)."""
    count = of.sizes(groups)
    which = np.repeat(np.arange(len(groups)), count)
    return of.start[groups[which]] + np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count), which


def crossed(one: Table, first: np.ndarray, two: Table, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every row of group first[i] of `one` with every row of group second[i] of `two`: (row, row, i)."""
    width = two.sizes(second)
    count = one.sizes(first) * width
    some = np.flatnonzero(count)  # most groups are empty
    count, width = count[some], width[some]
    which = np.repeat(some, count)
    within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    width = np.repeat(width, count)
    return one.start[first[which]] + within // width, two.start[second[which]] + within % width, which


def unbeaten(values: np.ndarray, group: np.ndarray, compared: Sequence[int]) -> np.ndarray:
    """Rows that no other row of their group matches or beats in lead and in the fields `compared`, in order of their groups; of equal rows one."""
    fields = values[[0, *compared]]
    seconds, rest = fields[:2].sum(axis=0), fields[2:].sum(axis=0)
    left = _pruned(fields, seconds, group, np.argsort(group, kind="stable"))
    left = left[np.lexsort((rest[left], seconds[left], group[left]))]  # whoever stands first in a group is beaten by nobody
    kept = []
    while left.size:
        first = _changes(group[left])
        chosen = left[first]
        kept.append(chosen)
        against = chosen[np.cumsum(first) - 1]
        left = left[(fields[:, left] < fields[:, against]).any(axis=0)]
    found = np.concatenate(kept) if kept else left
    return found[np.argsort(group[found], kind="stable")]


def _pruned(fields: np.ndarray, seconds: np.ndarray, group: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Without what the fastest of its group matches or beats: most of them, and sorting is dear. rows: by group."""
    if rows.size < SORTED_AT_ONCE:
        return rows
    first = _changes(group[rows])
    which = np.cumsum(first) - 1
    fastest = np.flatnonzero(seconds[rows] == np.minimum.reduceat(seconds[rows], np.flatnonzero(first))[which])
    fastest = fastest[_changes(which[fastest])]
    better = (fields[:, rows] < fields[:, rows[fastest]][:, which]).any(axis=0)
    better[fastest] = True
    return rows[better]


def _changes(group: np.ndarray) -> np.ndarray:
    """Where a group begins."""
    return np.concatenate((np.ones(min(1, len(group)), bool), group[1:] != group[:-1]))
