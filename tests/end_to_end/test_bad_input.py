"""What a user gets wrong ends in a message and a non-zero exit, before anything slow starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied import evaluate, train
from tests.end_to_end.runs import TOY


def refused(capsys, arguments: list[str], program=train) -> str:
    """The message of a program that must end with 1 and no traceback."""
    assert program.main(arguments) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ") and "Traceback" not in message
    return message


def test_a_policy_that_does_not_fit_is_refused_with_both_specs(capsys, tmp_path: Path) -> None:
    message = refused(capsys, ["env=gym", "policy=openvla_oft", f"output={tmp_path}"])
    assert "EnvSpec(" in message and "PolicySpec(" in message and "instruction" in message


def test_a_policy_that_reads_state_is_refused_by_an_env_without(capsys, tmp_path: Path) -> None:
    message = refused(capsys, ["env=gym", "env.id=Missing-v0", "policy=mlp", "algorithm=ppo", f"output={tmp_path}"])
    assert "Missing" in message


def test_states_that_the_env_does_not_have_are_refused(capsys, tmp_path: Path) -> None:
    assert "0 to 49" in refused(capsys, [*TOY, "init_states=[50]", f"output={tmp_path}"])


def test_imitation_without_data_says_how_to_record(capsys, tmp_path: Path) -> None:
    assert "record=" in refused(capsys, [*TOY, "algorithm=bc", f"output={tmp_path}"])


def test_slots_that_do_not_divide_are_refused_with_groups_that_would_do(capsys, tmp_path: Path) -> None:
    message = refused(capsys, [*TOY, "sim.slots=4", "scheduler.mode=pipelined", "scheduler.groups=3", f"output={tmp_path}"])
    assert "[1, 2, 4]" in message


def test_a_folder_without_a_checkpoint_is_refused(capsys, tmp_path: Path) -> None:
    message = refused(capsys, ["env=toy", "policy=mlp", f"checkpoint={tmp_path}", f"output={tmp_path}"], evaluate)
    assert "no whole checkpoint" in message


def test_an_env_without_an_expert_is_refused(capsys, tmp_path: Path) -> None:
    assert "env=gym" in refused(capsys, ["env=gym", "policy=expert", f"output={tmp_path}"], evaluate)


@pytest.mark.parametrize(("fault", "said"), [("raise", "RuntimeError: planned fault"), ("die", "SIGKILL"), ("hang", "hung")])
def test_a_worker_that_fails_is_named_with_its_task_phase_and_cause(fault: str, said: str, capsys, tmp_path: Path) -> None:
    arguments = [*TOY, f"env.fault={{kind: {fault}, phase: step, episode: 3}}", "sim.workers=2", "sim.timeout=3", f"output={tmp_path}"]
    assert train.main(arguments) == 1
    message = capsys.readouterr().err
    assert "worker 0" in message and "task 0" in message and "phase step" in message and said in message
