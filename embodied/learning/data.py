"""What flows from sim to learn, and the shape glossary.

T chunk-steps of one episode, L tokens per chunk (C primitive actions x A dims), n rows of a learning batch (one row = one chunk),
K values per chunk: C where one judges an action, L where one judges a token. Where one judges the whole chunk, the dim K is left out.
Tensors live on the CPU until the learner moves them. Rewards are unitless float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Trajectory:
    """One whole episode as the policy lived it."""

    episode: int  # ledger id: fixes all its randomness
    group: int  # episodes with the same group started from the same initial state
    inputs: dict[str, torch.Tensor]  # each [T, ...]: what policy.evaluate takes
    choices: torch.Tensor  # [T, L] int64 or float32
    logprobs: torch.Tensor  # [T, L] float32, at sampling time
    mask: torch.Tensor  # [T, L] bool: tokens whose action was executed
    rewards: torch.Tensor  # [T] float32, summed over the primitive steps of the chunk
    values: torch.Tensor | None  # [T] or [T, K] float32 at sampling time
    terminated: bool  # the env's own end: V after it is 0
    truncated: bool  # the step budget: V after it is V(final observation)
    final_observation: dict[str, Any] | None  # as the env gave it, each [1, ...]: what came after the last chunk; None when terminated
    success: bool
    steps: int  # primitive steps executed
    version: int = 0  # weights version it was sampled with
    step_rewards: torch.Tensor | None = None  # [T, C] float32, per primitive step, 0 for those that never ran; values of actions and tokens need them
    reference: torch.Tensor | None = None  # log-probabilities of the frozen start, when a KL term wants them: float32 [T, L, V], or [T, L] of the choices alone

    @property
    def length(self) -> int:
        return self.choices.shape[0]


@dataclass(frozen=True)
class Batch:
    """Rows for one forward/backward; every field [n, ...]."""

    inputs: dict[str, torch.Tensor]
    choices: torch.Tensor  # [n, L]
    logprobs: torch.Tensor  # [n, L] old log-probs
    weights: torch.Tensor  # [n, L] float32: 0 for masked tokens, else the token's weight in the mean (1 = token mean, 1/len = sequence mean)
    advantages: torch.Tensor  # [n, L] float32
    returns: torch.Tensor  # [n] or [n, K] float32, value targets; zeros without a value head
    values: torch.Tensor  # [n] or [n, K] float32, old values; zeros without a value head
    reference: torch.Tensor | None = None  # [n, L, V] or [n, L] reference log-probabilities, when a KL term wants them
    proximal: torch.Tensor | None = None  # [n, L] log-probs under the weights that the round's updates begin with; None = those at sampling time

    @property
    def rows(self) -> int:
        return self.choices.shape[0]


@dataclass(frozen=True)
class Loss:
    """Sums, not means: the learner adds them up over micro-batches and divides once at the update."""

    sum: torch.Tensor  # scalar with gradient: sum over tokens of weight * loss
    count: float  # sum of the weights
    metrics: dict[str, tuple[float, float]]  # name -> (sum, count)
