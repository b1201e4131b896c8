"""Small real runs for the tests: a toy env and a small network, through the same entry points as a user's."""

from __future__ import annotations

from pathlib import Path

import torch

from embodied import train
from embodied.config import compose
from embodied.runs.checkpoint import load
from embodied.runs.metrics import read_episodes

TOY = [
    "env=toy", "policy=mlp", "env.horizon=6", "env.goal=3", "env.reward=dense", "iterations=3", "groups=5", "evaluation.episodes=4", "checkpoints.every=1",
    "checkpoints.keep=9", "algorithm.learner.minibatch=8", "algorithm.learner.warmup_updates=0", "algorithm.learner.schedule=constant",
]  # fmt: skip


def run(output: Path, *arguments: str) -> Path:
    """Trains and returns the run's folder."""
    train.train([*TOY, f"output={output}", *arguments])
    return max((path.parent for path in output.glob("*/*/run.json")), key=lambda path: path.stat().st_mtime_ns)


def trained(folder: Path, step: int = 3) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint."""
    return load(folder / "checkpoints" / f"step_{step}")[0]["policy"]


def episodes(folder: Path) -> list[dict]:
    """Every episode row as it stands in the file: its order must not depend on timing either."""
    return list(read_episodes(folder / "episodes.jsonl"))


def assert_equal_to_the_bit(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


__all__ = ["TOY", "assert_equal_to_the_bit", "compose", "episodes", "run", "trained"]
