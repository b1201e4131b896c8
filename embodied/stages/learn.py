"""The learn stage: a round's trajectories (or labelled batches) in, one or more updates of the policy out.

It knows no algorithm by name. Losses come as sums and counts; gradients are divided once per update, so neither the size of a
micro-batch nor that of the last minibatch weighs on the result. Trajectories are taken in ledger order and shuffled by counter-based
numbers, so the same seed gives bit-equal weights.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch

from embodied import seeding
from embodied.learning import batching
from embodied.learning.algorithms.base import Algorithm
from embodied.learning.data import Batch, Trajectory
from scheduler.backends.base import Call, Outcome


@dataclass(frozen=True)
class LearnerSettings:
    epochs: int  # passes over a round's rows
    minibatch: int  # rows of one update
    microbatch: int | None  # rows of one forward/backward; None = the minibatch
    grad_clip: float | None  # largest gradient norm; None = unbounded
    rate: Callable[[int, float], float]  # learning rate of (update number from 0, share of the run done)
    rounds: int  # of the run


class Diverged(ValueError):
    """Learning has gone where no number is finite; nothing is saved of it."""


class LearnStage:
    def __init__(
        self, policy: Any, algorithm: Algorithm, optimizer: Any, settings: LearnerSettings, seed: int, threads: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """optimizer: learning.optimizers.Optimizer. The reference of a KL term is the policy as it is given here."""
        self.policy, self.algorithm, self.optimizer, self.settings = policy, algorithm, optimizer, settings
        self._seed, self._threads, self._tell = seed, threads, tell
        self._reference = copy.deepcopy(policy).requires_grad_(False) if algorithm.needs_reference else None
        self._items: list[Any] = []
        self.updates = 0  # done so far, over all rounds

    def start(self, call: Call) -> Outcome:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        if call.kind == "trial":
            return Outcome(self._trial(call.payload))
        if call.kind == "granule":
            self._items += [item.payload for item in call.payload]
            return Outcome()
        items, self._items = self._items, []
        return Outcome(self._update(items, call.round))

    def ready(self, timeout: float | None) -> list:
        return []

    def load(self) -> None:
        """On the CPU the weights are where they are used."""

    def unload(self) -> None:
        """Nothing to take away, as in `load`."""

    def close(self) -> None:
        """Holds nothing that must be closed."""

    def _trial(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Forward and backward of one minibatch made of the first one's rows over and over, and no step. Returns its rows, and how often a round passes every row."""
        inputs, choices = trajectories[0].inputs, trajectories[0].choices
        index = torch.arange(self.settings.minibatch) % len(choices)
        for part in index.split(self.settings.microbatch or len(index)):
            stats = self.policy.evaluate(self._here({name: tensor[part] for name, tensor in inputs.items()}), choices[part].to(self._device), distribution=self.algorithm.needs_reference)
            stats.logprobs.sum().backward()
        self.optimizer.zero_grad()
        reference = 0.3 if self._reference is not None else 0.0  # a forward alone is about a third of both
        return {"rows": len(index), "passes": self.settings.epochs + reference}

    def _update(self, items: Sequence[Any], round_number: int) -> dict[str, float]:
        batch, metrics = self._labelled(items) if self.algorithm.imitates else self._judged(items)
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        done = skipped = 0
        planned = self.settings.epochs * math.ceil(batch.rows / self.settings.minibatch)
        for epoch in range(self.settings.epochs):
            order = seeding.generator(self._seed, "learn/shuffle", round_number, epoch).permutation(batch.rows)
            for index in batching.minibatches(batch.rows, self.settings.minibatch, torch.as_tensor(order)):
                share = (round_number + (done + skipped) / planned) / self.settings.rounds
                norm = self._step(batching.select(batch, index), self.settings.rate(self.updates, share), totals)
                done, skipped = done + (norm is not None), skipped + (norm is None)
                if norm is not None:
                    totals["grad_norm"][0] += norm
                    totals["grad_norm"][1] += 1
        if not all(bool(torch.isfinite(p).all()) for p in self.policy.parameters()):
            raise Diverged(f"round {round_number}: weights are no longer finite after its updates; lower algorithm.learner.lr and go on from the last checkpoint")
        means = {name: total / count for name, (total, count) in totals.items() if count}
        if not done:
            self._tell(f"round {round_number}: no update, because no row had anything to teach ({batch.rows} rows)")
        return metrics | means | {"updates": done, "updates_skipped": skipped, "rows": batch.rows, "lr": self.settings.rate(self.updates, round_number / self.settings.rounds)}

    def _step(self, batch: Batch, rate: float, totals: dict[str, list[float]]) -> float | None:
        """One update; the gradient norm before clipping, None when every row was masked and nothing was done."""
        self.optimizer.zero_grad()
        count = 0.0
        device = next(self.policy.parameters()).device
        for part in batching.microbatches(batch, self.settings.microbatch):
            part = batching.to(part, device)
            stats = self.policy.evaluate(part.inputs, part.choices, distribution=self.algorithm.needs_reference)
            loss = self.algorithm.loss(stats, part)
            loss.sum.backward()
            count += loss.count
            for name, (total, weight) in loss.metrics.items():
                totals[name][0] += total
                totals[name][1] += weight
        if count == 0:
            return None
        trainable = [p for p in self.policy.parameters() if p.grad is not None]
        for parameter in trainable:
            parameter.grad /= count
        limit = float("inf") if self.settings.grad_clip is None else self.settings.grad_clip
        norm = float(torch.nn.utils.clip_grad_norm_(trainable, limit))
        if not math.isfinite(norm):
            raise Diverged(f"update {self.updates}: the gradient's norm is {norm}, wanted a finite number; look for rewards or observations that are not finite, or lower algorithm.learner.lr")
        self.optimizer.set_rate(rate)
        self.optimizer.step()
        self.updates += 1
        return norm

    def _labelled(self, batches: Sequence[Batch]) -> tuple[Batch, dict[str, float]]:
        if len(batches) != 1:
            raise ValueError(f"found {len(batches)} batches of labels in a round, wanted one")
        return batches[0], {}

    def _judged(self, trajectories: Sequence[Trajectory]) -> tuple[Batch, dict[str, float]]:
        bootstrap = torch.tensor([self._value_after(trajectory) for trajectory in trajectories], dtype=torch.float32)
        estimate = self.algorithm.advantages(trajectories, bootstrap)
        reference = None
        if self._reference is not None:
            nothing = torch.zeros(0)
            reference = [self._distribution(t) if keep else nothing for t, keep in zip(trajectories, estimate.keep)]
            if not any(estimate.keep):
                reference = None
        batch = batching.rows(trajectories, estimate, self.algorithm.aggregation, reference)
        return batch, {f"estimate/{name}": value for name, value in estimate.metrics.items()}

    @torch.no_grad()
    def _value_after(self, trajectory: Trajectory) -> float:
        """V of the observation that the step budget cut off; 0 after the env's own end, and for an algorithm without values."""
        if trajectory.terminated or not self.algorithm.needs_values:
            return 0.0
        stats = self.policy.evaluate(self._here(trajectory.final_inputs), trajectory.choices[:1].to(self._device))
        return float(stats.values[0])

    @torch.no_grad()
    def _distribution(self, trajectory: Trajectory) -> torch.Tensor:
        """[T, L, V] log-probabilities of the policy the run started from."""
        stats = self._reference.evaluate(self._here(trajectory.inputs), trajectory.choices.to(self._device), distribution=True)
        return stats.distribution.cpu()

    @property
    def _device(self) -> torch.device:
        return next(self.policy.parameters()).device

    def _here(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self._device) for name, tensor in inputs.items()}
