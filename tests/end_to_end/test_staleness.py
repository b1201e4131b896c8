"""staleness=1: each round samples with the weights of one update ago. Whatever runs when, and cut and resumed too, the results are the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embodied import train
from tests.end_to_end.runs import TOY, assert_equal_to_the_bit, episodes, run, trained

STALE = ["staleness=1", "iterations=4", "evaluation.before=false"]


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("serial"), *STALE)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line)["learn"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_first_two_rounds_sample_with_the_start_and_later_ones_are_corrected_for(serial: Path) -> None:
    weights = [row["stale_weight"] for row in metrics(serial)]
    assert weights[0] == 1.0 and all(weight != 1.0 for weight in weights[1:])


def test_the_first_round_is_that_of_a_run_without_lag_and_the_second_is_not(serial: Path, tmp_path: Path) -> None:
    fresh = run(tmp_path, *STALE[1:])
    assert episodes(fresh)[:40] == episodes(serial)[:40] and episodes(fresh)[40:] != episodes(serial)[40:]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_workers_and_slot_groups_change_nothing(groups: int, serial: Path, tmp_path: Path) -> None:
    found = run(tmp_path, *STALE, "sim.slots=4", "sim.workers=2", "scheduler=hybrid", f"scheduler.groups={groups}")
    assert episodes(found) == episodes(serial)
    assert_equal_to_the_bit(trained(found, 4), trained(serial, 4))


def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(serial: Path, tmp_path: Path) -> None:
    first = run(tmp_path, *STALE[:1], *STALE[2:], "iterations=2", "evaluation.after=false")
    again = run(tmp_path, *STALE, "evaluation.after=true", f"resume={first}")
    assert first == again and episodes(again) == episodes(serial)
    assert_equal_to_the_bit(trained(again, 4), trained(serial, 4))


def test_imitation_samples_nothing_that_could_be_stale(tmp_path: Path, capsys) -> None:
    assert train.main([*TOY[:2], "algorithm=bc", "staleness=1", f"data={tmp_path}", f"output={tmp_path}"]) == 1
    assert "staleness=1" in capsys.readouterr().err
