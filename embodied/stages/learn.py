"""The learn stage: a round's trajectories (or labelled batches) in, one or more updates of the policy out, and its weights where they are wanted.

It knows no algorithm by name. Losses come as sums and counts; gradients are divided once per update, so neither the size of a
micro-batch nor that of the last minibatch weighs on the result. Trajectories are taken in ledger order and shuffled by counter-based
numbers, so the same seed gives bit-equal weights. Where a round is one update and groups are judged by themselves, it learns group by
group as they come (`streams`): always in the same blocks, so that the size of a granule changes no bit.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Sequence

import torch

from embodied import seeding
from embodied.learning import batching, weights
from embodied.learning.accumulate import Accumulator, Diverged
from embodied.learning.algorithms.base import Algorithm
from embodied.learning.data import Batch, Trajectory
from embodied.learning.memory.residence import Lease, OptimizerResidence, Peak, Residence, footprint
from embodied.learning.sharding import ALONE, Sharding, cut_state, whole_state
from embodied.runs import checkpoint
from embodied.stages.inline import Inline
from scheduler.backends.base import Call, Outcome


@dataclass(frozen=True)
class LearnerSettings:
    epochs: int  # passes over a round's rows
    minibatch: int | None  # rows of one update; None = the round's
    microbatch: int | None  # rows of one forward/backward; None = the minibatch
    grad_clip: float | None  # largest gradient norm; None = unbounded
    rate: Callable[[int, float], float]  # learning rate of (update number from 0, share of the run done)
    rounds: int  # of the run
    critic_warmup: int = 0  # updates at the run's start in which only the value head is trained; the others' learning rate begins after them


class LearnStage(Inline):
    def __init__(
        self, policy: Any, algorithm: Algorithm, optimizer: Any, settings: LearnerSettings, seed: int, threads: int | None = None,
        lag: int | None = None, residences: Sequence[Residence | OptimizerResidence] = (), sharding: Sharding = ALONE,
    ) -> None:  # fmt: skip
        """optimizer: learning.optimizers.Optimizer. lag: versions that sampling may lie behind, where it has weights of its own; None = it
        shares this policy. residences: what a lease brings to the device. sharding: this process's place
        among several that learn together, each of which has a stage of its own and gets every call."""
        self.policy, self.algorithm, self.optimizer, self.settings = policy, algorithm, optimizer, settings
        self._seed, self._threads, self._lag, self.lease = seed, threads, lag, Lease(residences)
        self.streams = streams(algorithm, settings.epochs, settings.minibatch)
        self._sums = Accumulator(policy, algorithm, optimizer, settings.microbatch, settings.grad_clip, decoupled=bool(lag), threads=threads or 1, sharding=sharding)
        self._sharding = sharding
        self._items: list[Any] = []  # of the round; without their inputs where they have been learned from
        self._groups = batching.Gather(algorithm.group_size)
        self._block: list[Trajectory] = []  # of whole groups, not learned from yet
        self.updates = 0  # done so far, over all rounds
        self._published: dict[int, tuple[weights.Bucket, ...]] = {}  # the versions that may still be sampled with

    def start(self, call: Call) -> Outcome:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        if call.kind == "trial":
            return Outcome(self._trial([item.payload for item in call.payload]))
        if call.kind == "publish":
            return Outcome(weights=self._publish(call.version))
        if call.kind == "granule":
            self._take([item.payload for item in call.payload])
            return Outcome()
        report = self._update(call.round)
        return Outcome(report, weights=None if self._lag is None else self._publish(call.round + 1))

    def abandon(self) -> None:
        """Forgets the round: it is begun again."""
        self._items, self._block = [], []
        self._groups.clear()
        self._sums.begin()

    def save(self, folder: Path, iterations: int, keep: int) -> None:
        """folder/step_<iterations>: what is trained of the policy, the optimizer to the bit, how far the run has come, and older weights that are still sampled with."""
        policy, tensors, rest = self._sharding.whole(self.policy), *checkpoint.flatten_optimizer(whole_state(self.optimizer.state_dict()))
        if self._sharding.rank:
            return
        older = [part for version, parts in sorted(self._published.items()) if version < iterations for part in parts]
        groups = {"policy": checkpoint.trained(policy), "optimizer": tensors} | ({"older": {str(i): part.data for i, part in enumerate(older)}} if older else {})
        state = {"iterations": iterations, "updates": self.updates, "optimizer": rest, "older": [asdict(replace(part, data=None)) for part in older]}
        checkpoint.save(folder, iterations, groups, state, policy.save_pretrained, keep)

    def restore(self, path: Path) -> int:
        """Puts a checkpoint's policy and optimizer in place; returns the iterations done."""
        tensors, state = checkpoint.load(path)
        self._sharding.load(self.policy, checkpoint.with_frozen(self.policy, tensors["policy"]))
        self.optimizer.load_state_dict(cut_state(checkpoint.unflatten_optimizer(tensors["optimizer"], state["optimizer"]), self.optimizer.parts))
        self.updates = int(state["updates"])
        self._published = {}
        for number, part in enumerate(state.get("older", [])):
            bucket = weights.Bucket(**part | {"entries": tuple(weights.Entry(**entry) for entry in part["entries"]), "data": tensors["older"][str(number)]})
            self._published[bucket.version] = (*self._published.get(bucket.version, ()), bucket)
        return int(state["iterations"])

    def older(self) -> list[int]:
        """The versions before the present one that can be published."""
        return sorted(self._published)

    def _publish(self, version: int) -> tuple[weights.Bucket, ...]:
        """The weights as of `version`: as they are now, unless that version is kept."""
        if version not in self._published:
            self._published[version] = weights.export(self.policy, version)
            self._published = {v: parts for v, parts in self._published.items() if v >= version - (self._lag or 0)}
        return self._published[version]

    def _take(self, items: Sequence[Any]) -> None:
        self._items += items
        if not self.streams:
            return
        for group in self._groups.add(items, lambda trajectory: trajectory.group):
            self._block += group
            if sum(trajectory.length for trajectory in self._block) >= (self.settings.microbatch or 1):
                self._learn_block()

    def _learn_block(self) -> None:
        """Adds whole groups up, as many as make a micro-batch."""
        block, self._block = self._block, []
        batch, _ = self._judged(block)
        self._sums.add(self._recomputed(batch))
        done = {id(trajectory) for trajectory in block}  # their pictures are not needed any more
        self._items = [replace(t, inputs={}, final_observation=None, reference=None, terminated=True) if id(t) in done else t for t in self._items]

    def _trial(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Forward and backward of one minibatch (or as many rows as a group has) made of the first one's rows over and over, and no step.

        Returns its rows, how often a round passes every row, the device's bytes at work and the bytes of a row as it travels.
        """
        inputs, choices = trajectories[0].inputs, trajectories[0].choices
        index = torch.arange(self.settings.minibatch or self.settings.microbatch or len(choices) * self.algorithm.group_size) % len(choices)
        rows = batching.labelled({name: tensor[index] for name, tensor in inputs.items()}, choices[index], torch.ones(len(index), choices.shape[1]))
        with Peak(self._device) as peak:
            self._sums.probe(rows)
        forward = 0.3 if self._lag and not self.streams else 0.0  # a forward alone is about a third of both
        travels = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs.values(), choices, trajectories[0].logprobs, trajectories[0].mask))
        return {"rows": len(index), "passes": self.settings.epochs + forward, "peak": peak.bytes, "row_bytes": travels // len(choices)}

    def resident(self) -> int:
        """Bytes it holds while loaded; a policy that act shares is counted here too."""
        return footprint(self.policy, self.optimizer)

    def _update(self, round_number: int) -> dict[str, float]:
        if self._block:
            self._learn_block()
        items, self._items = self._items, []
        report = self._once(items, round_number) if self.streams else self._epochs(items, round_number)
        self._sums.begin()
        if not self._sharding.finite(self.policy):
            raise Diverged(f"round {round_number}: weights are no longer finite after its updates; lower algorithm.learner.lr and go on from the last checkpoint")
        return report

    def _once(self, items: Sequence[Trajectory], round_number: int) -> dict[str, float]:
        """The one update of a round whose groups have been added as they came."""
        estimate = self.algorithm.advantages(items, torch.zeros(len(items)))  # once more over all of them, for its metrics
        rows = sum(trajectory.length for trajectory, keep in zip(items, estimate.keep) if keep)
        norm = self._step(round_number / self.settings.rounds)
        return self._report({f"estimate/{name}": value for name, value in estimate.metrics.items()}, norm is not None, norm is None, rows, round_number)

    def _epochs(self, items: Sequence[Any], round_number: int) -> dict[str, float]:
        """Updates by minibatches of the round's rows, shuffled anew for each pass."""
        batch, metrics = self._labelled(items) if self.algorithm.imitates else self._judged(items)
        if self._lag and batch.rows and not self.algorithm.imitates:
            batch = replace(batch, proximal=self._sums.logprobs(batch))
        batch = self._recomputed(batch)
        done = skipped = 0
        size = self.settings.minibatch or max(1, batch.rows)
        planned = self.settings.epochs * math.ceil(batch.rows / size)
        for epoch in range(self.settings.epochs):
            order = seeding.generator(self._seed, "learn/shuffle", round_number, epoch).permutation(batch.rows)
            for index in batching.minibatches(batch.rows, size, torch.as_tensor(order)):
                share = (round_number + (done + skipped) / planned) / self.settings.rounds
                self._sums.begin()
                self._sums.add(batching.select(batch, index))
                norm = self._step(share)
                done, skipped = done + (norm is not None), skipped + (norm is None)
        return self._report(metrics, done, skipped, batch.rows, round_number)

    def _step(self, share: float) -> float | None:
        rate, value_rate = self._rates(share)
        norm = self._sums.step(rate, f"update {self.updates}", value_rate)
        self.updates += norm is not None
        return norm

    def _rates(self, share: float) -> tuple[float | None, float | None]:
        """Of all parameters but the value head's (None: not trained yet), and of the value head (None: the same)."""
        warmup, rate = self.settings.critic_warmup, self.settings.rate
        if not warmup:
            return rate(self.updates, share), None
        return rate(self.updates - warmup, share) if self.updates >= warmup else None, rate(self.updates, share)

    def _report(self, metrics: dict[str, float], done: int, skipped: int, rows: int, round_number: int) -> dict[str, float]:
        (rate, value_rate), warmup = self._rates(round_number / self.settings.rounds), self.settings.critic_warmup
        alone = {"updates_of_the_critic_alone": min(self.updates, warmup) - min(self.updates - done, warmup), "value_lr": value_rate} if warmup else {}
        return metrics | self._sums.report() | {"updates": int(done), "updates_skipped": int(skipped), "rows": rows, "lr": rate or 0.0} | alone

    def _labelled(self, batches: Sequence[Batch]) -> tuple[Batch, dict[str, float]]:
        if len(batches) != 1:
            raise ValueError(f"found {len(batches)} batches of labels in a round, wanted one")
        return batches[0], {}

    def _judged(self, trajectories: Sequence[Trajectory]) -> tuple[Batch, dict[str, float]]:
        bootstrap = torch.tensor([self._value_after(trajectory) for trajectory in trajectories], dtype=torch.float32)
        estimate = self.algorithm.advantages(trajectories, bootstrap)
        reference = None
        if self.algorithm.needs_reference and any(estimate.keep):
            missing = [t.episode for t, keep in zip(trajectories, estimate.keep) if keep and t.reference is None]
            if missing:
                raise ValueError(f"episodes {missing[:5]}: found no reference log-probabilities, wanted them for the KL term; a flow with kl_coef > 0 needs its ref stage")
            reference = [t.reference for t in trajectories]
        batch = batching.rows(trajectories, estimate, self.algorithm.aggregation, reference)
        return batch, {f"estimate/{name}": value for name, value in estimate.metrics.items()}

    def _recomputed(self, batch: Batch) -> Batch:
        """The rows with old log-probabilities of the weights as they are, where those of the sampler are not to be trusted; a metric says how far they were off."""
        if not self.algorithm.recompute_logprobs or not batch.rows:
            return batch
        own, used = self._sums.logprobs(batch), batch.weights > 0
        self._sums.note("sampler_difference", float((own - batch.logprobs).abs()[used].sum()), float(used.sum()))
        return replace(batch, logprobs=own)

    @torch.no_grad()
    def _value_after(self, trajectory: Trajectory) -> float:
        """V of the observation that the step budget cut off, of several its first; 0 after the env's own end, and for an algorithm without values."""
        if trajectory.terminated or not self.algorithm.needs_values:
            return 0.0
        stats = self.policy.evaluate(self._here(self.policy.prepare(trajectory.final_observation)), trajectory.choices[:1].to(self._device))
        return float(stats.values.flatten()[0])

    @property
    def _device(self) -> torch.device:
        return torch.device(self._sharding.device) if self._sharding.device else next(self.policy.parameters()).device

    def _here(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self._device) for name, tensor in inputs.items()}


def streams(algorithm: Algorithm, epochs: int, minibatch: int | None) -> bool:
    """Whether a learner with these settings can begin before its round's last trajectory is in."""
    return algorithm.separable and not algorithm.imitates and epochs == 1 and minibatch is None
