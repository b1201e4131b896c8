"""What resume= does with runs that are other runs, damaged, or in use, and what a run that failed leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied import evaluate, train
from embodied.runs.folder import RunFolder
from tests.end_to_end.runs import TOY, run, trained


def message(capsys, program, *arguments: str) -> str:
    assert program.main(list(arguments)) == 1
    return capsys.readouterr().err


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return run(tmp_path, "iterations=1", "evaluation.after=false")


def test_a_resume_with_another_network_is_refused_and_leaves_the_run_as_it_was(finished: Path, tmp_path: Path, capsys) -> None:
    assert "policy.hidden" in message(capsys, train, *TOY, f"resume={finished}", "policy.hidden=[8]", f"output={tmp_path}")
    assert run(tmp_path, "iterations=2", "resume=auto") == finished


def test_a_launch_that_was_refused_leaves_nothing_to_resume(finished: Path, tmp_path: Path, capsys) -> None:
    message(capsys, train, *TOY, "algorithm.learner.optimizer=foo", f"output={tmp_path}")
    assert [path.parent for path in tmp_path.glob("*/*/run.json")] == [finished]


def test_auto_passes_over_a_run_of_another_task(finished: Path, tmp_path: Path) -> None:
    assert run(tmp_path, "env.goal=2", "iterations=1", "resume=auto") != finished


@pytest.mark.parametrize(("name", "content"), [("run.json", "[]"), ("run.json", "{}"), ("config.yaml", ": {"), ("config.yaml", "[1]")])
def test_auto_passes_over_a_damaged_neighbour(name: str, content: str, finished: Path, tmp_path: Path) -> None:
    damaged = run(tmp_path, "iterations=1", "seed=5", "evaluation.after=false")
    (damaged / name).write_text(content)
    run(tmp_path, "iterations=2", "resume=auto")
    assert trained(finished, 2)  # there is none where another run was begun


def test_a_run_is_resumed_by_its_path_alone(finished: Path) -> None:
    assert train.main([f"resume={finished}", "iterations=2"]) == 0
    assert trained(finished, 2)


def test_a_run_that_is_finished_is_left_as_it_is(tmp_path: Path, capsys) -> None:
    folder = run(tmp_path, "iterations=1")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert run(tmp_path, "iterations=1", "resume=auto") == folder
    assert "finished after 1 iterations" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_another_number_of_iterations_under_a_schedule_is_said(tmp_path: Path, capsys) -> None:
    folder = run(tmp_path, "iterations=1", "evaluation.after=false", "algorithm.learner.schedule=cosine")
    assert train.main([f"resume={folder}", "iterations=2"]) == 0
    assert "begun for 1, and its cosine learning rate now spans 2" in capsys.readouterr().out


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_again(finished: Path, capsys) -> None:
    (finished / "checkpoints" / "step_1" / "state.json").write_text("{}")
    before = (finished / "metrics.jsonl").read_text()
    assert "damaged" in message(capsys, train, f"resume={finished}", "iterations=2")
    assert (finished / "metrics.jsonl").read_text() == before


def test_a_run_that_someone_writes_to_is_refused(finished: Path, capsys) -> None:
    with RunFolder.open(finished, writing=True):
        assert "another writer" in message(capsys, train, f"resume={finished}", "iterations=2")


def test_evaluation_refuses_a_checkpoint_with_a_flipped_byte(finished: Path, tmp_path: Path, capsys) -> None:
    weights = finished / "checkpoints" / "step_1" / "policy" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    said = message(capsys, evaluate, "env=toy", "policy=mlp", f"checkpoint={finished}/checkpoints/step_1", f"output={tmp_path}")
    assert "model.safetensors" in said


def test_a_summary_counts_every_iteration_of_the_run(finished: Path) -> None:
    import json

    assert train.main([f"resume={finished}", "iterations=2", "evaluation.after=true"]) == 0
    summary = json.loads((finished / "summary.json").read_text())
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert summary["env_steps"] == sum(row["env_steps"] for row in rows) and len(rows) == summary["iterations"] == 2
    assert set(summary["time_by_stage"]) == {"sim", "act", "ref", "learn"}


def test_a_policy_may_begin_from_a_run_by_its_newest_checkpoint(tmp_path: Path) -> None:
    first = run(tmp_path / "first", "iterations=1", "evaluation.after=false")
    by_run = run(tmp_path / "a", "iterations=1", "evaluation.after=false", f"policy.checkpoint={first}")
    by_folder = run(tmp_path / "b", "iterations=1", "evaluation.after=false", f"policy.checkpoint={first / 'checkpoints' / 'step_1' / 'policy'}")
    weights = [(path / "checkpoints" / "step_1" / "policy" / "model.safetensors").read_bytes() for path in (by_run, by_folder)]
    assert weights[0] == weights[1]
