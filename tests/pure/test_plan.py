"""What a plan file may say, and what the planner chooses and refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embodied import graphs
from scheduler.planning.plan import plan
from scheduler.planning.schedule import Plan, PlanError, StagePlan, check, load
from scheduler.profile import Point, Profile, ProfileError, Round, StageProfile
from scheduler.resources import Accelerator, Cluster, Node

TWO_CORES = Cluster((Node("local", 2, 8 << 30),))
GRAPH = graphs.reinforcement()


def profile(sim: float = 0.5, act: float = 0.1, learn: float = 3.0) -> Profile:
    """Seconds: a turn of one slot on one core, an answer for one slot, learning from the round's 4 items of 6 turns on two cores."""
    return Profile({
        "sim": StageProfile("cores", (Point(1, 1, sim), Point(2, 2, sim)), most_units=2),
        "act": StageProfile("cores", (Point(1, 1, act), Point(2, 1, 2 * act)), most_units=1),
        "learn": StageProfile("cores", (Point(4, 2, learn),), streams=False, most_units=2),
    }, Round(4, 2, (6,)))  # fmt: skip


def on_accelerators(memory: int, resident: int = 0, load_s: float = 0.0) -> tuple[Profile, Cluster]:
    stage = StageProfile("accelerators", (Point(1, 1, 1.0), Point(4, 1, 4.0)), resident=resident, load_s=load_s)
    cluster = Cluster((Node("n", 4, 1 << 40, tuple(Accelerator(f"gpu:{i}", memory) for i in range(2))),))
    return Profile({"sim": StageProfile("cores", (Point(1, 1, 0.1),)), "act": stage, "learn": stage}, Round(4, 4, (3,))), cluster


def written(**changes: object) -> Plan:
    stages = {"sim": StagePlan(processes=2), "act": StagePlan(), "learn": StagePlan(threads=2)}
    return replace(Plan("hybrid", 4, 2, stages), **changes)


def test_a_plan_comes_back_from_its_file_with_its_prediction_and_what_was_rejected(tmp_path) -> None:
    made = plan(GRAPH, profile(), TWO_CORES)
    made.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == made and made.predicted is not None and made.rejected


def test_a_file_that_is_no_plan_is_refused(tmp_path) -> None:
    (tmp_path / "plan.json").write_text('{"mood": "good", "stages": {}}')
    with pytest.raises(PlanError, match="mood"):
        load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slot_groups": 3}, r"\[1, 2, 4\]"), ({"mode": "hybird"}, "collocated, disaggregated, hybrid"), ({"stages": {"sim": StagePlan()}}, "'act', 'learn'"),
        ({"stages": {**written().stages, "act": StagePlan(devices=("cuda:7",))}}, "cuda:7.*no accelerator"),
        ({"stages": {**written().stages, "sim": StagePlan(processes=9)}}, "at most 4"),
        ({"stages": {**written().stages, "learn": StagePlan(threads=3)}}, "3 threads on 2 cores"),
        ({"stages": {**written().stages, "learn": StagePlan(granule=0)}}, "granule=0"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_graph_or_machine_is_refused_with_what_would(changes: dict, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        check(written(**changes), GRAPH, TWO_CORES)


def test_on_two_cores_sharing_them_at_once_beats_taking_turns() -> None:
    # In turn: 2 items a slot x 6 turns x (0.5 + 2 x 0.1) + 3 = 11.4 s. Two slot groups beside each other: a group's 12 turns of
    # 0.5 + 0.1 take 7.2 s where nothing is in the way; the cores have (2 x 0.5 + 2 x 0.1) x 12 / 2 = 7.2 s of work; + 3 = 10.2 s.
    chosen = plan(GRAPH, profile(), TWO_CORES)
    assert (chosen.mode, chosen.slot_groups) == ("hybrid", 2)
    assert chosen.predicted.iteration_s == pytest.approx(10.2, rel=0.03)  # the first answers cannot overlap
    (collocated,) = (each for each in chosen.rejected if each.mode == "collocated")
    assert collocated.iteration_s == pytest.approx(11.4)


def test_the_learner_gets_every_core() -> None:
    assert plan(GRAPH, profile(), TWO_CORES).stages["learn"].threads == 2


def test_a_mode_that_no_plan_has_is_refused_with_the_reason() -> None:
    with pytest.raises(PlanError, match="2 cores for 3 stages"):
        plan(GRAPH, profile(), TWO_CORES, "disaggregated")


def test_an_unknown_mode_is_refused_with_those_there_are() -> None:
    with pytest.raises(PlanError, match="collocated, disaggregated, hybrid"):
        plan(GRAPH, profile(), TWO_CORES, "hybird")


def test_a_profile_that_lacks_a_stage_is_refused_by_its_name() -> None:
    whole = profile()
    with pytest.raises(ProfileError, match="'learn'"):
        plan(GRAPH, replace(whole, stages={name: whole.stages[name] for name in ("sim", "act")}), TWO_CORES)


def test_more_memory_than_there_is_is_refused_with_what_frees_it() -> None:
    found, cluster = on_accelerators(memory=10 << 30, resident=12 << 30)
    with pytest.raises(PlanError, match="holds 12.0 GiB.*LoRA"):
        plan(GRAPH, found, cluster)


def test_stages_that_fit_one_at_a_time_only_are_reloaded_or_kept_apart() -> None:
    found, cluster = on_accelerators(memory=16 << 30, resident=12 << 30, load_s=1.0)
    chosen = plan(GRAPH, found, cluster)
    shared = set(chosen.stages["act"].devices) & set(chosen.stages["learn"].devices)
    assert not (shared and chosen.together is None)


def test_a_learner_that_waits_for_the_round_needs_memory_for_all_of_it() -> None:
    # 1 GiB an item: 4 on one device are 4 GiB and fit into 5, 8 do not.
    learn = StageProfile("accelerators", (Point(1, 1, 1.0, 1 << 30), Point(8, 1, 8.0, 8 << 30)), streams=False)
    cluster = Cluster((Node("n", 4, 1 << 40, (Accelerator("gpu", 5 << 30),)),))
    stages = {"sim": StageProfile("cores", (Point(1, 1, 0.1),)), "act": StageProfile("accelerators", (Point(1, 1, 0.1),)), "learn": learn}
    assert plan(GRAPH, Profile(stages, Round(4, 4, (3,))), cluster).predicted.memory["gpu"] <= 5 << 30
    with pytest.raises(PlanError, match="its share of 8 items"):
        plan(GRAPH, Profile(stages, Round(8, 8, (3,))), cluster)


def test_no_accelerator_for_stages_that_were_measured_on_one_is_said() -> None:
    found, _ = on_accelerators(memory=1 << 30)
    with pytest.raises(PlanError, match="cluster without one"):
        plan(GRAPH, found, TWO_CORES)


def test_a_given_number_of_processes_is_what_the_plan_has() -> None:
    assert plan(GRAPH, profile(), TWO_CORES, processes=1).stages["sim"].processes == 1


def test_more_processes_than_cores_are_planned_for_all_the_same() -> None:
    whole = replace(profile(), round=Round(4, 4, (6,)))
    assert plan(GRAPH, whole, TWO_CORES, processes=4).stages["sim"].processes == 4


def test_slot_groups_that_do_not_divide_the_slots_are_refused_with_those_that_do() -> None:
    with pytest.raises(PlanError, match=r"\[1, 2\]"):
        plan(GRAPH, profile(), TWO_CORES, slot_groups=[3])


@pytest.mark.parametrize("group, granule, seconds", [(1, 1, 9.0), (2, 2, 10.0), (4, 4, 12.0)])
def test_a_granule_holds_whole_groups(group: int, granule: int, seconds: float) -> None:
    # 8 items end one after the other, 1 s each; a granule that is there is learned beside them, 1 s an item: 8 s and the last granule.
    stage = StageProfile("accelerators", (Point(1, 1, 0.5), Point(8, 1, 4.0)), most_units=1)
    learn = replace(stage, points=(Point(1, 1, 1.0), Point(8, 1, 8.0)))
    cluster = Cluster((Node("n", 4, 1 << 40, tuple(Accelerator(f"gpu:{i}", 1 << 30) for i in range(2))),))
    found = Profile({"sim": StageProfile("cores", (Point(1, 1, 0.5),)), "act": stage, "learn": learn}, Round(8, 1, (1,), group=group))
    chosen = plan(GRAPH, found, cluster)
    assert (chosen.stages["learn"].granule, chosen.predicted.iteration_s) == (granule, pytest.approx(seconds))
