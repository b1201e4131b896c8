"""Group-relative policy optimisation: a trajectory is judged against the others from the same initial state.

A group that teaches nothing (equal returns, or a mean outside [lower, upper]) gives no rows and is not in the denominator, so the
gradient is that of a run which never had it.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from embodied.learning.advantages import Groups, group_relative, judge_groups
from embodied.learning.algorithms.base import Algorithm, Estimate, in_range, one_of
from embodied.learning.data import Batch, Loss, Trajectory


class GRPO(Algorithm):
    """A trajectory is judged by its return, discounted from its start; its advantage is the same for every token.

    gamma: per chunk-step; below 1 an earlier success is worth more, so that hesitation is judged too. scale: what the centred return is divided by: the standard deviation of its "group", of the "batch", or "none".
    lower, upper: DAPO's filter on a group's mean return; None does not bind. negative_scale: factor on negative advantages.
    clip_low, clip_high: the ratio's bounds are 1 - clip_low and 1 + clip_high.
    """

    def __init__(
        self,
        *,
        group_size: int = 8,
        gamma: float = 1.0,
        scale: str = "group",
        lower: float | None = None,
        upper: float | None = None,
        negative_scale: float = 1.0,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        **shared: Any,
    ):
        super().__init__(group_size=group_size, **shared)
        if group_size < 2:
            raise ValueError(f"algorithm.group_size: found {group_size}, wanted at least 2: a group of one has no one to be compared with")
        self.gamma = in_range("gamma", gamma, 0, 1, above=True)
        self.scale = one_of("scale", scale, ("group", "batch", "none"))
        if lower is not None and upper is not None and lower > upper:
            raise ValueError(f"algorithm: found lower={lower} above upper={upper}: no group could pass; exchange them, or leave one null")
        self.lower, self.upper = lower, upper
        self.negative_scale = in_range("negative_scale", negative_scale, 0)
        self.clip_low, self.clip_high = in_range("clip_low", clip_low, 0, 1), in_range("clip_high", clip_high, 0)

    @property
    def separable(self) -> bool:
        return self.scale != "batch"

    def teaches(self, group: Sequence[Trajectory]) -> bool:
        return any(self._judged(group)[1].keep)

    def advantages(self, trajectories: Sequence[Trajectory], bootstrap: torch.Tensor) -> Estimate:
        returns, groups = self._judged(trajectories)
        scores = group_relative(returns, groups, self.scale)
        scores = torch.where(scores < 0, scores * self.negative_scale, scores)
        metrics = {
            "return": returns.mean().item(),
            "groups": float(len(groups.members)),
            "groups_kept": float(len(groups.kept)),
            "groups_equal": float(groups.equal),
            "groups_filtered": float(groups.filtered),
        }
        return Estimate([score.expand(t.length, 1) for score, t in zip(scores, trajectories)], None, groups.keep, metrics)

    def _judged(self, trajectories: Sequence[Trajectory]) -> tuple[torch.Tensor, Groups]:
        returns = torch.stack([(t.rewards * self.gamma ** torch.arange(t.length)).sum() for t in trajectories])
        return returns, judge_groups([t.group for t in trajectories], returns, self.lower, self.upper)

    def loss(self, stats: Any, batch: Batch) -> Loss:
        surrogate, metrics = self.clipped_term(stats, batch, self.clip_low, self.clip_high)
        return self.regularised(surrogate, stats, batch, metrics)
