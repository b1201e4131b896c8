"""One categorical distribution for sampling and for learning: the same temperature, the same vocabulary, inverse CDF.

Sampling and evaluation both go through `log_softmax`, so the ratio of an unchanged policy is 1 (up to batch rounding).
"""

from __future__ import annotations

import numpy as np
import torch


def log_softmax(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """[..., V] logits (any float dtype) -> [..., V] float32 log-probabilities of softmax(logits / temperature)."""
    return torch.log_softmax(logits.float() / temperature, dim=-1)


def choose(distribution: torch.Tensor, noise: np.ndarray | torch.Tensor | None) -> torch.Tensor:
    """[..., V] log-probabilities -> [...] int64: the first index whose cumulated probability exceeds the uniform; argmax for None.

    The cumulated sum is float64, and is scaled to end at 1, so a choice never falls on a token of probability 0.
    """
    if noise is None:
        return distribution.argmax(-1)
    cumulated = distribution.double().exp().cumsum(-1)
    uniform = torch.as_tensor(noise, dtype=torch.float64, device=distribution.device).unsqueeze(-1)
    return (cumulated <= uniform * cumulated[..., -1:]).sum(-1).clamp_(max=distribution.shape[-1] - 1)


def nucleus(distribution: torch.Tensor, top_p: float, kept: torch.Tensor | None = None) -> torch.Tensor:
    """[..., V] log-probabilities -> the same of the nucleus (Holtzman et al. 2020): the fewest likeliest whose probabilities reach top_p,
    normalised anew; -inf for the others.

    kept: [...] int64, choices that belong to it whatever their probability. What was sampled from a nucleus has a probability under one
    of other weights too, which is what a ratio needs; under the same weights it changes nothing.
    """
    ordered, places = distribution.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.double().exp()
    inside = torch.zeros_like(distribution, dtype=torch.bool).scatter_(-1, places, probabilities.cumsum(-1) - probabilities < top_p)
    if kept is not None:
        inside.scatter_(-1, kept.unsqueeze(-1), True)
    return torch.log_softmax(distribution.masked_fill(~inside, float("-inf")), dim=-1)


def gather(distribution: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
    """[..., V], [...] int64 -> [...] log-probs of the choices."""
    return distribution.gather(-1, choices.unsqueeze(-1)).squeeze(-1)


def entropy(distribution: torch.Tensor) -> torch.Tensor:
    """[..., V] -> [...] nats; a token of probability 0 adds 0."""
    return -(distribution.exp() * distribution.clamp(min=torch.finfo(distribution.dtype).min)).sum(-1)
