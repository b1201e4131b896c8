"""Rows sampled with older weights: the clip is around the weights the round's updates begin with, and a constant weight corrects for who sampled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from embodied.learning import batching
from embodied.learning.algorithms.grpo import GRPO
from embodied.learning.algorithms.ppo import PPO
from embodied.learning.algorithms.reinforce import REINFORCE
from embodied.learning.data import Batch
from policies.base import TokenStats

CLIPPED = {"grpo": lambda **more: GRPO(clip_low=0.2, clip_high=0.28, **more), "ppo": lambda **more: PPO(clip_low=0.2, clip_high=0.28, value_coef=0.5, **more)}


def row(behaviour, proximal, advantages=None, weights=None):
    """One row of tokens from probabilities; advantages 1 and weights 1 unless given. Value 0 and return 0."""
    tokens = len(behaviour)
    zero = torch.zeros(1)
    return Batch(
        inputs={"state": torch.zeros(1, 2)},
        choices=torch.zeros(1, tokens, dtype=torch.int64),
        logprobs=torch.tensor([behaviour]).log(),
        weights=torch.tensor([weights or [1.0] * tokens]),
        advantages=torch.tensor([advantages or [1.0] * tokens]),
        returns=zero,
        values=zero,
        proximal=None if proximal is None else torch.tensor([proximal]).log(),
    )


def stats_of(new, value=0.0):
    """New log-probs, a leaf, with entropy 0."""
    logprobs = torch.tensor([new]).log().requires_grad_()
    return TokenStats(logprobs, torch.zeros_like(logprobs), torch.full((1,), value))


@pytest.mark.parametrize("name", CLIPPED)
def test_the_term_is_weight_times_ratio_times_advantage(name):
    # ratio .3 / .25 = 1.2, weight .25 / .5 = .5: loss -.5 * 1.2 * 1 = -.6. PPO's value is right, so its error is 0.
    loss = CLIPPED[name]().loss(stats_of([0.3]), row([0.5], [0.25]))
    assert loss.sum.item() == pytest.approx(-0.6)
    assert loss.metrics["ratio"][0] == pytest.approx(1.2)
    assert loss.metrics["stale_weight"][0] == pytest.approx(0.5)


@pytest.mark.parametrize("name", CLIPPED)
def test_the_clip_acts_on_new_over_proximal(name):
    # Token 0: new / proximal = 1.5 is clipped to 1.28 though new / behaviour = .75 is not; weight .5: -.64 and no gradient.
    # Token 1: new / proximal = 1.1 is not clipped though new / behaviour = 1.65 would be; weight 1.5: -1.65.
    stats = stats_of([0.375, 0.33])
    loss = CLIPPED[name]().loss(stats, row([0.5, 0.2], [0.25, 0.3]))
    loss.sum.backward()
    assert loss.sum.item() == pytest.approx(-0.64 - 1.65)
    assert stats.logprobs.grad.tolist() == [pytest.approx([0.0, -1.65])]


def test_the_weight_is_capped_and_the_share_that_was_is_told():
    # Weights .6 / .2 = 3 -> 2, and .3 / .2 = 1.5: loss -(2 + 1.5) at ratio 1; one of two is capped.
    loss = GRPO(stale_cap=2.0).loss(stats_of([0.6, 0.3]), row([0.2, 0.2], [0.6, 0.3]))
    assert loss.sum.item() == pytest.approx(-3.5)
    assert loss.metrics["stale_weight"] == (pytest.approx(3.5), 2.0)
    assert loss.metrics["stale_capped"] == (1.0, 2.0)


@pytest.mark.parametrize(("level", "weights"), [("token", [2.0, 0.5, 0.5, 0.5]), ("action", [1.0, 1.0, 0.25, 0.25]), ("chunk", [0.25] * 4)])
def test_the_weight_is_that_of_the_decision(level, weights):
    # Ratios proximal / behaviour 2, .5 | .5, .5; new == proximal, so the gradient by each log-prob sums the weights of its decision's tokens.
    stats = stats_of([0.4, 0.1, 0.1, 0.1])
    GRPO(level=level, action_dims=2).loss(stats, row([0.2] * 4, [0.4, 0.1, 0.1, 0.1])).sum.backward()
    size = {"token": 1, "action": 2, "chunk": 4}[level]
    assert stats.logprobs.grad.tolist() == [pytest.approx([-size * weight for weight in weights])]


@pytest.mark.parametrize("name", CLIPPED)
def test_where_the_updates_begin_the_gradient_is_weight_times_advantage_times_that_of_the_log_prob(name):
    # new == proximal, so no gradient may come through the weight: -.5 * 3 and -1.5 * -2.
    stats = stats_of([0.25, 0.3])
    CLIPPED[name]().loss(stats, row([0.5, 0.2], [0.25, 0.3], advantages=[3.0, -2.0])).sum.backward()
    assert stats.logprobs.grad.tolist() == [pytest.approx([-1.5, 3.0])]


@pytest.mark.parametrize("rubbish", [0.0, float("nan")])  # as probabilities: log-probs of -inf and nan
@pytest.mark.parametrize("level", ["token", "action", "chunk"])
def test_a_masked_token_adds_nothing_whatever_its_proximal_log_prob(level, rubbish):
    algorithm = GRPO(level=level, action_dims=2)
    clean, dirty = stats_of([0.3, 0.4]), stats_of([0.3, 0.4])
    wanted = algorithm.loss(clean, row([0.5, 0.5], [0.25, 0.5], weights=[1.0, 0.0]))
    found = algorithm.loss(dirty, row([0.5, 0.5], [0.25, rubbish], weights=[1.0, 0.0]))
    wanted.sum.backward()
    found.sum.backward()
    assert (found.sum.item(), found.metrics) == (wanted.sum.item(), wanted.metrics)
    assert torch.equal(dirty.logprobs.grad, clean.logprobs.grad) and dirty.logprobs.grad[0, 1] == 0


@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("level", ["token", "action", "chunk"])
def test_fresh_rows_have_the_loss_and_gradient_of_rows_without_proximal_bit_for_bit(name, level):
    generator = torch.Generator().manual_seed(0)
    behaviour, new, advantages = torch.rand(3, 8, generator=generator)
    plain = row(behaviour.tolist(), None, advantages=advantages.tolist(), weights=[1.0] * 6 + [0.0] * 2)
    losses = []
    for batch in (plain, replace(plain, proximal=plain.logprobs)):
        stats = stats_of(new.tolist(), value=0.5)
        loss = CLIPPED[name](level=level, action_dims=2).loss(stats, batch)
        loss.sum.backward()
        losses.append((loss.sum.item(), stats.logprobs.grad.tolist()))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", CLIPPED)
def test_no_gradient_reaches_the_weights_that_the_updates_begin_with(name):
    batch = row([0.5], [0.25])
    CLIPPED[name]().loss(stats_of([0.3]), replace(batch, proximal=batch.proximal.requires_grad_())).sum.backward()
    assert batch.proximal.grad is None


def test_the_weight_leaves_the_value_error_alone():
    # No advantage: .5 * (.5 * 2^2) = 1, whatever the weight of .5.
    loss = PPO(value_coef=0.5).loss(stats_of([0.25], value=2.0), row([0.5], [0.25], advantages=[0.0]))
    assert loss.sum.item() == pytest.approx(1.0)


def test_the_weight_leaves_the_entropy_bonus_alone():
    stats = replace(stats_of([0.25]), entropy=torch.full((1, 1), 2.0))
    loss = GRPO(entropy_coef=0.1).loss(stats, row([0.5], [0.25], advantages=[0.0]))
    assert loss.sum.item() == pytest.approx(-0.2)


def test_the_weight_leaves_the_kl_to_the_start_alone():
    # KL((.5, .5) || (.25, .75)) = .14384.
    stats = replace(stats_of([0.25]), distribution=torch.tensor([[[0.5, 0.5]]]).log())
    batch = replace(row([0.5], [0.25], advantages=[0.0]), reference=torch.tensor([[[0.25, 0.75]]]).log())
    assert GRPO(kl_coef=1.0).loss(stats, batch).sum.item() == pytest.approx(0.14384, abs=1e-5)


def test_reinforce_corrects_by_its_own_ratio_to_the_sampling_weights():
    # -min(.3 / .5, 2) * 1 * ln .3 = .6 * 1.20397, with and without proximal log-probs.
    for proximal in (None, [0.25]):
        loss = REINFORCE().loss(stats_of([0.3]), row([0.5], proximal))
        assert loss.sum.item() == pytest.approx(0.72238, abs=1e-5)
        assert "stale_weight" not in loss.metrics


@pytest.mark.parametrize("name", CLIPPED)
def test_staleness_is_told_only_where_it_is_known(name):
    loss = CLIPPED[name]().loss(stats_of([0.3]), row([0.5], None))
    assert not {"stale_weight", "stale_capped"} & set(loss.metrics)


def test_rows_take_their_proximal_log_probs_along():
    batch = replace(batching.labelled({"state": torch.zeros(3, 1)}, torch.zeros(3, 2), torch.ones(3, 2)), proximal=torch.tensor([[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]))
    assert batching.select(batch, torch.tensor([2, 0])).proximal.tolist() == [[3.0, 3.5], [1.0, 1.5]]
    assert [part.proximal.tolist() for part in batching.microbatches(batch, 2)] == [[[1.0, 1.5], [2.0, 2.5]], [[3.0, 3.5]]]
    assert batching.to(batch, "meta").proximal.device.type == "meta"


@pytest.mark.parametrize("cap", [0, -1.0, True])
def test_a_cap_that_would_silence_the_policy_term_is_refused(cap):
    with pytest.raises(ValueError, match="algorithm.stale_cap.*above 0"):
        GRPO(stale_cap=cap)


def test_the_mean_weight_is_over_executed_tokens():
    # Weights .5 and 1, and a token that did not run: mean .75.
    loss = GRPO().loss(stats_of([0.25, 0.5, 0.5]), row([0.5, 0.5, 0.5], [0.25, 0.5, 0.25], weights=[1.0, 1.0, 0.0]))
    total, count = loss.metrics["stale_weight"]
    assert total / count == pytest.approx(0.75)
