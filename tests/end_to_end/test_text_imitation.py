"""Imitation of texts through the programs: the packaged small model's right answers are recorded, and imitated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embodied import evaluate, train
from embodied.runs.metrics import read_episodes
from envs.answers import grade
from envs.texts import read

SMALL = ["env=math", "policy=causal_lm", "policy.prompt_length=32", "policy.max_tokens=64"]
IMITATE = [*SMALL, "algorithm=bc", "algorithm.learner.minibatch=8", "algorithm.learner.rows_per_iteration=16", "iterations=1", "evaluation.after=false"]


def newest(output: Path) -> Path:
    return max(output.glob("*/*"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[Path, Path]:
    """(the demonstrations, the run that made them)."""
    folder = tmp_path_factory.mktemp("recorded")
    assert evaluate.main([*SMALL, "evaluation.episodes=40", f"record={folder / 'demos'}", f"output={folder / 'out'}"]) == 0
    return folder / "demos", newest(folder / "out")


def test_what_is_recorded_are_the_right_answers_and_all_of_them(recorded):
    demos, run = recorded
    pairs = read(demos)
    assert len(pairs) == sum(row["success"] for row in read_episodes(run / "episodes.jsonl")) > 0
    for pair in pairs:
        first, second = pair.prompt.removesuffix("=?\n").split("+")
        assert grade(pair.answer, str(int(first) + int(second))) == 1.0


def test_a_recording_is_not_added_to(recorded, tmp_path, capsys):
    assert evaluate.main([*SMALL, f"record={recorded[0]}", f"output={tmp_path}"]) == 1
    assert "already holds demonstrations" in capsys.readouterr().err


def test_answers_that_were_recorded_become_likelier_when_they_are_imitated(recorded, tmp_path):
    rows = len(read(recorded[0]))
    train.train([*IMITATE, f"data={recorded[0]}", f"algorithm.learner.rows_per_iteration={rows}", "iterations=6", "algorithm.learner.lr=1e-4", "algorithm.learner.warmup_updates=0", f"output={tmp_path}"])
    errors = [json.loads(line)["learn"]["cross_entropy"] for line in (newest(tmp_path) / "metrics.jsonl").read_text().splitlines()]
    assert errors[-1] < errors[0]


def test_an_answer_that_is_too_long_is_refused_before_training_with_its_line(tmp_path, capsys):
    data = tmp_path / "some.jsonl"
    data.write_text(json.dumps({"prompt": "1+1=?\n", "answer": "1" * 64}) + "\n")
    assert train.main([*IMITATE, f"data={data}", f"output={tmp_path / 'out'}"]) == 1
    message = capsys.readouterr().err
    assert f"{data}, line 1" in message and "65 tokens with its end, wanted at most 64" in message


def test_a_fresh_model_has_as_many_positions_as_prompt_and_answer_may_have(tmp_path):
    data = tmp_path / "some.jsonl"
    data.write_text(json.dumps({"prompt": "1+1=?\n", "answer": "2"}) + "\n")
    train.train([*IMITATE, f"data={data}", "policy.checkpoint=fresh", "policy.prompt_length=1000", "policy.max_tokens=100", f"output={tmp_path / 'out'}"])
    assert json.loads((newest(tmp_path / "out") / "start" / "config.json").read_text())["max_position_embeddings"] == 1100
