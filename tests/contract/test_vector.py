import functools
import os
import pickle
import select
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from envs.toy import ToyEnv, read_steps
from envs.vector import EnvError, VectorEnv

ROOT = Path(__file__).parents[2]


def make(**arguments):
    return functools.partial(ToyEnv, **arguments)


def children() -> set[int]:
    """Process ids of this process's children, dead ones that nobody waited for included."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def play(vector: VectorEnv, requests: list[tuple[int, int]], actions: np.ndarray) -> dict:
    """Every (task, init_state) once, in whichever slot is free, with the same actions -> all that came back, by request."""
    waiting, playing, told = list(enumerate(requests)), {}, {}

    def begin(slot: int) -> None:
        if waiting:
            playing[slot], (task, state) = waiting.pop(0)
            vector.reset(slot, seed=task, options={"task": task, "init_state": state})

    for slot in range(vector.slots):
        begin(slot)
    while results := vector.wait():
        for result in results:
            log = told.setdefault(playing[result.slot], [])
            arrays = tuple(np.asarray(result.observation[key]).tobytes() for key in sorted(result.observation))
            log.append((arrays, result.rewards.tolist(), result.terminated, result.truncated, result.info))
            if result.terminated or result.truncated:
                begin(result.slot)
            else:
                vector.step(result.slot, actions[len(log) - 1])
    return told


def test_any_number_of_workers_gives_the_same_episodes():
    arguments = make(tasks=(0, 1, 2), init_states=5, drift=1, reward="dense", cameras=("front", "wrist"), privileged=True)
    requests = [(task, state) for task in range(3) for state in range(4)]
    actions = np.random.default_rng(0).integers(0, 4, (8, 3, 1))
    told = {}
    for workers in (0, 1, 2, 4):
        with VectorEnv(arguments, 4, workers) as vector:
            told[workers] = play(vector, requests, actions)
    assert sorted(told[0]) == list(range(12))
    assert told[1] == told[0]
    assert told[2] == told[0]
    assert told[4] == told[0]


def test_three_slots_on_two_workers_all_answer():
    with VectorEnv(make(), 3, 2) as vector:
        for slot in range(3):
            vector.reset(slot, 0)
        slots = set()
        while results := vector.wait():
            slots |= {result.slot for result in results}
    assert slots == {0, 1, 2}


@pytest.mark.parametrize("workers", [0, 1])
def test_the_observation_after_truncation_is_the_episodes_last_and_nothing_resets_itself(workers):
    with VectorEnv(make(horizon=4, goal=4), 1, workers) as vector:
        vector.reset(0, 0, {"init_state": 3})
        (start,) = vector.wait()
        wrong = (int(start.observation["state"][2:].argmax()) + 1) % 4
        vector.step(0, np.full((6, 1), wrong))
        (end,) = vector.wait()
        assert (end.terminated, end.truncated, end.info["success"]) == (False, True, False)
        assert end.observation["state"][0] == 4  # the counter after the 4th step, not the 0 of a next episode
        assert read_steps(end.observation["images/front"]) == 4
        assert len(end.rewards) == 4  # the two actions past the budget were never run
        assert vector.wait() == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_step_past_the_end_is_refused_before_it_reaches_the_env(workers):
    with VectorEnv(make(horizon=1, goal=1), 1, workers) as vector:
        vector.reset(0, 0)
        vector.wait()
        vector.step(0, np.zeros((1, 1), int))
        vector.wait()
        vector.step(0, np.zeros((1, 1), int))
        with pytest.raises(EnvError, match="reset it first") as caught:
            vector.wait()
        assert "toy.py" not in caught.value.trace


def test_results_are_copies_that_the_next_step_leaves_alone():
    with VectorEnv(make(), 1, 1) as vector:
        vector.reset(0, 0)
        (first,) = vector.wait()
        kept = first.observation["images/front"].copy()
        vector.step(0, np.zeros((1, 1), int))
        (second,) = vector.wait()
        assert np.array_equal(first.observation["images/front"], kept)
        assert not np.array_equal(second.observation["images/front"], kept)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_env_that_raises_is_named_with_its_own_traceback_and_the_others_go_on(workers):
    with VectorEnv(make(fault={"kind": "raise", "phase": "step", "init_state": 1}), 2, workers) as vector:
        for slot in range(2):
            vector.reset(slot, 7, {"task": 0, "init_state": slot})
        while vector.wait():
            pass
        vector.step(1, np.zeros((1, 1), int))
        with pytest.raises(EnvError) as caught:
            vector.wait()
        error = caught.value
        assert (error.slot, error.phase, error.episode) == (1, "step", "task=0, init_state=1, seed=7")
        assert "planned fault in step" in error.trace and "toy.py" in str(error)
        vector.step(0, np.zeros((1, 1), int))
        (result,) = vector.wait()
        assert result.slot == 0
        vector.reset(1, 7, {"init_state": 2}, label="another")
        assert [result.slot for result in vector.wait()] == [1]


def test_a_hang_in_reset_is_named_within_the_timeout_with_the_line_it_hangs_at():
    before = children()
    with VectorEnv(make(fault={"kind": "hang", "phase": "reset", "init_state": 1}), 2, 2, timeout=0.5) as vector:
        for slot in range(2):
            vector.reset(slot, 7, {"task": 0, "init_state": slot}, label=f"task 0, init state {slot}")
        assert [result.slot for result in vector.wait()] == [0]
        with pytest.raises(EnvError, match=r"worker 1, slot 1, episode \(task 0, init state 1\), phase reset: hung: more than 0.5 s") as caught:
            vector.wait()
        assert "in strike" in caught.value.trace
        assert len(children() - before) == 1  # the hung one was ended
    assert children() == before


def test_a_worker_that_dies_is_named_with_its_signal_and_its_slots_wait_for_a_restart(tmp_path):
    fault = {"kind": "die", "phase": "step", "init_state": 1, "once": str(tmp_path / "struck")}
    before = children()
    with VectorEnv(make(fault=fault), 2, 2) as vector:
        for slot in range(2):
            vector.reset(slot, 0, {"init_state": slot})
        while vector.wait():
            pass
        vector.step(1, np.zeros((1, 1), int))
        with pytest.raises(EnvError, match="phase step: the worker died .signal SIGKILL.") as caught:
            vector.wait()
        assert (caught.value.worker, caught.value.slot) == (1, 1)
        with pytest.raises(EnvError, match=r"restart\(1\)"):
            vector.reset(1, 0)
        assert vector.restart(1) == [1]
        vector.reset(1, 0, {"init_state": 1})
        assert [result.slot for result in vector.wait()] == [1]
        vector.step(1, np.zeros((1, 1), int))
        assert [len(result.rewards) for result in vector.wait()] == [1]
    assert children() == before


@pytest.mark.parametrize("kind, says", [("raise", "planned fault in start"), ("die", "SIGKILL"), ("hang", "more than 2 s")])
def test_an_env_that_cannot_be_built_is_an_error_of_phase_start_and_leaves_nothing(kind, says):
    before = children(), descriptors()
    with pytest.raises(EnvError, match=says) as caught:
        VectorEnv(make(fault={"kind": kind, "phase": "start"}), 2, 2, start_timeout=2.0 if kind == "hang" else 120.0)
    assert caught.value.phase == "start"
    assert (children(), descriptors()) == before


def test_an_env_whose_close_raises_is_reported_after_all_workers_have_ended():
    before = children()
    vector = VectorEnv(make(fault={"kind": "raise", "phase": "close"}), 2, 2)
    with pytest.raises(EnvError, match="phase close"):
        vector.close()
    assert children() == before


def test_close_ends_workers_frees_memory_and_may_be_called_again():
    before = children(), descriptors(), set(os.listdir("/dev/shm"))
    vector = VectorEnv(make(), 2, 2)
    vector.reset(0, 0)
    assert len(children()) == len(before[0]) + 2
    vector.close()
    vector.close()
    assert (children(), descriptors(), set(os.listdir("/dev/shm"))) == before
    with pytest.raises(RuntimeError, match="closed"):
        vector.reset(0, 0)


def test_a_vector_that_nobody_closed_takes_its_workers_with_it():
    before = children(), descriptors()
    vector = VectorEnv(make(), 1, 1)
    del vector
    assert (children(), descriptors()) == before


STUCK = """
import functools, os, sys
from envs.toy import ToyEnv
from envs.vector import VectorEnv
vector = VectorEnv(functools.partial(ToyEnv, fault={fault!r}), 2, 2)
for slot in range(2):
    vector.reset(slot, 0)
print(*[worker._process.pid for worker in vector._workers], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("fault", [None, {"kind": "hang", "phase": "reset"}], ids=["idle", "hung"])
def test_workers_end_by_themselves_when_their_parent_is_killed(fault):
    parent = subprocess.Popen([sys.executable, "-c", STUCK.format(fault=fault)], cwd=ROOT, stdin=-1, stdout=-1)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    watches = [os.pidfd_open(pid) for pid in pids]
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    ended = [bool(select.select([watch], [], [], 20)[0]) for watch in watches]
    for pid, watch, over in zip(pids, watches, ended):
        os.close(watch)
        if not over:
            os.kill(pid, signal.SIGKILL)
    assert ended == [True, True]


class Raw(gymnasium.Env):
    """A plain env whose observation is a vector and which knows nothing of env_spec."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([0.1, 0.2, 0.3]), {}

    def step(self, action):
        return np.array([0.1, 0.2, 0.3]) * action, 0.5, False, False, {"big": np.zeros(3), "small": np.int64(3)}


class Leaky(Raw):
    def reset(self, *, seed=None, options=None):
        return {"state": np.zeros(3), "depth": np.zeros(2)}, {}


def test_a_plain_env_gets_its_spec_from_its_spaces_and_its_vector_as_state():
    with VectorEnv(Raw, 1, 1) as vector:
        assert (vector.env_spec.name, vector.env_spec.state, vector.env_spec.action.choices) == ("Raw", 3, 2)
        vector.reset(0, 0)
        vector.wait()
        vector.step(0, np.array([[0], [1]]))
        (result,) = vector.wait()
    assert result.observation["state"].dtype == np.float32
    assert np.allclose(result.observation["state"], [0.1, 0.2, 0.3])
    assert result.rewards.tolist() == [0.5, 0.5]
    assert result.info == {"small": 3, "success": False, "success_at_end": False}


def test_an_observation_that_the_spec_does_not_declare_is_refused_by_name():
    with VectorEnv(Leaky, 1, 0) as vector:
        vector.reset(0, 0)
        with pytest.raises(EnvError, match="'depth', which env_spec does not declare"):
            vector.wait()


@pytest.mark.parametrize("slots, workers", [(0, 0), (2, 3), (1, -1)])
def test_counts_that_cannot_be_are_refused_with_the_numbers(slots, workers):
    with pytest.raises(ValueError, match=f"found {slots} slots on {workers} workers"):
        VectorEnv(make(), slots, workers)


def test_a_make_env_that_cannot_travel_is_refused_with_what_would_do():
    with pytest.raises(TypeError, match="functools.partial"):
        VectorEnv(lambda: ToyEnv(), 1, 1)
    with VectorEnv(lambda: ToyEnv(), 1, 0) as vector:
        assert vector.env_spec.name == "toy"


def test_a_slot_with_an_operation_outstanding_refuses_another():
    with VectorEnv(make(), 1, 1) as vector:
        vector.reset(0, 0)
        with pytest.raises(RuntimeError, match="outstanding"):
            vector.reset(0, 1)


def test_wait_gives_up_after_its_own_timeout_without_losing_the_answer(tmp_path):
    with VectorEnv(make(step_seconds=0.2), 1, 1) as vector:
        vector.reset(0, 0)
        vector.wait()
        vector.step(0, np.zeros((1, 1), int))
        assert vector.wait(0) == []
        assert [result.kind for result in vector.wait()] == ["step"]


class Probe(Raw):
    def reset(self, *, seed=None, options=None):
        settings = {"torch": "torch" in sys.modules, "threads": os.environ["OMP_NUM_THREADS"]}
        return np.zeros(3), settings | {"interrupt": signal.getsignal(signal.SIGINT) is signal.SIG_IGN}

    def step(self, action):
        return np.zeros(3), 0.0, False, True, {}


def test_a_worker_has_one_thread_and_no_torch_and_leaves_ctrl_c_to_its_parent():
    with VectorEnv(Probe, 1, 1) as vector:
        vector.reset(0, 0)
        (result,) = vector.wait()
    assert result.info == {"torch": False, "threads": "1", "interrupt": True}


def test_an_env_error_keeps_all_it_says_across_a_process_border():
    error = EnvError("raised", 1, 2, "task 3", "reset", "the trace")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.worker, copy.slot, copy.episode, copy.phase, copy.trace) == (1, 2, "task 3", "reset", "the trace")


def test_several_workers_that_were_lost_at_once_are_all_built_anew() -> None:
    with VectorEnv(functools.partial(ToyEnv), 3, 3, timeout=30) as vector:
        lost = [worker._process.pid for worker in vector._workers[:2]]
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
        for worker in vector._workers[:2]:
            worker._process.wait()
        vector.mend()
        for slot in range(3):
            vector.reset(slot, 0, {"task": 0, "init_state": 0})
        found = []
        while len(found) < 3:
            found += vector.wait()
        assert {result.slot for result in found} == {0, 1, 2}
        assert not set(lost) & {worker._process.pid for worker in vector._workers}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's care is Linux's")
def test_a_stopped_worker_dies_with_a_parent_that_was_killed() -> None:
    program = (
        "import os, signal, sys; from functools import partial; from envs.toy import ToyEnv; from envs.vector import VectorEnv\n"
        "env = VectorEnv(partial(ToyEnv), 1, 1); pid = env._workers[0]._process.pid; os.kill(pid, signal.SIGSTOP)\n"
        "print(pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    pid = int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout)
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return  # it has ended already
    assert select.select([watched], [], [], 30)[0]
