"""Planning where sampling may run ahead of learning: what an iteration then takes, worked by hand, and which plan that makes the best.

The flow is a loop of sim and act, with learn behind it; the loop takes 10 s a round, learn 8 s. Seconds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.graph import MacroGraph
from scheduler.planning.judge import steady
from scheduler.planning.plan import judged, plan
from scheduler.planning.schedule import Plan, StagePlan
from scheduler.profile import ACCELERATORS, CORES, Point, Profile, Round, StageProfile
from scheduler.resources import Accelerator, Cluster, Node
from scheduler.timeline import Span, Timeline


def loop(lag: int) -> MacroGraph:
    graph = MacroGraph()
    for name in ("sim", "act", "learn"):
        graph.stage(name, None, "item")
    graph.loop("sim", "act")
    graph.edge("sim", "learn", carries="trajectory")
    graph.edge("learn", "act", carries="weights", lag=lag)
    return graph


def takes(seconds: float, on: str, **more: object) -> StageProfile:
    """However many items, on one unit; more gain nothing."""
    return StageProfile(on, (Point(1, 1, seconds), Point(8, 1, seconds)), most_units=1, **more)


def profile(learn_on: str = ACCELERATORS, learn: float = 8.0) -> Profile:
    """10 turns of 0.6 + 0.4 s; learning waits for the round."""
    return Profile({"sim": takes(0.6, CORES), "act": takes(0.4, ACCELERATORS), "learn": takes(learn, learn_on, streams=False)}, Round(1, 1, (10,)))


def machine(accelerators: int, cores: int = 4) -> Cluster:
    return Cluster((Node("here", cores, 1 << 34, tuple(Accelerator(f"gpu:{i}", 1 << 34) for i in range(accelerators))),))


def test_without_lag_a_round_is_sampled_and_then_learned() -> None:
    assert plan(loop(0), profile(), machine(2)).predicted.iteration_s == pytest.approx(18)


def test_with_lag_learning_on_a_device_of_its_own_overlaps_sampling() -> None:
    # Round r + 1 is sampled in 10 s while round r is learned in 8. In turn on shared devices an answer would wait for the learner.
    chosen = plan(loop(1), profile(), machine(2))
    assert chosen.predicted.iteration_s == pytest.approx(10)
    assert not set(chosen.stages["act"].devices) & set(chosen.stages["learn"].devices) and chosen.mode == "disaggregated"


def test_where_learning_takes_longer_it_sets_the_pace() -> None:
    assert plan(loop(1), profile(learn=13.0), machine(2)).predicted.iteration_s == pytest.approx(13)


def test_what_is_slow_for_one_round_and_fast_with_lag_is_among_the_candidates() -> None:
    # Learning both items takes 2 s on two devices and 9 s on one. One round: 10 + 2 on both beats 10 + 9. With lag: 10 beside 9.
    learn = StageProfile(ACCELERATORS, (Point(2, 1, 9.0), Point(2, 2, 2.0)), streams=False)
    found = replace(profile(), round=Round(2, 2, (10,)), stages={**profile().stages, "learn": learn})
    in_turn, ahead = plan(loop(0), found, machine(2)), plan(loop(1), found, machine(2))
    assert (in_turn.predicted.iteration_s, len(in_turn.stages["learn"].devices)) == (pytest.approx(12), 2)
    assert (ahead.predicted.iteration_s, len(ahead.stages["learn"].devices)) == (pytest.approx(10), 1)


def test_a_learner_on_cores_overlaps_only_in_a_process_of_its_own() -> None:
    # In the caller's process it holds up the loop for its 8 s.
    here, apart = (plan(loop(1), profile(CORES), machine(1), apart=apart) for apart in (False, True))
    assert (here.stages["learn"].processes, here.predicted.iteration_s > 16) == (0, True)
    assert (apart.stages["learn"].processes, apart.predicted.iteration_s) == (1, pytest.approx(10))


def test_on_one_device_a_process_of_its_own_changes_little() -> None:
    # act and learn need 10 x 0.4 + 8 = 12 s of the device.
    assert plan(loop(1), profile(), machine(1), apart=True).predicted.iteration_s >= 12 - 1e-6


def test_without_lag_processes_of_its_own_are_not_tried() -> None:
    assert plan(loop(0), profile(CORES), machine(1), apart=True) == plan(loop(0), profile(CORES), machine(1))


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_busy_seconds_and_idle_shares_are_those_of_one_iteration(lag: int) -> None:
    stages = {"sim": StagePlan(processes=1), "act": StagePlan(("gpu:0",), 1), "learn": StagePlan(("gpu:1",), 1)}
    found = judged(loop(lag), Plan("disaggregated", 1, 1, stages), profile(), machine(2)).predicted
    assert found.iteration_s == pytest.approx(10)
    assert found.by_stage == {"sim": pytest.approx(6), "act": pytest.approx(4), "learn": pytest.approx(8)}
    assert found.idle == {"cores": pytest.approx(1 - 6 / 40), "accelerators": pytest.approx(1 - 12 / 20)}


def test_the_first_and_the_last_rounds_do_not_count() -> None:
    # Updates end at 28, 46, 64, 82 and then, with nothing left to sample, at 100 - 10 = 90: of lag 1 the second to the fourth count, 18 s each.
    rounds = [Timeline([Span("learn", "update", r, None, end - 8, end, 0)]) for r, end in enumerate((28.0, 46.0, 64.0, 82.0, 90.0))]
    assert steady(rounds, 1) == (18.0, {"learn": 8.0})
