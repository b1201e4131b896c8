"""Where the stages of a run live: in this process and its simulator workers, or in the actor processes of a Ray cluster. Both are driven alike."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Sequence

from omegaconf import DictConfig, OmegaConf

from embodied.config import fill_in
from embodied.wiring import workers
from embodied.wiring.workers import Facts
from scheduler.backends.base import Backend
from scheduler.backends.local_backend import LocalBackend
from scheduler.planning.schedule import Plan
from scheduler.resources import Accelerator, Cluster, this_machine


def cluster_of(config: DictConfig, device: str) -> Cluster:
    """What there is to run on; a Ray cluster is joined, or started here. Afterwards the config's null numbers are filled in. Raises ClusterError."""
    if config.cluster.kind == "ray":
        from scheduler.backends import ray_backend

        cluster = ray_backend.connect(config.cluster.address)
        fill_in(config, cluster.cores)
        return cluster
    if not device.startswith("cuda"):
        return this_machine()
    import torch

    index = torch.device(device).index or 0
    return this_machine((Accelerator(f"cuda:{index}", torch.cuda.get_device_properties(index).total_memory),))


def leave(config: DictConfig) -> None:
    """Lets go of what `cluster_of` took."""
    if config.cluster.kind == "ray":
        from scheduler.backends import ray_backend

        ray_backend.disconnect()


class Here:
    """This process: stages hand over by reference, simulator workers by shared memory."""

    members = 1

    def __init__(self, config: DictConfig, names: Sequence[str], facts: Facts, algorithm: Any, learner: dict[str, Any], policy: Any, env: Any) -> None:
        self.backend: Backend = LocalBackend(workers.stages(config, names, facts, algorithm, learner, policy, env))
        self.travels = config.staleness > 0  # whether weights do, from learn to act

    def place(self, plan: Plan) -> None:
        """Every plan runs in this process."""

    def close(self) -> None:
        """The env and the policy belong to who made them."""


class OnRay:
    """Actor processes: simulators on every node with their workers, the model's stages where the plan puts them.

    Stages with processes=0 share one process on the first node and hand over by reference; others have one of their own, and what
    they exchange lies in the object store: shared memory within a node, Ray's transfer across. This process sees none of it.
    """

    def __init__(self, config: DictConfig, names: Sequence[str], facts: Facts, cluster: Cluster) -> None:
        self._config, self._names, self._facts, self._cluster = config, tuple(names), facts, cluster
        self.members = members(config, cluster)
        self._hosts: list[Any] = []
        self.backend: Backend | None = None

    @property
    def travels(self) -> bool:
        return not any({"act", "learn"} <= set(host.stages) for host in self._hosts) or self._config.staleness > 0

    def place(self, plan: Plan) -> None:
        """Builds the processes that the plan asks for; those that are there stay where it asks for the same ones."""
        from scheduler.backends.ray_backend import RayBackend

        hosts = self._wanted(plan)
        if self.backend is not None and hosts != self._hosts:
            self.backend.close()
            self.backend = None
        if self.backend is None:
            self.backend, self._hosts = RayBackend(hosts, plan.slot_groups, self._config.sim.start_timeout), hosts

    def close(self) -> None:
        if self.backend is not None:
            self.backend.close()

    def _wanted(self, plan: Plan) -> list[Any]:
        from scheduler.backends.ray_backend import Host

        nodes, sim = self._cluster.nodes, self._config.sim
        alone = {name: stage for name, stage in plan.stages.items() if name != "sim" and stage.processes}
        hosts = []
        if "sim" in self._names and (self.members > 1 or sim.workers):
            for number in range(self.members):
                slots, processes = sim.slots // self.members, _part(sim.workers, number, self.members)
                hosts.append(Host(("sim",), self._thunk(("sim",), (number, self.members), slots, processes), nodes[number % len(nodes)].name, max(1, processes)))
        for number, (name, stage) in enumerate(sorted(alone.items())):
            node = next((node.name for node in nodes for device in node.accelerators if device.name in stage.devices), nodes[(number + 1) % len(nodes)].name)
            hosts.append(Host((name,), self._thunk((name,)), node, stage.threads, len(stage.devices)))
        rest = tuple(name for name in self._names if name not in alone and not any(name in host.stages for host in hosts))
        if rest:
            devices = {device for name in rest if name in plan.stages for device in plan.stages[name].devices}
            threads = max((plan.stages[name].threads for name in rest if name in plan.stages), default=1)
            hosts.append(Host(rest, self._thunk(rest, slots=sim.slots, processes=sim.workers), nodes[0].name, threads, len(devices)))
        return hosts

    def _thunk(self, names: tuple[str, ...], share: tuple[int, int] = (0, 1), slots: int = 0, processes: int = 0) -> Any:
        return partial(_there, os.getcwd(), OmegaConf.to_container(self._config), names, self._facts, share, slots, processes)


def members(config: DictConfig, cluster: Cluster) -> int:
    """Processes that the sim stage is spread over: one a node, where slots and simulator workers divide."""
    if config.cluster.kind == "local":
        return 1
    return max(n for n in range(1, len(cluster.nodes) + 1) if config.sim.slots % n == 0 and (n == 1 or config.sim.workers >= n))


def _there(folder: str, *arguments: Any) -> dict[str, Any]:
    """Paths in the config mean what they mean to the program, where its folder can be seen."""
    if Path(folder).is_dir():
        os.chdir(folder)
    return workers.elsewhere(*arguments)


def _part(whole: int, number: int, count: int) -> int:
    return whole * (number + 1) // count - whole * number // count
