"""Measuring through a backend whose durations are known gives those durations back; and a profile follows what an iteration took."""

from __future__ import annotations

import pytest

from embodied import graphs
from scheduler.backends.virtual_backend import VirtualBackend
from scheduler.planning.explain import bottleneck, explained, plan_table, seconds, stage_table
from scheduler.planning.measure import calibrated, sample, typical
from scheduler.planning.plan import plan
from scheduler.planning.rehearse import stages_of
from scheduler.planning.schedule import Plan, StagePlan
from scheduler.profile import Point, Profile, Round, StageProfile
from scheduler.resources import Cluster, Node

CLUSTER = Cluster((Node("local", 2, 8 << 30),))
PROFILE = Profile({
    "sim": StageProfile("cores", (Point(1, 1, 0.5), Point(2, 2, 0.6)), begin_s=0.2, most_units=2),
    "act": StageProfile("cores", (Point(1, 1, 0.1), Point(2, 1, 0.15)), most_units=1),
    "learn": StageProfile("cores", (Point(8, 2, 3.0),), streams=False),
}, Round(8, 2, (20,)))  # fmt: skip


def sampled(turns: int, overhead: float = 0.0):
    laid_out = Plan("collocated", 2, 1, {"sim": StagePlan(processes=2), "act": StagePlan()})
    graph = graphs.evaluation()
    return sample(laid_out.flow(graph), VirtualBackend(stages_of(graph, laid_out, PROFILE, CLUSTER), 2, overhead), turns)


def test_a_sample_of_the_loop_gives_the_seconds_of_each_call() -> None:
    found = sampled(5)
    assert found.begin == pytest.approx(0.2)
    assert found.step == pytest.approx([0.6] * 5) and found.answer == pytest.approx([0.15] * 5)


def test_a_sample_tells_the_seconds_that_are_none_of_a_stages() -> None:
    assert sampled(5, overhead=0.25).call_s == pytest.approx(0.25)
    assert sampled(5).call_s == pytest.approx(0.0)


def test_a_sample_longer_than_the_round_ends_with_the_round() -> None:
    # 8 items of 20 turns in 2 slots: 80 turns, the last one without an answer after it.
    assert len(sampled(500).step) == 80


def test_what_is_typical_leaves_out_the_extremes() -> None:
    assert typical([1.0] * 18 + [0.0, 100.0]) == 1.0 and typical([2.0, 4.0]) == 3.0


def test_a_profile_is_scaled_by_what_was_measured_over_what_was_predicted() -> None:
    found = calibrated(PROFILE, {"sim": 10.0, "act": 2.0, "learn": 0.0}, {"sim": 12.0, "act": 1.0, "learn": 5.0})
    assert found.stages["sim"].points[0].seconds == pytest.approx(0.6) and found.stages["sim"].begin_s == pytest.approx(0.24)
    assert found.stages["act"].points[0].seconds == pytest.approx(0.05)
    assert found.stages["learn"] == PROFILE.stages["learn"]  # nothing was predicted of it


def test_one_iteration_changes_a_profile_no_more_than_fivefold() -> None:
    assert calibrated(PROFILE, {"sim": 1.0}, {"sim": 100.0}).stages["sim"].points[0].seconds == pytest.approx(2.5)


def test_a_plan_is_explained_with_its_bottleneck_and_the_reasons_of_the_others() -> None:
    chosen = plan(graphs.reinforcement(), PROFILE, CLUSTER)
    text = explained(chosen)
    assert chosen.reason in text and "the bottleneck is sim" in text and "not collocated" in text
    assert "sim" in stage_table(chosen) and "cannot run" in plan_table(chosen)


def test_a_plan_without_a_prediction_says_so() -> None:
    assert "measured" in bottleneck(Plan("collocated", 1, 1, {}))


def test_seconds_have_three_digits_and_a_unit() -> None:
    assert [seconds(value) for value in (0.00123, 1.234, 123.4)] == ["1.23 ms", "1.23 s", "123 s"]
