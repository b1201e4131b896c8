"""A run folder is unique, is known from any other folder, has one writer, and its files appear whole."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from embodied.runs.folder import NotARunFolder, RunFolder, RunFolderInUse, runs, to_json, write_json

NOON = datetime(2026, 11, 29, 12, 0, 0)


def test_the_path_tells_date_time_env_and_policy(tmp_path):
    assert RunFolder.create(tmp_path, "libero", "openvla_oft", NOON).path == tmp_path / "2026-11-29" / "12-00-00-libero-openvla_oft"


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    first, second = (RunFolder.create(tmp_path, "toy", "mlp", NOON) for _ in range(2))
    assert first.path != second.path and second.path.name == "12-00-00-toy-mlp-2"
    assert runs(tmp_path, "toy", "mlp")[0] == second.path


def test_a_name_with_a_slash_stays_one_folder(tmp_path):
    assert RunFolder.create(tmp_path, "gym/../ALE/Pong v5", "mlp", NOON).path.parent == tmp_path / "2026-11-29"


def test_runs_looks_at_env_policy_and_kind_only_and_passes_over_what_is_no_run(tmp_path):
    wanted = RunFolder.create(tmp_path, "toy", "mlp", NOON).path
    RunFolder.create(tmp_path, "libero", "mlp", NOON + timedelta(hours=1))
    RunFolder.create(tmp_path, "toy", "mlp", NOON + timedelta(hours=2), kind="evaluate")
    (tmp_path / "2026-11-29" / "23-00-00-toy-mlp").mkdir()
    assert runs(tmp_path, "toy", "mlp")[0] == wanted
    assert runs(tmp_path, "toy", "openvla_oft") == []
    assert runs(tmp_path / "nowhere", "toy", "mlp") == []


@pytest.mark.parametrize("make, said", [(lambda p: None, "nothing there"), (Path.mkdir, "a folder without run.json"), (Path.touch, "a file, not a folder")])
def test_what_is_no_run_folder_is_refused_by_name(tmp_path, make, said):
    path = tmp_path / "thing"
    make(path)
    with pytest.raises(NotARunFolder, match=said) as refusal:
        RunFolder.open(path)
    assert str(path) in str(refusal.value)


def test_a_folder_with_a_writer_may_be_read_but_not_written(tmp_path):
    run = RunFolder.create(tmp_path, "toy", "mlp", NOON)
    assert RunFolder.open(run.path).about["env"] == "toy"
    with pytest.raises(RunFolderInUse, match=str(run.path)):
        RunFolder.open(run.path, writing=True)
    run.close()
    RunFolder.open(run.path, writing=True).close()


def test_a_writer_that_was_killed_holds_no_folder(tmp_path):
    program = (
        "import os, signal, sys; from embodied.runs.folder import RunFolder;"
        f"run = RunFolder.create({str(tmp_path)!r}, 'toy', 'mlp'); print(run.path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])
    assert ended.returncode == -9, ended.stderr
    RunFolder.open(ended.stdout.strip(), writing=True).close()


def test_json_is_replaced_whole_and_a_value_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"rate": 0.5})
    with pytest.raises(TypeError, match="object"):
        write_json(path, {"rate": object()})
    assert json.loads(path.read_text()) == {"rate": 0.5}
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_json_takes_numpy_paths_and_dataclasses_and_names_what_is_not_finite():
    from embodied.runs.success import rate

    value = {"a": np.float32(1.5), "b": np.arange(3), 3: Path("x"), "r": rate(0, 0), "n": float("nan"), "i": [float("inf"), -np.float64("inf")]}
    assert to_json(value) == {
        "a": 1.5, "b": [0, 1, 2], "3": "x", "r": {"rate": None, "n": 0, "low": None, "high": None}, "n": "NaN", "i": ["Infinity", "-Infinity"],
    }  # fmt: skip
