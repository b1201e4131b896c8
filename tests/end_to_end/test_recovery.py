"""A process that is lost is built anew and its round begun again, and nothing of that is in the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied import train
from tests.end_to_end.runs import TOY, assert_equal_to_the_bit, episodes, run, trained

APART = ["sim.slots=4", "sim.workers=2", "scheduler=hybrid", "scheduler.groups=2", "evaluation.before=false"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("undisturbed"), *APART)


@pytest.mark.parametrize(("kind", "episode", "said"), [("die", 5, "SIGKILL"), ("hang", 12, "hung")])
def test_a_lost_worker_is_built_anew_and_changes_no_result(kind: str, episode: int, said: str, undisturbed: Path, tmp_path: Path, capsys) -> None:
    fault = f"env.fault={{kind: {kind}, phase: step, episode: {episode}, once: {tmp_path}/struck}}"
    found = run(tmp_path / "runs", *APART, fault, "sim.timeout=3")
    assert said in capsys.readouterr().out and (tmp_path / "struck").exists()
    assert episodes(found) == episodes(undisturbed)
    assert_equal_to_the_bit(trained(found), trained(undisturbed))


def test_an_evaluation_that_lost_a_worker_is_done_again(tmp_path: Path, capsys) -> None:
    arguments = [*APART[:-1], "iterations=1", "evaluation.after=false"]
    plain = run(tmp_path / "plain", *arguments)
    found = run(tmp_path / "struck", *arguments, f"env.fault={{kind: die, phase: step, episode: 0, step: 1, once: {tmp_path}/once}}")
    assert "building it anew" in capsys.readouterr().out
    assert episodes(found) == episodes(plain)


def test_a_worker_that_is_lost_again_and_again_ends_the_run_by_name(tmp_path: Path, capsys) -> None:
    assert train.main([*TOY, *APART, "env.fault={kind: die, phase: step, episode: 2}", "scheduler.restarts=2", f"output={tmp_path}"]) == 1
    output = capsys.readouterr()
    assert output.out.count("building it anew") == 2 and "SIGKILL" in output.err and "phase step" in output.err


def test_an_env_that_raises_is_not_tried_again(tmp_path: Path, capsys) -> None:
    assert train.main([*TOY, *APART, "env.fault={kind: raise, phase: step, episode: 2}", f"output={tmp_path}"]) == 1
    output = capsys.readouterr()
    assert "building it anew" not in output.out and "planned fault" in output.err
