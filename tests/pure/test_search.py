"""The search finds the fastest placement that the rules of `cost` allow: against an enumeration of every one, and against numbers worked by hand.

The enumeration shares with the search only the costs of single stages and loops; cuts, splits, joins and memory are its own, and it prunes nothing.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.graph import MacroGraph
from scheduler.planning import cost
from scheduler.planning.cost import Leaf, LoopLeaf, Option, Units
from scheduler.planning.search import Search
from scheduler.planning.tables.cuts import MOST_SIZES, Shape
from scheduler.profile import ACCELERATORS, CORES, Point, Profile, Round, StageProfile

Case = tuple[MacroGraph, Profile, int, Units, int, Sequence[int]]  # what `cheapest` and Search take
Nodes = frozenset  # of (stage,), or (first, second) for a loop


class Enumeration:
    """Every placement of a set of nodes on units, as columns of [5, placements]: lead, each, work, resident, peak."""

    def __init__(self, graph: MacroGraph, profile: Profile, granules: int, slot_groups: Sequence[int]) -> None:
        self.profile, self.granules, self.slot_groups = profile, granules, slot_groups
        partner = {loop.first: loop.second for loop in graph.loops}
        self.nodes = Nodes((name, partner[name]) if name in partner else (name,) for name in graph.stages if name not in partner.values())
        node = {name: each for each in self.nodes for name in each}
        self.edges = {(node[e.source], node[e.target]) for e in graph.edges if e.lag is None and node[e.source] != node[e.target]}
        self.known: dict[tuple[Nodes, Units], np.ndarray] = {}

    def placements(self, nodes: Nodes, units: Units) -> np.ndarray:
        if (nodes, units) not in self.known:
            found = self.by_itself(*nodes, units) if len(nodes) == 1 else self.cut(nodes, units)
            columns = list(found)
            self.known[nodes, units] = np.concatenate(columns, axis=1) if columns else np.empty((5, 0))
        return self.known[nodes, units]

    def by_itself(self, node: tuple[str, ...], units: Units) -> Iterator[np.ndarray]:
        """On every number of units up to all of them: the rest stays idle."""
        if len(node) == 2:
            options = self.looped(*node, units)
        elif self.profile.round.turns != (1,) and not any(target == node for _, target in self.edges):
            options = cost.alone(self.profile, *node, np.arange(1, self.pool(*node, units) + 1), self.granules)
        else:
            options = cost.leaves(self.profile, *node, np.arange(1, self.pool(*node, units) + 1), self.granules)
        yield real(options)

    def looped(self, first: str, second: str, units: Units) -> cost.Columns:
        a, b = self.pool(first, units), self.pool(second, units)
        on = {self.profile.stage(first).on, self.profile.stage(second).on}
        ways = [("split", i, j) for i in range(1, a + 1) for j in range(1, b + 1) if len(on) == 2 or i + j <= a]
        ways += [("mixed", i, i) for i in range(1, a + 1) if on == {CORES}]
        found = [np.empty((5, 0))]
        for groups in self.slot_groups:
            turns = [("turns", i, i) for i in range(1, a + 1) if len(on) == 1 and groups == 1]
            for join, i, j in ways + turns:
                found.append(cost.loop(self.profile, first, second, np.array([i]), np.array([j]), np.array([i]), join, groups))
        return cost.parted(cost.Columns(*np.concatenate(found, axis=1)), self.profile.round, self.granules)

    def cut(self, nodes: Nodes, units: Units) -> Iterator[np.ndarray]:
        for size in range(1, len(nodes)):
            for up in map(Nodes, combinations(nodes, size)):
                down = nodes - up
                if any((source, target) in self.edges for source in down for target in up):
                    continue
                takers = {target for source in up for target in down if (source, target) in self.edges}
                connected, waits = bool(takers), bool(takers) and not any(self.profile.stage(name).streams for node in takers for name in node)
                yield from self.same_units(up, down, units, connected, waits)
                for one, two in self.splits(up, down, units):
                    yield self.split(self.placements(up, one), self.placements(down, two), connected, waits)

    def same_units(self, up: Nodes, down: Nodes, units: Units, connected: bool, waits: bool) -> Iterator[np.ndarray]:
        (s_lead, s_each, s_work, s_resident, s_peak), (t_lead, t_each, t_work, t_resident, t_peak) = pairs(self.placements(up, units), self.placements(down, units))
        work, later = s_work + t_work, self.granules - 1
        all_loaded = (work, s_resident + t_resident, np.maximum(s_peak + t_resident, s_resident + t_peak))
        one_loaded = (work, np.maximum(s_resident, t_resident), np.maximum(s_peak, t_peak))
        after = s_lead + later * s_each + t_lead
        yield columns_of(after, t_each, *all_loaded)
        loaded = [self.profile.stage(name) for node in up | down for name in node]
        switch = sum(stage.load_s + stage.unload_s for stage in loaded if stage.on == ACCELERATORS)
        if switch > 0:
            yield columns_of(after + switch, t_each, *one_loaded)
        if waits or self.granules == 1:
            return
        yield columns_of(s_lead + t_lead, s_each + t_each, *all_loaded)
        if self.both_use(up, down, CORES) and not self.both_use(up, down, ACCELERATORS):
            bound = work / units.cores  # of the first granule too: one that is through sooner would have had more cores than there are
            lead = s_lead + t_lead if connected else np.maximum(np.maximum(s_lead, t_lead), bound)
            yield columns_of(lead, np.maximum(np.maximum(s_each, t_each), bound), *one_loaded)

    def both_use(self, up: Nodes, down: Nodes, pool: str) -> bool:
        return all(any(self.profile.stage(name).on == pool for node in side for name in node) for side in (up, down))

    def split(self, up: np.ndarray, down: np.ndarray, connected: bool, waits: bool) -> np.ndarray:
        (s_lead, s_each, s_work, s_resident, s_peak), (t_lead, t_each, t_work, t_resident, t_peak) = pairs(up, down)
        if waits:
            lead, each = s_lead + (self.granules - 1) * s_each + t_lead, t_each
        else:
            lead, each = s_lead + t_lead if connected else np.maximum(s_lead, t_lead), np.maximum(s_each, t_each)
        return columns_of(lead, each, s_work + t_work, np.maximum(s_resident, t_resident), np.maximum(s_peak, t_peak))

    def splits(self, up: Nodes, down: Nodes, units: Units) -> Iterator[tuple[Units, Units]]:
        """A pool that both use is divided in every way; one that only one of them uses is its own."""
        shares = []
        for pool, total in ((ACCELERATORS, units.accelerators), (CORES, units.cores)):
            s_uses, t_uses = (any(self.profile.stage(name).on == pool for node in side for name in node) for side in (up, down))
            shares.append([(n, total - n) for n in range(1, total)] if s_uses and t_uses else [(total, 0) if s_uses else (0, total)])
        for a, b in shares[0]:
            for c, d in shares[1]:
                yield Units(a, c), Units(b, d)

    def pool(self, stage: str, units: Units) -> int:
        return units.accelerators if self.profile.stage(stage).on == ACCELERATORS else units.cores


def real(options: cost.Columns) -> np.ndarray:
    """Without those that are no placement."""
    return np.stack(options)[:, np.isfinite(options.lead)]


def pairs(s: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return s[:, :, None], t[:, None, :]


def columns_of(*rows: np.ndarray) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*rows)).reshape(5, -1)


def cheapest(graph: MacroGraph, profile: Profile, granules: int, units: Units, memory: int, slot_groups: Sequence[int]) -> float | None:
    """Seconds of a round of the fastest of all placements; None when none fits the memory."""
    every = Enumeration(graph, profile, granules, slot_groups)
    lead, each, _, _, peak = every.placements(every.nodes, units)
    totals = (lead + (granules - 1) * each)[peak <= memory]
    return float(totals.min()) if totals.size else None


POINTS = [Point(*point) for point in product((1, 2, 4, 8), (1, 2, 3), [tenths / 10 for tenths in range(31)], range(5))]
SOME_S = st.sampled_from((0.0, 0.0, 0.1, 2.5))


@st.composite
def measured(draw: st.DrawFn) -> StageProfile:
    on, streams, most_units = draw(st.sampled_from(list(product((CORES, ACCELERATORS, ACCELERATORS), (True, True, False), (None, None, 1, 2)))))
    points = tuple(draw(st.lists(st.sampled_from(POINTS), min_size=1, max_size=4)))
    # resident: never 0, for memory is how `cost` tells that a set uses accelerators
    times = {name: draw(SOME_S) for name in ("begin_s", "update_s", "load_s", "unload_s")}
    return StageProfile(on, points, resident=draw(st.integers(1, 6)), streams=streams, most_units=most_units, **times)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to four nodes in any acyclic order, the first of them a loop or not."""
    graph, count, looped = MacroGraph(), draw(st.integers(1, 4)), draw(st.booleans())
    names = [f"stage{i}" for i in range(count)]
    for name in names + ["answer"] * looped:
        graph.stage(name, None, "item")
    if looped:
        graph.loop("stage0", "answer")
    edges = draw(st.sets(st.sampled_from(list(combinations(range(count), 2))))) if count > 1 else set()
    edges |= {(max(i, 1) - 1, max(i, 1)) for i in range(count) if count > 1 and not any(i in edge for edge in edges)}
    for i, j in sorted(edges):
        graph.edge("answer" if looped and i == 0 and j % 2 else names[i], names[j], carries="items")
    if count > 1:
        graph.edge(names[-1], names[0], carries="weights", lag=0)
    slots = draw(st.sampled_from((1, 2, 4, 6)))
    round_ = Round(draw(st.sampled_from((4, 8, 12))), slots, draw(st.sampled_from(((1,), (1,), (3,), (2, 1, 4)))))
    profile = Profile({name: draw(measured()) for name in graph.stages}, round_)
    granules, memory = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((6, 8, 10, 12, 14, 1000)))
    return graph, profile, granules, Units(draw(st.integers(1, 6)), draw(st.integers(1, 3))), memory, [n for n in range(1, slots + 1) if slots % n == 0]


def best(case: Case) -> list[Option]:
    graph, profile, granules, units, memory, slot_groups = case
    return Search(graph, profile, (granules,), units, memory, slot_groups).best()[granules]


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases())
def test_the_search_finds_the_fastest_of_all_placements_and_nothing_only_where_none_fits(case: Case) -> None:
    found, wanted = best(case), cheapest(*case)
    assert (found[0].total(case[2]) if found else None) == (wanted if wanted is None else pytest.approx(wanted, rel=1e-9, abs=0))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases())
def test_no_placement_holds_more_memory_or_more_units_than_there_are(case: Case) -> None:
    whole, memory = case[3:5]
    for option in best(case):
        units, _, peak = held(option)
        assert peak == option.peak <= memory and units.accelerators <= whole.accelerators and units.cores <= whole.cores


def held(option: Option) -> tuple[Units, int, int]:
    """(units, bytes while loaded, bytes at the worst moment) of a placement, added up from its stages."""
    if isinstance(option.how, Leaf):
        return option.how.units, option.resident, option.peak
    if isinstance(option.how, LoopLeaf):
        (a, b), (c, d) = option.how.first.units, option.how.second.units
        return Units(a + c, b + d) if option.how.join == "split" else Units(max(a, c), max(b, d)), option.resident, option.peak
    kind, first, second = option.how
    ((a, b), r, p), ((c, d), q, o) = held(first), held(second)
    units = Units(a + c if kind in ("split", "mixed") else max(a, c), b + d if kind == "split" else max(b, d))
    return (units, r + q, max(p + q, r + o)) if kind in ("turns", "interleaved") else (units, max(r, q), max(p, o))


def best_of(edges: str, stages: dict[str, StageProfile], items: int, units: Units, memory: int = 1000, joins: Sequence[str] = cost.JOINS) -> list[Option]:
    """The placements of four granules. edges: "ab bc" is a to b to c."""
    graph = MacroGraph()
    for name in stages:
        graph.stage(name, None, "item")
    for source, target in edges.split():
        graph.edge(source, target, carries="items")
    return Search(graph, Profile(stages, Round(items)), (4,), units, memory, ()).best(frozenset(joins))[4]


def stage(seconds: dict[int, float], on: str = ACCELERATORS, memory: int = 0, **more: object) -> StageProfile:
    """Measured on one unit. seconds: of so many items."""
    return StageProfile(on, tuple(Point(items, 1, took, memory) for items, took in seconds.items()), **more)


def test_two_stages_that_gain_nothing_from_a_second_device_are_split() -> None:
    # split: the first granule 1 + 2, then three times max(1, 2) = 9. In turn: 4 * 1 + 4 * 2 = 12.
    best = best_of("ab", {"a": stage({4: 1.0}, most_units=1), "b": stage({4: 2.0}, most_units=1)}, 16, Units(2, 1))[0]
    assert (best.how[0], best.lead, best.each, best.total(4)) == ("split", 3.0, 2.0, 9.0)


def test_two_stages_take_turns_where_the_second_gains_from_both_devices() -> None:
    # b takes 3 s on one device and 1.5 s on two. Turns: 4 * 1 + 4 * 1.5 = 10. Split: 1 + 3, then three times max(1, 3) = 13.
    stages = {"a": stage({4: 1.0}, most_units=1), "b": stage({2: 1.5, 4: 3.0})}
    best = best_of("ab", stages, 16, Units(2, 1), joins=("turns", "split"))[0]
    assert (best.how[0], best.total(4)) == ("turns", 10.0)
    assert best_of("ab", stages, 16, Units(2, 1), joins=("split",))[0].total(4) == 13.0
    assert best_of("ab", stages, 16, Units(2, 1))[0].total(4) == 10.0  # interleaved is as fast: 4 * (1 + 1.5)


def test_where_two_do_not_fit_at_once_they_are_reloaded_and_the_switch_is_paid() -> None:
    # One device of 10 bytes: together 6 + 6 + 2 = 14, one at a time 6 + 2 = 8. 4 * 1 + 4 * 2 and 2 * (0.5 + 0.25) of loading = 13.5.
    both = {"resident": 6, "memory": 2, "load_s": 0.5, "unload_s": 0.25}
    options = best_of("ab", {"a": stage({4: 1.0}, **both), "b": stage({4: 2.0}, **both)}, 16, Units(1, 1), memory=10)
    assert [(option.how[0], option.peak, option.total(4)) for option in options] == [("reloaded", 8, 13.5)]
    assert best_of("ab", {"a": stage({4: 1.0}, **both), "b": stage({4: 2.0}, **both)}, 16, Units(1, 1), memory=14)[0].total(4) == 12.0
    assert best_of("ab", {"a": stage({4: 1.0}, **both), "b": stage({4: 2.0}, **both)}, 16, Units(1, 1), memory=7) == []


def test_a_stage_that_does_not_stream_is_never_overlapped_with_what_it_takes_from() -> None:
    # a 4 * 1, then b's 16 items 4 = 8, on whatever units. Streaming and split: 1 + 1, then three times max(1, 1) = 5.
    stages = {"a": stage({4: 1.0}, most_units=1), "b": stage({4: 1.0, 16: 4.0}, most_units=1, streams=False)}
    options = best_of("ab", stages, 16, Units(2, 1))
    assert options[0].total(4) == 8.0 and not {option.how[0] for option in options} & {"interleaved", "mixed"}
    assert best_of("ab", {**stages, "b": stage({4: 1.0, 16: 4.0}, most_units=1)}, 16, Units(2, 1))[0].total(4) == 5.0


def test_one_device_for_the_first_and_the_other_three_for_the_second() -> None:
    # Granules of 12. 1|3: b has 4 items on each, 1 s: 1 + 1, then three times 1 = 5. 2|2: b 1.5 s: 2.5 + 3 * 1.5 = 7. In turn: 4 + 4 * 0.75 = 7.
    best = best_of("ab", {"a": stage({12: 1.0}, most_units=1), "b": stage({3: 0.75, 12: 3.0})}, 48, Units(4, 1))[0]
    kind, first, second = best.how
    assert (kind, first.how.units, second.how.units, best.total(4)) == ("split", Units(1, 0), Units(3, 0), 5.0)


def test_parallel_branches_begin_together_on_units_of_their_own() -> None:
    # a on cores feeds b and c: 1 + max(2, 2), then three times 2 = 9. One branch after the other's first granule: 1 + 2 + 2 + 6 = 11.
    branch = stage({4: 2.0}, most_units=1)
    assert best_of("ab ac", {"a": stage({4: 1.0}, on=CORES), "b": branch, "c": branch}, 16, Units(2, 1))[0].total(4) == 9.0
    assert best_of("ab bc", {"a": stage({4: 1.0}, on=CORES), "b": branch, "c": branch}, 16, Units(2, 1))[0].total(4) == 11.0


def test_six_stages_on_1024_devices_are_no_slower_than_every_one_on_all_of_them_in_turn() -> None:
    stages = {name: stage({1: 0.01, 1024: (i + 1) * 1.0}, resident=1, memory=1) for i, name in enumerate("abcdef")}
    whole = Units(1024, 64)
    in_turn = sum(float(lead[0] + 3 * each[0]) for lead, each in (cost.leaves(Profile(stages, Round(4096)), name, np.array([1024]), 4)[:2] for name in stages))
    assert 0 < best_of("ab bc cd de ef", stages, 4096, whole)[0].total(4) <= in_turn * (1 + 1e-9)


def test_working_memory_that_grows_with_the_units_decides_too() -> None:
    # Loaded together they hold 2 + 2. a on two devices works with 4 more: 8 in all. In 7 bytes a stays on one: 4 x 2.0, then b on both: 4 x 0.5.
    a = StageProfile(ACCELERATORS, (Point(4, 1, 2.0, 0), Point(4, 2, 1.0, 4)), resident=2)
    assert best_of("ab", {"a": a, "b": stage({2: 0.5, 4: 1.0}, resident=2)}, 16, Units(2, 1), memory=7, joins=("turns",))[0].total(4) == pytest.approx(10.0)


def test_two_sets_that_both_use_accelerators_are_never_mixed_though_no_memory_was_measured() -> None:
    # b and d need 1 s on the one accelerator for each of 4 granules: 8 s at the least.
    on_core, on_device = stage({4: 0.1}, on=CORES), stage({4: 1.0})
    assert best_of("ab bc cd", {"a": on_core, "b": on_device, "c": on_core, "d": on_device}, 16, Units(1, 2))[0].total(4) >= 8.0


def test_of_many_sizes_that_divide_the_work_some_are_tried_the_smallest_and_the_largest_among_them() -> None:
    graph = MacroGraph()
    graph.stage("a", None, "item")
    sizes = Shape(graph, Profile({"a": stage({1: 1.0})}, Round(11520)), (1,), Units(1024, 8)).sizes[0].tolist()
    assert {1, 960, 1024, 64} <= set(sizes) and len(sizes) <= 2 * MOST_SIZES + 2 and all(11520 % n == 0 or 11520 % (1024 - n or 1) == 0 for n in sizes)
