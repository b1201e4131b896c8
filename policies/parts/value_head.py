"""State values read off the language model: a small MLP on hidden states of the action slots, one value per chunk, per action or per token.

The weights are the same at every level, so a head saved at one level loads at another; which states it reads is what differs.
"""

from __future__ import annotations

import torch
from torch import nn

LEVELS = ("chunk", "action", "token")


def entries(level: str, actions: int, dims: int) -> int:
    """K: values per inference of C = `actions` actions of A = `dims` tokens; "chunk" 1, "action" C, "token" C * A. Raises ValueError for another level."""
    counts = dict(zip(LEVELS, (1, actions, actions * dims)))
    if level not in counts:
        raise ValueError(f"policy.value_level: found {level!r}, wanted one of {', '.join(LEVELS)}: what one value of the value head judges")
    return counts[level]


class ValueHead(nn.Module):
    """[b, L, D] hidden states of the slots -> float32 values: [b] at level "chunk" (of the mean over all slots), [b, C] at "action" (of the
    mean over each action's slots), [b, L] at "token" (of each slot). Starts at 0 everywhere, so that the first advantages are plain returns."""

    def __init__(self, width: int, hidden: int = 128, detach: bool = False, level: str = "chunk", actions: int = 1):
        """detach: True keeps the value loss from the backbone's weights. actions: C. Raises ValueError for an unknown level."""
        super().__init__()
        entries(level, actions, 1)
        self.detach, self.level, self.actions = detach, level, actions
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
        """States that have seen no token of the chunk, as those of one parallel pass."""
        if self.level != "token":
            states = states.mean(1) if self.level == "chunk" else states.unflatten(1, (self.actions, -1)).mean(2)
        if self.detach:
            states = states.detach()
        return self.fc2(torch.tanh(self.fc1(states))).squeeze(-1).float()

    def causal(self, states: torch.Tensor) -> torch.Tensor:
        """States each of which has seen the tokens before its own, of a single action (C = 1).

        The value of a token is that of the observation and the tokens before it; a value of the whole action may read the first state only:
        any other has seen what it would judge.
        """
        return self(states if self.level == "token" else states[:, :1])
