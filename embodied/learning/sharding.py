"""A learner spread over processes: parameters, gradients and optimizer state in equal parts, each process with its own share of the rows.

PyTorch's FSDP2 (`fully_shard`) gathers a unit's parameters when it runs and adds its gradients up when it has run back. What is added up are
sums over rows, divided once at the update by the count of all processes; so how rows are dealt out, and whether they divide, weighs on nothing
but the last bits. Every process makes the same calls in the same order. A learner alone (`ALONE`) does none of this.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from embodied.learning import batching
from embodied.learning.data import Batch


@dataclass
class Sharding:
    """One process's place among those that learn together. The process group, where there are several, is the caller's to make."""

    rank: int = 0
    count: int = 1
    device: str | None = None  # where this process computes; None = where its parameters are
    precision: str | None = None  # what is computed in; gradients are added up in float32 all the same. None = what the parameters are held in
    offload: bool = False  # parameters, gradients and optimizer state in host memory, on the device only while a unit runs
    twin: nn.Module | None = field(default=None, init=False)  # the policy without memory, in which `whole` puts the parts together

    def apply(self, policy: nn.Module) -> None:
        """Leaves this process its part of every parameter. Every process must have built the same policy.

        What is not held in the type that most of it is (adapters and a spread in float32 beside bfloat16) stays whole in every process: it is little.

        `policy.blocks()` names the units, one of which is whole at a time; without it the policy is one unit.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method

        self.twin = _without_memory(policy)
        mesh = init_device_mesh((self.device or "cpu").split(":")[0], (self.count,))
        settings = {
            "mesh": mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=self.precision and getattr(torch, self.precision), reduce_dtype=torch.float32),
            "offload_policy": CPUOffloadPolicy() if self.offload else OffloadPolicy(),
        }
        kept = _of_another_type(policy)
        for unit in (*blocks_of(policy), policy):
            fully_shard(unit, **settings, ignored_params=kept)
        for module in policy.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # sums: the update divides
                module.set_force_sum_reduction_for_comms(True)
        register_fsdp_forward_method(policy, "evaluate")
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")  # nobody writes into what a policy answers

    def parts(self, batch: Batch, microbatch: int | None) -> Iterator[Batch]:
        """This process's rows in micro-batches, as many in every process: who has fewer is given a row without weight."""
        if self.count == 1 or not batch.rows:
            yield from batching.microbatches(batch, microbatch)
            return
        shares = torch.arange(batch.rows).tensor_split(self.count)
        size = microbatch or len(shares[0])
        mine = list(batching.microbatches(batching.select(batch, shares[self.rank]), size))
        yield from mine
        first = batching.select(batch, torch.zeros(1, dtype=torch.long))
        blank = replace(first, weights=torch.zeros_like(first.weights))
        for _ in range(-(-len(shares[0]) // size) - len(mine)):  # the first share is the longest
            yield blank

    def joined(self, mine: Sequence[torch.Tensor], rows: int) -> torch.Tensor:
        """[rows, ...] float32 on the CPU from what `parts` gave each process, blank rows left out."""
        own = torch.cat([part.cpu() for part in mine])
        if self.count == 1:
            return own
        index = torch.arange(rows).tensor_split(self.count)[self.rank]
        whole = own.new_zeros(rows, *own.shape[1:])
        whole[index] = own[: len(index)]
        dist.all_reduce(whole)
        return whole

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Each number added up over the processes, in float64."""
        if self.count == 1:
            return list(numbers)
        total = torch.tensor(list(numbers), dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def whole(self, policy: nn.Module) -> nn.Module:
        """The policy put together, in the first process, on the CPU; in the others without memory. Alone, the policy itself. Every process must ask."""
        if self.count == 1:
            return policy
        first = self.rank == 0
        tensors = {}
        for name, tensor in policy.state_dict().items():
            full = whole(tensor)
            if first:
                tensors[name] = full.cpu()
        filled = _without_memory(self.twin)
        if first:
            filled.load_state_dict(tensors, assign=True)
        return filled

    def load(self, policy: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
        """Puts saved tensors in place, each process its part. Raises as `load_state_dict` does."""
        if self.count == 1:
            policy.load_state_dict(tensors)
            return
        here = policy.state_dict()
        policy.load_state_dict({name: alike(tensor, here[name]) if name in here else tensor for name, tensor in tensors.items()})

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        """The norm of all gradients together, which are scaled down to one of `limit` where it is more. As torch.nn.utils.clip_grad_norm_, which takes no
        mixture of parts and whole ones; those that are whole here are added up over the processes first."""
        if self.count == 1:
            return float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        split = [p for p in parameters if isinstance(p, DTensor)]
        kept = [p for p in parameters if not isinstance(p, DTensor)]
        for parameter in kept:
            dist.all_reduce(parameter.grad)
        square = lambda p: float(local(p.grad).double().square().sum())
        norm = (self.sums([sum(map(square, split))])[0] + sum(map(square, kept))) ** 0.5
        if norm > limit:
            for parameter in parameters:
                parameter.grad *= limit / norm
        return norm

    def finite(self, policy: nn.Module) -> bool:
        """Whether every parameter is, in every process."""
        return self.sums([float(sum(not bool(torch.isfinite(local(p)).all()) for p in policy.parameters()))])[0] == 0


ALONE = Sharding()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A sharded tensor put together (every process must ask), any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def alike(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A whole tensor cut as `other` is; every process has the whole, so nothing is sent."""
    if not isinstance(other, DTensor):
        return tensor
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def whole_state(state: Any) -> Any:
    """An optimizer's state dict with every sharded tensor put together, on the CPU. Every process must ask."""
    if isinstance(state, dict):
        return {key: whole_state(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole_state(value) for value in state)
    return whole(state).cpu() if isinstance(state, DTensor) else state


def cut_state(state: dict[str, Any], parts: dict[str, torch.optim.Optimizer]) -> dict[str, Any]:
    """The inverse of `whole_state` for optimizers of sharded parameters: state tensors of a parameter's shape are cut as it is."""
    cut = {}
    for name, its in state.items():
        parameters = [p for group in parts[name].param_groups for p in group["params"]] if name in parts else []
        entries = {}
        for number, entry in its["state"].items():
            like = parameters[int(number)] if int(number) < len(parameters) else None
            same = lambda value: like is not None and isinstance(value, torch.Tensor) and value.shape == like.shape
            entries[number] = {key: alike(value, like) if same(value) else value for key, value in entry.items()}
        cut[name] = {**its, "state": entries}
    return cut


def recompute_activations(policy: nn.Module) -> None:
    """Keeps of each of `policy.blocks()` its input alone, and runs it again on the way back (Chen et al. 2016, arXiv:1604.06174).

    Raises ValueError for a policy without blocks.
    """
    blocks = blocks_of(policy)
    if not blocks:
        raise ValueError("sharding.activation_checkpointing=true: found a policy without transformer blocks, wanted some to run twice; leave it false")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)


def blocks_of(policy: Any) -> list[nn.Module]:
    """The transformer blocks that a policy says it has: what is put together, or run twice, one at a time."""
    blocks = getattr(policy, "blocks", None)
    return list(blocks()) if callable(blocks) else []


def _of_another_type(policy: nn.Module) -> set[nn.Parameter]:
    """The parameters that are not of the type which most bytes are in."""
    size: dict[torch.dtype, int] = {}
    for parameter in policy.parameters():
        size[parameter.dtype] = size.get(parameter.dtype, 0) + parameter.nbytes
    most = max(size, key=size.__getitem__)
    return {parameter for parameter in policy.parameters() if parameter.dtype != most}


def _without_memory(policy: nn.Module) -> nn.Module:
    """A copy whose parameters are on the meta device."""
    empty = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in policy.parameters()}
    return copy.deepcopy(policy, empty)
