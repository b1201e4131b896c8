"""The policy that solves the toy env: it reads the target and the drift from `privileged`, and its return is the best there is."""

from __future__ import annotations

from typing import Mapping, Sequence

import numpy as np
import torch

from envs.spec import ActionSpec, EnvSpec
from policies.base import ActionChunk, PolicySpec


class ToyExpert:
    """Deterministic. env_spec: of the toy env it acts in; None is the default one (discrete, 4 choices). chunk: C.

    disturbance: probability that an action does the next level up instead, in `disturbed_share` of the episodes; the labels stay
    right, so that imitation also sees what follows a mistake.
    """

    def __init__(self, env_spec: EnvSpec | None = None, chunk: int = 1, disturbance: float = 0.0, disturbed_share: float = 0.5):
        self._action = env_spec.action if env_spec is not None else ActionSpec("discrete", 1, choices=4)
        self._choices = env_spec.state - 2 if env_spec is not None else 4
        self._disturbance, self._share = disturbance, disturbed_share
        kind, dims = self._action.kind, self._action.dims
        choices, gripper = self._action.choices, self._action.gripper
        self.spec = PolicySpec("toy_expert", kind, dims, chunk, privileged=True, choices=choices, gripper=gripper)

    def act(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None = None) -> ActionChunk:
        """Reads `privileged` float32 [b, 2] = target, drift, and, with a disturbance, `episode` and `step` int [b]; not the noise."""
        target, drift = np.asarray(observation["privileged"]).astype(np.int64).T[..., None]  # each [b, 1]
        targets = (target + drift * np.arange(self.spec.chunk)) % self._choices  # [b, C]
        labels = self._actions(targets)
        actions = labels
        if self._disturbance:
            actions = self._actions((targets + self._slips(observation["episode"], observation["step"])) % self._choices)
        choices = torch.from_numpy(actions.reshape(len(actions), -1))
        nothing = torch.zeros(choices.shape)
        return ActionChunk(choices, nothing, torch.ones(choices.shape, dtype=torch.bool), actions, None, labels=labels)

    def _slips(self, episodes: Sequence[int], steps: Sequence[int]) -> np.ndarray:
        """[b, C] int64, 1 where the action is disturbed: a function of (episode, step) alone."""
        rows = []
        for episode, step in zip(episodes, steps):
            disturbed = np.random.Generator(np.random.Philox(key=int(episode))).random() < self._share
            draws = np.random.Generator(np.random.Philox(key=int(episode), counter=[0, 0, 1, int(step)])).random(self.spec.chunk)
            rows.append((draws < self._disturbance) & disturbed)
        return np.array(rows).astype(np.int64)

    def _actions(self, targets: np.ndarray) -> np.ndarray:
        """[b, C] levels -> [b, C, A] in the env's convention."""
        return targets[..., None] if self._action.kind == "discrete" else self._continuous(targets)

    def _continuous(self, targets: np.ndarray) -> np.ndarray:
        actions = np.zeros((*targets.shape, self._action.dims), np.float32)
        if self._action.gripper is not None:
            closed, opened = (1.0, -1.0) if self._action.gripper == "open_-1_close_+1" else (0.0, 1.0)
            actions[..., -1] = np.where(targets % 2 == 1, closed, opened)
        actions[..., 0] = (2 * targets + 1) / self._choices - 1  # the middle of the level's part of [-1, 1]
        return actions
