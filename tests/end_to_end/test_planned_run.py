"""scheduler=auto from the command line: measured, planned, predicted, compared; and the same results whatever the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embodied import plan, train
from scheduler.planning.schedule import load
from tests.end_to_end.runs import TOY, assert_equal_to_the_bit, episodes, run, trained

ROOT = Path(__file__).resolve().parents[2]
AUTO = ["scheduler=auto", "sim.slots=2", "sim.workers=2", "evaluation.before=false", "evaluation.after=false"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("planned"), *AUTO)


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_plan_says_what_it_predicts_and_what_it_passed_over(planned: Path) -> None:
    made = load(planned / "plan.json")
    assert set(made.stages) == {"sim", "act", "ref", "learn"} and made.predicted.iteration_s > 0
    assert {each.mode for each in made.rejected} | {made.mode} >= {"collocated", "disaggregated"}
    assert all(each.reason for each in made.rejected)


def test_every_iteration_has_its_measured_seconds_and_the_first_its_prediction(planned: Path) -> None:
    for row in rows(planned):
        assert {"iteration_s", "sim_s", "act_s", "learn_s"} <= row["time"].keys()
    first = rows(planned)[0]
    assert first["plan"]["error"] == pytest.approx(first["time"]["predicted_s"] / first["time"]["iteration_s"] - 1)


def test_what_was_measured_is_kept_for_the_next_run(planned: Path, capsys: pytest.CaptureFixture) -> None:
    output = planned.parents[1]
    (kept,) = (output / "profiles").glob("toy-mlp-*.json")
    assert set(json.loads(kept.read_text())["stages"]) == {"sim", "act", "ref", "learn"}
    run(output, *AUTO, "iterations=1")
    assert "measuring the stages" not in capsys.readouterr().out


def test_measuring_leaves_no_trace_in_episodes_and_weights(planned: Path, tmp_path: Path) -> None:
    plain = run(tmp_path, "scheduler=collocated", "sim.slots=1", "sim.workers=0", "evaluation.before=false", "evaluation.after=false")
    assert episodes(planned) == episodes(plain)
    assert_equal_to_the_bit(trained(planned), trained(plain))


def test_a_drift_plans_again_between_two_iterations_and_changes_no_result(planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    profile = json.loads(next((planned.parents[1] / "profiles").glob("*.json")).read_text())
    for stage in profile["stages"].values():
        stage["points"] = [{**point, "seconds": 1000.0} for point in stage["points"]]
    (tmp_path / "slow.json").write_text(json.dumps(profile))
    drifted = run(tmp_path, *AUTO, f"scheduler.profile={tmp_path}/slow.json", "scheduler.patience=1")
    assert "planned again" in capsys.readouterr().out
    assert_equal_to_the_bit(trained(planned), trained(drifted))


def test_a_plan_file_is_run_as_it_stands(planned: Path, tmp_path: Path) -> None:
    again = run(tmp_path, *AUTO, "scheduler=from_file", f"scheduler.file={planned}/plan.json")
    assert load(again / "plan.json").stages == load(planned / "plan.json").stages


def test_a_plan_for_other_slots_is_refused_with_the_number(planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert train.main([*TOY, *AUTO, "scheduler=from_file", f"scheduler.file={planned}/plan.json", "sim.slots=4", f"output={tmp_path}"]) == 1
    assert "set sim.slots=2" in capsys.readouterr().err


@pytest.mark.parametrize(("stage", "what", "key"), [("sim", "processes", "sim.workers=1"), ("learn", "threads", "scheduler.learn_threads=2")])
def test_a_plan_file_whose_number_would_not_be_obeyed_is_refused(stage: str, what: str, key: str, planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    edited = json.loads((planned / "plan.json").read_text())
    edited["stages"][stage][what] = int(key[-1])
    (tmp_path / "plan.json").write_text(json.dumps(edited))
    assert train.main([*TOY, *AUTO, "scheduler=from_file", f"scheduler.file={tmp_path}/plan.json", f"output={tmp_path}/runs"]) == 1
    assert f"set {key}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scheduler=from_file"], "scheduler.file=null"), (["scheduler=from_file", "scheduler.file=/nonexistent.json"], "nonexistent"), (["scheduler=hybird"], "hybrid"),
        (["scheduler.profile=/nonexistent.json"], "nonexistent"), (["scheduler=disaggregated"], "4 stages"), (["scheduler.drift=0"], "more than 0"),
        (["scheduler=disaggregated", "sim.workers=0"], "4 stages"), (["scheduler=collocated", "scheduler.groups=2"], "scheduler=hybrid"),
        (["scheduler.file=/nonexistent.json"], "go together"),
    ],
)  # fmt: skip
def test_a_schedule_that_cannot_be_is_refused_with_the_reason(arguments: list[str], said: str, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert train.main([*TOY, *AUTO, *arguments, f"output={tmp_path}"]) == 1
    message = capsys.readouterr().err
    assert said in message and "Traceback" not in message
    assert not list(tmp_path.glob("*/*/run.json"))


def test_a_plan_for_a_cluster_that_is_not_here_needs_only_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert plan.main(["cluster=8xh100", f"profile={ROOT}/docs/profiles/libero_like.json", "algorithm.kl_coef=0", f"output={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    (made,) = tmp_path.glob("*/*/plan.json")
    assert load(made).stages["act"].devices[0] == "node0/h100:0" and (made.parent / "plan.png").is_file()
    assert "the bottleneck is" in shown and "sim on 96 cores" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cluster=8xv100"], "32x8xh100"), (["cluster=/nonexistent.yaml"], "nonexistent"), (["profile=/nonexistent.json"], "nonexistent"),
        (["cluster=local", f"profile={ROOT}/docs/profiles/libero_like.json", "algorithm.kl_coef=0"], "cluster without one"), ([f"profile={ROOT}/docs/profiles/libero_like.json"], "no stage 'ref'"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_made_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    profile = [] if any(a.startswith("profile") for a in arguments) else [f"profile={ROOT}/docs/profiles/libero_like.json"]
    assert plan.main([*arguments, *profile, f"output={tmp_path}"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ") and said in message


def test_a_cluster_of_ones_own_is_read_from_yaml(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("nodes:\n- {name: big, cores: 32, memory: 100000000000, accelerators: [{name: a, memory: 90000000000}, {name: b, memory: 90000000000}]}\n")
    assert plan.main([f"cluster={tmp_path}/mine.yaml", f"profile={ROOT}/docs/profiles/libero_like.json", "algorithm.kl_coef=0", f"output={tmp_path}"]) == 0
    (made,) = tmp_path.glob("*/*/plan.json")
    assert set(load(made).stages["act"].devices) <= {"a", "b"}
