"""A run that will not fit is refused before a simulator starts, with what was found, what was wanted and the knobs that help; one that fits is not."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from embodied import evaluate, plan, train
from embodied.config import compose
from embodied.wiring import build, memory, room
from embodied.wiring.room import HOST
from tests.end_to_end.runs import TOY

WIDE = [*TOY, "policy.hidden=[256,256]", "algorithm.learner.minibatch=4096", "groups=100"]  # half a MB; the activations of 4096 rows are many times that


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 20 MB left."""
    monkeypatch.setattr(room, "free_on_host", lambda: 20 * 10**6)


def case(*arguments: str, **there: int) -> memory.Case:
    config = compose(arguments)
    algorithm, learner = build.algorithm(config)
    policy = build.policy(config, algorithm.needs_values)
    return memory.Case(config, policy, build.env_spec(config, policy.spec), algorithm, learner, 1, {**there} or {HOST: 20 * 10**6})


def test_a_run_that_will_not_fit_starts_no_simulator_and_says_what_would(little: None, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert train.main([*WIDE, f"output={tmp_path}"]) == 1
    said = capsys.readouterr()
    assert "starting" not in said.out and not list(tmp_path.glob("*/*/run.json"))
    assert said.err.startswith("error: this will not fit: found 19.6 MiB for it in host memory, wanted 26 MiB\n")  # 20 MB and the policy that is there already
    assert "\nlearn " in said.err and "\n  algorithm.learner.microbatch=2048 saves 12 MiB: it fits\n" in said.err


def test_the_knob_that_is_proposed_makes_it_fit() -> None:
    small = case(*WIDE)
    line = next(line for line in memory.ways_out(small, small.asked()) if "microbatch" in line)
    knob = line.split()[0]
    assert line.endswith("it fits")
    memory.check(case(*WIDE, knob))  # raises where it does not
    with pytest.raises(room.MemoryRefused):
        memory.check(case(*WIDE))


def test_an_update_has_no_more_rows_than_a_round() -> None:
    few = case(*WIDE, "groups=1")  # 8 episodes of at most 6 steps
    assert few.asked().update.rows == 48


def test_an_evaluation_needs_no_more_than_its_policy(little: None, tmp_path: Path) -> None:
    assert evaluate.main([*WIDE, f"output={tmp_path}"]) == 0


def test_stages_take_turns_on_an_accelerator_and_share_the_host() -> None:
    asked = case(*WIDE).asked()
    here, there = case(*WIDE), case(*WIDE, **{"cuda:0": 10**9, HOST: 10**9})
    stages = there.stages(there.asked())
    assert there.devices(there.asked())[0].wanted == max(each.total for each in stages.values())
    assert here.devices(asked)[0].wanted == sum(each.resident for each in here.stages(asked).values()) + here.stages(asked)["learn"].activations


def test_weights_that_may_lag_are_counted_once_for_each_version() -> None:
    plain, lagging = case(*WIDE), case(*WIDE, "staleness=2")
    weights = plain.stages(plain.asked())["learn"].parameters
    stages = lagging.stages(lagging.asked())
    trained = stages["learn"].host // 3  # act has its own policy and two more versions; learn exports three
    assert stages["act"].parameters == weights + 2 * trained and plain.stages(plain.asked())["act"].parameters == 0


def test_weights_that_are_too_many_are_refused_before_they_are_read(little: None, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    header = json.dumps({"wide": {"dtype": "BF16", "shape": [1000, 8000], "data_offsets": [0, 16_000_000]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)  # and no tensor in it: nothing of it is read
    assert train.main(["env=libero", "policy=openvla_oft", f"policy.checkpoint={tmp_path}", f"output={tmp_path / 'out'}"]) == 1
    said = capsys.readouterr().err
    assert "found 19.1 MiB for it in host memory, wanted 30.5 MiB for its weights alone; policy.dtype=bfloat16 halves it" in said


def test_the_plan_shows_the_table(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert plan.main([*TOY, "sim.slots=2", "sim.workers=2", f"output={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("memory "))
    assert lines[head].split()[2:] == ["parameters", "gradients", "optimizer", "activations", "cache", "sum"]
    assert [line.split()[0] for line in lines[head + 1 : head + 4]] == ["act", "ref", "learn"] and lines[head + 4].startswith(f"{HOST}: ")
