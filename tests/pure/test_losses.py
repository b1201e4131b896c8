"""Loss terms by hand-worked numbers."""

import math

import pytest
import torch

from embodied.learning.losses import approximate_kl, clipped_surrogate, exact_kl, gather_loss, importance, level_sum, merge_metrics, metric_means, value_error


def test_clipping_by_hand():
    # low .2, high .28. A = +1: ratio 1.5 -> -1.28 (clipped), .5 -> -.5 (never clipped downwards).
    # A = -1: ratio 1.5 -> +1.5 (never clipped upwards), .5 -> +.8 (clipped).
    ratio, advantages = torch.tensor([[1.5, 0.5, 1.5, 0.5]]), torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    loss, clipped = clipped_surrogate(ratio, advantages, 0.2, 0.28)
    assert loss.tolist() == [pytest.approx([-1.28, -0.5, 1.5, 0.8])]
    assert clipped.tolist() == [[True, False, False, True]]


def test_a_clipped_token_has_no_gradient():
    ratio = torch.tensor([[1.5, 1.1]], requires_grad=True)
    clipped_surrogate(ratio, torch.ones(1, 2), 0.2, 0.28)[0].sum().backward()
    assert ratio.grad.tolist() == [[0.0, -1.0]]


def test_level_sums_span_a_token_an_action_or_a_chunk():
    # Two actions of two dims; the last token was not executed and holds rubbish.
    values = torch.tensor([[1.0, 2.0, 3.0, float("nan")]])
    mask = torch.tensor([[True, True, True, False]])
    assert level_sum(values, mask, "token", 2).tolist() == [[1.0, 2.0, 3.0, 0.0]]
    assert level_sum(values, mask, "action", 2).tolist() == [[3.0, 3.0, 3.0, 3.0]]
    assert level_sum(values, mask, "chunk", 2).tolist() == [[6.0, 6.0, 6.0, 6.0]]


def test_action_level_refuses_a_length_that_actions_do_not_divide():
    with pytest.raises(ValueError, match="action_dims=2"):
        level_sum(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool), "action", 2)


def test_the_ratio_stays_finite_however_far_the_policies_are_apart():
    assert torch.isfinite(importance(torch.tensor([1e4, -1e4]))).all()


def test_approximate_kl_is_zero_for_equal_policies_and_positive_otherwise():
    # log ratio ln 2: 2 - 1 - .6931 = .3069.
    assert approximate_kl(torch.tensor([0.0, math.log(2.0)])).tolist() == pytest.approx([0.0, 0.3069], abs=1e-4)


def test_exact_kl_by_hand_and_with_an_impossible_choice():
    # KL((.5, .5) || (.25, .75)) = .5 ln 2 + .5 ln(2/3) = .14384. A choice of probability 0 adds nothing.
    policy = torch.tensor([[[0.5, 0.5, 0.0]]]).log().requires_grad_()
    divergence = exact_kl(policy, torch.tensor([[[0.25, 0.75, 0.0]]]).log())
    assert divergence.item() == pytest.approx(0.14384, abs=1e-5)
    divergence.sum().backward()
    assert torch.isfinite(policy.grad).all()


def test_value_clip_takes_the_larger_error():
    # V 3, old 1, return 4: plain .5*1 = .5; held at 1 + .5 = 1.5: .5*6.25 = 3.125.
    arguments = torch.tensor([3.0]), torch.tensor([1.0]), torch.tensor([4.0])
    assert value_error(*arguments, None).item() == pytest.approx(0.5)
    assert value_error(*arguments, 0.5).item() == pytest.approx(3.125)


def test_sums_are_weighted_and_a_row_weighs_as_much_as_its_tokens():
    # Weights (1, 0), (1, 2): loss 1*1 + 3*1 + 4*2 = 12, count 4; per row 10*1 + 20*3 = 70.
    weights = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    loss = gather_loss(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), weights, {"row": torch.tensor([10.0, 20.0])})
    assert (loss.sum.item(), loss.count, loss.metrics["row"]) == (12.0, 4.0, (70.0, 4.0))


def test_metrics_are_averaged_over_all_counts_and_an_uncounted_one_is_left_out():
    merged = merge_metrics([{"a": (1.0, 1.0), "b": (0.0, 0.0)}, {"a": (5.0, 2.0)}])
    assert metric_means(merged) == {"a": 2.0}
