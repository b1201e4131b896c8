"""A run whose learner has several processes: the weights of one alone, whatever happens to a process, and a folder that any number goes on with."""

from __future__ import annotations

import os
import signal

import pytest

from embodied import train
from embodied.wiring.ranks import Ranks
from tests.end_to_end.runs import assert_equal_to_the_bit, run, trained

SETTINGS = ("algorithm=ppo", "scheduler=collocated", "scheduler.learn_threads=1", "evaluation.before=false", "evaluation.after=false")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run(tmp_path_factory.mktemp("two"), *SETTINGS, "sharding.processes=2")


def test_two_processes_give_the_weights_of_one_and_one_goes_on_with_their_run(two, tmp_path):
    one = trained(run(tmp_path, *SETTINGS))
    assert max(float((tensor - one[name]).abs().max()) for name, tensor in trained(two).items()) < 1e-5
    train.train([f"resume={two}", "iterations=4", "sharding.processes=1"])
    assert (two / "checkpoints" / "step_4").is_dir()


def test_a_process_that_is_killed_while_it_learns_costs_a_round_and_no_bit(two, tmp_path, monkeypatch):
    start, killed = Ranks.start, []

    def kill_one(ranks, call):
        if call.kind == "update" and call.round == 1 and not killed:
            killed.append(ranks._members[1]._process.pid)
            os.kill(killed[0], signal.SIGKILL)
        return start(ranks, call)

    monkeypatch.setattr(Ranks, "start", kill_one)
    found = trained(run(tmp_path, *SETTINGS, "sharding.processes=2"))
    assert killed
    assert_equal_to_the_bit(found, trained(two))
