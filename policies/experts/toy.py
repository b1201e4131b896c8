"""The policy that solves the toy env: it reads the target and the drift from `privileged`, and its return is the best there is."""

from __future__ import annotations

from typing import Mapping

import numpy as np
import torch

from envs.spec import ActionSpec, EnvSpec
from policies.base import ActionChunk, PolicySpec


class ToyExpert:
    """Deterministic. env_spec: of the toy env it acts in; None is the default one (discrete, 4 choices). chunk: C."""

    def __init__(self, env_spec: EnvSpec | None = None, chunk: int = 1):
        self._action = env_spec.action if env_spec is not None else ActionSpec("discrete", 1, choices=4)
        self._choices = env_spec.state - 2 if env_spec is not None else 4
        kind, dims = self._action.kind, self._action.dims
        choices, gripper = self._action.choices, self._action.gripper
        self.spec = PolicySpec("toy_expert", kind, dims, chunk, privileged=True, choices=choices, gripper=gripper)

    def act(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None = None) -> ActionChunk:
        """Reads `privileged` float32 [b, 2] = target, drift; the noise is not used."""
        target, drift = np.asarray(observation["privileged"]).astype(np.int64).T[..., None]  # each [b, 1]
        targets = (target + drift * np.arange(self.spec.chunk)) % self._choices  # [b, C]
        actions = targets[..., None] if self._action.kind == "discrete" else self._continuous(targets)
        choices = torch.from_numpy(actions.reshape(len(actions), -1))
        return ActionChunk(choices, torch.zeros(choices.shape), torch.ones(choices.shape, dtype=torch.bool), actions, None)

    def _continuous(self, targets: np.ndarray) -> np.ndarray:
        actions = np.zeros((*targets.shape, self._action.dims), np.float32)
        if self._action.gripper is not None:
            closed, opened = (1.0, -1.0) if self._action.gripper == "open_-1_close_+1" else (0.0, 1.0)
            actions[..., -1] = np.where(targets % 2 == 1, closed, opened)
        actions[..., 0] = (2 * targets + 1) / self._choices - 1  # the middle of the level's part of [-1, 1]
        return actions
