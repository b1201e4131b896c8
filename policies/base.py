"""The policy contract: observations and uniform noise in, an action chunk out; the same numbers again for learning.

Letters: b rows, C primitive actions per chunk, A dims per action, L = C * A tokens per chunk, n rows of a learning batch.
A policy is a torch.nn.Module (scripted experts excepted). Sampling is by inverse CDF from one uniform per token,
so a row's choice depends on (weights, observation, noise) only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Hashable, Mapping, Protocol, Sequence, runtime_checkable

import numpy as np
import torch


@dataclass(frozen=True)
class PolicySpec:
    """What a policy asks of an env; `wiring.fit.check_fit` compares it with the EnvSpec."""

    name: str
    action_kind: str  # "discrete" | "continuous" | "text"
    action_dims: int  # A; of a text the most tokens it may have
    chunk: int  # C
    cameras: tuple[str, ...] = ()  # the cameras it looks at, in order; () = no pictures, so none need be rendered
    state: int | None = None  # S it needs; None = does not read `state`
    language: bool = False
    privileged: bool = False  # True for scripted experts
    choices: int | None = None  # discrete actions only
    gripper: str | None = None  # its own convention; the codec translates to the env's
    distribution: bool = True  # evaluate(distribution=True) works; False for densities, which have no [n, L, V]
    streams: bool = False  # it has `answering` (each row is answered as it ends, while others go on), `dropped` (rows that it does not answer), `too_long` (what it says of prompts), and `longest` and `cache_bytes`, by which its memory is told


@dataclass(frozen=True)
class ActionChunk:
    choices: torch.Tensor  # [b, L] int64 (categorical) or float32 (Gaussian, before clipping)
    logprobs: torch.Tensor  # [b, L] float32, of the choices, at the sampling temperature
    mask: torch.Tensor  # [b, L] bool, False for padding tokens
    actions: np.ndarray  # [b, C, A] float32 (int64 [b, C, 1] for a discrete env, texts [b, 1, 1] of dtype object for a text env), in the env's convention
    values: torch.Tensor | None  # float32: [b], V of each observation, or [b, C], of each action, or [b, L], of each token; None without a value head
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)  # what `evaluate` needs, each [b, ...]
    labels: np.ndarray | None = None  # [b, C, A] what a demonstration should teach, where it differs from `actions`
    remarks: np.ndarray | None = None  # [b] of dtype object: what the log should say of a row, as that its prompt was cut; None of one without


@dataclass(frozen=True)
class TokenStats:
    logprobs: torch.Tensor  # [n, L] float32
    entropy: torch.Tensor  # [n, L] float32, nats
    values: torch.Tensor | None  # [n], [n, C] or [n, L] float32, as in ActionChunk
    distribution: torch.Tensor | None = None  # [n, L, V] log-probabilities; only when asked for


class Answering(Protocol):
    """Rows answered one by one, of a policy whose spec says `streams`. Its weights may change whenever nothing is `busy`."""

    @property
    def busy(self) -> bool: ...

    def submit(self, ids: Sequence[Hashable], inputs: dict[str, torch.Tensor], noise: np.ndarray | None) -> None:
        """Rows of what `prepare` gives; noise as for `act`."""

    def step(self) -> tuple[list[Hashable], ActionChunk | None]:
        """Works for a moment: the ids of the rows that ended with it, and their chunk, a row each in that order (None where none did)."""


@runtime_checkable
class Policy(Protocol):
    spec: PolicySpec

    def prepare(self, observation: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Batched observation (arrays [b, ...], or tensors, on their device, of an env that gives such; `instruction` a list of b str) -> model inputs, each [b, ...], as compact as can be (pixels stay uint8)."""

    def act(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None) -> ActionChunk:
        """noise: [b, L] float64 in (0, 1), or None for the greedy choice."""

    def evaluate(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor, distribution: bool = False) -> TokenStats:
        """Log-probs of given choices with gradient, at the temperature and vocabulary mask of `act`."""

    def encode(self, actions: np.ndarray) -> torch.Tensor:
        """[n, C, A] actions in the env's convention -> choices [n, L]: what imitation trains on. Of whole numbers those below 0 are no choice and not learned."""
