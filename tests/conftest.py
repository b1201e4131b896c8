"""What tests of several files share, and which of them stay together. The two-node Ray is begun by the first test that asks for it, and ended with the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: with more, a matrix product's last bits follow the size of its batch

STORE = 150 * 2**20  # bytes for objects on each node


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several test processes (make test), a file's tests stay in one of them for the fixtures they share, and all that join a Ray in the same one."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("ray" if "ray" in item.path.name else item.path.name))


@pytest.fixture(scope="session")
def ray_nodes():
    """A scheduler Cluster of two Ray nodes with two cores each, both on this machine, that this process has joined."""
    here = str(Path(__file__).parent / "flow")
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "RAY_USAGE_STATS_ENABLED", "RAY_ADDRESS")}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, before["PYTHONPATH"])))  # where the actors find the toy stages
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.pop("RAY_ADDRESS", None)
    from ray.cluster_utils import Cluster

    from scheduler.backends.ray_backend import connect, disconnect

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=2, object_store_memory=STORE)
        yield connect(nodes.address)
    finally:
        disconnect()
        nodes.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
