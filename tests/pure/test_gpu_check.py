"""The GPU check on the CPU, with toy sizes: what it needs, what it writes, and that its counts of flops are right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import gpu_check
from benchmarks.gpu import models, speed
from benchmarks.gpu.bench import peak_of

ROOT = Path(__file__).parents[2]
ABSENT = ("PIL", "gymnasium", "ray", "mujoco", "robosuite", "hydra", "omegaconf", "rich", "tensorboard", "imageio", "scipy", "pytest")
WITHOUT = f"import runpy, sys; sys.modules.update(dict.fromkeys({ABSENT})); sys.argv[:1] = []; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of a run where importing a simulator, a cluster or a picture library is an error, on a device of 1 Tflop/s."""
    file = tmp_path_factory.mktemp("gpu_check") / "report.json"
    command = [sys.executable, "-c", WITHOUT, str(ROOT / "benchmarks" / "gpu_check.py"), "--tiny", "--peak-tflops", "1", "--out", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


def test_every_section_passes_where_there_is_neither_simulator_nor_cluster(report):
    assert report["passed"] and list(report["sections"]) == ["parity", "loop", "act tiny", "learn tiny", "switch tiny", "act compiled tiny"]
    assert not any(key in found for found in report["sections"].values() for key in ("error", "skipped"))


def test_the_float32_tokens_are_the_references(report):
    table = report["sections"]["parity"]["float32"]
    assert (table["oft_discrete_tokens"]["agree"], table["openvla_greedy_tokens"]["agree"]) == (1.0, 1.0)


def test_the_share_of_the_peak_is_flops_per_second_over_it(report):
    found = report["sections"]["act tiny"]
    assert found["batch"]["4"]["mfu"] == pytest.approx(found["batch"]["4"]["chunks_per_s"] * found["forward_flops_per_row"] / 1e12, abs=1e-4)


def test_the_flops_of_acting_are_those_that_torch_counts():
    policy = models.build("tiny", "cpu")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        policy.act(models.observation(policy, 3), None)
    assert counter.get_total_flops() == 3 * models.forward_flops(policy)


def test_the_flops_of_learning_are_those_that_torch_counts_but_for_what_has_no_input_to_judge():
    # torch leaves out the gradients of the pixels and of the first blocks' inputs, and the last towers' blocks that do not run
    policy = models.build("tiny", "cpu")
    forward = models.forward_flops(policy)
    models.adapt(policy, 4)
    batch = models.batch(policy, 2)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        policy.evaluate(batch.inputs, batch.choices).logprobs.sum().backward()
    assert counter.get_total_flops() == pytest.approx(2 * models.training_flops(policy, forward), rel=0.03)


def test_the_7b_model_has_the_published_tensors():
    wanted = json.loads((ROOT / "tests" / "fixtures" / "openvla-7b.shapes.json").read_text())
    assert {name: list(parameter.shape) for name, parameter in models.layout("7b").named_parameters()} == wanted


def test_a_section_that_fails_is_reported_and_the_others_are_kept(monkeypatch, capsys):
    def broken(bench):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(gpu_check, "sections", lambda tiny: {"broken": (0.0, broken), "whole": (0.0, lambda bench: {"rate": 3}), "wrong": (0.0, lambda bench: {"failed": ["logits"]})})
    assert gpu_check.main(["--tiny"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["sections"]["broken"]["error"] == "RuntimeError: no kernel image"
    assert found["sections"]["whole"]["rate"] == 3 and not found["passed"]


def test_what_there_is_no_time_for_is_left_out_with_a_note():
    bench = gpu_check.Bench("cpu", True, 60.0, 0.0, None)  # its end is long ago
    assert "s left" in gpu_check.section(bench, 0.0, lambda bench: {"rate": 3})["skipped"]


def test_a_speed_that_was_not_measured_is_listed_and_is_no_failure():
    found = {"parity": {"failed": []}, "loop": {"failed": []}, "act 7b": {"skipped": "12 s left"}, "learn 7b": {"microbatch 32": {"skipped": "out of memory"}, "rank": 32}}
    assert gpu_check.verdict(found, tuple(found)) == {"passed": True, "skipped": {"act 7b": "12 s left", "learn 7b / microbatch 32": "out of memory"}}


@pytest.mark.parametrize(
    "found, asked",
    [
        ({"parity": {"skipped": "3 s left"}, "loop": {}, "act tiny": {}}, ("parity", "loop", "act tiny")),
        ({"parity": {}, "loop": {"skipped": "found 1.0 GB free"}, "act tiny": {}}, ("parity", "loop", "act tiny")),
        ({"act tiny": {}}, ("parity", "loop", "act tiny")),  # the run ended early
        ({"act tiny": {"skipped": "3 s left"}}, ("act tiny",)),  # nothing was measured
        ({"parity": {"failed": ["float32 logits"]}, "loop": {}}, ("parity", "loop")),
    ],
)  # fmt: skip
def test_a_check_that_has_judged_or_measured_nothing_has_not_passed(found, asked):
    assert gpu_check.verdict(found, asked)["passed"] is False


def test_a_run_without_time_for_parity_exits_with_1_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "sections", lambda tiny: {"parity": (0.0, lambda bench: {}), "act tiny": (0.0, lambda bench: {})})
    assert gpu_check.main(["--tiny", "--seconds", "1e-9"]) == 1
    said = capsys.readouterr()
    assert list(json.loads(said.out)["skipped"]) == ["parity", "act tiny"] and "skipped: parity" in said.err


def test_what_only_leaves_out_is_in_the_report(monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "sections", lambda tiny: {"parity": (0.0, lambda bench: {}), "act tiny": (0.0, lambda bench: {})})
    assert gpu_check.main(["--tiny", "--only", "act tiny"]) == 0
    assert json.loads(capsys.readouterr().out)["not_asked"] == ["parity"]


@pytest.mark.parametrize("argument", ["--seconds=0", "--seconds=-1", "--seconds=nan", "--seconds=soon", "--peak-tflops=0"])
def test_a_number_that_cannot_be_is_refused_by_its_name(argument, capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["--tiny", argument])
    said = capsys.readouterr().err
    assert argument.split("=")[0] in said and "wanted a number above 0" in said


@pytest.mark.parametrize("out", ["nowhere/report.json", "."])
def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(out, tmp_path, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(gpu_check, "sections", lambda tiny: {"parity": (0.0, lambda bench: ran.append(1) or {})})
    with pytest.raises(SystemExit):
        gpu_check.main(["--tiny", "--out", str(tmp_path / out)])
    assert "--out: found" in capsys.readouterr().err and not ran


def test_a_layer_that_cannot_be_compiled_is_reported_and_is_no_failure(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no compiler")))
    found = speed.act(gpu_check.Bench("cpu", True, 60.0, float("inf"), None), "tiny", compiled=True)
    assert found["could_not_compile"] == "RuntimeError: no compiler"


def test_a_section_that_does_not_exist_is_refused_with_those_that_do(capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["--tiny", "--only", "speed"])
    assert "act tiny" in capsys.readouterr().err


@pytest.mark.parametrize("name, peak", [("NVIDIA H200", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("some other", None)])
def test_the_peak_goes_by_the_devices_name(name, peak):
    assert peak_of(name) == peak
