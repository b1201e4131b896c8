"""Whole small runs with a value per chunk, per action and per token, and what is refused before one starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from embodied.config import ConfigError, compose
from embodied.wiring import build
from tests.end_to_end.runs import assert_equal_to_the_bit, run, trained

# Chunks of two actions of two tokens; 5 steps, so that the last chunk of an episode is cut.
PPO = ["algorithm=ppo", "env.action=continuous", "env.dims=2", "env.horizon=5", "policy.chunk=2", "algorithm.level=token", "evaluation.before=false", "evaluation.after=false"]


def report(folder: Path, name: str) -> list[float]:
    return [json.loads(line)["learn"][name] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("level", "count"), [("chunk", 1), ("action", 2), ("token", 4)])
def test_a_value_head_of_every_level_learns_what_a_policy_is_worth(level: str, count: int, tmp_path: Path) -> None:
    # The policy is held, so that its worth stays the same; whole returns are what the values are to foretell.
    folder = run(tmp_path, *PPO, f"policy.value_level={level}", "algorithm.learner.critic_warmup=1000", "algorithm.learner.epochs=4", "algorithm.gamma=1", "algorithm.lam=1", "iterations=10", "groups=8")
    assert trained(folder, 10)["critic.4.weight"].shape[0] == count
    explained = report(folder, "estimate/explained_variance")
    assert sum(explained[:3]) / 3 < 0.1 and sum(explained[-3:]) / 3 > 0.2


def test_a_run_with_values_of_tokens_cut_and_resumed_is_the_unbroken_one(tmp_path: Path) -> None:
    arguments = [*PPO, "policy.value_level=token", "algorithm.learner.critic_warmup=12"]
    unbroken = run(tmp_path / "unbroken", *arguments)
    folder = run(tmp_path / "cut", *arguments, "iterations=1")
    assert run(tmp_path / "cut", *arguments, "resume=auto", "iterations=3") == folder
    assert_equal_to_the_bit(trained(folder), trained(unbroken))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algorithm=ppo", "policy.value_level=token"], "algorithm.level=token"),
        (["algorithm=ppo", "policy.value_level=tokens"], "chunk, action, token"),
        (["algorithm=ppo", "policy=expert", "policy.value_level=token"], "policy.value_level: there is no key"),
        (["algorithm=ppo", "algorithm.learner.critic_warmup=-1"], "critic_warmup: found -1, wanted 0 or more"),
    ],
)
def test_what_cannot_be_is_refused_before_a_run_starts(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, *arguments)
    assert not list(tmp_path.glob("*/*/run.json"))


def test_a_critics_warm_up_without_a_critic_is_refused() -> None:
    config = compose(["env=toy", "policy=mlp", "algorithm=grpo"])
    OmegaConf.update(config, "algorithm.learner.critic_warmup", 5, force_add=True)  # as a yaml of one's own may say
    with pytest.raises(ConfigError, match="critic_warmup: found 5.*algorithm=ppo"):
        build.algorithm(config)
