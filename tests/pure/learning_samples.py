"""Small trajectories for the learning tests: real objects, numbers given by the test."""

from __future__ import annotations

from typing import Sequence

import torch

from embodied.learning.data import Trajectory


def trajectory(
    rewards: Sequence[float],
    *,
    episode: int = 0,
    group: int = 0,
    values: Sequence[float] | None = None,
    terminated: bool = True,
    length: int = 1,
    mask: torch.Tensor | None = None,
    inputs: dict[str, torch.Tensor] | None = None,
    choices: torch.Tensor | None = None,
    logprobs: torch.Tensor | None = None,
) -> Trajectory:
    """One trajectory of T = len(rewards) chunk-steps of `length` tokens; all tokens executed unless a mask [T, L] says otherwise."""
    steps = len(rewards)
    return Trajectory(
        episode=episode,
        group=group,
        inputs=inputs if inputs is not None else {"state": torch.full((steps, 2), float(episode))},
        choices=choices if choices is not None else torch.zeros(steps, length, dtype=torch.int64),
        logprobs=logprobs if logprobs is not None else torch.zeros(steps, length),
        mask=mask if mask is not None else torch.ones(steps, length, dtype=torch.bool),
        rewards=torch.tensor(rewards, dtype=torch.float32),
        values=None if values is None else torch.tensor(values, dtype=torch.float32),
        terminated=terminated,
        truncated=not terminated,
        final_observation=None if terminated else {"state": torch.zeros(1, 2)},
        success=False,
        steps=steps,
    )
