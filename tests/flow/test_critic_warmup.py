"""The first updates of a run may be the value head's alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from embodied.learning.algorithms.ppo import PPO
from embodied.learning.collect import ChunkRecord, assemble
from embodied.learning.optimizers import build_optimizer, learning_rate
from embodied.stages.learn import LearnerSettings, LearnStage
from envs.spec import ActionSpec, EnvSpec
from policies.mlp import MLP
from scheduler.backends.base import Call, Item

SPEC = EnvSpec("t", ActionSpec("discrete", 1, choices=3), state=2)
WARMUP = 3


def trajectory(policy: MLP, episode: int):
    """Three steps, of which the last is rewarded in every second episode."""
    records = []
    for step in range(3):
        observation = {"state": np.array([[episode, step]], dtype=np.float32) / 10}
        chunk = policy.act(observation, np.random.default_rng([episode, step]).random((1, 1)))
        records.append(ChunkRecord(chunk.inputs, chunk.choices[0], chunk.logprobs[0], chunk.mask[0], [float(episode % 2 and step == 2)], chunk.values[0]))
    return assemble(records, episode=episode, group=episode, chunk=1, terminated=True, truncated=False, final_observation=None, success=False)


def stage(policy: MLP, kind: str = "adamw", warmup: int = WARMUP, rate=lambda update, share: 1e-2) -> LearnStage:
    settings = LearnerSettings(epochs=1, minibatch=100, microbatch=None, grad_clip=1.0, rate=rate, rounds=8, critic_warmup=warmup)
    return LearnStage(policy, PPO(), build_optimizer(policy, optimizer=kind, lr=1e-2, weight_decay=0.1), settings, seed=0)


def update(learn: LearnStage, round_number: int) -> dict:
    """One round of one update."""
    items = tuple(Item(i, trajectory(learn.policy, i)) for i in range(4))
    learn.start(Call(1, "learn", "granule", round_number, payload=items))
    return learn.start(Call(2, "learn", "update", round_number)).reply


def weights(policy: MLP, part: str) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for name, p in policy.named_parameters() if name.startswith(part)])


@pytest.fixture
def policy() -> MLP:
    return MLP(SPEC, hidden=(8, 8), seed=1)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_so_many_updates_move_the_value_head_alone_and_the_next_one_moves_all(policy: MLP, kind: str) -> None:
    learn, before = stage(policy, kind), weights(policy, "actor")
    for round_number in range(WARMUP):
        critic = weights(policy, "critic")
        assert update(learn, round_number)["updates"] == 1
        assert torch.equal(weights(policy, "actor"), before) and not torch.equal(weights(policy, "critic"), critic)
    critic = weights(policy, "critic")
    update(learn, WARMUP)
    assert not torch.equal(weights(policy, "actor"), before) and not torch.equal(weights(policy, "critic"), critic)


@pytest.mark.parametrize("cut", [2, 3])
def test_a_learner_resumed_in_or_after_the_warm_up_goes_on_bit_for_bit(policy: MLP, cut: int, tmp_path) -> None:
    unbroken = copy.deepcopy(policy)
    learn = stage(unbroken)
    for round_number in range(WARMUP + 2):
        update(learn, round_number)
    first = stage(policy)
    for round_number in range(cut):
        update(first, round_number)
    first.save(tmp_path, cut, 1)
    second = stage(MLP(SPEC, hidden=(8, 8), seed=5))
    for round_number in range(second.restore(tmp_path / f"step_{cut}"), WARMUP + 2):
        update(second, round_number)
    assert all(torch.equal(a, b) for a, b in zip(second.policy.parameters(), unbroken.parameters()))


def test_the_learning_rates_warm_up_of_the_rest_begins_when_the_critics_is_over(policy: MLP) -> None:
    def rate(number: int, share: float) -> float:
        return learning_rate(number, share, lr=1.0, warmup_updates=4)

    learn = stage(policy, rate=rate)
    rates = []
    for round_number in range(WARMUP + 2):
        rates.append((update(learn, round_number)["lr"], learn._rates(0.0)))
    # After n updates: what the next one has. The value head rises from the first update on, the others from the fourth.
    assert [reported for reported, _ in rates] == [0.0, 0.0, 0.25, 0.5, 0.75]
    assert [pair for _, pair in rates] == [(None, 0.5), (None, 0.75), (0.25, 1.0), (0.5, 1.0), (0.75, 1.0)]


def test_the_gradients_norm_of_the_warm_up_is_the_value_heads(policy: MLP) -> None:
    # Its norm is what is clipped: the policy's part would else make the value head's steps smaller.
    both, alone = update(stage(copy.deepcopy(policy), warmup=0), 0)["grad_norm"], update(stage(policy), 0)["grad_norm"]
    assert 0 < alone < both
