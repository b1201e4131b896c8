"""A state value read off the language model: a small MLP on the mean hidden state of the action slots."""

from __future__ import annotations

import torch
from torch import nn


class ValueHead(nn.Module):
    """[b, L, D] hidden states -> [b] float32. Starts at 0 everywhere, so that the first advantages are plain returns."""

    def __init__(self, width: int, hidden: int = 128, detach: bool = False):
        """detach: True keeps the value loss from the backbone's weights."""
        super().__init__()
        self.detach = detach
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, 1)

    def reset(self, seed: int = 0) -> None:
        """Initial weights, a function of the seed alone."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            weight = torch.randn(self.fc1.weight.shape, generator=generator) / self.fc1.in_features**0.5
            self.fc1.weight.copy_(weight)
            for tensor in (self.fc1.bias, self.fc2.weight, self.fc2.bias):
                tensor.zero_()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        mean = states.mean(1)
        if self.detach:
            mean = mean.detach()
        return self.fc2(torch.tanh(self.fc1(mean))).squeeze(-1).float()
