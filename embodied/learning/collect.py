"""From the chunks of one episode to a Trajectory: pure, and the one place that knows which tokens were executed.

An episode may end inside a chunk (n executed of C); the tokens of the actions that never ran get mask False, so they are neither
rewarded nor blamed. Tokens stand in action order: token j belongs to action j // (L / C).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import torch

from embodied.learning.data import Trajectory


@dataclass(frozen=True)
class ChunkRecord:
    """One inference and what came of it."""

    inputs: dict[str, torch.Tensor]  # each [1, ...]
    choices: torch.Tensor  # [L] int64 or float32
    logprobs: torch.Tensor  # [L] float32
    mask: torch.Tensor  # [L] bool, False for the policy's own padding
    rewards: Sequence[float]  # [n], one per primitive step that ran
    value: float | torch.Tensor | None  # V of the observation that was acted on, or [K] of its actions or tokens


def record(chunk: Any, row: int, rewards: Sequence[float]) -> ChunkRecord:
    """Row `row` of an action chunk (fields `inputs`, `choices`, `logprobs`, `mask`, `values`) and the rewards of the steps that ran."""
    inputs = {name: tensor[row : row + 1] for name, tensor in chunk.inputs.items()}
    value = None if chunk.values is None else chunk.values[row]
    return ChunkRecord(inputs, chunk.choices[row], chunk.logprobs[row], chunk.mask[row], list(map(float, rewards)), value)


def executed_mask(length: int, chunk: int, executed: int) -> torch.Tensor:
    """[L] bool: True for the tokens of the first `executed` of `chunk` actions. Raises ValueError where the numbers do not fit."""
    if chunk < 1 or length % chunk:
        raise ValueError(f"found {length} tokens for chunk={chunk} actions, wanted a whole number of tokens per action; check the policy's spec.chunk")
    if not 1 <= executed <= chunk:
        raise ValueError(f"found {executed} executed actions, wanted 1 to chunk={chunk}; a chunk without a step is no step of the episode")
    return torch.arange(length) < executed * (length // chunk)


def assemble(
    steps: Sequence[ChunkRecord],
    *,
    episode: int,
    group: int,
    chunk: int,
    terminated: bool,
    truncated: bool,
    final_observation: dict[str, Any] | None,
    success: bool,
    version: int = 0,
) -> Trajectory:
    """The whole episode. `chunk` is C; `final_observation` each [1, ...], needed when the episode was cut and not ended.

    Where an env says terminated and truncated at once, termination wins: nothing is worth anything after it.
    Raises ValueError for an empty episode, one without an end, a cut one without its last observation, or one with a short chunk before its last.
    """
    if not steps:
        raise ValueError(f"episode {episode}: found no chunk, wanted at least one; an env that is over at reset cannot be learned from")
    if not (terminated or truncated):
        raise ValueError(f"episode {episode}: found neither terminated nor truncated, wanted a whole episode; assemble it when it is over")
    if not terminated and final_observation is None:
        raise ValueError(f"episode {episode}: found no final observation, wanted one because the step budget cut it; keep the observation after the last step")
    short = [t for t, step in enumerate(steps[:-1]) if len(step.rewards) != chunk]
    if short:
        raise ValueError(f"episode {episode}: chunk {short[0]} ran {len(steps[short[0]].rewards)} of {chunk} actions yet was not the last; only an episode's end may cut a chunk")
    length = steps[0].choices.shape[0]
    ran = [list(step.rewards) + [0.0] * (chunk - len(step.rewards)) for step in steps]
    masks = [step.mask.cpu() & executed_mask(length, chunk, len(step.rewards)) for step in steps]
    valued = all(step.value is not None for step in steps)
    return Trajectory(
        episode=episode,
        group=group,
        inputs={name: torch.cat([step.inputs[name].cpu() for step in steps]) for name in steps[0].inputs},
        choices=torch.stack([step.choices.cpu() for step in steps]),
        logprobs=torch.stack([step.logprobs.float().cpu() for step in steps]),
        mask=torch.stack(masks),
        rewards=torch.tensor([sum(step.rewards) for step in steps], dtype=torch.float32),
        step_rewards=torch.tensor(ran, dtype=torch.float32),
        values=torch.stack([torch.as_tensor(step.value, dtype=torch.float32).cpu() for step in steps]) if valued else None,
        terminated=bool(terminated),
        truncated=bool(truncated) and not terminated,
        final_observation=None if terminated else dict(final_observation),
        success=bool(success),
        steps=sum(len(step.rewards) for step in steps),
        version=version,
    )
