"""A rehearsed round takes the seconds that its profile, its plan and the executor's rules give by hand.

The flow is a loop of sim and act, with learn behind it. Every number is worked in a comment; seconds.
"""

from __future__ import annotations

from statistics import mean

import pytest

from scheduler.graph import MacroGraph
from scheduler.planning import rehearse as rehearsing
from scheduler.planning.rehearse import finishes, rehearse
from scheduler.planning.schedule import Plan, StagePlan
from scheduler.profile import ACCELERATORS, CORES, Point, Profile, Round, StageProfile
from scheduler.resources import Cluster, Node
from scheduler.timeline import Timeline

OWN = StagePlan(processes=1)  # a process of its own
HERE = StagePlan()  # in the program's process: its calls hold up the executor


def loop() -> MacroGraph:
    graph = MacroGraph()
    for name in ("sim", "act", "learn"):
        graph.stage(name, None, "item")
    graph.loop("sim", "act")
    graph.edge("sim", "learn", carries="trajectory")
    graph.edge("learn", "act", carries="weights", lag=0)
    return graph


def takes(seconds: float, on: str = CORES, units: int = 1, **more) -> StageProfile:
    """So long for each item on one unit; `units` that share the items take as long for that many."""
    return StageProfile(on, (Point(units, units, seconds),), **more)


def plan(slots: int = 1, groups: int = 1, resident: bool = True, **stages: StagePlan) -> Plan:
    return Plan("hybrid", slots, groups, {"sim": OWN, "act": HERE, "learn": HERE} | stages, None if resident else ())


def machine(cores: int = 8) -> Cluster:
    return Cluster((Node("local", cores, 10**9),))


def timeline(found: Profile, chosen: Plan, **options) -> Timeline:
    return rehearse(loop(), chosen, found, machine(), **options)[0].timeline


def ends(found: Timeline, stage: str) -> list[float]:
    return [span.end for span in found.spans if span.stage == stage]


def test_one_slot_plays_turn_after_turn_and_item_after_item():
    # 3 items x (begin 1 + 2 turns x (act 3 + sim 2)) = 33; learn: 3 items x 4 and 0.5 for the update.
    found = Profile({"sim": takes(2, begin_s=1), "act": takes(3), "learn": takes(4, update_s=0.5)}, Round(3, 1, (2,)))
    assert timeline(found, plan()).wall == pytest.approx(33 + 12.5)


def test_an_item_takes_its_own_turns_and_the_list_of_turns_is_gone_through_again():
    # Items 0 to 4 take 1, 3, 1, 3 and 1 turns of 1 + 2 s: 9 x 3 = 27.
    found = Profile({"sim": takes(2), "act": takes(1), "learn": takes(0)}, Round(5, 1, (1, 3)))
    assert timeline(found, plan()).wall == pytest.approx(27)


def test_two_slot_groups_on_two_processes_step_while_the_other_one_is_answered():
    # Both begin 0..1. act for group 0 1..3, then group 0 steps 3..7 while act answers group 1 3..5, which steps 5..9.
    # act for group 0 7..9, step 9..13; act for group 1 9..11, step 11..15. One group of both: 1 + 2 turns x (act 2 x 2 + step 4) = 17.
    found = Profile({"sim": takes(4, units=2, begin_s=1), "act": takes(2), "learn": takes(0)}, Round(2, 2, (2,)))
    two = timeline(found, plan(2, 2, sim=StagePlan(processes=2)))
    assert (ends(two, "act"), ends(two, "sim")) == ([3, 5, 9, 11], [1, 1, 7, 9, 13, 15])
    assert timeline(found, plan(2, 1, sim=StagePlan(processes=2))).wall == 17


def test_processes_of_one_group_step_at_once():
    # Begin 1, then 2 turns x (act 2 x 2 + step 4): the step is not doubled, the call to act is.
    found = Profile({"sim": takes(4, units=2, begin_s=1), "act": takes(2), "learn": takes(0)}, Round(2, 2, (2,)))
    assert timeline(found, plan(2, 1, sim=StagePlan(processes=2))).wall == pytest.approx(1 + 2 * (4 + 4))


def test_processes_share_the_cores_that_there_are():
    # On 1 core the two steps of 4 s take 8, and the two begins of 1 s take 2.
    found = Profile({"sim": takes(4, units=2, begin_s=1), "act": takes(2), "learn": takes(0)}, Round(2, 2, (2,)))
    results = rehearse(loop(), plan(2, 1, sim=StagePlan(processes=2)), found, machine(cores=1))
    assert results[0].timeline.wall == pytest.approx(2 + 2 * (4 + 8))


def test_a_pool_of_processes_takes_as_long_as_its_processes(monkeypatch):
    # Four processes of one slot in two groups; as a pool each group is one task on its two units.
    found = Profile({"sim": takes(4, begin_s=1), "act": takes(1), "learn": takes(0)}, Round(8, 4, (2,)))
    chosen = plan(4, 2, sim=StagePlan(processes=4))
    single = timeline(found, chosen)
    monkeypatch.setattr(rehearsing, "MANY_PROCESSES", 3)
    assert timeline(found, chosen).spans == single.spans


def test_a_slot_begins_the_next_item_as_soon_as_it_is_free():
    # turns 3, 1, 2, 3, 1 in two slots: 0 ends at 3 and 1 at 1; 2 runs 1..3; 3 runs 3..6 and 4 runs 3..4. Both slots are busy until 4.
    assert finishes((3, 1, 2), 5, 2) == [(1, 2, [1]), (3, 2, [0, 2]), (4, 2, [4]), (6, 1, [3])]


def test_items_of_as_many_turns_each_end_in_waves():
    # Five items of 3 turns in two slots: two, two and the last one.
    assert [(at, busy, list(items)) for at, busy, items in finishes((3,), 5, 2)] == [(3, 2, [0, 1]), (6, 2, [2, 3]), (9, 1, [4])]


def test_fewer_items_than_slots_all_begin_at_once():
    assert finishes((2, 5, 2), 3, 8) == [(2, 3, [0, 2]), (5, 1, [1])]


def test_one_slot_plays_the_list_in_order():
    assert finishes((2, 1), 4, 1) == [(2, 1, [0]), (3, 1, [1]), (5, 1, [2]), (6, 1, [3])]


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 20])
def test_every_item_ends_once(slots):
    assert sorted(item for _, _, items in finishes((5, 1, 3, 2), 13, slots) for item in items) == list(range(13))


def test_a_source_without_a_partner_gives_each_item_when_it_ends():
    # As finishes: 1 s a turn while two slots are busy, 0.5 s with one. Items end at turns 1, 3, 4 and 6: at 1, 3, 4 and 4 + 2 x 0.5 = 5 s.
    # Each is learned in 0.25 s, and the update follows.
    graph = MacroGraph()
    graph.stage("write", None, "answer")
    graph.stage("learn", None, "answer")
    graph.edge("write", "learn", carries="answers")
    found = Profile({"write": takes(0.5), "learn": takes(0.25)}, Round(5, 2, (3, 1, 2)))
    chosen = Plan("hybrid", 2, 1, {"write": OWN, "learn": StagePlan(processes=1, granule=1)})
    result = rehearse(graph, chosen, found, machine())[0]
    # The ledger's order holds 1 back until 0 is there: 0, 1 and 2 leave from 3 on, 3 at 5, and 4, there since 4, behind it.
    assert [(span.start, span.end) for span in result.timeline.spans if span.stage == "learn" and span.kind == "granule"] == [(3, 3.25), (3.25, 3.5), (3.5, 3.75), (5, 5.25), (5.25, 5.5)]


@pytest.mark.parametrize("slots, groups, processes", [(1, 1, 1), (2, 2, 0), (4, 2, 2), (6, 3, 6), (12, 4, 5)])
def test_every_item_is_emitted_once_in_every_round(slots, groups, processes):
    found = Profile({"sim": takes(1, begin_s=0.5), "act": takes(1), "learn": takes(1)}, Round(7, slots, (3, 1, 2)))
    chosen = plan(slots, groups, sim=StagePlan(processes=processes), learn=StagePlan(granule=2))
    assert [[item.order for item in result.items] for result in rehearse(loop(), chosen, found, machine(), rounds=2)] == [list(range(7))] * 2


def test_a_stage_that_streams_works_on_granules_while_the_source_goes_on():
    # Items are there at 2 and 4; learned 2..5 and 5..8, and the update takes 1.
    found = Profile({"sim": takes(1), "act": takes(1), "learn": takes(3, update_s=1)}, Round(2))
    assert ends(timeline(found, plan(act=OWN, learn=StagePlan(processes=1, granule=1))), "learn") == [5, 8, 9]


def test_a_stage_that_does_not_stream_works_when_the_last_item_is_there():
    # Items are there at 2 and 4 and cost nothing then; the update learns both: 4 + 2 x 3 + 1.
    found = Profile({"sim": takes(1), "act": takes(1), "learn": takes(3, update_s=1, streams=False)}, Round(2))
    assert ends(timeline(found, plan(act=OWN, learn=StagePlan(processes=1, granule=1))), "learn") == [2, 4, 11]


def test_a_stage_in_the_middle_that_does_not_stream_takes_its_time_once_all_items_are_there():
    # Items at 2 and 4; rate takes both from 4 on, 2 x 3; learn 2 x 1.
    graph = MacroGraph()
    for name in ("sim", "act", "rate", "learn"):
        graph.stage(name, None, "item")
    graph.loop("sim", "act")
    graph.edge("sim", "rate", carries="trajectory")
    graph.edge("rate", "learn", carries="trajectory")
    found = Profile({"sim": takes(1), "act": takes(1), "rate": takes(3, streams=False), "learn": takes(1)}, Round(2))
    assert rehearse(graph, plan(rate=OWN), found, machine())[0].timeline.wall == pytest.approx(4 + 6 + 2)


def on_devices(act: str, learn: str, resident: bool) -> list[float]:
    """The seconds of two rounds of one item: act 1, step 2, learn 4. act loads in 5 and unloads in 3, learn in 7 and 6."""
    found = Profile({"sim": takes(2), "act": takes(1, ACCELERATORS, load_s=5, unload_s=3), "learn": takes(4, ACCELERATORS, load_s=7, unload_s=6)}, Round(1))
    chosen = plan(1, 1, resident, act=StagePlan((act,)), learn=StagePlan((learn,)))
    return [result.timeline.wall for result in rehearse(loop(), chosen, found, machine(), rounds=2)]


def test_stages_that_share_a_device_and_do_not_fit_on_it_together_load_and_unload_in_turn():
    # load act 5, act 1, step 2, unload act 3, load learn 7, learn 4 = 22; the second round unloads learn first: 6 + 22.
    assert on_devices("gpu0", "gpu0", resident=False) == [22, 28]


def test_stages_that_stay_loaded_share_a_device_for_nothing():
    assert on_devices("gpu0", "gpu0", resident=True) == [7, 7]


def test_stages_on_devices_of_their_own_load_once():
    # load act 5 and load learn 7, in the first round alone.
    assert on_devices("gpu0", "gpu1", resident=False) == [7 + 12, 7]


def test_the_executors_own_time_is_spent_on_every_call():
    # One item of one turn: begin, act, step, granule, update are five calls.
    found = Profile({"sim": takes(2), "act": takes(1), "learn": takes(4)}, Round(1), call_s=0.25)
    assert timeline(found, plan()).spans[-1].end == pytest.approx(7 + 5 * 0.25)


def spread(seed: int) -> float:
    found = Profile({"sim": takes(2, spread=0.5), "act": takes(1, spread=0.3), "learn": takes(0)}, Round(2000))
    return timeline(found, plan(), seed=seed).wall


def test_a_spread_is_the_same_for_the_same_seed():
    assert spread(1) == spread(1)


def test_a_spread_differs_between_seeds():
    assert spread(1) != spread(2)


def test_a_spread_keeps_the_mean():
    # 2000 x (2 + 1) = 6000; its deviation is sqrt(2000 x (1 + 0.09)) = 47 in one round, 21 in the mean of five.
    assert mean(spread(seed) for seed in range(5)) == pytest.approx(6000, abs=4 * 21)


ON_GPUS = {"sim": StagePlan(("gpu0",)), "act": StagePlan(("gpu1",))}


def test_items_in_bundles_take_as_long_as_one_by_one(monkeypatch):
    # 48 items, 8 slots a group and granules of 8 in bundles of 4: at most 12 numbers for a round.
    found = Profile({"sim": takes(0.5, ACCELERATORS, begin_s=1), "act": takes(0.25, ACCELERATORS), "learn": takes(1)}, Round(48, 16, (3,)))
    chosen = plan(16, 2, **ON_GPUS, learn=StagePlan(granule=8))
    calls = []
    for most in (48, 12):
        monkeypatch.setattr(rehearsing, "ALIKE_ITEMS", most)
        calls.append([(span.stage, span.kind, span.group, span.start, span.end) for span in timeline(found, chosen).spans])
    assert calls[0] == calls[1]


def test_items_in_bundles_are_as_much_work_where_their_turns_differ(monkeypatch):
    # 48 items of 1 and 9 turns in turn are 240 turns of act, 0.25 s each. In bundles of 2 each holds one of both.
    found = Profile({"sim": takes(0.5, ACCELERATORS), "act": takes(0.25, ACCELERATORS), "learn": takes(0)}, Round(48, 16, (1, 9)))
    monkeypatch.setattr(rehearsing, "MANY_ITEMS", 24)
    assert timeline(found, plan(16, 2, **ON_GPUS)).busy()["act"] == pytest.approx(240 * 0.25)


@pytest.mark.parametrize(
    "items, slots, groups, granule, bundle",
    [
        (48, 16, 2, 8, 4),  # 12 would do, and 8, 8 and 48 are divided by 4
        (12, 16, 2, 8, 1),  # few enough
        (45, 16, 2, None, 1),  # 8 slots a group and 45 items have no divisor in common
        (64, 8, 2, None, 4),  # 16 remain, the 4 slots of a group have no larger divisor
        (36, 12, 1, None, 3),  # 3 is the smallest that does: 12 remain
    ],
)
def test_a_bundle_is_the_smallest_that_divides_everything_and_leaves_few_enough(monkeypatch, items, slots, groups, granule, bundle):
    monkeypatch.setattr(rehearsing, "ALIKE_ITEMS", 12)
    found = Profile({}, Round(items, slots))
    assert rehearsing.bundle_of(plan(slots, groups, **ON_GPUS, learn=StagePlan(granule=granule)), found, "sim") == bundle
