"""Math as a text env, through the entry points: the packaged model learns, and what holds of robots holds of answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from embodied import train
from tests.end_to_end.runs import assert_equal_to_the_bit, episodes, trained

MATH = ["env=math", "policy=causal_lm", "evaluation.before=false", "evaluation.after=false", "checkpoints.every=1", "policy.max_tokens=40"]
SMALL = [*MATH, "groups=4", "algorithm.group_size=4", "algorithm.learner.warmup_updates=0"]


def run(output: Path, *arguments: str) -> Path:
    train.train([*SMALL, f"output={output}", *arguments])
    return max((path.parent for path in output.glob("*/*/run.json")), key=lambda path: path.stat().st_mtime_ns)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_packaged_model_learns_to_work_its_sums_out(tmp_path: Path) -> None:
    train.train(["env=math", "policy=causal_lm", "algorithm=grpo", "iterations=10", "evaluation.episodes=150", f"output={tmp_path}"])
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.glob("*/*/summary.json"))
    assert summary["success_before"]["high"] < 0.4 and summary["success_after"]["low"] > 0.5


@pytest.mark.parametrize("kind", ["grpo", "ppo", "reinforce"])
def test_each_algorithm_updates_and_begins_with_a_ratio_of_one(kind: str, tmp_path: Path) -> None:
    """At a temperature other than 1, and without a change of weights: log-probabilities are recomputed at the temperature that sampled."""
    (row,) = metrics(run(tmp_path, f"algorithm={kind}", "policy.temperature=1.6", "iterations=1"))
    assert row["learn"]["updates"] == 1 and row["learn"]["ratio"] == pytest.approx(1.0, abs=1e-3)


def test_one_slot_group_and_one_for_each_answer_give_the_same_bits(tmp_path: Path) -> None:
    streamed, together = (run(tmp_path / mode, f"scheduler={mode}", "iterations=2") for mode in ("auto", "collocated"))
    assert episodes(streamed) == episodes(together)
    assert_equal_to_the_bit(trained(streamed, 2), trained(together, 2))


@pytest.mark.parametrize("kind", ["grpo", "ppo"])
def test_a_run_that_was_cut_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", f"algorithm={kind}", "iterations=2")
    run(tmp_path / "cut", f"algorithm={kind}", "iterations=1")
    assert_equal_to_the_bit(trained(whole, 2), trained(run(tmp_path / "cut", f"algorithm={kind}", "iterations=2", "resume=auto"), 2))


def test_a_kl_term_measures_from_the_start(tmp_path: Path) -> None:
    first, second = metrics(run(tmp_path, "algorithm.kl_coef=0.1", "algorithm.learner.lr=1e-3", "iterations=2"))
    assert first["learn"]["kl_reference"] == pytest.approx(0.0, abs=1e-6) and second["learn"]["kl_reference"] > 1e-4
    assert first["time"]["ref_s"] > 0


def test_weights_that_may_lag_are_sampled_with_and_corrected_for(tmp_path: Path) -> None:
    rows = metrics(run(tmp_path, "staleness=1", "iterations=3"))
    assert "stale_weight" in rows[-1]["learn"]


def test_prompts_that_are_too_long_are_dropped_counted_and_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """`<bos>12+39=?` and a line break are 9 tokens; of a sum with a single digit 8 or 7."""
    folder = run(tmp_path, "policy.prompt_length=8", "policy.long_prompts=drop", "iterations=1")
    dropped = [row for row in episodes(folder) if "remark" in row]
    assert dropped and not any(row["success"] for row in dropped)
    assert metrics(folder)[0]["remarks"] == {"prompt longer than 8 tokens: dropped": len(dropped)}
    assert f"{len(dropped)} of 16 episodes: prompt longer than 8 tokens: dropped" in capsys.readouterr().out


def test_a_prompt_that_is_too_long_is_an_error_with_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert train.main([*SMALL, f"output={tmp_path}", "policy.prompt_length=8", "iterations=1"]) == 1
    assert "the longest of 9; set policy.prompt_length=9 or more, or policy.long_prompts=drop or left_cut" in capsys.readouterr().err


def test_a_second_turn_is_played_and_learned_from(tmp_path: Path) -> None:
    folder = run(tmp_path, "env.turns=2", "iterations=1")
    assert {row["steps"] for row in episodes(folder)} == {1, 2}
    assert metrics(folder)[0]["learn"]["updates"] == 1


def test_whole_groups_are_learned_from_while_long_answers_are_still_written(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", "iterations=1")
    plan = json.loads((whole / "plan.json").read_text())
    plan["stages"]["learn"]["granule"] = 4  # a group has so many
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    early = run(tmp_path / "early", "iterations=1", "scheduler=from_file", f"scheduler.file={tmp_path / 'plan.json'}")
    spans = [(event["name"], event["ts"], event["ts"] + event["dur"]) for event in json.loads((early / "timeline.json").read_text())["traceEvents"] if "dur" in event]
    learned, answered = min(begin for name, begin, _ in spans if name.startswith("learn")), max(end for name, _, end in spans if name.startswith("act"))
    assert learned < answered
    for name, tensor in trained(whole, 1).items():
        torch.testing.assert_close(tensor, trained(early, 1)[name], atol=1e-5, rtol=0)
