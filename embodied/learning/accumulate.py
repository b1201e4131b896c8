"""The gradient of one update, added up row block by row block and divided once: how the rows were cut does not weigh on it.

So an update may begin with the first granule of its rows, while the rest is still being sampled.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from embodied.learning import batching, losses
from embodied.learning.algorithms.base import Algorithm
from embodied.learning.data import Batch, Loss
from embodied.learning.shards import Shards


class Diverged(ValueError):
    """Learning has gone where no number is finite; nothing is saved of it."""


class Accumulator:
    def __init__(self, policy: Any, algorithm: Algorithm, optimizer: Any, microbatch: int | None, grad_clip: float | None, decoupled: bool = False, threads: int = 1) -> None:
        """optimizer: learning.optimizers.Optimizer. microbatch: rows of one forward/backward, None = as they come. grad_clip: largest norm.

        decoupled: rows were sampled with older weights. A batch without `proximal` gets it from the weights as they are. threads: on the CPU.
        """
        self._policy, self._algorithm, self._optimizer = policy, algorithm, optimizer
        self._microbatch, self._grad_clip, self._decoupled = microbatch, grad_clip, decoupled
        self._shards = Shards(policy, threads)
        self._count = 0.0
        self._totals: dict[str, tuple[float, float]] = {}  # metric -> sum and count, until `report`

    def begin(self) -> None:
        """Forgets what was added since the last step."""
        self._optimizer.zero_grad()
        self._shards.drop()
        self._count = 0.0

    def add(self, batch: Batch) -> None:
        """Forward and backward of the rows."""
        device = next(self._policy.parameters()).device
        for part in batching.microbatches(batch, self._microbatch):
            for loss in self._shards.run(self._backward, batching.to(part, device)):
                self._count += loss.count
                self._totals = losses.merge_metrics([self._totals, loss.metrics])

    def probe(self, batch: Batch) -> None:
        """The work of `add` and nothing of its effect: to be timed."""
        device = next(self._policy.parameters()).device
        for part in batching.microbatches(batch, self._microbatch):
            self._shards.run(lambda policy, rows: self._evaluated(policy, rows).logprobs.sum().backward(), batching.to(part, device))
        self.begin()

    def _evaluated(self, policy: Any, part: Batch) -> Any:
        return policy.evaluate(part.inputs, part.choices, distribution=self._algorithm.needs_reference)

    def _backward(self, policy: Any, part: Batch) -> Loss:
        stats = self._evaluated(policy, part)
        if self._decoupled and part.proximal is None:
            part = replace(part, proximal=stats.logprobs.detach())
        loss = self._algorithm.loss(stats, part)
        loss.sum.backward()
        return replace(loss, sum=loss.sum.detach())

    def step(self, rate: float, what: str) -> float | None:
        """The update; its gradient norm before clipping, None when every row was masked and nothing was done. what: names it in an error."""
        if self._count == 0:
            return None
        self._shards.collect()
        trainable = [p for p in self._policy.parameters() if p.grad is not None]
        for parameter in trainable:
            parameter.grad /= self._count
        limit = float("inf") if self._grad_clip is None else self._grad_clip
        norm = float(torch.nn.utils.clip_grad_norm_(trainable, limit))
        if not math.isfinite(norm):
            raise Diverged(f"{what}: the gradient's norm is {norm}, wanted a finite number; look for rewards or observations that are not finite, or lower algorithm.learner.lr")
        self._optimizer.set_rate(rate)
        self._optimizer.step()
        self._totals = losses.merge_metrics([self._totals, {"grad_norm": (norm, 1.0)}])
        return norm

    def report(self) -> dict[str, float]:
        """Means of the metrics since the last report."""
        totals, self._totals = self._totals, {}
        return losses.metric_means(totals)

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> torch.Tensor:
        """[n, L] of the batch's choices with the weights as they are."""
        device = next(self._policy.parameters()).device
        parts = [self._policy.evaluate(part.inputs, part.choices).logprobs.cpu() for part in (batching.to(p, device) for p in batching.microbatches(batch, self._microbatch))]
        return torch.cat(parts)
