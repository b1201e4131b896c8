"""Ctrl-C: a checkpoint is written, the workers end, the exit code is 130, and resume=auto gives what an unbroken run gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from embodied.loop import Interrupt
from tests.end_to_end.runs import TOY, assert_equal_to_the_bit, episodes, run, trained

ROOT = Path(__file__).resolve().parents[2]


def started(output: Path, *arguments: str) -> subprocess.Popen:
    """A training run in a process of its own, its output readable line by line."""
    command = [sys.executable, "-u", "-m", "embodied.train", *TOY, f"output={output}", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def read_until(process: subprocess.Popen, start: str) -> str:
    """Reads lines until one begins with `start`; all that was read."""
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith(start):
            return text
    raise AssertionError(f"the run ended before a line {start!r}:\n{text}")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_ctrl_c_writes_a_checkpoint_ends_the_workers_and_exits_130(tmp_path: Path) -> None:
    arguments = ["sim.workers=2", "iterations=400", "checkpoints.every=1000", "evaluation.after=false"]
    process = started(tmp_path, *arguments)
    read_until(process, "2/400")
    workers = children(process.pid)
    assert len(workers) == 2
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert not any(Path(f"/proc/{worker}").exists() and _alive(worker) for worker in workers)
    done = max(int(path.name.removeprefix("step_")) for path in tmp_path.glob("*/*/checkpoints/step_*"))
    assert done >= 2
    folder = run(tmp_path, "resume=auto", f"iterations={done + 1}", "sim.workers=0")
    unbroken = run(tmp_path / "unbroken", f"iterations={done + 1}", "checkpoints.every=1000", "evaluation.after=false")
    assert episodes(folder) == episodes(unbroken)
    assert_equal_to_the_bit(trained(folder, done + 1), trained(unbroken, done + 1))


def test_ctrl_c_that_came_too_late_to_stop_a_phase_ends_the_program_after_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert interrupt.requested


def test_ctrl_c_while_libraries_are_imported_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('importing', flush=True)\ninput()\n")  # stands for any slow import
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = subprocess.Popen([sys.executable, "-m", "embodied.train"], cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and rest == ""


def _alive(pid: int) -> bool:
    """False for a zombie too: it holds nothing any more."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
