"""Versions of a policy's trainable weights on their way from learn to act, bit for bit.

Only parameters with requires_grad travel, in the order of `named_parameters`, tied ones once; frozen parameters and buffers do not, as both
sides have them from the start and no update changes them. (A buffer that training does change, such as a batch norm's running mean, would
stay behind; no policy here has one.) They are packed into buckets, so that the receiving side never needs more than one in memory, and a
bucket is checked whole before anything of it is written.
"""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

import torch
from torch import nn

from embodied.learning.sharding import whole

BUCKET_BYTES = 256 * 2**20
ALIGNMENT = 16  # of an entry's offset: the largest element (complex128) can be read in place


class WeightsError(ValueError):
    """Parts that are not this module's weights of the version wanted, or came damaged."""


@dataclass(frozen=True)
class Entry:
    """Where one parameter stands in its bucket."""

    name: str  # as in named_parameters
    dtype: str  # "float32", "bfloat16", ...
    shape: tuple[int, ...]
    offset: int  # bytes from the bucket's start, a multiple of ALIGNMENT
    bytes: int


@dataclass(frozen=True, eq=False)
class Bucket:
    """One part of one version."""

    version: int
    number: int  # from 0
    of: int  # buckets of this version
    entries: tuple[Entry, ...]
    data: torch.Tensor  # [bytes] uint8 on the CPU, contiguous; gaps between entries are 0
    checksum: int  # of data; see `checksum`

    def __reduce__(self) -> tuple:
        """Travels as an array: pickle hands an array's memory on, and copies a tensor's byte by byte (20 times slower by way of an object store)."""
        return _arrived, (self.version, self.number, self.of, self.entries, self.data.numpy(), self.checksum)


def _arrived(version: int, number: int, of: int, entries: tuple[Entry, ...], data: Any, checksum: int) -> Bucket:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the memory may be shared and read-only; it is only read
        return Bucket(version, number, of, entries, torch.from_numpy(data), checksum)


def checksum(data: torch.Tensor) -> int:
    """CRC-32 of the bytes of a contiguous CPU tensor.

    It takes 0.3 s per GB on one core, where SHA-1 takes 0.7 and BLAKE2b 1.5; a sum of words takes 0.06 but does not see two that changed places.
    """
    return zlib.crc32(memoryview(data.numpy()))


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """(name, parameter) of what is trained, in the order it travels in; a tied parameter once, by its first name."""
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def export(module: nn.Module, version: int, bucket_bytes: int = BUCKET_BYTES) -> tuple[Bucket, ...]:
    """A copy in host memory of the trainable parameters of `module`, which may be on any device; () when it has none.

    No bucket is longer than bucket_bytes, except that of a parameter which is longer by itself. Training on afterwards changes nothing of it.
    Raises ValueError when bucket_bytes < 1.
    """
    if bucket_bytes < 1:
        raise ValueError(f"found bucket_bytes={bucket_bytes}, wanted at least 1")
    plan: list[list[tuple[Entry, nn.Parameter]]] = []
    end = 0
    for name, parameter in trainable(module):
        offset, size = -(-end // ALIGNMENT) * ALIGNMENT, parameter.numel() * parameter.element_size()
        if not plan or offset + size > bucket_bytes:
            plan.append([])
            offset = 0
        plan[-1].append((Entry(name, _name(parameter.dtype), tuple(parameter.shape), offset, size), parameter))
        end = offset + size
    return tuple(_pack(version, number, len(plan), placed) for number, placed in enumerate(plan))


def install(module: nn.Module, version: int, parts: Iterable[Bucket]) -> None:
    """Write a version into the trainable parameters of `module`, in place and on whatever device they are, one bucket after the other.

    Both sides must train the same parameters: a name more or less is an error. Raises WeightsError that names the bucket or parameter, what was
    found and what was wanted. Nothing of the bucket in question is then written, but those before it are: the module is of no version
    until a later `install` comes through, so nothing may be sampled with it.
    """
    wanted = trainable(module)
    done, count, of = 0, 0, None
    for bucket in parts:
        of = bucket.of if of is None else of
        _check_bucket(bucket, version, count, of)
        _write(bucket, wanted, done)
        done, count = done + len(bucket.entries), count + 1
        del bucket  # else it would still be in memory while the next one is fetched
    if of is not None and count != of:
        raise WeightsError(f"weights of version {version}: found {count} buckets, wanted {of}; {of - count} are missing from the end")
    if done < len(wanted):
        missing = [name for name, _ in wanted[done:]]
        raise WeightsError(f"weights of version {version}: found {done} parameters, wanted {len(wanted)}; missing: {_listed(missing)}; build both policies from one config")


class Versions:
    """The versions a stage may be asked to work with in turn: the one in the module, and up to keep - 1 others beside it.

    With a lag of n rounds up to n + 1 versions alternate. Going back to a kept one exchanges tensors and copies nothing, so a parameter's
    memory moves (the Parameter objects stay): with keep=1 it never does, as a captured CUDA graph needs. Costs keep times the memory of the
    trainable parameters. Of too many, the lowest version goes. One object serves one module; a module not seen before starts anew.

    initial: the version that the module has as it is built, where that is known; None = no version.
    Raises ValueError when keep < 1.
    """

    def __init__(self, keep: int = 2, initial: int | None = None) -> None:
        if keep < 1:
            raise ValueError(f"found keep={keep}, wanted at least 1: the version in use")
        self._keep, self._initial = keep, initial
        self._module: nn.Module | None = None
        self._kept: dict[int, list[torch.Tensor]] = {}  # all but the one in the module: that one's tensors are the module's alone
        self.version: int | None = initial  # in the module; None: none that is known

    def use(self, module: nn.Module, weights: Any) -> None:
        """Have `weights.version` in `module`; `weights.parts` are gone through only when that version is neither there nor kept.

        Raises WeightsError as `install` does. The module then has no version (and rubbish in it) until a `use` succeeds, which may be of a
        kept one; nothing that was kept is lost by it but what had to make room.
        """
        if module is not self._module:
            self._module, self._kept, self.version = module, {}, self._initial
        if weights.version == self.version:
            return
        parameters = [parameter for _, parameter in trainable(module)]
        if weights.version in self._kept:
            self._exchange(parameters, self._kept.pop(weights.version))
        else:
            self._make_room(parameters)
            self.version = None
            install(module, weights.version, weights.parts)
        self.version = weights.version

    def to(self, device: torch.device | str) -> None:
        """Move the versions that are kept beside the module's, for a stage that gives back its device; `use` brings one back by itself."""
        self._kept = {version: [tensor.to(device) for tensor in tensors] for version, tensors in self._kept.items()}

    def _make_room(self, parameters: Sequence[nn.Parameter]) -> None:
        """Let the module's tensors be ones that may be written over: those of the lowest version when there are enough, else new ones."""
        full = len(self._kept) >= self._keep - 1
        if self.version is None or (full and self.version == min([self.version, *self._kept])):
            return
        spare = self._kept.pop(min(self._kept)) if full else [torch.empty_like(parameter.data) for parameter in parameters]
        self._exchange(parameters, spare)

    def _exchange(self, parameters: Sequence[nn.Parameter], tensors: Sequence[torch.Tensor]) -> None:
        """Keep what is in the module, if it is a version, and put these tensors in its place."""
        if self.version is not None:
            self._kept[self.version] = [parameter.data for parameter in parameters]
        for parameter, tensor in zip(parameters, tensors, strict=True):
            parameter.data = tensor.to(parameter.device)


def _pack(version: int, number: int, of: int, placed: Sequence[tuple[Entry, nn.Parameter]]) -> Bucket:
    last = placed[-1][0]
    data = torch.zeros(last.offset + last.bytes, dtype=torch.uint8)
    for entry, parameter in placed:
        _read(data, entry, parameter.dtype).copy_(whole(parameter.detach()))
    return Bucket(version, number, of, tuple(entry for entry, _ in placed), data, checksum(data))


def _read(data: torch.Tensor, entry: Entry, dtype: torch.dtype) -> torch.Tensor:
    """The entry's bytes as what they mean, without a copy."""
    return data[entry.offset : entry.offset + entry.bytes].view(dtype).view(entry.shape)


def _write(bucket: Bucket, wanted: Sequence[tuple[str, nn.Parameter]], place: int) -> None:
    """A sound bucket into the parameters from number `place` on, when all of them fit."""
    values = [_check_entry(bucket, entry, wanted, place + i) for i, entry in enumerate(bucket.entries)]
    for (_, parameter), value in zip(wanted[place:], values):
        parameter.data.copy_(value)


def _check_bucket(bucket: Bucket, version: int, number: int, of: int) -> None:
    where = f"weights of version {version}, bucket {number} of {of}"
    if bucket.version != version:
        raise WeightsError(f"{where}: found version {bucket.version}, wanted {version}; give the parts that belong to the version")
    if (bucket.number, bucket.of) != (number, of) or number >= of:
        raise WeightsError(f"{where}: found bucket {bucket.number} of {bucket.of}, wanted {number} of {of}; give every part once and in order")
    data = bucket.data
    if data.dtype != torch.uint8 or data.dim() != 1 or not data.is_contiguous() or data.device.type != "cpu" or data.storage_offset() % ALIGNMENT:
        raise WeightsError(f"{where}: found {data.dtype} {tuple(data.shape)} on {data.device}, wanted contiguous uint8 [bytes] on the CPU, as `export` made it")
    found = checksum(data)
    if found != bucket.checksum:
        raise WeightsError(f"{where}: found checksum {found:08x}, wanted {bucket.checksum:08x}; its {data.numel()} bytes changed on the way, send them again")


def _check_entry(bucket: Bucket, entry: Entry, wanted: Sequence[tuple[str, nn.Parameter]], place: int) -> torch.Tensor:
    """The values of an entry, of the module's parameter number `place`."""
    where = f"weights of version {bucket.version}, parameter {entry.name!r}"
    if place >= len(wanted):
        raise WeightsError(f"{where}: found one more than the {len(wanted)} parameters that are trained here; build both policies from one config")
    name, parameter = wanted[place]
    if entry.name != name:
        raise WeightsError(f"{where}: wanted {name!r} in its place; build both policies from one config")
    found, here = (entry.dtype, tuple(entry.shape)), (_name(parameter.dtype), tuple(parameter.shape))
    if found != here:
        raise WeightsError(f"{where}: found {entry.dtype} {list(entry.shape)}, wanted {here[0]} {list(here[1])}; build both policies from one config")
    size = parameter.numel() * parameter.element_size()
    if entry.bytes != size or entry.offset % ALIGNMENT or not 0 <= entry.offset <= bucket.data.numel() - size:
        raise WeightsError(
            f"{where}: found {entry.bytes} bytes from {entry.offset} on in a bucket of {bucket.data.numel()}, wanted {size} inside it, from a multiple of {ALIGNMENT} on"
        )
    return _read(bucket.data, entry, parameter.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
