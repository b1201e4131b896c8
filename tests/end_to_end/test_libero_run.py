"""Real LIBERO, the packaged policy, PPO (whose value head learns from failures too): one seed is one run, whatever the workers and the plan, and wherever it was cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied import evaluate, train
from tests.end_to_end.runs import assert_equal_to_the_bit, episodes, trained

SMALL = [
    "env=libero", "policy=openvla_oft", "algorithm=ppo", "env.horizon=24", "iterations=2", "groups=4", "algorithm.learner.epochs=1",
    "algorithm.learner.minibatch=6", "algorithm.learner.schedule=constant", "evaluation.before=false", "evaluation.episodes=2", "checkpoints.every=1", "scheduler.learn_threads=1",
]  # fmt: skip


def run(output: Path, *arguments: str) -> Path:
    assert train.main([*SMALL, f"output={output}", *arguments]) == 0
    return max((path.parent for path in output.glob("*/*/run.json")), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory) -> Path:
    """Serial and collocated, in this process."""
    return run(tmp_path_factory.mktemp("serial"), "sim.workers=0", "sim.slots=1", "scheduler.mode=collocated")


@pytest.mark.slow
@pytest.mark.parametrize("plan", [("2", "2", "hybrid"), ("2", "2", "collocated"), ("4", "4", "hybrid")])
def test_workers_and_plan_change_nothing(plan: tuple[str, str, str], oracle: Path, tmp_path: Path) -> None:
    slots, workers, mode = plan
    other = run(tmp_path, f"sim.slots={slots}", f"sim.workers={workers}", f"scheduler.mode={mode}")
    assert episodes(other) == episodes(oracle)
    assert_equal_to_the_bit(trained(other, 2), trained(oracle, 2))


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"], ids=["one-node", "two-nodes"])
def test_a_ray_cluster_changes_nothing(workers: str, ray_nodes, oracle: Path, tmp_path: Path) -> None:
    other = run(tmp_path, "cluster=ray", "sim.slots=2", f"sim.workers={workers}", "scheduler.mode=hybrid", "scheduler.groups=2")
    assert episodes(other) == episodes(oracle)
    assert_equal_to_the_bit(trained(other, 2), trained(oracle, 2))


@pytest.mark.slow
def test_a_run_cut_and_resumed_is_the_unbroken_one(oracle: Path, tmp_path: Path) -> None:
    folder = run(tmp_path, "iterations=1", "evaluation.after=false")
    assert run(tmp_path, "resume=auto", "iterations=2", "evaluation.after=true") == folder
    assert episodes(folder) == episodes(oracle)
    assert_equal_to_the_bit(trained(folder, 2), trained(oracle, 2))


def test_the_packaged_checkpoint_is_evaluated_on_the_real_simulator(tmp_path: Path, capsys) -> None:
    arguments = ["env=libero", "policy=openvla_oft", "env.horizon=16", "evaluation.episodes=2", "sim.workers=2", "videos=1", f"output={tmp_path}"]
    assert evaluate.main(arguments) == 0
    said = capsys.readouterr().out
    assert "mujoco=" in said and "n=2" in said
    assert list(tmp_path.glob("*/*/videos/episode_000_failure.mp4"))
