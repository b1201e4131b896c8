"""Where the stages of a run live: in this process and its simulator workers, or in the actor processes of a Ray cluster. Both are driven alike."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Iterator, Sequence

from omegaconf import DictConfig, OmegaConf

from embodied.config import fill_in
from embodied.wiring import build, workers
from embodied.wiring.workers import Facts
from scheduler.backends.base import Backend
from scheduler.backends.local_backend import LocalBackend
from scheduler.planning.schedule import Plan, StagePlan
from scheduler.resources import Accelerator, Cluster, this_machine


@contextmanager
def joined(config: DictConfig) -> Iterator[Cluster]:
    """What there is to run on: a Ray cluster is joined, or started here, and left in the end. The config's null numbers are filled in. Raises ClusterError."""
    if config.cluster.kind == "ray":
        from scheduler.backends import ray_backend

        print(f"joining the Ray at {config.cluster.address}" if config.cluster.address else "starting a Ray here", flush=True)
        cluster = ray_backend.connect(config.cluster.address)
        try:
            fill_in(config, cluster.cores)
            yield cluster
        finally:
            ray_backend.disconnect()
        return
    device = build.device(config)
    if not device.startswith("cuda"):
        yield this_machine()
        return
    import torch

    index = torch.device(device).index or 0
    yield this_machine((Accelerator(f"cuda:{index}", torch.cuda.get_device_properties(index).total_memory),))


class Here:
    """This process: stages hand over by reference, simulator workers by shared memory."""

    members = 1

    def __init__(self, config: DictConfig, names: Sequence[str], facts: Facts, algorithm: Any, learner: dict[str, Any], policy: Any, env: Any) -> None:
        self._stages = workers.stages(config, names, facts, algorithm, learner, policy, env)
        self.backend: Backend = LocalBackend(self._stages)
        self.travels = _apart(config)  # whether weights do, from learn to act

    def place(self, plan: Plan) -> None:
        """Every plan runs in this process."""

    def close(self) -> None:
        """The env and the policy belong to who made them."""
        if "learn" in self._stages:
            self._stages["learn"].close()


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
        return not any({"act", "learn"} <= set(host.stages) for host in self._hosts) or _apart(self._config)

    def place(self, plan: Plan) -> None:
        """Builds the processes that the plan asks for; those that are there stay where it asks for the same ones."""
        from scheduler.backends.ray_backend import RayBackend

        hosts = self.wanted(plan)
        if self.backend is not None and [_what(host) for host in hosts] != [_what(host) for host in self._hosts]:
            self.backend.close()
            self.backend = None
        if self.backend is None:
            print("building " + ", ".join(f"{'+'.join(host.stages)} on {host.node}" for host in hosts), flush=True)
            self.backend, self._hosts = RayBackend(hosts, plan.slot_groups, self._config.sim.timeout, self._config.sim.start_timeout), hosts

    def close(self) -> None:
        if self.backend is not None:
            self.backend.close()

    def wanted(self, plan: Plan) -> list[Any]:
        """The processes of a plan, each a scheduler.backends.ray_backend.Host."""
        nodes, sim = self._cluster.nodes, self._config.sim
        alone = {name: stage for name, stage in plan.stages.items() if name != "sim" and stage.processes}
        hosts = []
        if "sim" in self._names and (self.members > 1 or sim.workers):
            for number in range(self.members):
                part = (number, self.members), sim.slots // self.members, _part(sim.workers, number, self.members)
                hosts.append(self._host(("sim",), [StagePlan(threads=max(1, part[2]))], nodes[number % len(nodes)].name, *part))
        for number, (name, stage) in enumerate(sorted(alone.items()), 1):
            hosts += [self._host((name,), [stage], nodes[(number + at) % len(nodes)].name) for at in range(stage.processes)]
        rest = tuple(name for name in self._names if name not in alone and not any(name in host.stages for host in hosts))
        if rest:
            hosts.append(self._host(rest, [plan.stages[name] for name in rest if name in plan.stages], nodes[0].name, (0, 1), sim.slots, sim.workers))
        return hosts

    def _host(self, names: tuple[str, ...], stages: Sequence[StagePlan], node: str, share: tuple[int, int] = (0, 1), slots: int = 0, processes: int = 0) -> Any:
        """node: where it goes unless a stage has an accelerator, which says so itself."""
        from scheduler.backends.ray_backend import Host

        held = next((device for stage in stages for device in stage.devices), None)
        config = OmegaConf.to_container(self._config)
        if held is not None:
            node, index = held.split("/gpu:")
            config["device"] = f"cuda:{index}"
        make = partial(_there, os.getcwd(), config, names, self._facts, share, slots, processes)
        return Host(names, make, node, max((stage.threads for stage in stages), default=1), int(held is not None))


def device_of(config: DictConfig, cluster: Cluster) -> str:
    """Where the policy runs: of a Ray cluster an accelerator where it has any and the config does not say cpu."""
    if config.cluster.kind == "ray":
        return "cuda" if cluster.accelerators and config.device != "cpu" else "cpu"
    return build.device(config)


def _apart(config: DictConfig) -> bool:
    """Whether act and learn have a policy each, also in one process."""
    return config.staleness > 0 or config.sharding.processes > 1


def _what(host: Any) -> tuple:
    """What makes it the same process (a thunk equals nothing but itself)."""
    return host.stages, host.node, host.cores, host.accelerators


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
