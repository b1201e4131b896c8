"""Torch state that comes to a device with a lease and leaves with it, so that stages can take turns on one device.

Only memory moves: Parameter, buffer and state objects stay the same, so an optimizer goes on with the parameters it was made with, and the
numbers are the same bits wherever they are. What several stages use is away only while none of them holds it. On the CPU there is nothing to
move, and neither class does anything there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Callable, Iterator, Sequence

import torch
from torch import nn

from embodied.learning.optimizers import Optimizer
from embodied.learning.sharding import local

Move = Callable[[torch.Tensor, torch.device], torch.Tensor]  # (a tensor, where to) -> the same numbers there; the tensor itself if it is there
HOST = torch.device("cpu")


def move_pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """To the device without waiting; to the host, into pinned memory, which a device reads and writes at several times the speed of other memory."""
    if device.type != "cpu":
        return tensor.to(device, non_blocking=True)
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty_like(tensor, device=device, pin_memory=tensor.device.type == "cuda").copy_(tensor)


class _Held(ABC):
    """Counts who holds something, and moves its tensors with the first to take it and the last to release it."""

    def __init__(self, device: torch.device | str, move: Move | None) -> None:
        self.device = torch.device(device)
        self.holders = 0
        self._move = move if move is not None or self.device.type == "cpu" else move_pinned

    def take(self) -> None:
        """Hold it; for the first holder it is on the device when this returns. After an error (no memory) it is not held, and may be half there."""
        if self.holders == 0:
            self._bring(self.device)
        self.holders += 1

    def release(self) -> None:
        """Hold it no longer; after the last holder it is on the host. Raises RuntimeError when nobody holds it."""
        if self.holders == 0:
            raise RuntimeError("found a release without a take, wanted one release for each; what nobody holds is on the host already")
        if self.holders == 1:
            self._bring(HOST)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # else torch would keep the memory, and the next holder may be another process
        self.holders -= 1

    def _bring(self, device: torch.device) -> None:
        if self._move is None:
            return
        for tensor in self._tensors():
            tensor.data = self._move(tensor.data, device)

    @abstractmethod
    def _tensors(self) -> Iterator[torch.Tensor]:
        """Everything that moves."""


class Residence(_Held):
    """A module's parameters and buffers, frozen and unsaved ones too; tied ones move once. Gradients are `OptimizerResidence`'s.

    Tensors that are views of one memory without being one object (a cuDNN RNN's flat weights) would come apart; no policy here has any.
    move: None = `move_pinned`, and nothing at all where the device is the CPU. With another one, it is called there too.
    """

    def __init__(self, module: nn.Module, device: torch.device | str, move: Move | None = None) -> None:
        super().__init__(device, move)
        self._module = module

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self._module.parameters()
        yield from self._module.buffers()


class OptimizerResidence(_Held):
    """The state of all parts of an optimizer, and gradients where there are any: a lease may end while an update's are still being added up.

    Take it after the parameters' `Residence`, and release it before or after that one. The step counters which torch keeps on the host (all but
    those of capturable and fused groups; a step would otherwise wait for the device once per parameter) stay there. move: as in `Residence`.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device | str, move: Move | None = None) -> None:
        super().__init__(device, move)
        self._optimizer = optimizer

    def _tensors(self) -> Iterator[torch.Tensor]:
        for part in self._optimizer.parts.values():
            for group in part.param_groups:
                counts_on_host = not (group.get("capturable") or group.get("fused"))
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        yield parameter.grad
                    for name, value in part.state.get(parameter, {}).items():
                        if isinstance(value, torch.Tensor) and not (name == "step" and counts_on_host):
                            yield value


def footprint(module: nn.Module, optimizer: Optimizer | None = None) -> int:
    """Bytes that a stage holds while it is loaded: parameters and buffers; of a learner also gradients and the optimizer's state, made or not yet."""
    held = sum(local(tensor).numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))
    if optimizer is None:
        return held
    return held + sum((1 + copies) * local(p).numel() * p.element_size() for copies, p in optimizer.copies())


class Peak:
    """While inside, the bytes that a CUDA device needs beyond what it held at the start; 0 on the CPU, whose memory torch does not count."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.bytes = device, 0

    def __enter__(self) -> Peak:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *error: object) -> None:
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before


class Lease:
    """What one stage holds of residences (None among them is nothing): taken in the order given, released in the other, once however often it is asked."""

    def __init__(self, residences: Sequence[_Held | None]) -> None:
        self._residences = [residence for residence in residences if residence is not None]
        self.held = False

    def take(self) -> None:
        if not self.held:
            for residence in self._residences:
                residence.take()
        self.held = True

    def release(self) -> None:
        if self.held:
            for residence in reversed(self._residences):
                residence.release()
        self.held = False
