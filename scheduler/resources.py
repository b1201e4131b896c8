"""What there is to run on: nodes with CPU cores and accelerators. Cores are a resource like any other."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    name: str  # as the backend addresses it, e.g. "cuda:0"
    memory: int  # bytes


@dataclass(frozen=True)
class Node:
    name: str
    cores: int
    memory: int  # bytes of host memory
    accelerators: tuple[Accelerator, ...] = ()


@dataclass(frozen=True)
class Cluster:
    nodes: tuple[Node, ...]
    bandwidth: float | None = None  # bytes per second between nodes; None for a single node

    @property
    def cores(self) -> int:
        return sum(node.cores for node in self.nodes)

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        return tuple(device for node in self.nodes for device in node.accelerators)


def this_machine(accelerators: tuple[Accelerator, ...] = ()) -> Cluster:
    """One node: the cores this process may use (its affinity, not what the board has) and the host memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Cluster((Node("local", cores, memory, accelerators),))
