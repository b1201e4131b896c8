"""Muon: momentum whose step is made orthogonal by a Newton-Schulz iteration (Jordan et al. 2024), in the gradient's own precision.

torch.optim.Muon iterates in bfloat16, which a CPU without bfloat16 instructions multiplies some thirty times slower than float32; here
matrices of one shape are stacked and iterated together in float32. The step is scaled to AdamW's root mean square (Moonlight, eq. 4), so
one learning rate serves both.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterable

import torch

from embodied.learning.sharding import alike, whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that pulls singular values towards 1
ITERATIONS = 5
RMS = 0.2  # root mean square of AdamW's step in units of the learning rate


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """[k, n, m] float32 -> [k, n, m] with all singular values near 1 (within about 0.3), the singular vectors kept."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """For 2-D weights of hidden layers. Decoupled weight decay, Nesterov momentum. Raises ValueError for a parameter that is no matrix."""

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        shapes = [tuple(p.shape) for group in self.param_groups for p in group["params"] if p.dim() != 2]
        if shapes:
            raise ValueError(f"found parameters of shapes {shapes}, wanted matrices; give the others to AdamW")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            of_shape: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    of_shape[parameter.shape].append(parameter)
            for parameters in of_shape.values():
                steps = orthogonalise(torch.stack([whole(self._momentum(p, group["momentum"])) for p in parameters]))
                rate = group["lr"] * RMS * max(parameters[0].shape) ** 0.5
                for parameter, step in zip(parameters, steps):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(alike(step.to(parameter.dtype), parameter), alpha=-rate)

    def _momentum(self, parameter: torch.Tensor, momentum: float) -> torch.Tensor:
        """The Nesterov direction, float32."""
        gradient = parameter.grad.float()
        state = self.state[parameter]
        buffer = state.setdefault("momentum_buffer", torch.zeros_like(gradient))
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)
