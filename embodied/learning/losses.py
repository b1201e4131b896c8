"""Loss terms per token and per row, and their sums: pure functions on tensors.

A masked token (weight 0) adds exactly 0 to every sum and to every gradient, whatever stands in it; so a batch in which all is masked
has loss 0, gradient 0 and finite metrics. No function divides by a count.
"""

from __future__ import annotations

from typing import Iterable, Mapping

import torch

from embodied.learning.data import Loss

LEVELS = ("token", "action", "chunk")
LOG_RATIO_LIMIT = 20.0  # exp(20) = 5e8: beyond it the ratio is surely clipped, and float32 would overflow at 88


def level_sum(values: torch.Tensor, mask: torch.Tensor, level: str, action_dims: int) -> torch.Tensor:
    """Sum log-probs over what counts as one decision, and give the sum back to each of its tokens.

    values [n, L] float32, mask [n, L] bool -> [n, L]; masked tokens add 0. "token": each its own; "action": over the A = action_dims
    tokens of a primitive action; "chunk": over all L. As each token carries its decision's sum, the number and the sum of the weights are the same
    at every level, and the weighted mean over tokens is the mean over decisions (each weighing as much as its tokens do).
    Raises ValueError when L is not a multiple of action_dims at level "action".
    """
    values = torch.where(mask, values, 0.0)
    if level == "token":
        return values
    rows, length = values.shape
    size = length if level == "chunk" else action_dims
    if size == 0 or length % size:
        raise ValueError(f"found {length} tokens per chunk, wanted a multiple of action_dims={action_dims}; set algorithm.action_dims from the policy's spec, or level=token")
    sums = values.view(rows, length // size, size).sum(-1, keepdim=True)
    return sums.expand(-1, -1, size).reshape(rows, length)


def importance(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp(log_ratio) with the exponent held within +-LOG_RATIO_LIMIT (no gradient beyond)."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def clipped_surrogate(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's loss -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A), and where the clip took the gradient away; both [n, L]."""
    plain, bounded = ratio * advantages, ratio.clamp(1.0 - low, 1.0 + high) * advantages
    return -torch.minimum(plain, bounded), bounded < plain


def approximate_kl(log_ratio: torch.Tensor) -> torch.Tensor:
    """KL(old || new) from samples of old, log_ratio = log new - log old: ratio - 1 - log ratio, never negative (k3 of Schulman 2020). Same shape."""
    return importance(log_ratio) - 1.0 - log_ratio


def exact_kl(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """KL(policy || reference) over the whole distribution: log-probabilities [n, L, V] twice -> [n, L] nats.

    A choice the policy gives probability 0 adds 0.
    """
    possible = policy > float("-inf")
    difference = torch.where(possible, policy, 0.0) - torch.where(possible, reference, 0.0)
    return (policy.exp() * difference).sum(-1)


def value_error(values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None) -> torch.Tensor:
    """0.5 * (V - return)^2, [n] or [n, K]; with a clip the larger of that and the same for old + clamp(V - old, -clip, clip)."""
    error = (values - returns).square()
    if clip is not None:
        held = old + (values - old).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return 0.5 * error


def spread(entries: torch.Tensor, length: int) -> torch.Tensor:
    """One number per row [n], or per action or token [n, K], given to each of its tokens: -> [n, L], L = length, a multiple of K.

    So an entry weighs as much as its executed tokens do, and the one denominator of `gather_loss` serves it too.
    """
    columns = entries.unsqueeze(1) if entries.dim() == 1 else entries
    rows, count = columns.shape
    return columns.unsqueeze(2).expand(-1, -1, length // count).reshape(rows, length)


def gather_loss(per_token: torch.Tensor, weights: torch.Tensor, metrics: Mapping[str, torch.Tensor]) -> Loss:
    """Weighted sums of the loss [n, L] and of each metric ([n, L], or [n] where it is one number per row).

    A row's number weighs as much as the row's tokens together, so the one denominator `count` serves all. One transfer from the device.
    """
    total = _weighted(per_token, weights)
    with torch.no_grad():
        sums = [_weighted(each.detach().float(), weights).double() for each in metrics.values()]
        # In float64, so that counts of parts add up to the count of the whole.
        count, *sums = torch.stack([weights.sum(dtype=torch.float64), *sums]).tolist()
    return Loss(total, count, {name: (each, count) for name, each in zip(metrics, sums)})


def _weighted(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    if values.dim() == 1:
        values = values.unsqueeze(1).expand_as(weights)
    return (torch.where(weights > 0, values, 0.0) * weights).sum()


def merge_metrics(many: Iterable[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Add up (sum, count) pairs by name."""
    merged: dict[str, tuple[float, float]] = {}
    for metrics in many:
        for name, (total, count) in metrics.items():
            before = merged.get(name, (0.0, 0.0))
            merged[name] = (before[0] + total, before[1] + count)
    return merged


def metric_means(metrics: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """sum / count by name; a metric that nothing was counted for is left out rather than made NaN."""
    return {name: total / count for name, (total, count) in metrics.items() if count > 0}
