"""Advantages by hand-worked numbers."""

import pytest
import torch
from learning_samples import trajectory

from embodied.learning.advantages import gae, group_relative, judge_groups, leave_one_out, normalise, rewards_to_go
from embodied.learning.algorithms.grpo import GRPO
from embodied.learning.algorithms.ppo import PPO
from embodied.learning.algorithms.reinforce import REINFORCE


def numbers(tensor):
    return pytest.approx(tensor.flatten().tolist(), abs=1e-4)


def test_gae_of_two_steps_by_hand():
    # gamma .5, lambda .5, V = (2, 4), bootstrap 8, r = (1, 3).
    # delta_1 = 3 + .5*8 - 4 = 3; delta_0 = 1 + .5*4 - 2 = 1; A_1 = 3; A_0 = 1 + .25*3 = 1.75.
    assert [1.75, 3.0] == numbers(gae(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0]), 8.0, 0.5, 0.5))


def test_truncation_bootstraps_but_termination_does_not():
    # One step of reward 1, gamma .9, lambda 1, V = 10 everywhere: cut by the budget 1 + .9*10 = 10, ended by the env 1.
    cut, ended = trajectory([1.0], values=[10.0], terminated=False), trajectory([1.0], values=[10.0], terminated=True)
    # The env's end is worth 0 even where the caller bootstrapped it by mistake.
    estimate = PPO(gamma=0.9, lam=1.0).advantages([cut, ended], torch.tensor([10.0, 10.0]))
    assert [10.0] == numbers(estimate.returns[0])
    assert [1.0] == numbers(estimate.returns[1])


def test_the_value_after_the_last_step_is_that_of_the_final_observation_and_not_of_the_next_reset():
    # A counting env cut after 4 steps: V(s) = s, so V = (0, 1, 2, 3), V(final) = V(4) = 4; reward 0, gamma 1, lambda 0: every delta is 1.
    counting = trajectory([0.0] * 4, values=[0.0, 1.0, 2.0, 3.0], terminated=False)
    estimate = PPO(gamma=1.0, lam=0.0, normalise=False).advantages([counting], torch.tensor([4.0]))
    assert [1.0, 1.0, 1.0, 1.0] == numbers(estimate.advantages[0])
    assert [1.0, 2.0, 3.0, 4.0] == numbers(estimate.returns[0])


def test_ppo_without_a_value_head_says_what_to_do():
    with pytest.raises(ValueError, match="value_head=true"):
        PPO().advantages([trajectory([1.0])], torch.zeros(1))


def test_rewards_to_go_are_discounted_from_each_step():
    # gamma .5, r = (1, 2, 4): 1 + 1 + 1 = 3, 2 + 2 = 4, 4.
    assert [3.0, 4.0, 4.0] == numbers(rewards_to_go(torch.tensor([1.0, 2.0, 4.0]), 0.5))


def test_normalisation_counts_executed_tokens_only():
    # Values 0 and 2 with weights 3 and 1, and 100 with weight 0: mean .5, variance (3*.25 + 2.25)/4 = .75, std .8660.
    first, second = normalise([torch.tensor([0.0, 100.0]), torch.tensor([2.0])], [torch.tensor([3.0, 0.0]), torch.tensor([1.0])])
    assert first[0].item() == pytest.approx(-0.5774, abs=1e-4)
    assert second[0].item() == pytest.approx(1.7321, abs=1e-4)


def test_normalisation_of_nothing_is_finite():
    (only,) = normalise([torch.tensor([3.0, 3.0])], [torch.zeros(2)])
    assert torch.isfinite(only).all()
    (equal,) = normalise([torch.tensor([3.0, 3.0])], [torch.ones(2)])
    assert [0.0, 0.0] == numbers(equal)


def test_grpo_advantage_is_the_return_relative_to_its_group_in_population_standard_deviations():
    # Returns 1, 0, 0, 0: mean .25, std sqrt(.1875) = .4330; (.75, -.25) / .4330 = (1.7321, -.5774). A return is the sum of the rewards.
    members = [trajectory([0.5, 0.5]), trajectory([0.0]), trajectory([0.0, 0.0]), trajectory([0.0])]
    estimate = GRPO(group_size=4).advantages(members, torch.zeros(4))
    assert [1.7321, 1.7321] == numbers(estimate.advantages[0].expand(2, 1))
    assert [-0.5774] == numbers(estimate.advantages[1])
    assert estimate.advantages[0].shape == (2, 1)


def test_negative_advantages_are_scaled_and_positive_ones_are_not():
    estimate = GRPO(group_size=2, negative_scale=0.5).advantages([trajectory([1.0]), trajectory([0.0])], torch.zeros(2))
    assert [1.0, -0.5] == numbers(torch.cat(estimate.advantages))


def test_groups_of_equal_returns_are_dropped_and_counted_in_the_report():
    members = [trajectory([1.0], group=7) for _ in range(4)] + [trajectory([r], group=3) for r in (1.0, 0.0, 1.0, 0.0)]
    estimate = GRPO(group_size=4).advantages(members, torch.zeros(8))
    assert estimate.keep == [False] * 4 + [True] * 4
    assert (estimate.metrics["groups"], estimate.metrics["groups_kept"], estimate.metrics["groups_equal"]) == (2.0, 1.0, 1.0)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_dropped_group_does_not_change_another_groups_advantages(scale):
    useful = [trajectory([r], group=1) for r in (1.0, 0.0, 1.0, 0.0)]
    useless = [trajectory([5.0], group=0) for _ in range(4)]
    algorithm = GRPO(group_size=4, scale=scale)
    alone = algorithm.advantages(useful, torch.zeros(4)).advantages
    together = algorithm.advantages(useless + useful, torch.zeros(8)).advantages[4:]
    assert torch.equal(torch.cat(alone), torch.cat(together))


def test_the_filter_keeps_groups_whose_mean_lies_within_the_bounds_inclusive():
    # Means .5, .25, .75; bounds [.25, .5] keep the first two.
    returns = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.5])
    groups = judge_groups([0, 0, 1, 1, 2, 2], returns, 0.25, 0.5)
    assert groups.keep == [True, True, True, True, False, False]
    assert (groups.equal, groups.filtered) == (0, 1)


def test_group_members_need_not_stand_together():
    # Groups interleaved; each pair is (1, 0), so +1 and -1.
    returns = torch.tensor([1.0, 0.0, 0.0, 1.0])
    groups = judge_groups([5, 9, 5, 9], returns, None, None)
    assert [1.0, -1.0, -1.0, 1.0] == numbers(group_relative(returns, groups, "group"))


def test_leave_one_out_compares_with_the_mean_of_the_others():
    # Returns 3, 0, 0: 3 - 0 = 3; 0 - 1.5 = -1.5 twice.
    returns = torch.tensor([3.0, 0.0, 0.0])
    assert [3.0, -1.5, -1.5] == numbers(leave_one_out(returns, judge_groups([0, 0, 0], returns, None, None)))


def test_a_group_of_one_teaches_nothing():
    estimate = REINFORCE(group_size=2).advantages([trajectory([1.0])], torch.zeros(1))
    assert estimate.keep == [False]
    assert torch.isfinite(estimate.advantages[0]).all()


def test_reinforce_with_the_mean_baseline_credits_only_what_came_after():
    # Rewards-to-go of (0, 1) are (1, 1) and of (1, 0) are (1, 0): mean .75.
    estimate = REINFORCE(baseline="mean").advantages([trajectory([0.0, 1.0]), trajectory([1.0, 0.0])], torch.zeros(2))
    assert [0.25, 0.25, 0.25, -0.75] == numbers(torch.cat(estimate.advantages))


def test_a_discount_makes_an_earlier_success_worth_more():
    """gamma .5: success in the 1st, 2nd and no chunk return 1, .5 and 0; centred 1/2, 0, -1/2."""
    members = [trajectory([1.0]), trajectory([0.0, 1.0]), trajectory([0.0, 0.0])]
    estimate = GRPO(group_size=3, gamma=0.5, scale="none").advantages(members, torch.zeros(3))
    assert [advantage[0, 0].item() for advantage in estimate.advantages] == pytest.approx([0.5, 0.0, -0.5])
