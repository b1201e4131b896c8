"""What Ray runs on: starting or joining one, its nodes as a Cluster, and a place for every host.

Guarantees: an address where no Ray answers is a ClusterError in one line, within seconds. A node's name is the same for as long as the node
lives. A host that names a node runs there. Only what was started here is shut down here.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
from contextlib import contextmanager, nullcontext
from math import ceil
from typing import Any, Iterator, Sequence

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from scheduler.backends.ray_host import Host
from scheduler.resources import MEMORY, NETWORK, Accelerator, Cluster, ClusterError, Node, this_machine

ANSWER = 3.0  # seconds for an address to answer
PLACE = 30.0  # seconds for Ray to find the hosts' cores and accelerators
SETTINGS = b"\x04"  # the kind of an HTTP/2 frame
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00" + SETTINGS + b"\x00" * 5
QUIET = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
WAY_OUT = "start one with `ray start --head` and give its host:port, or leave the address out to run on this machine alone"

_users = 0  # calls of `connect` without their `disconnect`, where the first of them is what initialised Ray in this process


def connect(address: str | None = None, object_store: int | None = None) -> Cluster:
    """address: None = a Ray of our own on this machine; "auto" or "host:port" = join one. object_store: bytes, of our own.

    A Ray that this process already uses is taken as it is. Raises ClusterError.
    """
    global _users
    _users += _users > 0
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # an actor sees its node's GPUs though it reserves none: its place does
        if address is None:
            options = {"address": "local", "num_cpus": this_machine().cores, "object_store_memory": object_store or _store()}
        else:
            options = {"address": _answering(address)}
        try:
            with _another_group() if address is None else nullcontext():
                ray.init(**options, **(QUIET if address is None else {key: QUIET[key] for key in QUIET if key != "include_dashboard"}))
        except (ConnectionError, OSError, RuntimeError, ValueError, RayError) as error:
            raise ClusterError(f"found no Ray to use at {address or 'this machine'}: {one_line(error)}; {WAY_OUT}") from None
        _users = 1
        setattr(ray._private.worker, "_worker_logs_enabled", False)  # of each process that dies Ray prints up to a page; StageLost says it in one line
    return cluster()


@contextmanager
def _another_group() -> Iterator[None]:
    """What is started inside belongs to a process group of its own: a signal to this program's group (a Ctrl-C, `timeout`, a batch system) would end Ray before the program can."""
    own = os.getpgrp()
    try:
        leader = subprocess.Popen(["sleep", "60"], preexec_fn=os.setpgrp)  # a group must have had a leader to be joined
        os.setpgid(0, leader.pid)
    except OSError:  # a session's leader cannot leave its group
        yield
        return
    try:
        yield
    finally:
        os.setpgid(0, 0 if own == os.getpid() else own)
        leader.kill()
        leader.wait()


def disconnect() -> None:
    """Leaves the Ray that `connect` joined, or ends the one it started, when it has been called as often; nothing where this process had one before."""
    global _users
    if _users == 1:
        ray.shutdown()
    _users = max(0, _users - 1)


def cluster() -> Cluster:
    """The nodes that are alive and have cores, the one this process is on first."""
    alive = nodes()
    found = [node for node in alive.values() if node["Resources"].get("CPU", 0) >= 1]
    if not found:
        raise ClusterError(f"found no CPU cores on the {len(alive)} nodes of this Ray, wanted at least one; {WAY_OUT}")
    return Cluster(tuple(_node(node) for node in found), NETWORK if len(found) > 1 else None)


def nodes() -> dict[str, dict[str, Any]]:
    """name -> what Ray says of each node that is alive."""
    here = ray.get_runtime_context().get_node_id()
    alive = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: (node["NodeID"] != here, node["NodeID"]))
    return {f"{node['NodeManagerAddress']}-{node['NodeID'][:8]}": node for node in alive}


def place(hosts: Sequence[Host]) -> tuple[Any, list[Any]]:
    """The placement group of the hosts, and each one's scheduling strategy. Raises ClusterError where there is no room."""
    bundles, index, names = _bundles(hosts, nodes())
    labels = [{"ray.io/node-id": known["NodeID"]} if known else {} for known in names]
    try:
        group = placement_group(bundles, strategy="PACK", bundle_label_selector=labels)
    except TypeError:  # an older Ray knows no labels: each named host is pinned by itself, without a reservation
        return None, [NodeAffinitySchedulingStrategy(names[at]["NodeID"], soft=False) if names[at] else "DEFAULT" for at in index]
    if not group.wait(PLACE):
        remove_placement_group(group)
        free = {key: value for key, value in ray.available_resources().items() if key in ("CPU", "GPU")}
        wanted = "; ".join(f"{bundle} on {known['NodeManagerAddress'] if known else 'any node'}" for bundle, known in zip(bundles, names))
        raise ClusterError(f"found {free or 'nothing'} free in this Ray after {PLACE:.0f} s, wanted {wanted}; end what else runs there, or plan for fewer cores and accelerators")
    return group, [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=at) for at in index]


def one_line(error: object, most: int = 300) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def _bundles(hosts: Sequence[Host], known: dict[str, dict[str, Any]]) -> tuple[list[dict[str, float]], list[int], list[dict[str, Any] | None]]:
    """(a bundle for each node, each host's bundle, each bundle's node). Hosts that name no node go to the first; they may take turns on its cores."""
    for host in hosts:
        if host.node is not None and host.node not in known:
            raise ClusterError(f"the stages {', '.join(host.stages)} want node {host.node!r}; found {', '.join(known)}")
    named = list(dict.fromkeys(host.node for host in hosts if host.node is not None))
    order: list[str | None] = [*named] or [None]
    index = [order.index(host.node) if host.node is not None else 0 for host in hosts]
    bundles = []
    for at, name in enumerate(order):
        there = [known[name]] if name is not None else list(known.values())
        bundle = {}
        for resource, wanted in (("CPU", "cores"), ("GPU", "accelerators")):
            most = max(node["Resources"].get(resource, 0.0) for node in there)
            total = sum(getattr(host, wanted) for host, its in zip(hosts, index) if its == at)
            bundle |= {resource: float(min(total, most))} if min(total, most) > 0 else {}
        bundles.append(bundle or {"memory": 1.0})  # a bundle must hold something
    return bundles, index, [known[name] if name is not None else None for name in order]


def _node(node: dict[str, Any]) -> Node:
    resources = node["Resources"]
    name = f"{node['NodeManagerAddress']}-{node['NodeID'][:8]}"
    memory = int(resources.get("memory", 0) + resources.get("object_store_memory", 0))
    gpus = int(resources.get("GPU", 0))
    sizes = _gpu_memory(node, gpus) if gpus else []
    return Node(name, int(resources["CPU"]), max(1, memory), tuple(Accelerator(f"{name}/gpu:{i}", size) for i, size in enumerate(sizes)))


def _gpu_memory(node: dict[str, Any], count: int) -> list[int]:
    """Bytes of each GPU: as the driver on the node says, else as the maker of the kind that Ray names."""
    strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    try:
        found = ray.get(ray.remote(num_cpus=0)(_asked_driver).options(scheduling_strategy=strategy).remote(), timeout=60)
    except RayError:
        found = []
    if len(found) >= count:
        return found[:count]
    kinds = [key.split(":", 1)[1].lower() for key in node["Resources"] if key.startswith("accelerator_type:")]
    known = [MEMORY[kind] for kind in kinds if kind in MEMORY]
    if not known:
        raise ClusterError(f"found {count} GPUs of the kind {kinds or 'unknown'} on {node['NodeManagerAddress']}, and nvidia-smi says nothing of their memory; wanted one of {', '.join(MEMORY)}")
    return [min(known)] * count


def _asked_driver() -> list[int]:
    if shutil.which("nvidia-smi") is None:
        return []
    asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30)
    return [int(line) * 2**20 for line in asked.stdout.split() if line.isdigit()] if asked.returncode == 0 else []


def _store() -> int:
    """Bytes for objects: a quarter of the memory, within what shared memory has free."""
    free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else this_machine().memory
    return max(80 * 2**20, min(this_machine().memory // 4, ceil(0.9 * free)))


def _answering(address: str) -> str:
    """host:port of a Ray that answers. Ray itself would try an address for minutes."""
    if address == "auto":
        from ray._private.services import get_ray_address_from_environment

        try:
            address = get_ray_address_from_environment("auto", None)
        except ConnectionError:
            raise ClusterError(f"found no Ray running on this machine; {WAY_OUT}") from None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ClusterError(f"found the address {address!r}, wanted auto or host:port as `ray start --head` prints it")
    try:
        _greet(host, int(port))
    except (OSError, OverflowError) as error:
        raise ClusterError(f"found no Ray that answers at {address} ({one_line(error)}); {WAY_OUT}") from None
    return address


def _greet(host: str, port: int) -> None:
    """Raises OSError where nothing, or something that is no Ray, answers: a Ray speaks HTTP/2, and its first frame is its settings."""
    with socket.create_connection((host, port), ANSWER) as connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            return  # a greeting would have to be encrypted
        connection.settimeout(ANSWER)
        connection.sendall(GREETING)
        if connection.recv(9)[3:4] != SETTINGS:
            raise OSError("something else answers there")
