"""What the scripted experts of robot hands have in common: seven numbers per action, and pushes that show imitation what follows a mistake."""

from __future__ import annotations

import numpy as np
import torch

from policies.base import ActionChunk, PolicySpec


class HandExpert:
    """chunk: 1, it must see every step. disturbance: standard deviation, in action units, of the push added to the executed translation;
    disturbed_share: the share of episodes that are pushed. `labels` are always the clean actions. Raises ValueError for others.
    """

    def __init__(self, chunk: int = 1, disturbance: float = 0.0, disturbed_share: float = 0.5):
        if chunk != 1:
            raise ValueError(f"found chunk {chunk}, wanted 1: the expert corrects itself at every step")
        if disturbance < 0 or not 0 <= disturbed_share <= 1:
            raise ValueError(f"found disturbance {disturbance} and share {disturbed_share}, wanted at least 0 and 0 to 1")
        self.spec = PolicySpec("expert", "continuous", 7, chunk, privileged=True, gripper="open_-1_close_+1")
        self._disturbance, self._share = float(disturbance), float(disturbed_share)

    def _is_pushed(self, episode: int, noise: np.ndarray | None) -> bool:
        return noise is not None and self._disturbance > 0 and disturbed(int(episode), self._share)

    def _normal(self, uniforms: np.ndarray) -> np.ndarray:
        """[...] in (0, 1) -> [...] float64 of the disturbance's spread."""
        return torch.special.ndtri(torch.as_tensor(uniforms, dtype=torch.float64)).numpy() * self._disturbance


def answer(clean: np.ndarray, executed: np.ndarray) -> ActionChunk:
    """Labels and what is done, both [b, 1, 7] float32."""
    blank = torch.zeros((len(clean), 7))
    return ActionChunk(blank, blank, torch.ones((len(clean), 7), dtype=torch.bool), executed, None, labels=clean)


def disturbed(episode: int, share: float) -> bool:
    """Whether this episode is pushed: a hash of its id, so that pushed and clean ones mix over tasks and initial states."""
    mixed = (episode + 1) * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ (mixed >> 31)) * 0xBF58476D1CE4E5B9 % 2**64
    return (mixed >> 11) / 2**53 < share
