"""The mlp policy: one distribution in sampling and learning, seeded weights, a folder that loads or says why not."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied.learning import batching
from embodied.learning.algorithms.grpo import GRPO
from envs.spec import ActionSpec, EnvSpec
from policies.base import Policy
from policies.mlp import MLP

DISCRETE = EnvSpec("toy", ActionSpec("discrete", 1, choices=3), state=4)
CONTINUOUS = EnvSpec("toy", ActionSpec("continuous", 2, low=(-2.0, 0.0), high=(2.0, 1.0)), state=4)
SPECS = pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])


def observe(rows, seed=0):
    return {"state": np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)}


def uniforms(rows, tokens, seed=1):
    return np.random.default_rng(seed).uniform(size=(rows, tokens))


def sharpened(spec, **settings):
    """A policy whose head is far from uniform, so that a wrong temperature shows."""
    policy = MLP(spec, **settings)
    with torch.no_grad():
        policy.actor[-1].weight.mul_(200.0)
    return policy


@SPECS
def test_it_is_a_policy_with_the_shapes_of_the_contract(spec):
    policy = MLP(spec, chunk=3)
    tokens = 3 * spec.action.dims
    chunk = policy.act(observe(5), uniforms(5, tokens))
    assert isinstance(policy, Policy)
    assert chunk.choices.shape == chunk.logprobs.shape == chunk.mask.shape == (5, tokens)
    assert chunk.actions.shape == (5, 3, spec.action.dims)
    assert chunk.actions.dtype == (np.int64 if spec is DISCRETE else np.float32)
    assert chunk.values.shape == (5,)
    stats = policy.evaluate(chunk.inputs, chunk.choices)
    assert stats.logprobs.shape == stats.entropy.shape == (5, tokens)


@SPECS
@pytest.mark.parametrize("temperature", [1.0, 1.6])
def test_the_ratio_of_unchanged_weights_is_one_at_any_temperature(spec, temperature):
    policy = sharpened(spec, temperature=temperature)
    chunk = policy.act(observe(64), uniforms(64, spec.action.dims))
    ratio = (policy.evaluate(chunk.inputs, chunk.choices).logprobs - chunk.logprobs).exp()
    assert ratio.mean().item() == pytest.approx(1.0, abs=1e-3)


def test_log_probs_are_those_of_the_logits_divided_by_the_temperature():
    policy = sharpened(DISCRETE, temperature=1.6)
    chunk = policy.act(observe(64), uniforms(64, 1))
    logits = policy.actor(chunk.inputs["state"])
    wanted = torch.log_softmax(logits / 1.6, -1).gather(1, chunk.choices)
    torch.testing.assert_close(chunk.logprobs, wanted)
    mistaken = torch.log_softmax(logits, -1).gather(1, chunk.choices) / 1.6
    assert ((mistaken - chunk.logprobs).exp().mean() - 1).abs() > 0.05


def test_the_first_loss_of_a_rollout_at_a_temperature_reports_ratio_one():
    policy, algorithm = sharpened(DISCRETE, temperature=1.6), GRPO(group_size=2)
    chunk = policy.act(observe(32), uniforms(32, 1))
    batch = batching.labelled(chunk.inputs, chunk.choices, chunk.mask)
    total, count = algorithm.loss(policy.evaluate(chunk.inputs, chunk.choices), replace(batch, logprobs=chunk.logprobs)).metrics["ratio"]
    assert total / count == pytest.approx(1.0, abs=1e-3)


def test_gaussian_log_probs_and_entropy_are_those_of_the_normal_with_its_std_times_temperature():
    policy = MLP(CONTINUOUS, temperature=1.5, initial_log_std=-0.5)
    chunk = policy.act(observe(8), uniforms(8, 2))
    normal = torch.distributions.Normal(policy.actor(chunk.inputs["state"]), math.exp(-0.5) * 1.5)
    stats = policy.evaluate(chunk.inputs, chunk.choices)
    torch.testing.assert_close(stats.logprobs, normal.log_prob(chunk.choices))
    torch.testing.assert_close(stats.entropy, normal.entropy())


def test_gaussian_choices_are_the_quantiles_of_the_noise():
    # Phi^-1(.5) = 0 gives the mean; Phi^-1(.8413447) = 1 one standard deviation above it.
    policy = MLP(CONTINUOUS, initial_log_std=0.0)
    mean = policy.act(observe(1), None).choices
    torch.testing.assert_close(policy.act(observe(1), np.full((1, 2), 0.5)).choices, mean)
    torch.testing.assert_close(policy.act(observe(1), np.full((1, 2), 0.8413447460685429)).choices, mean + 1.0)


def test_actions_are_clipped_to_the_bounds_and_choices_are_not():
    policy = MLP(CONTINUOUS, initial_log_std=3.0)
    chunk = policy.act(observe(50), uniforms(50, 2))
    assert chunk.choices.abs().max() > 2
    assert chunk.actions[..., 0].min() >= -2 and chunk.actions[..., 0].max() <= 2
    assert chunk.actions[..., 1].min() >= 0 and chunk.actions[..., 1].max() <= 1


def test_infinite_bounds_leave_actions_as_they_are():
    free = EnvSpec("toy", ActionSpec("continuous", 1, low=(-np.inf,), high=(np.inf,)), state=4)
    chunk = MLP(free).act(observe(3), uniforms(3, 1))
    np.testing.assert_array_equal(chunk.actions[:, 0], chunk.choices.numpy())


@SPECS
def test_encoding_inverts_acting_within_the_bounds(spec):
    policy = MLP(spec, chunk=2, initial_log_std=-3.0)
    chunk = policy.act(observe(6), uniforms(6, 2 * spec.action.dims))
    torch.testing.assert_close(policy.encode(chunk.actions), chunk.choices)


@SPECS
def test_a_rows_choice_depends_on_its_own_observation_and_noise_only(spec):
    policy = sharpened(spec)
    noise = uniforms(4, spec.action.dims)
    together = policy.act(observe(4), noise).choices
    alone = [policy.act({"state": observe(4)["state"][i : i + 1]}, noise[i : i + 1]).choices for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_sampling_frequencies_are_the_probabilities():
    policy = sharpened(DISCRETE)
    state = np.repeat(observe(1)["state"], 4000, axis=0)
    chunk = policy.act({"state": state}, (np.arange(4000)[:, None] + 0.5) / 4000)
    probabilities = torch.softmax(policy.actor(chunk.inputs["state"][:1]), -1)[0]
    frequencies = torch.bincount(chunk.choices.flatten(), minlength=3) / 4000
    torch.testing.assert_close(frequencies, probabilities.detach(), atol=1e-3, rtol=0)


def test_weights_are_a_function_of_the_seed_and_torchs_random_state_is_left_alone():
    before = torch.get_rng_state()
    first, second, other = MLP(DISCRETE, seed=5), MLP(DISCRETE, seed=5), MLP(DISCRETE, seed=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values()))
    assert not torch.equal(first.actor[0].weight, other.actor[0].weight)


def test_without_a_value_head_there_are_no_values():
    policy = MLP(DISCRETE, value_head=False)
    chunk = policy.act(observe(2), uniforms(2, 1))
    assert chunk.values is None
    assert policy.evaluate(chunk.inputs, chunk.choices).values is None


def test_the_state_is_normalised_where_asked():
    plain, normal = MLP(DISCRETE), MLP(DISCRETE, state_mean=[1.0] * 4, state_std=[2.0] * 4)
    state = observe(3)["state"]
    torch.testing.assert_close(normal.act({"state": state}, None).values, plain.act({"state": (state - 1) / 2}, None).values)


def test_a_gaussian_refuses_to_give_a_distribution_over_choices():
    policy = MLP(CONTINUOUS)
    with pytest.raises(ValueError, match="algorithm.kl_coef=0"):
        policy.evaluate({"state": torch.zeros(1, 4)}, torch.zeros(1, 2), distribution=True)


def test_an_env_without_a_state_vector_is_refused():
    with pytest.raises(ValueError, match="no state vector"):
        MLP(replace(DISCRETE, state=0))


@SPECS
def test_a_saved_policy_loads_and_acts_the_same(spec, tmp_path):
    policy = sharpened(spec, chunk=2, temperature=1.3, hidden=(16,), state_mean=[0.5] * 4)
    policy.save_pretrained(tmp_path / "checkpoint")
    loaded = MLP.from_pretrained(tmp_path / "checkpoint", spec)
    noise = uniforms(4, 2 * spec.action.dims)
    before, after = policy.act(observe(4), noise), loaded.act(observe(4), noise)
    assert torch.equal(before.logprobs, after.logprobs)
    np.testing.assert_array_equal(before.actions, after.actions)
    assert loaded.spec == policy.spec
    assert MLP.from_pretrained(tmp_path / "checkpoint", temperature=2.0).temperature == 2.0


def test_every_missing_extra_and_misshapen_tensor_is_named(tmp_path):
    MLP(DISCRETE).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["actor.0.bias"]
    save_file({**tensors, "surplus": torch.zeros(1), "critic.0.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError) as error:
        MLP.from_pretrained(tmp_path)
    assert all(fault in str(error.value) for fault in ("missing actor.0.bias", "extra surplus", "misshapen critic.0.weight"))


def test_a_checkpoints_own_sizes_win_and_a_critic_it_lacks_is_made_from_the_seed(tmp_path):
    MLP(DISCRETE, hidden=(16,), chunk=2, state_std=[3.0] * 4, value_head=False).save_pretrained(tmp_path)
    loaded = MLP(DISCRETE, hidden=(64, 64), checkpoint=tmp_path, value_head=True)
    assert (loaded.spec.chunk, loaded.actor[0].out_features, loaded.critic[0].out_features) == (2, 16, 16)
    assert loaded.state_std.tolist() == [3.0] * 4


def test_a_state_normalisation_of_another_length_is_refused():
    with pytest.raises(ValueError, match="policy.state_mean: found 3 numbers, wanted 4"):
        MLP(DISCRETE, state_mean=[0.0] * 3)


def test_a_folder_that_is_not_ours_is_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json and no model.safetensors"):
        MLP.from_pretrained(tmp_path)
    MLP(DISCRETE).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the env it was trained on"):
        MLP.from_pretrained(tmp_path, CONTINUOUS)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "openvla"}))
    with pytest.raises(ValueError, match="model_type='openvla'"):
        MLP.from_pretrained(tmp_path)


def test_a_fresh_policy_sees_the_state_as_the_demonstrations_have_it(tmp_path):
    seen = {"toy": {"proprio": {"mean": [0.0, 1.0, 2.0, 3.0], "std": [1.0, 2.0, 0.5, 0.0]}}}
    policy = MLP.from_pretrained(MLP.create(tmp_path / "start", CONTINUOUS, seen, hidden=[8], chunk=2), CONTINUOUS)
    assert policy.spec.chunk == 2 and policy.actor[0].weight.shape == (8, 4)
    assert policy.state_mean.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert policy.state_std.tolist() == pytest.approx([1.0, 2.0, 0.5, 0.01])  # what never moves is not blown up


def test_a_fresh_policy_is_refused_where_demonstrations_have_no_state(tmp_path):
    with pytest.raises(ValueError, match="found no state in the demonstrations"):
        MLP.create(tmp_path / "start", CONTINUOUS, {"toy": {"action": {}}})
