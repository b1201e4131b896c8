"""What memory there is for a run, and the first question to it: whether the weights alone fit, before they are read."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from embodied.config import ConfigError
from embodied.learning.memory import estimate
from embodied.wiring import build
from policies.checkpoints import fingerprint, loading

MARGIN = 1.1  # a refusal takes more than so many times what is there: estimates are checked to be within 15 % of what is measured, and most are within 2
HOST = "host memory"


class MemoryRefused(ConfigError):
    """It will not fit."""


@dataclass(frozen=True)
class Device:
    """Bytes wanted on a device, and there for it."""

    name: str
    wanted: int
    there: int

    @property
    def fits(self) -> bool:
        return self.wanted <= MARGIN * self.there


def there(config: DictConfig, cluster: Any, device: str, policy: Any = None) -> dict[str, int]:
    """Bytes for a run by device. cluster: a scheduler Cluster. policy: one that is there already, whose weights are no new need."""
    held = estimate.weight(policy) if isinstance(policy, nn.Module) else 0
    on_accelerator = not device.startswith("cpu")
    if config.cluster.kind != "local":
        found = of_cluster(cluster)
        return found if on_accelerator else {HOST: found[HOST]}
    if not on_accelerator:
        return {HOST: free_on_host() + held}
    return {device: torch.cuda.mem_get_info(device)[0] + held, HOST: free_on_host()}


def of_cluster(cluster: Any) -> dict[str, int]:
    """Bytes of one accelerator, where there are any, and of all nodes."""
    return ({"an accelerator": cluster.accelerator_memory} if cluster.accelerators else {}) | {HOST: cluster.memory}


def free_on_host() -> int:
    """Bytes that this process may still take: what the system has left, and what its control group has."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines()) if Path("/proc/meminfo").is_file() else {}
    free = 1024 * int(lines["MemAvailable"].split()[0]) if "MemAvailable" in lines else 2**62
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        most, taken = (Path("/sys/fs/cgroup", name) for name in (limit, used))
        if most.is_file() and most.read_text().strip().isdigit():
            free = min(free, max(0, int(most.read_text()) - int(taken.read_text())))
    return free


def check_unread(config: DictConfig, weights: Path | None, free: dict[str, int]) -> None:
    """Raises MemoryRefused for a folder whose weights alone are more than there is, before they are read. weights: as in build.policy; None: of what the policy begins from."""
    folder = weights or build.start_of(config)
    name, space = next(iter(free.items()))
    wanted = sum(_unread(file, config.policy.get("dtype")) for file in _files(folder, config.policy.get("base"))) if folder else 0
    if wanted > MARGIN * space:
        way = "policy.dtype=bfloat16 halves it" if config.policy.get("dtype") == "float32" else "choose a smaller one, or a larger machine"
        raise MemoryRefused(f"{folder}: this will not fit: found {size(space)} for it in {name}, wanted {size(wanted)} for its weights alone; {way}")


def _files(folder: Path, base: str | None) -> set[Path]:
    """A folder's safetensors files, and those of the base of its adapters."""
    try:
        places = {folder, loading.home_of(folder, base)}
    except loading.CheckpointError:
        places = {folder}  # whoever reads it says it better
    return {file for place in places for file in place.glob("*.safetensors")}


def _unread(file: Path, dtype: str | None) -> int:
    """Bytes of a safetensors file's tensors by its header, as dtype (None: as they are); 0 for a file or dtype that is none, which whoever reads it says better."""
    try:
        with file.open("rb") as opened:
            tensors, _ = fingerprint.header(opened)
        return sum(math.prod(each["shape"]) * getattr(torch, dtype).itemsize if dtype else each["data_offsets"][1] - each["data_offsets"][0] for each in tensors.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, MemoryError):
        return 0


def size(count: int) -> str:
    """Bytes with a unit."""
    unit = next((power for power in (3, 2, 1) if count >= 1024**power), 1)
    return f"{count / 1024**unit:.3g} {('KiB', 'MiB', 'GiB')[unit - 1]}" if count else "0"
