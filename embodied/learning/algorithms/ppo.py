"""Proximal policy optimisation with a value head: GAE over what its values judge, which bootstraps truncation and not termination.

The values say by their shape what one of them judges (the policy's value_level): a chunk, a primitive action or a token. GAE then runs over
the decisions of that level in the order of time; those of actions that never ran have no part in it.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from embodied.learning import losses
from embodied.learning.advantages import Decisions, decisions, normalise
from embodied.learning.algorithms.base import Algorithm, Estimate, in_range
from embodied.learning.data import Batch, Loss, Trajectory


class PPO(Algorithm):
    """gamma discounts from chunk to chunk where a value judges a chunk, and from primitive step to primitive step where it judges an action or a
    token (1 between the tokens of an action). lam is per decision: per chunk, action or token. So gamma ** (1 / C) and lam ** (1 / C) reach as
    far at the action level as gamma and lam at the chunk level, and gamma ** (1 / C) with lam ** (1 / L) at the token level.

    value_clip: None, or how far V may move from its old value unpunished.
    normalise: centre and scale the advantages over the iteration's executed tokens. value_coef: weight of 0.5 * (V - return)^2,
    counted with the weights of the tokens that V judges, so the denominator is the policy term's.
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

    def check_value_level(self, value_level: str) -> None:
        """One ratio must not span several values: each of its tokens would be credited with the advantages of the others, those before it too."""
        if value_level in losses.LEVELS and losses.LEVELS.index(self.level) > losses.LEVELS.index(value_level):
            raise ValueError(f"algorithm.level: found {self.level} with policy.value_level={value_level}, wanted a ratio within one value; set algorithm.level={value_level}, or policy.value_level={self.level}")

    def advantages(self, trajectories: Sequence[Trajectory], bootstrap: torch.Tensor) -> Estimate:
        for t in trajectories:
            if t.values is None:
                raise ValueError(f"episode {t.episode}: found no values, wanted V at every chunk; PPO needs a policy with a value head (policy.value_head=true)")
        # An env's own end is worth 0 whatever was bootstrapped: termination is decided here once more, not by the caller's care.
        after = [0.0 if t.terminated else value for t, value in zip(trajectories, bootstrap.tolist(), strict=True)]
        judged = [self._decisions(t) for t in trajectories]
        values = [t.values.view(each.taken.shape) for t, each in zip(trajectories, judged)]
        plain = [each.gae(its, value, self.lam) for each, its, value in zip(judged, values, after)]
        returns = [advantage + its for advantage, its in zip(plain, values)]
        scaled = normalise([a.flatten() for a in plain], [each.tokens.flatten() for each in judged]) if self.normalise else plain
        taken = torch.cat([each.taken.flatten() for each in judged])
        old, targets, spread = (torch.cat([t.flatten() for t in each])[taken] for each in (values, returns, plain))
        metrics = {
            "return": torch.stack([t.rewards.sum() for t in trajectories]).mean().item(),
        }
        if len(old):  # of texts every prompt may have been dropped
            metrics |= {"advantage_std": spread.std(correction=0).item(), "value": old.mean().item(), "explained_variance": _explained(old, targets)}
        advantages = [losses.spread(a.view(each.taken.shape), t.choices.shape[1]) for a, each, t in zip(scaled, judged, trajectories)]
        return Estimate(advantages, [r.view_as(t.values) for r, t in zip(returns, trajectories)], [True] * len(trajectories), metrics)

    def loss(self, stats: Any, batch: Batch) -> Loss:
        surrogate, metrics = self.clipped_term(stats, batch, self.clip_low, self.clip_high)
        error = losses.value_error(stats.values, batch.values, batch.returns, self.value_clip)
        length = batch.choices.shape[1]
        return self.regularised(surrogate + losses.spread(self.value_coef * error, length), stats, batch, metrics | {"value_loss": losses.spread(error, length)})

    def _decisions(self, trajectory: Trajectory) -> Decisions:
        count = 1 if trajectory.values.dim() == 1 else trajectory.values.shape[1]
        return decisions(count, trajectory.rewards, trajectory.step_rewards, trajectory.mask, self.gamma)


def _explained(values: torch.Tensor, returns: torch.Tensor) -> float:
    """1 - var(return - V) / var(return); 0 where the returns do not vary."""
    spread = returns.var(correction=0).item()
    return 1.0 - (returns - values).var(correction=0).item() / spread if spread > 0 else 0.0
