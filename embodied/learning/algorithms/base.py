"""What an algorithm is: advantages of whole trajectories, and the loss of some rows as a sum and a count.

The learner knows this class and no algorithm's name. Sums are added over micro-batches and divided once by the summed counts, so the
gradient of an update does not depend on how its rows were cut.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Sequence

import torch

from embodied.learning import losses
from embodied.learning.batching import AGGREGATIONS
from embodied.learning.data import Batch, Loss, Trajectory


@dataclass(frozen=True)
class Estimate:
    """Per trajectory, in the order given."""

    advantages: list[torch.Tensor]  # each [T, 1] or [T, L] float32
    returns: list[torch.Tensor] | None  # each [T] or [T, K] float32, as the values; value targets; None without a value head
    keep: list[bool]  # False: gives no rows and is not in the denominator
    metrics: dict[str, float] = field(default_factory=dict)  # always finite


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """The value, or ValueError naming what would do."""
    if value not in allowed:
        raise ValueError(f"algorithm.{name}: found {value!r}, wanted one of {', '.join(allowed)}")
    return value


def in_range(name: str, value: float, low: float = float("-inf"), high: float = float("inf"), above: bool = False) -> float:
    """The value when it is from `low` (above: beyond it) to `high`; else ValueError that says so."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (low < value if above else low <= value) or not value <= high:
        bounds = [f"{'above' if above else 'at least'} {low:g}"] * math.isfinite(low) + [f"at most {high:g}"] * math.isfinite(high)
        raise ValueError(f"algorithm.{name}: found {value}, wanted {' and '.join(bounds) or 'a number'}")
    return value


class Algorithm(ABC):
    """Base of all algorithms; subclasses say how advantages are made and what a token's loss is.

    level: what one importance ratio spans ("token", "action" = action_dims tokens, "chunk" = all L); the weights are the same at each level.
    aggregation: "token_mean" (each executed token weighs 1) or "sequence_mean" (each trajectory weighs 1).
    kl_coef: weight of KL(policy || frozen start); 0 needs no reference. kl_estimator: "exact" (over the whole distribution, [n, L, V] numbers) or
    "k3" (from the sampled tokens' log-probabilities alone: Schulman 2020, "Approximating KL divergence"). entropy_coef: weight of the bonus.
    recompute_logprobs: old log-probabilities are the learner's own, from the weights that a round's updates begin with, not the sampler's.
    action_dims: A of the policy, set by whoever builds both.
    stale_cap: largest weight of a decision sampled with older weights than the round's updates begin with; see `clipped_term`.
    """

    needs_values = False  # the policy must have a value head
    imitates = False  # learns from labels; no advantages, no rollouts

    def __init__(
        self,
        *,
        group_size: int = 1,
        level: str = "token",
        aggregation: str = "token_mean",
        entropy_coef: float = 0.0,
        kl_coef: float = 0.0,
        action_dims: int = 1,
        stale_cap: float = 2.0,
        kl_estimator: str = "exact",
        recompute_logprobs: bool = False,
    ):
        self.group_size = in_range("group_size", group_size, 1)
        self.level = one_of("level", level, losses.LEVELS)
        self.aggregation = one_of("aggregation", aggregation, AGGREGATIONS)
        self.entropy_coef = float(in_range("entropy_coef", entropy_coef, 0))
        self.kl_coef = float(in_range("kl_coef", kl_coef, 0))
        self.kl_estimator = one_of("kl_estimator", kl_estimator, ("exact", "k3"))
        self.recompute_logprobs = recompute_logprobs
        self.action_dims = action_dims
        self.stale_cap = float(in_range("stale_cap", stale_cap, 0, above=True))

    @property
    def needs_reference(self) -> bool:
        """True when `Batch.reference` must be filled."""
        return self.kl_coef > 0

    @property
    def needs_distribution(self) -> bool:
        """True when the KL term takes `stats.distribution`, here and of the reference."""
        return self.needs_reference and self.kl_estimator == "exact"

    @property
    def separable(self) -> bool:
        """Whether a group's advantages depend on that group alone, so that it can be learned from before the others have ended."""
        return False

    def teaches(self, group: Sequence[Trajectory]) -> bool:
        """Whether a whole group gives any rows."""
        return True

    def check_value_level(self, value_level: str) -> None:
        """Raises ValueError where values that judge so much each ("chunk", "action" or "token") cannot serve."""

    @abstractmethod
    def advantages(self, trajectories: Sequence[Trajectory], bootstrap: torch.Tensor) -> Estimate:
        """A whole iteration in ledger order; bootstrap [number of trajectories] float32 = V(final observation), of several its first, 0 where terminated."""

    @abstractmethod
    def loss(self, stats: Any, batch: Batch) -> Loss:
        """stats: `logprobs` [n, L], `entropy` [n, L], `values` [n], [n, K] or None, `distribution` [n, L, V] or None, with gradient."""

    def log_ratio(self, new: torch.Tensor, old: torch.Tensor, batch: Batch) -> torch.Tensor:
        """[n, L] log-probs twice -> [n, L] log of new probability / old, summed over the level; 0 where masked."""
        return losses.level_sum(new - old, batch.weights > 0, self.level, self.action_dims)

    def clipped_term(self, stats: Any, batch: Batch, low: float, high: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The clipped policy term [n, L] and its metrics, each [n, L]; the ratio's bounds are 1 - low and 1 + high.

        Where rows were sampled with older weights (`batch.proximal` given), the objective is the decoupled one of Hilton et al. 2021
        ("Batch size-invariance for policy optimization", L^CLIP decoupled; for asynchronous sampling AReaL 2025): the ratio that is
        clipped is new / proximal, so that the trust region is around the weights the updates begin with, and the term is multiplied by
        min(proximal / behaviour, stale_cap), held constant, which corrects for who sampled. Both are per decision of the level.
        Metrics then also hold "stale_weight" (as applied, after the cap) and "stale_capped" (whether the cap bound); "kl_old" is the
        KL to the proximal weights, estimated on the rows as they were sampled.
        """
        proximal = None if batch.proximal is None else batch.proximal.detach()
        log_ratio = self.log_ratio(stats.logprobs, batch.logprobs if proximal is None else proximal, batch)
        ratio = losses.importance(log_ratio)
        term, clipped = losses.clipped_surrogate(ratio, batch.advantages, low, high)
        metrics = {"ratio": ratio, "kl_old": losses.approximate_kl(log_ratio), "clip_fraction": clipped}
        if proximal is not None:
            weight = losses.importance(self.log_ratio(proximal, batch.logprobs, batch))
            metrics |= {"stale_capped": weight > self.stale_cap, "stale_weight": weight.clamp(max=self.stale_cap)}
            term = metrics["stale_weight"] * term
        return term, {**metrics, "policy_loss": term}

    def regularised(self, per_token: torch.Tensor, stats: Any, batch: Batch, metrics: dict[str, torch.Tensor]) -> Loss:
        """Add KL and entropy terms to a loss [n, L], and sum up."""
        metrics = {**metrics, "entropy": stats.entropy}
        if self.entropy_coef:
            per_token = per_token - self.entropy_coef * stats.entropy
        if self.needs_reference:
            if batch.reference is None or self.needs_distribution and stats.distribution is None:
                raise ValueError(
                    f"algorithm.kl_coef={self.kl_coef}: found no reference log-probabilities or no distribution, wanted both [n, L, V]; "
                    "evaluate with distribution=True here and by the frozen start, or set algorithm.kl_coef=0"
                )
            if self.needs_distribution:
                divergence = losses.exact_kl(stats.distribution, batch.reference)
            else:
                divergence = losses.approximate_kl(batch.reference - stats.logprobs)
            per_token = per_token + self.kl_coef * divergence
            metrics["kl_reference"] = divergence
        return losses.gather_loss(per_token, batch.weights, metrics)
