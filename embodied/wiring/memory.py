"""What a config's stages will hold and need, by stage and by device, before a simulator starts: a table, and a refusal that names the knobs which would help.

A refusal is certain rather than eager: it takes more than MARGIN times what is there, an episode's rows where the config sets no number of rows,
and on an accelerator it supposes that stages take turns. Simulators, the rows of a round and the libraries' own memory are not in the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Callable

import numpy as np
import torch
from omegaconf import DictConfig
from torch import nn

from embodied.learning import batching
from embodied.learning.data import Batch
from embodied.learning.memory import estimate
from embodied.learning.memory.estimate import Estimate, Update
from embodied.learning.sharding import blocks_of
from embodied.wiring.room import HOST, Device, MemoryRefused, size
from envs.spec import EnvSpec

GUESSED_ROWS = 100  # of an episode of an env without a step budget
RANK = 32  # of the adapters that are proposed
TINY = 64  # the packaged policy's activations are half its weights for each row


@dataclass(frozen=True)
class Asked:
    """The knobs that decide about memory."""

    update: Update
    act_rows: int  # of one forward, or answers that are generated at once
    staleness: int
    reference: bool  # a frozen start is kept beside the policy
    dtype: torch.dtype | None = None  # of the weights; None = as they are


@dataclass
class Case:
    """A config with its policy, and where it is to work."""

    config: DictConfig
    policy: Any
    spec: EnvSpec
    algorithm: Any  # None: it is only evaluated
    learner: dict[str, Any]
    threads: int  # of the learner
    there: dict[str, int]  # bytes for it on the accelerator it works on, if any, and on the host (HOST)
    elsewhere: bool = False  # a cluster that is only thought of
    _known: dict[tuple, Estimate] = field(default_factory=dict)

    @property
    def accelerator(self) -> str | None:
        return next((name for name in self.there if name != HOST), None)

    def asked(self) -> Asked:
        """As the config says."""
        config, sharding = self.config, self.config.sharding
        if self.algorithm is None:
            return Asked(Update(0, None, {}), self._act_rows, 0, False)
        minibatch, microbatch = self.learner["minibatch"], self.learner["microbatch"]
        most = self.learner["rows_per_iteration"] if self.algorithm.imitates else config.groups * self.algorithm.group_size * self._episode()
        optimizer = {key: self.learner[key] for key in ("optimizer", "lr", "value_lr", "weight_decay", "betas", "momentum") if key in self.learner}
        precision = sharding.precision and getattr(torch, sharding.precision)
        update = Update(
            min(most, minibatch or max(self._episode(), microbatch or 0)), microbatch, optimizer, self.learner["grad_clip"], 1 if self.accelerator else self.threads,
            bool(self.accelerator), checkpointing=sharding.activation_checkpointing, processes=sharding.processes, offload=sharding.offload, precision=precision,
        )  # fmt: skip
        return Asked(update, self._act_rows, config.staleness, self.algorithm.needs_reference)

    def tiny(self, asked: Asked) -> bool:
        """Whether the weights fit so often for every row that nothing need be reckoned."""
        return TINY * estimate.weight(self.policy) * max(asked.update.rows, asked.act_rows) < min(self.there.values()) if isinstance(self.policy, nn.Module) else True

    def stages(self, asked: Asked) -> dict[str, Estimate]:
        """Of each stage that works with the policy; what act shares with learn is counted at learn. {} for a policy without weights."""
        if not isinstance(self.policy, nn.Module) or next(self.policy.parameters(), None) is None:
            return {}
        found = {"act": self._once(("act", asked.act_rows, asked.dtype), lambda: self._acting(asked))}
        if self.algorithm is None:
            return found
        update = replace(asked.update, dtype=asked.dtype)
        learn = self._once(("learn", str(update)), lambda: estimate.learning(self.policy, self.algorithm, self._rows, update))
        versions = estimate.weight(self.policy, asked.dtype, trained=True) if update.rank is None else learn.gradients
        if asked.staleness:
            found["act"] = replace(found["act"], parameters=found["act"].parameters + asked.staleness * versions)
            learn = replace(learn, host=learn.host + (asked.staleness + 1) * versions)
        elif update.processes == 1:
            found["act"] = replace(found["act"], parameters=0)
        if asked.reference:
            found["ref"] = self._once(("ref", asked.dtype), lambda: estimate.working(self.policy, self._judge, asked.dtype))
        return found | {"learn": learn}

    def _acting(self, asked: Asked) -> Estimate:
        """Of the act stage: one forward of its rows, or what a policy that streams says its answers hold."""
        if not self.policy.spec.streams:
            return estimate.working(self.policy, self._act(asked.act_rows), asked.dtype)
        smaller = 1 if asked.dtype is None else next(self.policy.parameters()).element_size() // asked.dtype.itemsize
        return Estimate(estimate.weight(self.policy, asked.dtype), cache=self.policy.cache_bytes * asked.act_rows // (self.policy.slots * max(1, smaller)))

    @property
    def _act_rows(self) -> int:
        """Of one forward, or at once; of answers no more than there are episodes."""
        return min(self.policy.slots, self.config.sim.slots) if self.policy.spec.streams else self.config.scheduler.act_rows

    def devices(self, asked: Asked) -> list[Device]:
        """What the stages want together."""
        found, count = self.stages(asked), asked.update.processes
        times = {name: count if name == "learn" else 1 for name in found}
        host = sum(times[name] * each.host for name, each in found.items())
        work = {name: each.activations + each.cache for name, each in found.items()}
        if self.accelerator is None:
            stays = sum(times[name] * each.resident for name, each in found.items())
            return [Device(HOST, host + stays + max((times[name] * each for name, each in work.items()), default=0), self.there[HOST])]
        alone = max((each.total for each in found.values()), default=0)
        return [Device(self.accelerator, alone, self.there[self.accelerator]), Device(HOST, host, self.there[HOST])]

    def _once(self, key: tuple, make: Callable[[], Estimate]) -> Estimate:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _episode(self) -> int:
        """Rows of an episode that is played to its end."""
        if self.spec.horizon is None:
            return GUESSED_ROWS
        return math.ceil(max(1, round(self.spec.horizon * self.config.horizon_share)) / self.policy.spec.chunk)

    def _act(self, rows: int) -> Callable[[nn.Module], Any]:
        """One forward of the act stage, whatever stands in the observation."""
        spec = self.policy.spec
        return lambda policy: policy.act(self._observation(rows), np.full((rows, spec.chunk * spec.action_dims), 0.5))

    def _judge(self, policy: nn.Module) -> Any:
        return policy.evaluate(*self._inputs(policy, self._episode()), distribution=True)

    def _rows(self, policy: nn.Module, count: int) -> Batch:
        """Rows to learn from, with all that the algorithm may ask of them."""
        inputs, choices = self._inputs(policy, count)
        with torch.no_grad():
            first = policy.evaluate({name: tensor[:1] for name, tensor in inputs.items()}, choices[:1], distribution=self.algorithm.needs_distribution)
        batch = batching.labelled(inputs, choices, torch.ones(choices.shape))
        if first.values is not None:
            batch = replace(batch, values=torch.zeros(count, *first.values.shape[1:]), returns=torch.zeros(count, *first.values.shape[1:]))
        if not self.algorithm.needs_reference:
            return batch
        judged = first.logprobs if first.distribution is None else first.distribution
        return replace(batch, reference=torch.zeros(count, *judged.shape[1:]))

    def _inputs(self, policy: Any, count: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """(inputs, choices) of so many rows, shaped as the policy makes them of one observation."""
        if policy.spec.streams:
            return policy.longest(count)
        inputs, spec = policy.prepare(self._observation(1)), policy.spec
        choices = policy.encode(np.zeros((1, spec.chunk, spec.action_dims), np.float32))
        return {name: _repeated(tensor, count) for name, tensor in inputs.items()}, _repeated(choices, count)

    def _observation(self, rows: int) -> dict[str, Any]:
        spec = self.spec
        found: dict[str, Any] = {f"images/{name}": np.zeros((rows, *size, 3), np.uint8) for name, size in spec.images.items()}
        found |= {name: np.zeros((rows, size), np.float32) for name, size in (("state", spec.state), ("privileged", spec.privileged)) if size}
        return found | ({"instruction": [""] * rows} if spec.language else {})


def _footnote(asked: Asked) -> str:
    """What the numbers are of."""
    update = asked.update
    said = [f"act works on {asked.act_rows} rows at a time"] + (["ref on an episode"] if asked.reference else [])
    if update.rows:
        threads = f", with gradients for each of {update.threads} threads" if update.threads > 1 and update.processes == 1 else ""
        said.append(f"learn on {min(update.rows, update.microbatch or update.rows)} of the {update.rows} rows of an update{threads}")
    return "; ".join(said) + "; cache is that of keys and values. Beside it: simulators, a round's rows, Python and its libraries"


def _repeated(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return torch.zeros(count, *tensor.shape[1:], dtype=tensor.dtype)


def check(case: Case) -> None:
    """Raises MemoryRefused with the table and the knobs that would help, when a device has not enough."""
    asked = case.asked()
    if case.tiny(asked):
        return
    short = [device for device in case.devices(asked) if not device.fits]
    if short:
        said = "; ".join(f"found {size(device.there)} for it in {device.name}, wanted {size(device.wanted)}" for device in short)
        raise MemoryRefused("\n".join([f"this will not fit: {said}", table(case), *ways_out(case, asked)]))


def ways_out(case: Case, asked: Asked) -> list[str]:
    """Knobs that apply, the one that saves most first, each with what it saves by itself of what is shortest, and whether it fits then."""
    shortest = max(case.devices(asked), key=lambda device: device.wanted / max(1, device.there)).name
    wanted = lambda other: next(device.wanted for device in case.devices(other) if device.name == shortest)
    fits = lambda other: all(device.fits for device in case.devices(other))
    before, found, together = wanted(asked), [], asked
    for knob, change in knobs(case, asked):
        saved = before - wanted(change(asked))
        if saved > 0:
            found.append((saved, f"  {knob} saves {size(saved)}: {'it fits' if fits(change(asked)) else 'not enough by itself'}"))
            together = change(together)
    if not found:
        return ["no knob of it helps: choose a smaller policy, or a larger machine"]
    words = [words for _, words in sorted(found, key=lambda pair: -pair[0])]
    if not any("it fits" in line for line in words):
        words.append(f"  all of them need {size(wanted(together))}: {'they fit' if fits(together) else 'choose a smaller policy, or a larger machine'}")
    return ["what would help:", *words]


def knobs(case: Case, asked: Asked) -> list[tuple[str, Callable[[Asked], Asked]]]:
    """(key=value, what is asked when it is set) of everything that could lessen what this config needs."""
    config, update = case.config, asked.update
    found: list[tuple[str, Callable[[Asked], Asked]]] = []
    if config.policy.get("dtype") == "float32":
        found.append(("policy.dtype=bfloat16", lambda to: replace(to, dtype=torch.bfloat16)))
    if asked.act_rows > 1:
        found.append((f"{'policy.slots' if case.policy.spec.streams else 'scheduler.act_rows'}=1", lambda to: replace(to, act_rows=1)))
    if case.algorithm is None:
        return found
    updated = lambda **values: lambda to: replace(to, update=replace(to.update, **values))
    rows = min(update.microbatch or update.rows, -(-update.rows // update.processes))
    if rows > 1:
        smaller = [max(1, rows // 2**power) for power in range(1, rows.bit_length())]
        fits = lambda count: all(device.fits for device in case.devices(updated(microbatch=count)(asked)))
        enough = next(filter(fits, smaller)) if fits(1) else 1
        found.append((f"algorithm.learner.microbatch={enough}", updated(microbatch=enough)))
    if "lora" in config.policy and not (config.policy.lora or {}).get("rank"):
        found.append((f"policy.lora.rank={RANK}", updated(rank=RANK)))
    if not update.checkpointing and blocks_of(case.policy):
        found.append(("sharding.activation_checkpointing=true", updated(checkpointing=True)))
    if update.threads > 1 and update.processes == 1:
        found.append(("scheduler.learn_threads=1", updated(threads=1)))
    several = update.processes if update.processes > 1 else torch.cuda.device_count()
    if case.accelerator and config.cluster.kind == "local" and several > 1:
        if update.processes == 1:
            found.append((f"sharding.processes={several}", updated(processes=several)))
        if not update.offload:
            found.append((f"sharding.processes={several} sharding.offload=true", updated(processes=several, offload=True)))
    if asked.staleness:
        found.append(("staleness=0", lambda to: replace(to, staleness=0)))
    if asked.reference:
        found.append(("algorithm.kl_coef=0", lambda to: replace(to, reference=False)))
    return found


def table(case: Case) -> str:
    """Stage by stage, then device by device."""
    asked = case.asked()
    stages, where = case.stages(asked), case.accelerator or HOST
    rows = [("memory", "on", "parameters", "gradients", "optimizer", "activations", "cache", "sum")]
    for name, each in stages.items():
        numbers = (each.parameters, each.gradients, each.optimizer, each.activations, each.cache, each.total)
        rows.append((f"{name} x {asked.update.processes}" if name == "learn" and asked.update.processes > 1 else name, where, *map(size, numbers)))
        if each.host:
            rows.append((f"{name}'s versions and parts", HOST, *[""] * 5, size(each.host)))
    widths = [max(len(row[i]) for row in rows) for i in range(8)]
    lines = ["  ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]), *(cell.rjust(width) for cell, width in zip(row[2:], widths[2:]))]).rstrip() for row in rows]
    lines += [f"{device.name}: {size(device.wanted)} of {size(device.there)}{'' if case.elsewhere else ' free now'}" for device in case.devices(asked)]
    lines += [_footnote(asked)]
    return "\n".join(lines + [f"{name}: its activations are not known, as it cannot be run without memory ({each.unknown})" for name, each in stages.items() if each.unknown])
