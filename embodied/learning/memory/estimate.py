"""What a stage will hold and need at its peak, in bytes, before any of it is allocated: its own code run on tensors without memory (see `phantom`).

The learner's numbers are those of its second update and later ones, when the optimizer's state is there: the larger of the peak of forward and
backward and that of the step. Left out are the rows of a round, what kernels and allocators take for themselves, and the libraries' own memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional as F

from embodied.learning.accumulate import Accumulator
from embodied.learning.data import Batch
from embodied.learning.memory.phantom import Phantom
from embodied.learning.optimizers import build_optimizer
from embodied.learning.sharding import blocks_of, recompute_activations
from embodied.learning.shards import LEAST_ROWS


@dataclass(frozen=True)
class Estimate:
    """Bytes on the device a stage works on."""

    parameters: int = 0  # buffers among them
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0  # at the peak, beyond everything else here
    cache: int = 0  # keys and values, kept from one token to the next
    host: int = 0  # in host memory, wherever the stage works
    unknown: str | None = None  # why activations and cache could not be estimated, and are 0

    @property
    def resident(self) -> int:
        """What stays from call to call."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.resident + self.activations + self.cache


@dataclass(frozen=True)
class Update:
    """What the learner does at a time."""

    rows: int  # of one update
    microbatch: int | None  # rows of one forward and backward; None = those of the update
    optimizer: dict[str, Any]  # what build_optimizer takes
    grad_clip: float | None = None
    threads: int = 1  # of the CPU; on an accelerator 1
    together: bool = False  # the step goes over all parameters at once, as AdamW's does on accelerators
    dtype: torch.dtype | None = None  # of weights and work; None = as the policy is
    rank: int | None = None  # train low-rank adapters of so many columns beside every frozen linear layer, instead of what is trained
    checkpointing: bool = False  # keep only what enters a block, and run the block again in the backward pass
    processes: int = 1  # that share parameters, gradients and optimizer
    offload: bool = False  # what they hold of them lies in host memory
    precision: torch.dtype | None = None  # what several processes compute in; None = what the weights are held in


def learning(policy: nn.Module, algorithm: Any, rows: Callable[[nn.Module, int], Batch], update: Update) -> Estimate:
    """Of updates of the policy. rows: makes so many for a policy; called inside a Phantom, so that they take no memory."""
    try:
        found = _learned(policy, algorithm, rows, update)
        if update.processes > 1 and update.precision is not None:
            found = replace(found, activations=_learned(policy, algorithm, rows, replace(update, dtype=update.precision)).activations)
    except Exception as error:  # someone's policy may do what only tensors with numbers can
        found = replace(_held(policy, update), unknown=_why(error))
    return _shared(found, policy, update)


def _learned(policy: nn.Module, algorithm: Any, rows: Callable[[nn.Module, int], Batch], update: Update) -> Estimate:
    share = -(-update.rows // update.processes)
    microbatch = min(update.microbatch or share, share)
    parts = max(1, min(update.threads, microbatch // LEAST_ROWS)) if update.processes == 1 else 1  # as `Shards` cuts them
    size = -(-microbatch // parts)
    passes = min(2, -(-share // microbatch))  # the second finds the gradients of the first
    with Phantom() as phantom:
        body = phantom.copy(policy, update.dtype)
        if update.rank is not None:
            adapt(body, update.rank)
        if update.checkpointing:
            recompute_activations(body)
        parameters, batch = phantom.live, rows(body, passes * size)
        given = phantom.live
        optimizer = build_optimizer(body, **update.optimizer)
        if update.together and "adamw" in optimizer.parts:
            for group in optimizer.parts["adamw"].param_groups:
                group["foreach"] = True
        sums = Accumulator(body, algorithm, optimizer, size, update.grad_clip)
        phantom.lap()
        sums.begin()
        sums.add(batch)
        backward = phantom.lap() - given
        gradients = sum(p.grad.numel() * p.grad.element_size() for p in body.parameters() if p.grad is not None)
        before = phantom.live
        sums.step(1e-6, "a step without numbers")
        state, step = phantom.live - before, phantom.lap() - given
        sums.begin()
    peak = max(parameters + state + parts * backward, parameters + step)
    return Estimate(parameters, parts * gradients, state, max(0, peak - parameters - parts * gradients - state))


def working(policy: nn.Module, work: Callable[[nn.Module], Any], dtype: torch.dtype | None = None) -> Estimate:
    """Of work that needs no gradient. work: what is done with a policy; called inside a Phantom. dtype: of the weights; None = as they are."""
    try:
        with Phantom() as phantom, torch.no_grad():
            body = phantom.copy(policy, dtype)
            parameters = phantom.live
            work(body)
            peak, cache = phantom.lap(), phantom.cached()
        return Estimate(parameters, activations=max(0, peak - parameters - cache), cache=cache)
    except Exception as error:  # as in `learning`
        return Estimate(weight(policy, dtype), unknown=_why(error))


def weight(module: nn.Module, dtype: torch.dtype | None = None, trained: bool = False) -> int:
    """Bytes of parameters and buffers, tied ones once; trained: only of what requires a gradient."""
    tensors = [p for p in module.parameters() if p.requires_grad] if trained else [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * (dtype.itemsize if dtype is not None and tensor.is_floating_point() else tensor.element_size()) for tensor in tensors)


def _held(policy: nn.Module, update: Update) -> Estimate:
    """What stays, where the work cannot be followed."""
    if update.rank is not None:
        return Estimate(weight(policy, update.dtype))
    trained = weight(policy, update.dtype, trained=True)
    copies = sum(count * p.numel() * (update.dtype or p.dtype).itemsize for count, p in build_optimizer(policy, **update.optimizer).copies())
    return Estimate(weight(policy, update.dtype), trained, copies)


def _shared(alone: Estimate, policy: nn.Module, update: Update) -> Estimate:
    """What one of `processes` holds: its part of what stays, and one unit of the model put together to be worked with. At the start each has the whole policy."""
    if update.processes == 1:
        return alone
    blocks = [weight(block, update.dtype) for block in blocks_of(policy)]
    unit = max([*blocks, weight(policy, update.dtype) - sum(blocks)])  # what is in no block is a unit too
    part = lambda number: -(-number // update.processes)
    cut = Estimate(part(alone.parameters) + unit, part(alone.gradients) + min(unit, alone.gradients), part(alone.optimizer), alone.activations, unknown=alone.unknown)
    if update.offload:
        cut = replace(cut, parameters=unit, gradients=min(unit, alone.gradients), optimizer=0, host=part(alone.resident))
    return replace(cut, activations=max(cut.activations, alone.parameters - cut.resident))


def adapt(module: nn.Module, rank: int) -> None:
    """Freezes everything, and adds two trained matrices to every linear layer (Hu et al. 2021, "LoRA")."""
    module.requires_grad_(False)
    for layer in [part for part in module.modules() if isinstance(part, nn.Linear)]:
        layer.down = nn.Parameter(layer.weight.new_zeros(rank, layer.in_features))
        layer.up = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        layer.forward = partial(_adapted, layer)


def _adapted(layer: nn.Module, values: torch.Tensor) -> torch.Tensor:
    return F.linear(values, layer.weight, layer.bias) + F.linear(F.linear(values, layer.down), layer.up)


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
