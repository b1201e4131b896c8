"""The gradient of one update, added up row block by row block and divided once: how the rows were cut does not weigh on it.

So an update may begin with the first granule of its rows, while the rest is still being sampled.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Iterator

import torch

from embodied.learning import batching, losses
from embodied.learning.algorithms.base import Algorithm
from embodied.learning.data import Batch, Loss
from embodied.learning.sharding import ALONE, Sharding
from embodied.learning.shards import Shards


ALIKE = 4  # rows of like length in one forward and backward on the CPU


class Diverged(ValueError):
    """Learning has gone where no number is finite; nothing is saved of it."""


class Accumulator:
    def __init__(self, policy: Any, algorithm: Algorithm, optimizer: Any, microbatch: int | None, grad_clip: float | None, decoupled: bool = False, threads: int = 1, sharding: Sharding = ALONE) -> None:
        """optimizer: learning.optimizers.Optimizer. microbatch: rows of one forward/backward, None = as they come. grad_clip: largest norm.

        decoupled: rows were sampled with older weights. A batch without `proximal` gets it from the weights as they are. threads: on the CPU.
        sharding: this process's place among those whose sums make one gradient; every one is given the same batches.
        """
        self._policy, self._algorithm, self._optimizer = policy, algorithm, optimizer
        self._microbatch, self._grad_clip, self._decoupled = microbatch, grad_clip, decoupled
        self._sharding = sharding
        self._uneven = getattr(getattr(policy, "spec", None), "streams", False)  # a row costs as much as the longest beside it; a bare network has no spec
        self._shards = Shards(policy, threads if sharding.count == 1 else 1)  # copies of a sharded policy would gather its parameters each for itself
        self._count = 0.0
        self._totals: dict[str, tuple[float, float]] = {}  # metric -> sum and count, until `report`

    def begin(self) -> None:
        """Forgets what was added since the last step."""
        self._optimizer.zero_grad()
        self._shards.drop()
        self._count = 0.0

    def add(self, batch: Batch) -> None:
        """Forward and backward of the rows."""
        for part in self._parts(batching.by_length(batch) if self._uneven else batch):
            for found in self._shards.run(self._backward, part, dealt=self._uneven):
                for loss in found:
                    self._count += loss.count
                    self._totals = losses.merge_metrics([self._totals, loss.metrics])

    def probe(self, batch: Batch) -> None:
        """The work of `add` and nothing of its effect: to be timed."""
        for part in self._parts(batch):
            self._shards.run(lambda policy, rows: [self._evaluated(policy, few).logprobs.sum().backward() for few in self._few(rows)], part)
        self.begin()

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """This process's micro-batches, on the device it computes on."""
        device = self._sharding.device or next(self._policy.parameters()).device
        return (batching.to(part, device) for part in self._sharding.parts(batch, self._microbatch))

    def _evaluated(self, policy: Any, part: Batch) -> Any:
        return policy.evaluate(part.inputs, part.choices, distribution=self._algorithm.needs_distribution)

    def _few(self, part: Batch) -> Iterator[Batch]:
        """Rows of uneven lengths a few at a time on the CPU, where padding costs what it computes; else all of them."""
        return batching.microbatches(part, ALIKE if self._uneven and part.choices.device.type == "cpu" else None)

    def _backward(self, policy: Any, part: Batch) -> list[Loss]:
        return [self._once(policy, rows) for rows in self._few(part)]

    def _once(self, policy: Any, part: Batch) -> Loss:
        stats = self._evaluated(policy, part)
        if self._decoupled and part.proximal is None:
            part = replace(part, proximal=stats.logprobs.detach())
        loss = self._algorithm.loss(stats, part)
        loss.sum.backward()
        return replace(loss, sum=loss.sum.detach())

    def step(self, rate: float | None, what: str, value_rate: float | None = None) -> float | None:
        """The update; its gradient norm before clipping, None when every row was masked and nothing was done. what: names it in an error.

        rate: None leaves all but the value head as it is. value_rate: of the value head, None = rate.
        """
        (count,) = self._sharding.sums([self._count])
        if count == 0:
            return None
        self._shards.collect()
        if rate is None:
            self._optimizer.hold()
        trainable = [p for p in self._policy.parameters() if p.grad is not None]
        for parameter in trainable:
            parameter.grad /= count
        limit = float("inf") if self._grad_clip is None else self._grad_clip
        norm = self._sharding.clip(trainable, limit)
        if not math.isfinite(norm):
            raise Diverged(f"{what}: the gradient's norm is {norm}, wanted a finite number; look for rewards or observations that are not finite, or lower algorithm.learner.lr")
        self._optimizer.set_rate(rate or 0.0, value_rate)
        self._optimizer.step()
        self._totals = losses.merge_metrics([self._totals, {"grad_norm": (norm / self._sharding.count, 1.0 / self._sharding.count)}])
        return norm

    def note(self, name: str, total: float, count: float) -> None:
        """A metric of the caller's, for the next report. Of several processes each gives the same."""
        self._totals = losses.merge_metrics([self._totals, {name: (total / self._sharding.count, count / self._sharding.count)}])

    def report(self) -> dict[str, float]:
        """Means of the metrics since the last report."""
        totals, self._totals = self._totals, {}
        sums = self._sharding.sums([number for pair in totals.values() for number in pair])
        return losses.metric_means(dict(zip(totals, zip(sums[::2], sums[1::2]))))

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> torch.Tensor:
        """[n, L] of the batch's choices with the weights as they are."""
        return self._sharding.joined([self._policy.evaluate(part.inputs, part.choices).logprobs for part in self._parts(batch)], batch.rows)
