"""What there is to run on: nodes with CPU cores and accelerators. Cores are a resource like any other."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

# Kind -> bytes of memory of one accelerator, as its maker states it.
MEMORY = {"h200": 141 * 10**9, "h100": 80 * 10**9, "a100": 80 * 10**9, "l40s": 48 * 10**9, "4090": 24 * 10**9}
HOST_CORES, HOST_MEMORY = 96, 2 * 10**12  # of a named node with 8 accelerators: two CPUs of 48 cores; fewer accelerators have their share
MOST_DEVICES = 16384
NETWORK = 50e9  # bytes per second between named nodes


class ClusterError(ValueError):
    """There is no such cluster; the message says what would do."""


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

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ClusterError("found a cluster without nodes, wanted at least one")
        sizes = [(f"{node.name}.{what}", value) for node in self.nodes for what, value in (("cores", node.cores), ("memory", node.memory))]
        sizes += [(f"{device.name}.memory", device.memory) for device in self.accelerators]
        for what, value in sizes:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ClusterError(f"found {what}={value!r} in the nodes, wanted a whole number of at least 1 (memory in bytes)")
        names = [device.name for device in self.accelerators] + [node.name for node in self.nodes]
        if len(set(map(str, names))) != len(names) or not all(isinstance(name, str) for name in names):
            raise ClusterError(f"found the names {names} in the nodes, wanted a text of its own for each node and accelerator")
        if self.bandwidth is not None and not (isinstance(self.bandwidth, (int, float)) and self.bandwidth > 0):
            raise ClusterError(f"found bandwidth={self.bandwidth!r} between the nodes, wanted more than 0 bytes per second, or null")

    @property
    def memory(self) -> int:
        """Host memory, bytes."""
        return sum(node.memory for node in self.nodes)

    @property
    def accelerator_memory(self) -> int:
        """Of the smallest accelerator, bytes; 0 without one."""
        return min((device.memory for device in self.accelerators), default=0)

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


def named(name: str) -> Cluster:
    """"local", or [nodes x] accelerators x kind, as "8xh100" and "32x8xh100". Raises ClusterError."""
    if name == "local":
        return this_machine()
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)x([a-z0-9]+)", name)
    if match is None or match[3] not in MEMORY or not 1 <= int(match[2]) * int(match[1] or 1) <= MOST_DEVICES:
        raise ClusterError(f"cluster={name}: wanted local, a file of your own, or [nodes x] accelerators x kind as in 32x8xh100, of the kinds {', '.join(MEMORY)} and up to {MOST_DEVICES} in all")
    nodes, per_node = int(match[1] or 1), int(match[2])
    cores, memory = max(1, HOST_CORES * per_node // 8), max(1, HOST_MEMORY * per_node // 8)
    return Cluster(
        tuple(Node(f"node{i}", cores, memory, tuple(Accelerator(f"node{i}/{match[3]}:{j}", MEMORY[match[3]]) for j in range(per_node))) for i in range(nodes)),
        NETWORK if nodes > 1 else None,
    )



def of_plain(found: object) -> Cluster:
    """From plain values: {nodes: [{name, cores, memory, accelerators: [{name, memory}]}], bandwidth}. Raises ClusterError."""
    try:
        nodes = tuple(Node(**{**node, "accelerators": tuple(Accelerator(**device) for device in node.get("accelerators", ()))}) for node in found["nodes"])
        return Cluster(nodes, found.get("bandwidth"))
    except (TypeError, KeyError, AttributeError) as error:
        raise ClusterError(f"not a cluster: {error}; wanted nodes: a list of name, cores, memory, accelerators (each with name and memory)") from error
