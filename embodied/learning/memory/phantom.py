"""Running a policy's own code on tensors that have shapes and no memory, counting the bytes they would have had: nothing is computed.

Works for whatever torch runs, so no size of any model is written down. Tensors pretend to be on the CPU, where attention takes the kernel that
keeps no scores, as on accelerators. Numbers read out of a tensor are ones, so that what asks for them goes on. What a kernel allocates and
frees by itself is not seen.
"""

from __future__ import annotations

import copy
import weakref
from contextlib import ExitStack
from typing import Any, Iterator

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter

PLAIN = (type(None), bool, int, float, str, tuple, list, dict, torch.Tensor)  # keyword arguments that are no cache
READS = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.__bool__)


class Phantom:
    """A context in which new tensors have no memory; `live` and `peak` are the bytes that those made inside would take."""

    def __init__(self) -> None:
        self._fake, self._tally = FakeTensorMode(allow_non_fake_inputs=True), Tally()
        self._caches: dict[int, Any] = {}  # by id; held so that what they keep can be counted at the end

    def __enter__(self) -> Phantom:
        with ExitStack() as stack:
            for mode in (self._fake, _Ones(), self._tally):  # the last one sees an operation first
                stack.enter_context(mode)
            self._exits = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.__exit__(*error)

    @property
    def live(self) -> int:
        return self._tally.live

    def lap(self) -> int:
        """The most bytes alive at once since the last call, or the begin."""
        peak, self._tally.peak = self._tally.peak, self._tally.live
        return peak

    def copy(self, module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        """The module with parameters and buffers without memory, counted as live; tied ones stay tied. Inside the context.

        dtype: of its floating-point parameters and buffers; None = as they are.
        """
        known: dict[int, Any] = {}
        for tensor in (*module.parameters(), *module.buffers()):
            kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            blank = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind)
            known[id(tensor)] = nn.Parameter(blank, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else blank
        copied = copy.deepcopy(module, known)
        for part in copied.modules():
            part.register_forward_pre_hook(self._look_for_cache, with_kwargs=True)
        return copied

    def cached(self) -> int:
        """Bytes kept by objects of their own that a module was handed by keyword, as keys and values are; lets go of them."""
        caches, self._caches = list(self._caches.values()), {}
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in _tensors(caches, set())}
        return sum(storages.values())

    def _look_for_cache(self, module: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> None:
        for value in keywords.values():
            if not isinstance(value, PLAIN) and hasattr(value, "__dict__"):
                self._caches[id(value)] = value


class Tally(TorchDispatchMode):
    """Counts the memory of every result once, from the operation that makes it until nothing refers to it."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: tuple = (), keywords: dict[str, Any] | None = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._gone, key, storage.nbytes())

    def _gone(self, key: int, size: int) -> None:
        self._known.remove(key)
        self.live -= size


class _Ones(TorchFunctionMode):
    """Answers who asks a tensor for its numbers, which it does not have."""

    def __torch_function__(self, function: Any, types: Any, arguments: tuple = (), keywords: dict[str, Any] | None = None) -> Any:
        if function in READS and isinstance(arguments[0], FakeTensor):
            with _disable_current_modes():
                arguments = (torch.ones(tuple(arguments[0].shape), dtype=arguments[0].dtype), *arguments[1:])
                return function(*arguments, **(keywords or {}))
        return function(*arguments, **(keywords or {}))


def _tensors(thing: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Every tensor below lists, dicts and attributes."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _tensors(value, seen)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from _tensors(value, seen)
    elif hasattr(thing, "__dict__") and not isinstance(thing, (nn.Module, type)):
        yield from _tensors(vars(thing), seen)
