"""What tests of several files share. The two-node Ray is begun by the first test of a test process that asks for it, and ended with the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: with more, a matrix product's last bits follow the size of its batch

STORE = 150 * 2**20  # bytes for objects on each node


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
