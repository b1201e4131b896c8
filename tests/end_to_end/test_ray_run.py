"""cluster=ray from the command line: on one node and on two, with a learner beside or apart, the same bits as in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from embodied import evaluate, train
from scheduler.planning.schedule import load
from tests.end_to_end.runs import TOY, assert_equal_to_the_bit, episodes, run, trained

SPREAD = ["cluster=ray", "sim.slots=4", "sim.workers=2", "scheduler=hybrid"]  # two workers: one on each node


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("serial"))


@pytest.mark.parametrize("arguments", [[*SPREAD, "scheduler.groups=2"], [*SPREAD, "scheduler.groups=4"], ["cluster=ray", "sim.slots=4", "sim.workers=1", "scheduler=collocated"], ["cluster=ray"]], ids=["two-nodes-2", "two-nodes-4", "one-node", "one-process"])
def test_where_the_stages_live_changes_nothing(arguments: list[str], ray_nodes, serial: Path, tmp_path: Path) -> None:
    found = run(tmp_path, *arguments)
    assert episodes(found) == episodes(serial)
    assert_equal_to_the_bit(trained(found), trained(serial))


def test_a_learner_apart_hands_its_weights_over_by_version(ray_nodes, tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", "staleness=1", "iterations=4")
    apart = run(tmp_path / "apart", *SPREAD, "scheduler.groups=2", "staleness=1", "iterations=4")
    assert load(apart / "plan.json").stages["learn"].processes == 1
    assert episodes(apart) == episodes(plain)
    assert_equal_to_the_bit(trained(apart, 4), trained(plain, 4))


def test_a_run_on_a_cluster_is_planned_by_what_was_measured_there(ray_nodes, serial: Path, tmp_path: Path) -> None:
    found = run(tmp_path, "cluster=ray", "sim.slots=4", "sim.workers=2", "scheduler=auto")
    assert load(found / "plan.json").predicted.iteration_s > 0
    assert_equal_to_the_bit(trained(found), trained(serial))


def test_answers_to_problems_are_those_of_one_process(ray_nodes, tmp_path: Path) -> None:
    """One slot group, so that the same answers are generated side by side: on Ray a plan may have others, which changes no more than rounding."""
    asked = ["env=math", "policy=causal_lm", "algorithm=grpo", "groups=4", "algorithm.group_size=4", "policy.max_tokens=40", "iterations=2", "evaluation.before=false", "evaluation.episodes=20"]
    found = []
    for place in ("local", "ray"):
        train.train([*asked, f"cluster={place}", "scheduler=collocated", "checkpoints.every=1", f"output={tmp_path / place}"])
        found.append(next(path.parent for path in (tmp_path / place).glob("*/*/run.json")))
    assert episodes(found[0]) == episodes(found[1])
    assert_equal_to_the_bit(trained(found[0], 2), trained(found[1], 2))


@pytest.mark.parametrize("where", ["sim", "learn"])
def test_a_process_that_is_killed_is_built_anew_and_changes_no_result(where: str, ray_nodes, serial: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """The second iteration begins with the death of the actor that runs the stage; the run's own last checkpoint is what a learner goes back to."""
    from embodied import loop
    from embodied.wiring.training import Training

    log_round, begun, killed = loop.log_round, [], []
    monkeypatch.setattr(Training, "use", lambda self, chosen, use=Training.use: (begun.append(self), use(self, chosen)))

    def killing(result, *rest):
        log_round(result, *rest)
        if not killed:
            killed.append(begun[-1].backend.processes(where)[0])
            os.kill(killed[0], 9)

    monkeypatch.setattr(loop, "log_round", killing)
    found = run(tmp_path, *SPREAD, "scheduler.groups=2", "checkpoints.every=2")
    assert "is lost" in capsys.readouterr().out
    assert episodes(found) == episodes(serial)
    assert_equal_to_the_bit(trained(found), trained(serial))
    assert [json.loads(line)["step"] for line in (found / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_an_evaluation_whose_policy_was_killed_goes_on_from_the_checkpoint(ray_nodes, serial: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    from embodied import loop

    add, killed = loop.Rows.add, []

    def killing(rows, item):
        add(rows, item)
        if rows._exam.phase == "after" and not killed:
            killed.append(rows._exam.backend.processes("act")[0])
            os.kill(killed[0], 9)

    monkeypatch.setattr(loop.Rows, "add", killing)
    found = run(tmp_path, *SPREAD, "scheduler.groups=2")
    assert "is lost" in capsys.readouterr().out and killed
    assert episodes(found) == episodes(serial)


def test_an_evaluation_on_a_cluster_gives_the_rows_of_one_here(ray_nodes, serial: Path, tmp_path: Path) -> None:
    rows = []
    for name, arguments in (("here", []), ("there", SPREAD[:3])):
        assert evaluate.main(["env=toy", "policy=mlp", f"checkpoint={serial}", "env.horizon=6", "env.goal=3", "evaluation.episodes=6", f"output={tmp_path}/{name}", *arguments]) == 0
        rows.append(episodes(next((tmp_path / name).glob("*/*/run.json")).parent))
    assert rows[0] == rows[1]


@pytest.mark.parametrize(("arguments", "said"), [
    (["cluster=kubernetes"], "local, ray"),
    (["cluster.address=auto"], "cluster=ray"),
    ([*SPREAD, "scheduler.groups=1"], "multiple of 2"),
    (["cluster=ray", "sim.slots=2", "sim.workers=3"], "sim.workers=2"),
])  # fmt: skip
def test_a_cluster_that_cannot_be_used_is_one_line(arguments: list[str], said: str, ray_nodes, tmp_path: Path, capsys) -> None:
    assert train.main([*TOY, *arguments, f"output={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_an_address_that_nothing_answers_at_is_one_line(tmp_path: Path) -> None:
    """In a process of its own: this one may have joined a Ray already."""
    command = [sys.executable, "-m", "embodied.train", *TOY, "cluster=ray", "cluster.address=127.0.0.1:1", f"output={tmp_path}"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 1 and "127.0.0.1:1" in found.stderr and found.stderr.count("\n") == 1
