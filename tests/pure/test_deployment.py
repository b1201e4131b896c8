"""Which processes a plan becomes on a cluster: nodes, accelerators, shares of the simulators. No Ray is started."""

from __future__ import annotations

import pytest

from embodied.config import compose, fill_in
from embodied.wiring.deployment import OnRay, members
from embodied.wiring.workers import Facts
from envs.spec import ActionSpec, EnvSpec
from policies.base import PolicySpec
from scheduler.planning.schedule import Plan, StagePlan
from scheduler.resources import Accelerator, Cluster, Node

FACTS = Facts(EnvSpec("t", ActionSpec("discrete", 1, choices=2), state=1), PolicySpec("p", "discrete", 1, 1), (0,), None, 2)
STAGES = ("sim", "act", "ref", "learn")


def cluster(*accelerators: int, cores: int = 4) -> Cluster:
    nodes = [Node(f"n{i}", cores, 10**9, tuple(Accelerator(f"n{i}/gpu:{j}", 10**9) for j in range(count))) for i, count in enumerate(accelerators)]
    return Cluster(tuple(nodes), 1e9 if len(nodes) > 1 else None)


def wanted(there: Cluster, stages: dict[str, StagePlan], *arguments: str) -> list[tuple]:
    """(stages, node, cores, accelerators, share, slots, workers, device) of each process."""
    config = compose(["env=toy", "policy=mlp", "cluster=ray", *arguments])
    fill_in(config, there.cores)
    plan = Plan("hybrid", config.sim.slots, 2, {name: stages.get(name, StagePlan()) for name in STAGES})
    return [(h.stages, h.node, h.cores, h.accelerators, h.make.args[4], *h.make.args[5:], h.make.args[1]["device"]) for h in OnRay(config, STAGES, FACTS, there).wanted(plan)]


def test_without_simulator_workers_all_stages_share_a_process() -> None:
    assert wanted(cluster(0, 0), {"learn": StagePlan(threads=3)}, "sim.slots=4", "sim.workers=0") == [(STAGES, "n0", 3, 0, (0, 1), 4, 0, "auto")]


def test_simulators_are_spread_over_the_nodes_with_their_workers_and_slots() -> None:
    found = wanted(cluster(0, 0), {}, "sim.slots=6", "sim.workers=5")
    assert found == [(("sim",), "n0", 2, 0, (0, 2), 3, 2, "auto"), (("sim",), "n1", 3, 0, (1, 2), 3, 3, "auto"), (("act", "ref", "learn"), "n0", 1, 0, (0, 1), 6, 5, "auto")]


def test_a_stage_with_a_process_of_its_own_goes_to_another_node() -> None:
    found = wanted(cluster(0, 0), {"learn": StagePlan(processes=1, threads=4)}, "sim.slots=4", "sim.workers=0")
    assert [each[:3] for each in found] == [(("learn",), "n1", 4), (("sim", "act", "ref"), "n0", 1)]


def test_an_accelerator_says_where_its_stage_lives_and_which_device_torch_uses() -> None:
    stages = {"act": StagePlan(("n0/gpu:1",), 1), "learn": StagePlan(("n1/gpu:0",), 1), "ref": StagePlan(("n1/gpu:0",), 1)}
    found = {each[0]: each for each in wanted(cluster(2, 1), stages, "sim.slots=4", "sim.workers=2")}
    assert {names: (each[1], each[3], each[-1]) for names, each in found.items() if names != ("sim",)} == {
        ("act",): ("n0", 1, "cuda:1"), ("learn",): ("n1", 1, "cuda:0"), ("ref",): ("n1", 1, "cuda:0"),
    }  # fmt: skip


def test_several_processes_of_act_are_dealt_out_to_the_nodes() -> None:
    found = wanted(cluster(0, 0), {"act": StagePlan(processes=2)}, "sim.slots=4", "sim.workers=0")
    assert [each[:2] for each in found] == [(("act",), "n1"), (("act",), "n0"), (("sim", "ref", "learn"), "n0")]


@pytest.mark.parametrize(("slots", "workers", "nodes", "count"), [(4, 2, 2, 2), (4, 1, 2, 1), (4, 0, 2, 1), (9, 9, 2, 1), (9, 9, 3, 3), (6, 6, 4, 3)])
def test_the_simulators_take_as_many_nodes_as_divide_their_slots_and_have_a_worker_each(slots: int, workers: int, nodes: int, count: int) -> None:
    config = compose(["env=toy", "policy=mlp", "cluster=ray", f"sim.slots={slots}", f"sim.workers={workers}"])
    assert members(config, cluster(*[0] * nodes)) == count
