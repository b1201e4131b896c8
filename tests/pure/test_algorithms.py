"""The loss of an update: which rows count, and that cutting the batch changes nothing."""

import itertools
from dataclasses import replace

import pytest
import torch
from learning_samples import trajectory

from embodied.learning import batching, losses
from embodied.learning.algorithms.bc import BehaviourCloning
from embodied.learning.algorithms.grpo import GRPO
from embodied.learning.algorithms.ppo import PPO
from embodied.learning.algorithms.reinforce import REINFORCE
from policies.base import TokenStats

VOCABULARY, LENGTH = 5, 4
ALGORITHMS = {
    "grpo": lambda **more: GRPO(group_size=4, **more),
    "ppo": lambda **more: PPO(**more),
    "reinforce": lambda **more: REINFORCE(group_size=4, **more),
    "bc": lambda **more: BehaviourCloning(**more),
}


class Linear(torch.nn.Module):
    """A categorical policy linear in a 2-dim state, with a value; small enough to compare gradients exactly."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randn(2, LENGTH * VOCABULARY, generator=generator, dtype=torch.float64))
        self.value = torch.nn.Parameter(torch.randn(2, generator=generator, dtype=torch.float64))

    def evaluate(self, batch):
        state = batch.inputs["state"].double()
        distribution = torch.log_softmax((state @ self.weight).unflatten(1, (LENGTH, VOCABULARY)), -1)
        chosen = distribution.gather(-1, batch.choices.unsqueeze(-1)).squeeze(-1)
        return TokenStats(chosen, -(distribution.exp() * distribution).sum(-1), state @ self.value, distribution)


def members_of(returns, group, first=0):
    """One trajectory of two chunks per return, with states, choices and old log-probs drawn from its episode id; its last action unexecuted."""
    result = []
    for i, value in enumerate(returns):
        generator = torch.Generator().manual_seed(100 + first + i)
        mask = torch.ones(2, LENGTH, dtype=torch.bool)
        mask[1, 2:] = False
        result.append(
            trajectory(
                [0.0, value], episode=first + i, group=group, values=[0.1, 0.2], length=LENGTH, mask=mask,
                inputs={"state": torch.randn(2, 2, generator=generator)},
                choices=torch.randint(VOCABULARY, (2, LENGTH), generator=generator),
                logprobs=-1.6 + 0.3 * torch.randn(2, LENGTH, generator=generator),
            )  # fmt: skip
        )
    return result


def batch_of(algorithm, members):
    reference = [torch.log_softmax(torch.zeros(t.length, LENGTH, VOCABULARY), -1) for t in members]
    return batching.rows(members, algorithm.advantages(members, torch.zeros(len(members))), algorithm.aggregation, reference)


def gradient(algorithm, parts):
    """The update's gradient: sums added over the parts, divided once."""
    policy, count = Linear(), 0.0
    for part in parts:
        loss = algorithm.loss(policy.evaluate(part), part)
        loss.sum.backward()
        count += loss.count
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() / count for p in policy.parameters()])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_the_gradient_is_that_of_a_run_which_never_had_the_group_without_variance(scale):
    # The KL term would push on the useless group too, if it were there.
    algorithm = GRPO(group_size=4, scale=scale, kl_coef=0.1)
    useless, useful = members_of([1.0] * 4, group=0), members_of([1.0, 0.0, 1.0, 0.0], group=1, first=4)
    alone, together = batch_of(algorithm, useful), batch_of(algorithm, useless + useful)
    assert torch.equal(gradient(algorithm, [alone]), gradient(algorithm, [together]))
    assert gradient(algorithm, [alone]).abs().max() > 0


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_summing_over_micro_batches_gives_the_gradient_of_the_whole_batch(name, aggregation):
    algorithm = ALGORITHMS[name](aggregation=aggregation, kl_coef=0.1, entropy_coef=0.01)
    batch = batch_of(algorithm, members_of([1.0, 0.0, 1.0, 0.5], group=0))
    whole = gradient(algorithm, [batch])
    for size in (1, 3):  # 8 rows: 3 leaves a last part of 2
        torch.testing.assert_close(gradient(algorithm, batching.microbatches(batch, size)), whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("level", ["token", "action", "chunk"])
def test_a_batch_in_which_all_is_masked_has_loss_zero_gradient_zero_and_finite_metrics(name, level):
    algorithm = ALGORITHMS[name](kl_coef=0.1, entropy_coef=0.01, level=level, action_dims=2)
    batch = batch_of(algorithm, members_of([1.0, 0.0, 1.0, 0.5], group=0))
    masked = replace(batch, weights=torch.zeros_like(batch.weights), logprobs=torch.full_like(batch.logprobs, float("-inf")))
    policy = Linear()
    loss = algorithm.loss(policy.evaluate(masked), masked)
    loss.sum.backward()
    assert (loss.sum.item(), loss.count) == (0.0, 0.0)
    assert all(p.grad is None or not p.grad.any() for p in policy.parameters())
    assert all(total == 0.0 and count == 0.0 for total, count in loss.metrics.values())
    assert losses.metric_means(loss.metrics) == {}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_iteration_in_which_every_group_is_dropped_reports_finite_numbers(name):
    algorithm = ALGORITHMS[name]()
    estimate = algorithm.advantages(members_of([1.0] * 4, group=0), torch.zeros(4))
    assert all(torch.isfinite(torch.tensor(value)) for value in estimate.metrics.values())


@pytest.mark.parametrize(("name", "level"), itertools.product(["grpo", "ppo", "reinforce"], ["token", "action", "chunk"]))
def test_the_sum_of_weights_is_the_same_at_every_level(name, level):
    algorithm = ALGORITHMS[name](level=level, action_dims=2)
    batch = batch_of(algorithm, members_of([1.0, 0.0, 1.0, 0.5], group=0))
    assert algorithm.loss(Linear().evaluate(batch), batch).count == 24.0  # 4 trajectories x (4 + 2 executed tokens)


def test_the_kl_term_has_its_own_weight_and_is_reported():
    # No advantage, so the loss is kl_coef * KL alone.
    algorithm = GRPO(group_size=4, kl_coef=0.5)
    batch = batch_of(algorithm, members_of([1.0, 0.0, 1.0, 0.0], group=0))
    still = replace(batch, advantages=torch.zeros_like(batch.advantages))
    loss = algorithm.loss(Linear().evaluate(still), still)
    assert loss.sum.item() == pytest.approx(0.5 * loss.metrics["kl_reference"][0], rel=1e-5)
    assert loss.metrics["kl_reference"][0] > 0


def test_a_kl_term_without_a_reference_says_what_to_do():
    algorithm = GRPO(group_size=4, kl_coef=0.5)
    batch = batch_of(algorithm, members_of([1.0, 0.0, 1.0, 0.0], group=0))
    with pytest.raises(ValueError, match="algorithm.kl_coef=0"):
        algorithm.loss(Linear().evaluate(batch), replace(batch, reference=None))


def test_reinforce_on_fresh_rows_has_the_gradient_of_advantage_times_log_prob():
    algorithm, policy = REINFORCE(group_size=4), Linear()
    batch = batch_of(algorithm, members_of([1.0, 0.0, 1.0, 0.5], group=0))
    fresh = replace(batch, logprobs=policy.evaluate(batch).logprobs.detach())
    found = gradient(algorithm, [fresh])
    (-(batch.weights * batch.advantages * policy.evaluate(fresh).logprobs).sum() / batch.weights.sum()).backward()
    torch.testing.assert_close(found, torch.cat([policy.weight.grad.flatten(), torch.zeros(2, dtype=torch.float64)]))


def test_imitation_is_the_mean_negative_log_prob_of_the_valid_labels():
    policy, algorithm = Linear(), BehaviourCloning()
    mask = torch.tensor([[True, True, True, False]])
    batch = batching.labelled({"state": torch.ones(1, 2)}, torch.tensor([[0, 1, 2, 0]]), mask)
    stats = policy.evaluate(batch)
    loss = algorithm.loss(stats, batch)
    assert loss.sum.item() / loss.count == pytest.approx(-stats.logprobs[0, :3].mean().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GRPO(group_size=1), "at least 2"),
        (lambda: GRPO(level="tokens"), "token, action, chunk"),
        (lambda: GRPO(aggregation="mean"), "token_mean, sequence_mean"),
        (lambda: GRPO(scale="std"), "group, batch, none"),
        (lambda: PPO(gamma=1.5), "at least 0 and at most 1"),
        (lambda: PPO(kl_coef=-1.0), "at least 0"),
        (lambda: REINFORCE(group_size=1), "baseline=mean"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_what_would_do(make, message):
    with pytest.raises(ValueError, match=message):
        make()
