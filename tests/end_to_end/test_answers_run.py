"""Answers judged end to end by a tiny random model: every problem sampled several times, with avg@k, pass@k and the protocol in what is left behind."""

from __future__ import annotations

import json
from pathlib import Path

from embodied import evaluate
from embodied.runs.metrics import read_episodes
from policies.checkpoints.fresh_lm import create_checkpoint

SIZES = {"hidden": 16, "layers": 1, "heads": 2, "mlp": 32}


def test_every_problem_is_sampled_as_often_as_asked_and_judged_with_its_protocol(tmp_path: Path, capsys) -> None:
    folder = create_checkpoint(tmp_path / "lm", sizes=SIZES)
    arguments = ["env=math", "policy=causal_lm", f"policy.checkpoint={folder}", "policy.max_tokens=6", "samples=4", "evaluation.episodes=6", "sim.slots=8", "device=cpu", f"output={tmp_path / 'runs'}"]
    assert evaluate.main(arguments) == 0
    (run,) = (tmp_path / "runs").glob("*/*")
    rows, summary = read_episodes(run / "episodes.jsonl"), json.loads((run / "summary.json").read_text())
    assert [row["group"] for row in rows] == [group for group in range(6) for _ in range(4)]
    assert {"problems": 6, "samples": 4}.items() <= summary["answers"].items() and {"avg@4", "pass@1", "pass@2", "pass@4"} <= summary["answers"].keys()
    assert summary["success"]["rate"] == summary["answers"]["avg@4"]["rate"] and summary["success"]["n"] == 24
    said = summary["protocol"]
    assert (said["starts"], said["samples"], said["split"], said["max_tokens"], said["temperature"]) == ("6 of 521 held out", 4, "evaluate", 6, 1.0)
    out = capsys.readouterr().out
    assert "(6 problems x 4 samples)" in out and "protocol:\n  env=math" in out


def test_a_prompt_that_is_too_long_is_counted_as_failed_and_told(tmp_path: Path, capsys) -> None:
    folder = create_checkpoint(tmp_path / "lm", sizes=SIZES)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": "x" * length, "answer": "1"}) + "\n" for length in (3, 40)))
    knobs = ["policy.max_tokens=2", "policy.prompt_length=8", "policy.long_prompts=drop"]
    assert evaluate.main(["env=math", "policy=causal_lm", f"policy.checkpoint={folder}", f"env.problems={tmp_path / 'a.jsonl'}", *knobs, "samples=2", "sim.slots=2", "device=cpu", f"output={tmp_path / 'runs'}"]) == 0
    out = capsys.readouterr().out
    assert "2 of 4 episodes: prompt longer than 8 tokens: dropped, counted as failed" in out and "starts=2 of 2 held out" in out
