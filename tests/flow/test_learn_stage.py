"""The learn stage divides once, skips what teaches nothing, and measures against the policy it was given."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from embodied.learning.algorithms.grpo import GRPO
from embodied.learning.algorithms.ppo import PPO
from embodied.learning.collect import ChunkRecord, assemble
from embodied.learning.data import Trajectory
from embodied.learning.optimizers import build_optimizer
from embodied.stages.learn import LearnerSettings, LearnStage
from envs.spec import ActionSpec, EnvSpec
from policies.mlp import MLP
from scheduler.backends.base import Call, Item

SPEC = EnvSpec("t", ActionSpec("discrete", 1, choices=3), state=2)


def trajectory(policy: MLP, episode: int, group: int, reward: float, steps: int = 3, truncated: bool = True) -> Trajectory:
    records = []
    for step in range(steps):
        observation = {"state": np.array([[episode, step]], dtype=np.float32) / 10}
        chunk = policy.act(observation, np.random.default_rng([episode, step]).random((1, 1)))
        value = None if chunk.values is None else float(chunk.values[0])
        records.append(ChunkRecord(chunk.inputs, chunk.choices[0], chunk.logprobs[0], chunk.mask[0], [reward / steps], value))
    final = policy.prepare({"state": np.ones((1, 2), dtype=np.float32)}) if truncated else None
    return assemble(records, episode=episode, group=group, chunk=1, terminated=not truncated, truncated=truncated, final_inputs=final, success=reward > 0)


def stage(policy: MLP, algorithm, **changes) -> LearnStage:
    limits = {"epochs": 1, "minibatch": 100, "microbatch": None, "grad_clip": 1.0, "rate": lambda update, share: 1e-2, "rounds": 4} | changes
    return LearnStage(policy, algorithm, build_optimizer(policy, lr=1e-2), LearnerSettings(**limits), seed=0)


def update(learn: LearnStage, trajectories: list[Trajectory], round_number: int = 0) -> dict:
    learn.start(Call(1, "learn", "granule", round_number, payload=tuple(Item(i, t) for i, t in enumerate(trajectories))))
    return learn.start(Call(2, "learn", "update", round_number)).reply


@pytest.fixture
def policy() -> MLP:
    return MLP(SPEC, hidden=(8,), seed=1)


def mixed(policy: MLP) -> list[Trajectory]:
    return [trajectory(policy, i, i // 2, float(i % 2)) for i in range(6)]


def test_the_size_of_a_micro_batch_changes_nothing_but_rounding(policy: MLP) -> None:
    other = copy.deepcopy(policy)
    update(stage(policy, GRPO(group_size=2)), mixed(policy))
    update(stage(other, GRPO(group_size=2), microbatch=4), mixed(other))
    for first, second in zip(policy.parameters(), other.parameters()):
        assert torch.allclose(first, second, atol=1e-6)


def test_granules_in_any_cut_give_the_same_weights(policy: MLP) -> None:
    other = copy.deepcopy(policy)
    update(stage(policy, GRPO(group_size=2)), mixed(policy))
    learn, trajectories = stage(other, GRPO(group_size=2)), mixed(other)
    for start in (0, 2, 4):
        learn.start(Call(start, "learn", "granule", 0, payload=tuple(Item(i, trajectories[i]) for i in (start, start + 1))))
    learn.start(Call(9, "learn", "update", 0))
    for first, second in zip(policy.parameters(), other.parameters()):
        assert torch.equal(first, second)


def test_a_round_in_which_all_groups_agree_updates_nothing_and_says_so(policy: MLP) -> None:
    before = copy.deepcopy(policy.state_dict())
    told: list[str] = []
    learn = stage(policy, GRPO(group_size=2))
    learn._tell = told.append
    report = update(learn, [trajectory(policy, i, i // 2, 1.0) for i in range(4)])
    assert report["updates"] == 0 and "no update" in told[0]
    assert all(np.isfinite(value) for value in report.values())
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def test_the_first_ratio_is_one(policy: MLP) -> None:
    report = update(stage(policy, GRPO(group_size=2)), mixed(policy))
    assert report["ratio"] == pytest.approx(1.0, abs=1e-5)


def test_the_reference_stays_where_the_run_began(policy: MLP) -> None:
    learn = stage(policy, GRPO(group_size=2, kl_coef=0.1), epochs=3)
    trajectories = mixed(policy)
    first = update(learn, trajectories)["kl_reference"]
    later = update(learn, trajectories, 1)["kl_reference"]
    assert 0 <= first < later


def test_a_cut_episode_is_worth_the_value_of_its_last_observation(policy: MLP) -> None:
    learn = stage(policy, PPO())
    cut, ended = trajectory(policy, 0, 0, 1.0), trajectory(policy, 1, 1, 1.0, truncated=False)
    expected = policy.evaluate({"state": torch.ones(1, 2)}, torch.zeros(1, 1, dtype=torch.int64)).values
    assert learn._value_after(cut) == pytest.approx(float(expected.detach()[0]))
    assert learn._value_after(ended) == 0.0


def test_the_rate_follows_the_share_of_the_run_whatever_the_updates_of_a_round(policy: MLP) -> None:
    shares: list[float] = []
    learn = stage(policy, GRPO(group_size=2), epochs=2, minibatch=9, rate=lambda update, share: shares.append(share) or 1e-2)
    update(learn, mixed(policy), 1)  # 18 rows: 4 updates in round 1 of 4
    assert shares[:4] == pytest.approx([0.25, 0.3125, 0.375, 0.4375])
