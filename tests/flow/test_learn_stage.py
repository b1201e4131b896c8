"""The learn stage divides once, skips what teaches nothing, and measures against the policy it was given."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied.learning.algorithms.grpo import GRPO
from embodied.learning.algorithms.ppo import PPO
from embodied.learning.collect import ChunkRecord, assemble
from embodied.learning.data import Trajectory
from embodied.learning.optimizers import build_optimizer
from embodied.stages.learn import LearnerSettings, LearnStage
from embodied.stages.ref import RefStage
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
    final = {"state": np.ones((1, 2), dtype=np.float32)} if truncated else None
    return assemble(records, episode=episode, group=group, chunk=1, terminated=not truncated, truncated=truncated, final_observation=final, success=reward > 0)


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
    report = update(stage(policy, GRPO(group_size=2)), [trajectory(policy, i, i // 2, 1.0) for i in range(4)])
    assert (report["updates"], report["rows"]) == (0, 0)
    assert all(np.isfinite(value) for value in report.values())
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def test_the_first_ratio_is_one(policy: MLP) -> None:
    report = update(stage(policy, GRPO(group_size=2)), mixed(policy))
    assert report["ratio"] == pytest.approx(1.0, abs=1e-5)


def referenced(ref: RefStage, trajectories: list[Trajectory]) -> list[Trajectory]:
    return [item.payload for item in ref.start(Call(0, "ref", "granule", 0, payload=tuple(Item(i, t) for i, t in enumerate(trajectories)))).items]


def test_the_reference_stays_where_the_run_began(policy: MLP) -> None:
    algorithm = GRPO(group_size=2, kl_coef=0.1)
    learn, ref = stage(policy, algorithm, epochs=3), RefStage(copy.deepcopy(policy), algorithm)
    trajectories = referenced(ref, mixed(policy))
    first = update(learn, trajectories)["kl_reference"]
    later = update(learn, trajectories, 1)["kl_reference"]
    assert 0 <= first < later


def test_a_kl_term_without_a_ref_stage_is_refused_by_name(policy: MLP) -> None:
    with pytest.raises(ValueError, match="ref stage"):
        update(stage(policy, GRPO(group_size=2, kl_coef=0.1)), mixed(policy))


def test_a_group_with_nothing_to_teach_costs_no_reference(policy: MLP) -> None:
    same, told = [trajectory(policy, i, 0, 1.0) for i in range(2)], mixed(policy)[2:4]
    found = referenced(RefStage(policy, GRPO(group_size=2, kl_coef=0.1)), same + told)
    assert [t.reference is None for t in found] == [True, True, False, False]


def test_a_group_cut_by_a_granule_waits_for_its_last_member(policy: MLP) -> None:
    ref, members = RefStage(policy, GRPO(group_size=2, kl_coef=0.1)), mixed(policy)
    given = [ref.start(Call(n, "ref", "granule", 0, payload=tuple(Item(i, members[i]) for i in part))).items for n, part in enumerate([(0,), (1, 2), (3,)])]
    assert [[item.order for item in items] for items in given] == [[], [0, 1], [2, 3]]


@pytest.mark.parametrize("cut", [(6,), (2, 4), (1, 3, 2)])
def test_a_learner_that_streams_gives_the_same_bits_for_any_granules(policy: MLP, cut: tuple[int, ...]) -> None:
    other = copy.deepcopy(policy)
    update(stage(policy, GRPO(group_size=2), minibatch=None, microbatch=4), mixed(policy))
    learn, trajectories, start = stage(other, GRPO(group_size=2), minibatch=None, microbatch=4), mixed(other), 0
    assert learn.streams
    for size in cut:
        learn.start(Call(start, "learn", "granule", 0, payload=tuple(Item(i, trajectories[i]) for i in range(start, start + size))))
        start += size
    learn.start(Call(9, "learn", "update", 0))
    assert all(torch.equal(first, second) for first, second in zip(policy.parameters(), other.parameters()))


def test_a_streaming_round_is_the_update_of_all_its_rows_at_once(policy: MLP) -> None:
    other = copy.deepcopy(policy)
    first = update(stage(policy, GRPO(group_size=2), minibatch=None), mixed(policy))
    second = update(stage(other, GRPO(group_size=2), minibatch=100), mixed(other))
    assert first["rows"] == second["rows"] == 18 and first["grad_norm"] == pytest.approx(second["grad_norm"], rel=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(policy.parameters(), other.parameters()))


def test_a_streaming_learner_lets_go_of_what_it_has_learned_from(policy: MLP) -> None:
    learn = stage(policy, GRPO(group_size=2), minibatch=None)
    learn.start(Call(0, "learn", "granule", 0, payload=tuple(Item(i, t) for i, t in enumerate(mixed(policy)[:3]))))
    assert [bool(t.inputs) for t in learn._items] == [False, False, True]


@pytest.mark.parametrize("algorithm", [GRPO(group_size=2, scale="batch"), PPO()])
def test_a_learner_that_compares_over_the_round_does_not_stream(policy: MLP, algorithm) -> None:
    assert not stage(policy, algorithm, minibatch=None).streams


@pytest.mark.parametrize("threads", [2, 3])
def test_rows_dealt_out_to_threads_give_the_gradient_of_all_and_the_same_bits_each_time(policy: MLP, threads: int) -> None:
    """48 rows: more than one thread's least share."""
    results = []
    for count in (1, threads, threads):
        own = copy.deepcopy(policy)
        learn = LearnStage(own, GRPO(group_size=2), build_optimizer(own, lr=1e-2), LearnerSettings(2, 40, None, 1.0, lambda update, share: 1e-2, 4), 0, threads=count)
        report = update(learn, [trajectory(own, i, i // 2, float(i % 2), steps=8) for i in range(6)])
        results.append((report, [parameter.detach() for parameter in own.parameters()]))
    (one, alone), (several, dealt), (again, repeated) = results
    assert one["updates"] == several["updates"] == 4 and one["grad_norm"] == pytest.approx(several["grad_norm"], rel=1e-4)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(alone, dealt))
    assert several == again and all(torch.equal(a, b) for a, b in zip(dealt, repeated))


def test_a_threads_error_is_the_learners(policy: MLP) -> None:
    learn = LearnStage(policy, GRPO(group_size=2), build_optimizer(policy, lr=1e-2), LearnerSettings(1, None, None, 1.0, lambda update, share: 1e-2, 4), 0, threads=2)
    trajectories = [trajectory(policy, i, i // 2, float(i % 2), steps=8) for i in range(4)]
    trajectories = [replace(t, choices=t.choices + 7) for t in trajectories]  # there are 3
    with pytest.raises((IndexError, RuntimeError)):
        update(learn, trajectories)


@pytest.mark.parametrize("minibatch", [4, None])
def test_rows_sampled_with_older_weights_are_corrected_for(policy: MLP, minibatch: int | None) -> None:
    trajectories = mixed(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(-30.0)
    learn = LearnStage(policy, GRPO(group_size=2), build_optimizer(policy, lr=1e-2), LearnerSettings(1, minibatch, None, None, lambda update, share: 1e-9, 4), 0, lag=1)
    report = update(learn, trajectories)
    assert report["ratio"] == pytest.approx(1.0, abs=1e-4) and report["stale_weight"] != pytest.approx(1.0, abs=0.01)


def test_the_versions_that_may_be_sampled_with_survive_a_checkpoint(policy: MLP, tmp_path) -> None:
    learn = LearnStage(policy, GRPO(group_size=2), build_optimizer(policy, lr=1e-2), LearnerSettings(1, 4, None, None, lambda update, share: 1e-2, 4), 0, lag=1)
    first = learn.start(Call(0, "learn", "publish", 0, version=0)).weights
    update(learn, mixed(policy))
    learn.save(tmp_path, 1, 2)
    other = LearnStage(copy.deepcopy(policy), GRPO(group_size=2), build_optimizer(policy, lr=1e-2), learn.settings, 0, lag=1)
    assert other.restore(tmp_path / "step_1") == 1 and other.older() == [0]
    again = other.start(Call(0, "learn", "publish", 0, version=0)).weights
    assert [(part.entries, part.checksum) for part in again] == [(part.entries, part.checksum) for part in first] and torch.equal(again[0].data, first[0].data)


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


def test_a_kl_from_samples_wants_the_sampled_tokens_log_probabilities_alone(policy: MLP) -> None:
    """Reference half as likely everywhere: 1 / 2 - 1 - log(1 / 2) = 0.1931 nats (k3 of Schulman 2020)."""
    algorithm = GRPO(group_size=2, kl_coef=0.1, kl_estimator="k3")
    trajectories = RefStage(copy.deepcopy(policy), algorithm).start(Call(1, "ref", "granule", 0, payload=tuple(Item(i, t) for i, t in enumerate(mixed(policy))))).items
    references = [item.payload.reference for item in trajectories]
    assert references[0].shape == trajectories[0].payload.choices.shape
    halved = [replace(item.payload, reference=item.payload.reference - np.log(2)) for item in trajectories]
    assert update(stage(policy, algorithm), halved)["kl_reference"] == pytest.approx(0.5 - 1 + np.log(2), abs=1e-5)


@pytest.mark.parametrize("minibatch", [None, 100])
def test_recomputed_log_probabilities_are_the_learners_and_say_how_far_the_samplers_were_off(policy: MLP, minibatch: int | None) -> None:
    wrong = [replace(t, logprobs=t.logprobs - 0.25) for t in mixed(policy)]
    off = update(stage(copy.deepcopy(policy), GRPO(group_size=2), minibatch=minibatch), wrong)
    assert off["ratio"] == pytest.approx(np.exp(0.25), abs=1e-5)
    report = update(stage(policy, GRPO(group_size=2, recompute_logprobs=True), minibatch=minibatch), wrong)
    assert report["ratio"] == pytest.approx(1.0, abs=1e-6) and report["sampler_difference"] == pytest.approx(0.25, abs=1e-5)


def test_a_streaming_learner_works_on_as_many_whole_groups_as_make_a_micro_batch(policy: MLP) -> None:
    """Three groups of 2 trajectories of 3 rows each, with room for 12: two groups, and then the one that is left."""
    learn = stage(policy, GRPO(group_size=2), minibatch=None, microbatch=12)
    seen: list[int] = []
    add = learn._sums.add
    learn._sums.add = lambda batch: (seen.append(batch.rows), add(batch))
    assert learn.streams
    update(learn, mixed(policy))
    assert seen == [12, 6]
