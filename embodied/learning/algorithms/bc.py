"""Behaviour cloning: the negative log-prob of the labels. It has no advantages; its rows come from `batching.labelled`."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from embodied.learning.algorithms.base import Algorithm, Estimate
from embodied.learning.data import Batch, Loss, Trajectory


class BehaviourCloning(Algorithm):
    """Cross-entropy in nats per valid token (density of the label for a Gaussian policy)."""

    imitates = True

    def advantages(self, trajectories: Sequence[Trajectory], bootstrap: torch.Tensor) -> Estimate:
        """Every token of every trajectory weighs the same: what was done is taken as the label."""
        return Estimate([torch.zeros(t.length, 1) for t in trajectories], None, [True] * len(trajectories))

    def loss(self, stats: Any, batch: Batch) -> Loss:
        error = -stats.logprobs
        metrics = {"cross_entropy": error}
        if stats.distribution is not None:
            metrics["accuracy"] = stats.distribution.argmax(-1) == batch.choices
        return self.regularised(error, stats, batch, metrics)
