"""The two plans, and what they refuse."""

from __future__ import annotations

import pytest

from scheduler.planning.plan import Plan, PlanError, load, plan
from scheduler.resources import Cluster, Node

TWO_CORES = Cluster((Node("local", 2, 8 << 30),))


def test_collocated_is_one_slot_group_and_pipelined_one_per_slot() -> None:
    assert plan("collocated", 4, None, 2, TWO_CORES).groups == 1
    assert plan("pipelined", 4, None, 2, TWO_CORES).groups == 4
    assert plan("pipelined", 4, 2, 2, TWO_CORES).groups == 2


def test_the_learner_gets_every_core() -> None:
    assert plan("collocated", 4, None, 2, TWO_CORES).threads["learn"] == 2


def test_an_unknown_mode_is_refused_with_those_there_are() -> None:
    with pytest.raises(PlanError, match="collocated, pipelined"):
        plan("hybird", 4, None, 2, TWO_CORES)


def test_a_plan_comes_back_from_its_file(tmp_path) -> None:
    made: Plan = plan("pipelined", 4, 2, 2, TWO_CORES)
    made.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == made


def test_a_file_that_is_no_plan_is_refused(tmp_path) -> None:
    (tmp_path / "plan.json").write_text('{"mood": "good"}')
    with pytest.raises(PlanError, match="mood"):
        load(tmp_path / "plan.json")
