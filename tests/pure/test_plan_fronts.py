"""What the search counts with in columns is what one placement at a time would give: profile look-ups, fronts, crossings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.planning.tables import fronts, lookup
from scheduler.planning.tables.fronts import Table, crossed, listed, table, unbeaten
from scheduler.profile import Point, StageProfile

POINTS = st.builds(Point, st.sampled_from((1, 2, 3, 8, 50)), st.sampled_from((1, 2, 3, 7)), st.floats(0, 100), st.integers(0, 10**12))
STAGES = st.builds(StageProfile, st.just("accelerators"), st.lists(POINTS, min_size=1, max_size=6).map(tuple), most_units=st.sampled_from((None, 1, 2, 5)))


@given(STAGES, st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=20))
def test_many_look_ups_at_once_give_what_each_gives_to_the_bit(stage: StageProfile, asked: list[tuple[int, int]]) -> None:
    items, units = np.array(asked).T
    assert lookup.seconds(stage, items, units).tolist() == [stage.seconds(*each) for each in asked]
    some = [each for each in asked if each[0]]
    assert [int(lookup.memory(stage, np.array([items]), np.array([units]))[0]) for items, units in some] == [stage.memory(*each) for each in some]


def beaten(one: tuple, other: tuple) -> bool:
    return all(a >= b for a, b in zip(one, other))


@pytest.mark.parametrize("at_once", [0, 10**9])
@pytest.mark.parametrize("compared", [(1,), (1, 3, 4), (1, 2, 3, 4)])
@given(st.lists(st.tuples(st.integers(0, 2), *[st.integers(0, 3)] * 5), max_size=60))
def test_of_each_group_those_remain_that_nothing_beats(compared: tuple[int, ...], at_once: int, rows: list[tuple]) -> None:
    before, fronts.SORTED_AT_ONCE = fronts.SORTED_AT_ONCE, at_once
    try:
        drawn = np.array(rows, float).reshape(-1, 6)
        kept = unbeaten(drawn[:, 1:].T, drawn[:, 0].astype(int), compared)
    finally:
        fronts.SORTED_AT_ONCE = before
    seen = [(row[0], *(row[1 + field] for field in (0, *compared))) for row in rows]
    wanted = {row for row in seen if not any(other != row and other[0] == row[0] and beaten(row[1:], other[1:]) for other in seen)}
    assert {seen[i] for i in kept} >= wanted
    assert [seen[i][0] for i in kept] == sorted(seen[i][0] for i in kept)
    assert all(beaten(row[1:], (0,) * len(row[1:])) and any(beaten(row[1:], seen[i][1:]) for i in kept if seen[i][0] == row[0]) for row in seen)


def made(*groups: int) -> Table:
    """A table with so many rows in each group; what a row is worth is its number."""
    count = sum(groups)
    values = np.tile(np.arange(count, dtype=float), (5, 1))
    values[1] = values[1][::-1]
    return table([(values, np.zeros((4, count), int), np.repeat(np.arange(len(groups)), groups))], len(groups), (1,))


def test_rows_are_crossed_group_by_group() -> None:
    one, two = made(2, 0, 1), made(1, 3)
    i, j, which = crossed(one, np.array([0, 1, 2, 2]), two, np.array([1, 1, 0, 1]))
    assert list(zip(i.tolist(), j.tolist(), which.tolist())) == [*((a, b, 0) for a, b in product((0, 1), (1, 2, 3))), (2, 0, 2), *((2, b, 3) for b in (1, 2, 3))]


def test_groups_are_listed_in_the_order_asked() -> None:
    rows, which = listed(made(2, 0, 1), np.array([2, 0, 1, 0]))
    assert (rows.tolist(), which.tolist()) == ([2, 0, 1, 0, 1], [0, 1, 1, 3, 3])


def test_a_table_of_nothing_has_empty_groups() -> None:
    assert table([], 3, (1,)).sizes(np.arange(3)).tolist() == [0, 0, 0]
