"""REINFORCE: the log-prob of what was done, times how much better it went than a baseline."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from embodied.learning import losses
from embodied.learning.advantages import judge_groups, leave_one_out, rewards_to_go
from embodied.learning.algorithms.base import Algorithm, Estimate, in_range, one_of
from embodied.learning.data import Batch, Loss, Trajectory


class REINFORCE(Algorithm):
    """baseline "leave_one_out": the mean return of the others of the group (groups of equal returns give no rows and are not counted);
    "mean": the mean discounted reward-to-go of the iteration; "none": nothing.

    gamma discounts rewards-to-go per chunk-step; leave-one-out compares whole, undiscounted returns.
    ratio_cap: rows sampled with older weights are weighted by min(new / old probability, ratio_cap), held constant; 1 on fresh rows. Old is
    at sampling time, which is all the correction there is to make: `Batch.proximal` and stale_cap are not looked at.
    """

    def __init__(self, *, group_size: int = 8, baseline: str = "leave_one_out", gamma: float = 1.0, ratio_cap: float = 2.0, **shared: Any):
        super().__init__(group_size=group_size, **shared)
        self.baseline = one_of("baseline", baseline, ("leave_one_out", "mean", "none"))
        if baseline == "leave_one_out" and group_size < 2:
            raise ValueError(f"algorithm.group_size: found {group_size}, wanted at least 2 for baseline=leave_one_out, or baseline=mean")
        self.gamma = in_range("gamma", gamma, 0, 1)
        self.ratio_cap = in_range("ratio_cap", ratio_cap, 0, above=True)

    @property
    def separable(self) -> bool:
        return self.baseline != "mean"

    def teaches(self, group: Sequence[Trajectory]) -> bool:
        return any(self.advantages(group, torch.zeros(len(group))).keep)

    def advantages(self, trajectories: Sequence[Trajectory], bootstrap: torch.Tensor) -> Estimate:
        returns = torch.stack([t.rewards.sum() for t in trajectories])
        metrics = {"return": returns.mean().item()}
        if self.baseline == "leave_one_out":
            groups = judge_groups([t.group for t in trajectories], returns, None, None)
            scores = leave_one_out(returns, groups)
            metrics |= {"groups": float(len(groups.members)), "groups_kept": float(len(groups.kept)), "groups_equal": float(groups.equal)}
            return Estimate([score.expand(t.length, 1) for score, t in zip(scores, trajectories)], None, groups.keep, metrics)
        ahead = [rewards_to_go(t.rewards, self.gamma) for t in trajectories]
        level = torch.cat(ahead).mean() if self.baseline == "mean" else 0.0
        return Estimate([(each - level).unsqueeze(1) for each in ahead], None, [True] * len(trajectories), metrics)

    def loss(self, stats: Any, batch: Batch) -> Loss:
        log_ratio = self.log_ratio(stats.logprobs, batch.logprobs, batch)
        ratio = losses.importance(log_ratio)
        decision = losses.level_sum(stats.logprobs, batch.weights > 0, self.level, self.action_dims)
        per_token = -ratio.detach().clamp(max=self.ratio_cap) * batch.advantages * decision
        metrics = {"ratio": ratio, "kl_old": losses.approximate_kl(log_ratio), "clip_fraction": ratio > self.ratio_cap, "policy_loss": per_token}
        return self.regularised(per_token, stats, batch, metrics)
