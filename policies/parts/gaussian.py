"""One Gaussian per token for sampling and for learning: the same mean and std in both, inverse CDF.

Sampling and evaluation both go through `logprobs`, so the ratio of an unchanged policy is 1 (up to batch rounding).
"""

from __future__ import annotations

import math

import numpy as np
import torch


def sample(mean: torch.Tensor, std: torch.Tensor, noise: np.ndarray | torch.Tensor | None) -> torch.Tensor:
    """mean [b, L] float32, std [L], noise [b, L] uniforms in (0, 1) -> choices [b, L] float32; the mean for None. The sum is made in float64."""
    if noise is None:
        return mean
    uniform = torch.as_tensor(noise, dtype=torch.float64, device=mean.device)
    return (mean.double() + std.double() * torch.special.ndtri(uniform)).float()


def logprobs(mean: torch.Tensor, std: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
    """mean [n, L], std [L], choices [n, L] -> [n, L] log-densities."""
    return -0.5 * ((choices - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)


def entropy(std: torch.Tensor) -> torch.Tensor:
    """std [L] -> [L] nats."""
    return 0.5 * math.log(2 * math.pi * math.e) + std.log()
