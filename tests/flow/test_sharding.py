"""A learner of several processes learns what one alone does, loses no row and doubles none, and leaves checkpoints that any number can take up."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch

from embodied.learning.sharding import ALONE, Sharding
from embodied.learning.data import Batch
from embodied.runs import checkpoint
from embodied.wiring.ranks import Ranks
from scheduler.backends.base import Call, Item, StageLost
from tests.flow import sharded_stages as stages


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return stages.small_vla(tmp_path_factory.mktemp("vla"))


def given(learn, call: Call):
    """The call's outcome, from a stage that answers at once or later."""
    outcome = learn.start(call)
    return outcome if outcome is not None else learn.ready(None)[0][1]


def learn_rounds(learn, items, first: int, last: int) -> list[dict]:
    reports = []
    for number in range(first, last):
        given(learn, Call(1, "learn", "granule", number, payload=tuple(Item(i, t) for i, t in enumerate(items))))
        reports.append(given(learn, Call(2, "learn", "update", number)).reply)
    return reports


@pytest.fixture(scope="module")
def spread(folder, tmp_path_factory):
    """Learners of several processes, as they were built: put back where they began when they have been used before."""
    started: dict[tuple[str, int], Ranks] = {}
    begun = tmp_path_factory.mktemp("begun")

    def start(kind: str, count: int, timeout: float = 120) -> Ranks:
        if (kind, count) not in started:
            started[kind, count] = Ranks(partial(stages.member, kind, folder, count), count, threads=1, timeout=timeout, start_timeout=300)
            started[kind, count].save(begun / f"{kind}{count}", 0, 1)
        started[kind, count].restore(begun / f"{kind}{count}" / "step_0")
        return started[kind, count]

    yield start
    for ranks in started.values():
        ranks.close()


def saved(learn, path: Path) -> dict[str, dict[str, torch.Tensor]]:
    learn.save(path, stages.ROUNDS, 1)
    return checkpoint.load(path / f"step_{stages.ROUNDS}")[0]


def differs(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """The largest difference. Keys' biases are left out: a softmax does not see them, their gradient is rounding alone, and Adam makes it a whole step."""
    assert first.keys() == second.keys()
    return max(float((_seen(name, first[name]) - _seen(name, second[name])).abs().max()) for name in first)


def _seen(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensor.float().chunk(3)[::2]) if name.endswith("qkv.bias") else tensor.float()


@pytest.mark.parametrize("kind, count", [("mlp", 4), *(pytest.param(*rest, marks=pytest.mark.slow) for rest in (("mlp", 2), ("lora", 2), ("vla", 2), ("vla", 4)))])
def test_after_three_rounds_the_weights_and_the_optimizer_are_those_of_one_process(spread, folder, tmp_path, kind, count):
    items = stages.trajectories(kind, folder)
    alone, several = stages.learner(kind, folder), spread(kind, count)
    reports = learn_rounds(alone, items, 0, stages.ROUNDS), learn_rounds(several, items, 0, stages.ROUNDS)
    one, many = saved(alone, tmp_path / "one"), saved(several, tmp_path / "many")
    start = {name: tensor for name, tensor in stages.policy_of(kind, folder).state_dict().items() if name in one["policy"]}
    assert differs(one["policy"], start) > 5e-3
    assert differs(one["policy"], many["policy"]) < 1e-5
    assert differs(one["optimizer"], many["optimizer"]) < 1e-5
    for mine, its in zip(*reports):
        assert mine == pytest.approx(its, abs=1e-4, rel=1e-4)


def test_a_checkpoint_of_four_processes_is_taken_up_by_one_and_by_two(spread, folder, tmp_path):
    items = stages.trajectories("mlp", folder)
    whole, four = stages.learner("mlp", folder), spread("mlp", 4)
    learn_rounds(whole, items, 0, 3)
    learn_rounds(four, items, 0, 2)
    four.save(tmp_path, 2, 1)
    for learn in (stages.learner("mlp", folder), spread("mlp", 2)):
        assert learn.restore(tmp_path / "step_2") == 2
        learn_rounds(learn, items, 2, 3)
        found = saved(learn, tmp_path / str(type(learn).__name__))
        assert differs(found["policy"], whole.policy.state_dict()) < 1e-5


def test_published_weights_are_the_whole_ones(spread, folder):
    several = spread("mlp", 4)
    parts = given(several, Call(1, "learn", "publish", 0)).weights
    entries = {entry.name: entry.shape for part in parts for entry in part.entries}
    assert entries == {name: tuple(p.shape) for name, p in stages.policy_of("mlp", folder).named_parameters()}


def test_a_process_that_dies_is_named_and_all_are_built_anew(spread):
    several = spread("mlp", 2)
    os.kill(several._members[1]._process.pid, signal.SIGKILL)
    with pytest.raises(StageLost, match="process 1 of the learner died .*SIGKILL"):
        given(several, Call(1, "learn", "publish", 0))
    several.renew()
    assert given(several, Call(2, "learn", "publish", 0)).weights


def test_a_process_that_hangs_is_named_and_all_are_ended(folder):
    several = Ranks(partial(stages.member, "mlp", folder, 2), 2, threads=1, timeout=3, start_timeout=300)
    pids = [member._process.pid for member in several._members]
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(StageLost, match="the learner hung: process 1 was stopped"):
        given(several, Call(1, "learn", "publish", 0))
    assert not any(Path("/proc", str(pid)).exists() for pid in pids)


def test_an_error_in_one_process_is_raised_as_it_is(spread):
    several = spread("mlp", 2)
    with pytest.raises(checkpoint.DamagedCheckpoint, match="/nowhere"):
        several.restore(Path("/nowhere/step_1"))


def _batch(rows: int) -> Batch:
    numbers = torch.arange(float(rows))
    ones = torch.ones(rows, 1)
    return Batch({"x": numbers}, ones.long(), ones, ones, ones, numbers, numbers)


@pytest.mark.parametrize("rows, count, size, wanted", [
    (5, 2, None, [[[0, 1, 2]], [[3, 4]]]),
    (5, 2, 2, [[[0, 1], [2]], [[3, 4], "blank"]]),
    (2, 4, 1, [[[0]], [[1]], ["blank"], ["blank"]]),
    (0, 2, 3, [[], []]),
])  # fmt: skip
def test_rows_are_dealt_out_once_each_and_every_process_has_as_many_micro_batches(rows, count, size, wanted):
    found = []
    for rank in range(count):
        parts = list(Sharding(rank, count).parts(_batch(rows), size))
        found.append(["blank" if not part.weights.any() else part.inputs["x"].int().tolist() for part in parts])
    assert found == wanted


def test_alone_nothing_is_dealt_out():
    assert [part.rows for part in ALONE.parts(_batch(5), 2)] == [2, 2, 1]
