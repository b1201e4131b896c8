"""One seed gives one run: whatever the number of workers, the plan, and where it was cut and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.runs import assert_equal_to_the_bit, episodes, run, trained

ALGORITHMS = {"grpo": ["algorithm=grpo"], "ppo": ["algorithm=ppo"], "reinforce": ["algorithm=reinforce"]}


@pytest.fixture(scope="module", params=sorted(ALGORITHMS))
def oracle(request, tmp_path_factory) -> tuple[list[str], Path]:
    """A serial, collocated run in this process."""
    arguments = ALGORITHMS[request.param]
    return arguments, run(tmp_path_factory.mktemp(request.param), *arguments)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_and_slot_groups_change_nothing(workers: int, oracle, tmp_path: Path) -> None:
    arguments, serial = oracle
    other = run(tmp_path, *arguments, f"sim.workers={workers}", "scheduler.mode=hybrid")
    assert episodes(other) == episodes(serial)
    assert_equal_to_the_bit(trained(other), trained(serial))


def test_the_number_of_slots_changes_nothing(oracle, tmp_path: Path) -> None:
    arguments, serial = oracle
    other = run(tmp_path, *arguments, "sim.slots=3", "scheduler.mode=hybrid")
    assert episodes(other) == episodes(serial)
    assert_equal_to_the_bit(trained(other), trained(serial))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_run_cut_and_resumed_is_the_unbroken_one(cut: int, oracle, tmp_path: Path) -> None:
    """Cut before, inside and at the very end of what was first asked for."""
    arguments, unbroken = oracle
    folder = run(tmp_path, *arguments, f"iterations={cut}", "evaluation.after=false")
    assert run(tmp_path, *arguments, "resume=auto", "iterations=3", "evaluation.after=true") == folder
    assert episodes(folder) == episodes(unbroken)
    assert_equal_to_the_bit(trained(folder), trained(unbroken))
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]


def test_another_seed_is_another_run(oracle, tmp_path: Path) -> None:
    arguments, serial = oracle
    other = run(tmp_path, *arguments, "seed=1")
    assert episodes(other) != episodes(serial)
