"""A checkpoint gives back what went in, bit for bit, and a damaged one is never taken for a whole one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from embodied.runs import checkpoint
from embodied.runs.checkpoint import DamagedCheckpoint, find, flatten_optimizer, latest, load, reading, save, unflatten_optimizer


def small(folder: Path, step: int, **more) -> Path:
    return save(folder, step, {"weights": {"w": torch.full((3,), float(step))}}, {"step": step}, **more)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def equal(a, b) -> bool:
    """Same types, same keys in the same order, same bits."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or a != a and b != b)


def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path):
    table = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    group = {
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]), "half": torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).bfloat16(),
        "whole": torch.tensor(7), "mask": torch.tensor([True, False]), "empty": torch.zeros(0, 5),
        "turned": table.t(), "row": table[1], "tied": table, "tied_too": table,
    }  # fmt: skip
    tensors, _ = load(save(tmp_path, 1, {"a": group, "b": {"x": torch.ones(2)}}, {}))
    assert set(tensors) == {"a", "b"} and set(tensors["a"]) == set(group)
    assert all(equal(group[name].contiguous(), tensors["a"][name]) for name in group)


def test_state_keeps_tuples_numbers_and_keys_that_are_no_strings(tmp_path):
    state = {"iteration": 3, "lr": 0.1 + 0.2, "betas": (0.9, (1, None)), "per_task": {0: [1, True], (1, 2): "x"}, "<tuple>": {"a": float("inf")}, "nan": float("nan")}
    _, back = load(save(tmp_path, 1, {}, state))
    assert equal(state, back)


def test_a_tensor_in_the_state_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(TypeError, match=r"state.rng: found a tensor.*`tensors`"):
        save(tmp_path, 1, {}, {"rng": torch.zeros(2)})
    assert latest(tmp_path) is None


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_an_optimizer_taken_from_disk_goes_on_as_if_never_stopped(tmp_path, kind):
    def run(stop_at: int | None) -> dict:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = kind([{"params": model[0].parameters(), "lr": 0.03}, {"params": model[2].parameters()}], lr=0.01)
        for step in range(6):
            if step == stop_at:
                tensors, rest = flatten_optimizer(optimizer.state_dict())
                path = save(tmp_path / kind.__name__, step, {"optimizer": tensors, "weights": model.state_dict()}, {"optimizer": rest})
                loaded, state = load(path)
                model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
                model.load_state_dict(loaded["weights"])
                optimizer = kind([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=1.0)
                back = unflatten_optimizer(loaded["optimizer"], state["optimizer"])
                assert equal(unflatten_optimizer(tensors, rest), back)
                optimizer.load_state_dict(back)
            batch = torch.sin(torch.arange(20.0) + step).reshape(5, 4)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        return {**model.state_dict()}

    assert equal(run(None), run(3))


def test_a_missing_optimizer_tensor_is_named():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    tensors, rest = flatten_optimizer(optimizer.state_dict())
    del tensors["optimizer.state.0.exp_avg"]
    with pytest.raises(KeyError, match="optimizer.state.0.exp_avg"):
        unflatten_optimizer(tensors, rest)


def test_the_policy_folder_is_written_by_the_policy_itself(tmp_path):
    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{}")

    assert (small(tmp_path, 4, write_policy=write) / "policy" / "config.json").read_text() == "{}"


def test_the_newest_is_by_number_not_by_name(tmp_path):
    for step in (2, 9, 10):
        small(tmp_path, step)
    assert latest(tmp_path) == tmp_path / "step_10"


def _truncate(path: Path) -> None:
    file = path / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _flip_a_bit(path: Path) -> None:
    file = path / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "damage, said",
    [
        (_truncate, "weights.safetensors with .* bytes instead of"),
        (_flip_a_bit, "weights.safetensors with other contents"),
        (lambda path: (path / "state.json").unlink(), "no state.json"),
        (lambda path: (path / "complete.json").unlink(), "no complete.json"),
        (lambda path: (path / "complete.json").write_text("{"), "an unreadable complete.json"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_note_and_refused_by_load(tmp_path, damage, said):
    whole, damaged = small(tmp_path, 1), small(tmp_path, 2)
    damage(damaged)
    notes = []
    assert latest(tmp_path, notes.append) == whole
    assert len(notes) == 1 and str(damaged) in notes[0]
    with pytest.raises(DamagedCheckpoint, match=said):
        load(damaged)


def test_all_faults_of_a_checkpoint_are_named_at_once(tmp_path):
    path = save(tmp_path, 1, {"weights": {}, "optimizer": {}}, {})
    for name in ("weights", "optimizer"):
        (path / f"{name}.safetensors").unlink()
    with pytest.raises(DamagedCheckpoint, match="no optimizer.safetensors; no weights.safetensors"):
        load(path)


def test_a_process_killed_while_writing_leaves_the_older_checkpoint_and_no_litter_after_the_next(tmp_path):
    small(tmp_path, 1)
    child = os.fork()
    if child == 0:
        try:
            small(tmp_path, 2, write_policy=lambda folder: os.kill(os.getpid(), signal.SIGKILL))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert names(tmp_path) == [".step_2.writing", "step_1"]
    assert latest(tmp_path) == tmp_path / "step_1"
    small(tmp_path, 3)
    assert names(tmp_path) == ["step_1", "step_3"]


def test_a_policy_that_cannot_be_written_leaves_no_checkpoint(tmp_path):
    def fail(folder: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        small(tmp_path, 1, write_policy=fail)
    assert latest(tmp_path) is None


def test_the_last_two_stay_and_damaged_ones_do_not_count(tmp_path):
    small(tmp_path, 1)
    _truncate(small(tmp_path, 2))
    small(tmp_path, 3)
    assert names(tmp_path) == ["step_1", "step_2", "step_3"]
    small(tmp_path, 4)
    assert names(tmp_path) == ["step_3", "step_4"]


def test_a_checkpoint_that_is_being_read_is_not_deleted(tmp_path):
    small(tmp_path, 1)
    with reading(tmp_path / "step_1"):
        for step in (2, 3):
            small(tmp_path, step, keep=1)
        assert names(tmp_path) == ["step_1", "step_3"]
    small(tmp_path, 4, keep=1)
    assert names(tmp_path) == ["step_4"]


def test_a_step_written_again_replaces_the_old_one(tmp_path):
    _truncate(small(tmp_path, 1))
    small(tmp_path, 1)
    assert load(tmp_path / "step_1")[1] == {"step": 1} and names(tmp_path) == ["step_1"]


def test_a_run_folder_its_checkpoints_and_one_step_all_lead_to_the_checkpoint(tmp_path):
    path = small(tmp_path / "checkpoints", 5)
    assert find(tmp_path) == find(tmp_path / "checkpoints") == find(path) == path
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "other")):
        find(tmp_path / "other")


def test_weights_are_plain_safetensors_and_nothing_is_pickled(tmp_path):
    path = small(tmp_path, 2)
    assert load_file(path / "weights.safetensors")["w"].tolist() == [2.0, 2.0, 2.0]
    assert {file.suffix for file in path.rglob("*")} == {".safetensors", ".json"}
    assert json.loads((path / checkpoint.COMPLETE).read_text())["step"] == 2
