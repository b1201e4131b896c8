"""Proximal policy optimisation with a value head: GAE over chunk-steps, which bootstraps truncation and not termination."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from embodied.learning import losses
from embodied.learning.advantages import gae, normalise
from embodied.learning.algorithms.base import Algorithm, Estimate, in_range
from embodied.learning.data import Batch, Loss, Trajectory


class PPO(Algorithm):
    """gamma and lam count chunk-steps, not primitive ones. value_clip: None, or how far V may move from its old value unpunished.

    normalise: centre and scale the advantages over the iteration's executed tokens. value_coef: weight of 0.5 * (V - return)^2,
    counted with the weights of the row's tokens, so the denominator is the policy term's.
    """

    needs_values = True

    def __init__(
        self,
        *,
        gamma: float = 0.99,
        lam: float = 0.95,
        normalise: bool = True,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        value_coef: float = 0.5,
        value_clip: float | None = None,
        **shared: Any,
    ):
        super().__init__(**shared)
        self.gamma, self.lam = in_range("gamma", gamma, 0, 1), in_range("lam", lam, 0, 1)
        self.normalise = normalise
        self.clip_low, self.clip_high = in_range("clip_low", clip_low, 0, 1), in_range("clip_high", clip_high, 0)
        self.value_coef = in_range("value_coef", value_coef, 0)
        self.value_clip = None if value_clip is None else in_range("value_clip", value_clip, 0, above=True)

    @property
    def separable(self) -> bool:
        return not self.normalise

    def advantages(self, trajectories: Sequence[Trajectory], bootstrap: torch.Tensor) -> Estimate:
        for t in trajectories:
            if t.values is None:
                raise ValueError(f"episode {t.episode}: found no values, wanted V at every chunk; PPO needs a policy with a value head (policy.value_head=true)")
        # An env's own end is worth 0 whatever was bootstrapped: termination is decided here once more, not by the caller's care.
        after = [0.0 if t.terminated else value for t, value in zip(trajectories, bootstrap.tolist(), strict=True)]
        plain = [gae(t.rewards, t.values, value, self.gamma, self.lam) for t, value in zip(trajectories, after)]
        returns = [advantage + t.values for advantage, t in zip(plain, trajectories)]
        scaled = normalise(plain, [t.mask.sum(-1) for t in trajectories]) if self.normalise else plain
        metrics = {
            "return": torch.stack([t.rewards.sum() for t in trajectories]).mean().item(),
            "advantage_std": torch.cat(plain).std(correction=0).item(),
            "value": torch.cat([t.values for t in trajectories]).mean().item(),
            "explained_variance": _explained(torch.cat([t.values for t in trajectories]), torch.cat(returns)),
        }
        return Estimate([each.unsqueeze(1) for each in scaled], returns, [True] * len(trajectories), metrics)

    def loss(self, stats: Any, batch: Batch) -> Loss:
        surrogate, metrics = self.clipped_term(stats, batch, self.clip_low, self.clip_high)
        error = losses.value_error(stats.values, batch.values, batch.returns, self.value_clip)
        return self.regularised(surrogate + self.value_coef * error.unsqueeze(1), stats, batch, metrics | {"value_loss": error})


def _explained(values: torch.Tensor, returns: torch.Tensor) -> float:
    """1 - var(return - V) / var(return); 0 where the returns do not vary."""
    spread = returns.var(correction=0).item()
    return 1.0 - (returns - values).var(correction=0).item() / spread if spread > 0 else 0.0
