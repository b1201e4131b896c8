"""Slots of one batched ManiSkill give what single envs give, reset by slot, and refuse what a simulator that steps all at once cannot do."""

from __future__ import annotations

import importlib.util
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import maniskill_gpu
from embodied.episodes import TrainingLedger
from embodied.stages.act import ActStage
from embodied.stages.sim import SimStage
from envs.maniskill import ManiSkillEnv, cuda, vulkan
from envs.maniskill.batched import ManiSkillBatch
from envs.maniskill.episode import Episode
from envs.process import EnvError
from envs.spec import ActionSpec, EnvSpec
from envs.vector import SlotResult, VectorEnv
from policies.mlp import MLP
from scheduler.backends.local_backend import LocalBackend
from scheduler.running.execute import execute
from scheduler.running.flow import Flow
from tests.contract.maniskill_copies import copies

installed = pytest.mark.skipif(importlib.util.find_spec("mani_skill") is None, reason="no mani_skill here: pip install 'm2flow[maniskill]'")
HORIZON = 6


class Counting:
    """Stands in for the simulator: a copy's state is (its seed, the steps it was moved); it succeeds at the step that its seed says."""

    device = torch.device("cpu")

    def __init__(self, copies: int):
        self.seeds, self.steps, self.looks, self.calls = [0] * copies, [0] * copies, 0, []

    def reset(self, seeds):
        for copy, seed in seeds.items():
            self.seeds[copy], self.steps[copy] = seed, 0
        self.calls.append(f"reset {list(seeds)}")

    def step(self, actions):
        self.steps = [n + 1 for n in self.steps]
        self.calls.append("step")
        successes = [float(n == seed) for n, seed in zip(self.steps, self.seeds)]
        return np.array([actions[:, 0].tolist(), successes, [0.0] * len(self.seeds)], np.float32)

    def look(self):
        self.looks += 1
        return {"state": torch.tensor([self.seeds, self.steps], dtype=torch.float32).T, "instruction": ["do it"] * len(self.seeds)}

    def close(self):
        self.calls.append("close")


def batch(slots: int, **settings) -> tuple[ManiSkillBatch, Counting]:
    simulator = Counting(slots)
    spec = EnvSpec("counting", ActionSpec("continuous", 2, low=(-1, -1), high=(1, 1)), state=2, horizon=HORIZON, batched=True)
    return ManiSkillBatch(lambda: simulator, slots, spec, lambda play_on: Episode(HORIZON, play_on, **settings)), simulator


def begun(slots: int, seeds: list[int], **settings) -> tuple[ManiSkillBatch, Counting]:
    env, simulator = batch(slots, **settings)
    for slot, seed in enumerate(seeds):
        env.reset(slot, seed)
    env.wait()
    simulator.looks, simulator.calls = 0, []
    return env, simulator


def chunk(n: int, first: float = 0.0) -> np.ndarray:
    return np.full((n, 2), first, np.float32)


def said(results) -> dict:
    """slot -> (its state, steps run, terminated, truncated, success)."""
    return {r.slot: (r.observation["state"].tolist(), len(r.rewards), r.terminated, r.truncated, r.info["success"]) for r in results}


def test_what_is_asked_runs_at_once_and_each_slot_gets_its_own_row():
    env, simulator = begun(3, [20, 30, 40])
    for slot in range(3):
        env.step(slot, chunk(2, slot / 10))
    results = env.wait()
    assert said(results) == {slot: ([20 + 10 * slot, 2], 2, False, False, False) for slot in range(3)}
    assert [r.rewards.tolist() for r in results] == [pytest.approx([slot / 10] * 2) for slot in range(3)]
    assert (simulator.calls, simulator.looks) == (["step", "step"], 1)


def test_an_episode_that_ends_inside_a_chunk_shows_what_was_there_after_its_own_last_step():
    env, simulator = begun(3, [20, 2, 30])  # the second one succeeds at its second step
    for slot in range(3):
        env.step(slot, chunk(4))
    assert said(env.wait()) == {0: ([20, 4], 4, False, False, False), 1: ([2, 2], 2, True, False, True), 2: ([30, 4], 4, False, False, False)}
    assert simulator.looks == 2  # at the second and at the fourth step


def test_the_budget_cuts_a_chunk_and_truncates():
    env, simulator = begun(1, [20])
    env.step(0, chunk(4))
    env.wait()
    env.step(0, chunk(4))
    assert said(env.wait()) == {0: ([20, HORIZON], 2, False, True, False)} and len(simulator.calls) == HORIZON


def test_an_episode_that_is_asked_to_goes_on_past_success_and_the_slots_next_one_does_not():
    env, _ = batch(1)
    ends = []
    for options in ({"play_on": True}, {}):
        env.reset(0, 3, options)
        env.wait()
        env.step(0, chunk(8))
        result = env.wait()[0]
        ends.append((len(result.rewards), result.terminated, result.truncated, result.info))
    assert ends[0] == (HORIZON, False, True, {"success": True, "success_at_end": False, "fail": False})
    assert ends[1][1:] == (True, False, {"success": True, "success_at_end": True, "fail": False})


def test_steps_run_before_resets_so_that_an_episode_begins_where_its_seed_says():
    env, simulator = begun(2, [20, 30])
    env.reset(1, 50)
    env.step(0, chunk(2))
    assert said(env.wait()) == {0: ([20, 2], 2, False, False, False), 1: ([50, 0], 0, False, False, False)}
    assert simulator.calls == ["step", "step", "reset [1]"]


def test_a_slot_without_an_episode_is_ignored():
    env, _ = begun(2, [20])
    env.step(0, chunk(1))
    assert list(said(env.wait())) == [0]


def test_a_slot_that_others_moved_on_is_refused_until_it_is_reset():
    env, _ = begun(2, [20, 30])
    env.step(0, chunk(1))
    env.wait()
    with pytest.raises(RuntimeError, match="slot 1: .*moved on by the steps of other slots, .*one slot group"):
        env.step(1, chunk(1))
    env.reset(1, 30)
    env.wait()
    env.step(1, chunk(1))
    assert said(env.wait())[1] == ([30, 1], 1, False, False, False)


def test_a_chunk_shorter_than_the_others_is_answered_but_its_episode_cannot_go_on():
    env, _ = begun(2, [20, 30])
    env.step(0, chunk(1))
    env.step(1, chunk(3))
    assert said(env.wait()) == {0: ([20, 1], 1, False, False, False), 1: ([30, 3], 3, False, False, False)}
    with pytest.raises(RuntimeError, match="chunks of one length"):
        env.step(0, chunk(1))
    env.step(1, chunk(1))


def test_what_was_asked_and_dropped_is_not_run():
    env, simulator = begun(1, [20])
    env.step(0, chunk(1))
    env.settle()
    assert env.wait() == [] and simulator.calls == []


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (lambda env: env.step(1, chunk(1)), RuntimeError, "slot 1 .*reset it first"),
        (lambda env: env.step(0, np.zeros((1, 3))), ValueError, "wanted \\[C, 2\\]"),
        (lambda env: env.step(0, np.full((1, 2), np.nan)), ValueError, "not finite"),
        (lambda env: env.reset(2, 0), IndexError, "wanted 0 to 1"),
        (lambda env: env.reset(0, None), ValueError, "without a seed"),
        (lambda env: env.reset(0, 1, {"task": 1}), ValueError, "wanted task 0"),
        (lambda env: (env.step(0, chunk(1)), env.reset(0, 1)), RuntimeError, "outstanding"),
        (lambda env: (env.close(), env.reset(0, 1)), RuntimeError, "closed"),
    ],
)
def test_what_cannot_be_done_is_refused_when_it_is_asked(request_, error, message):
    env, _ = begun(2, [20])
    with pytest.raises(error, match=message):
        request_(env)


def test_a_simulator_that_raises_is_an_env_error_with_its_phase():
    env, simulator = begun(1, [20])
    simulator.step = lambda actions: 1 / 0
    env.step(0, chunk(1))
    with pytest.raises(EnvError, match="phase step: the batched simulator raised ZeroDivisionError"):
        env.wait()


def test_without_cuda_the_backend_is_refused_with_the_one_that_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("envs.maniskill.env._versions", dict)
    with pytest.raises(ValueError, match="found no CUDA device, wanted one for env.backend=cuda; env.backend=cpu"):
        ManiSkillEnv("PushCube-v1", backend="cuda")


SETTINGS = {"privileged": True, "reward": "normalized_dense", "horizon": 12}


def on_cuda(patch, id: str, **settings) -> ManiSkillEnv:
    """An env that would be on CUDA, whose batch is made of copies on the CPU."""
    patch.setattr("envs.maniskill.simulator._built", copies())
    with patch.context() as inner:
        inner.setattr(torch.cuda, "is_available", lambda: True)
        return ManiSkillEnv(id, backend="cuda", **settings)


@contextmanager
def pair(id: str, slots: int, **settings):
    """(a single env, a batch of the same)."""
    with pytest.MonkeyPatch.context() as patch:
        single, batched = ManiSkillEnv(id, **settings), on_cuda(patch, id, **settings).vector(slots)
        yield single, batched
        single.close()
        batched.close()


@pytest.fixture(scope="module")
def pushing():
    with pair("PushCube-v1", 3, **SETTINGS) as made:
        yield made


@installed
def test_a_missing_library_of_physx_is_asked_for_and_not_downloaded(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with pytest.raises(ValueError, match=f"found no libPhysXGpu_64.so in {tmp_path}.*fetch it once by python -c"):
        cuda.require_library()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def chunks():
    return list(np.random.default_rng(3).uniform(-1, 1, (3, 4, 7)).astype(np.float32))


def asked(env: ManiSkillBatch, seeds: dict[int, int] | None = None, actions: np.ndarray | None = None) -> dict[int, SlotResult]:
    """slot -> what came of resets with these seeds, or of steps of every slot."""
    for slot, seed in (seeds or {}).items():
        env.reset(slot, seed)
    for slot in range(env.slots if actions is not None else 0):
        env.step(slot, actions)
    return {result.slot: result for result in env.wait()}


def same(observation: dict, row: dict) -> bool:
    plain = {key: value.numpy() if isinstance(value, torch.Tensor) else value for key, value in row.items()}
    return observation.keys() == plain.keys() and all(np.array_equal(observation[key], plain[key]) for key in observation)


def played(single: ManiSkillEnv, seed: int, chunks: list[np.ndarray]) -> list[dict]:
    """The observations of one episode."""
    return [single.reset(seed=seed)[0], *(single.step_chunk(actions)[0] for actions in chunks)]


def plays_alike(single: ManiSkillEnv, env: ManiSkillBatch, chunks: list[np.ndarray]) -> bool:
    seeds = [5, 6, 5][: env.slots]
    seen = [asked(env, dict(enumerate(seeds))), *(asked(env, actions=actions) for actions in chunks)]
    return all(same(wanted, results[slot].observation) for slot, seed in enumerate(seeds) for wanted, results in zip(played(single, seed, chunks), seen))


def disturbed_only_by_itself(single: ManiSkillEnv, env: ManiSkillBatch, chunks: list[np.ndarray]) -> bool:
    """Whether a slot that is reset between two chunks begins anew, and the one beside it goes on as if nothing were."""
    asked(env, {slot: slot for slot in range(env.slots)})
    asked(env, actions=chunks[0])
    asked(env, {1: 7})
    last = asked(env, actions=chunks[1])
    return same(played(single, 0, chunks[:2])[-1], last[0].observation) and same(played(single, 7, chunks[1:2])[-1], last[1].observation)


@installed
def test_every_slot_plays_as_a_single_env_does_and_members_of_a_group_alike(pushing, chunks):
    assert plays_alike(*pushing, chunks)


@installed
def test_rewards_are_the_single_envs(pushing, chunks):
    single, env = pushing
    asked(env, {0: 1, 1: 2, 2: 3})
    single.reset(seed=2)
    assert asked(env, actions=chunks[0])[1].rewards.tolist() == single.step_chunk(chunks[0])[1].tolist()


@installed
def test_a_reset_leaves_the_other_slots_episodes_as_they_are(pushing, chunks):
    assert disturbed_only_by_itself(*pushing, chunks)


@installed
def test_a_reset_leaves_the_other_slots_random_numbers_as_they_are(pushing):
    _, env = pushing
    asked(env, {slot: 10 + slot for slot in range(3)})
    generators = env._simulator._env._batched_episode_rng
    assert [generators[slot].randint(2**31) for slot in range(3)] == [np.random.RandomState(10 + slot).randint(2**31) for slot in range(3)]


@installed
@pytest.mark.parametrize("id", ["PushCube-v1", pytest.param("PegInsertionSide-v1", marks=pytest.mark.slow)])
def test_one_slot_of_maniskills_own_batched_interface_plays_as_a_single_env_does(id, chunks):
    """Of one copy that interface runs on the CPU as it is: resets by index, controllers with a target of their own, a scene built anew."""
    arguments = {"reconfiguration_freq": 0} if id.startswith("Peg") else {}
    with pair(id, 1, control_mode="pd_ee_target_delta_pose", arguments=arguments) as made:
        assert plays_alike(*made, chunks)


@installed
@pytest.mark.slow
def test_a_reset_leaves_the_other_slots_controllers_as_they_are(chunks):
    with pair("PushCube-v1", 2, control_mode="pd_ee_target_delta_pose") as made:
        assert disturbed_only_by_itself(*made, chunks)


@installed
@pytest.mark.slow
@pytest.mark.parametrize(("id", "settings"), [("RollBall-v1", {}), ("PickCube-v1", {"control_mode": "pd_joint_delta_pos"}), ("PutOnPlateStandIn-v1", {})])
def test_other_tasks_play_as_single_envs_do(id, settings):
    chunks = list(np.random.default_rng(4).uniform(-1, 1, (2, 4, ManiSkillEnv(id, **settings).env_spec.action.dims)).astype(np.float32))
    with pair(id, 2, **settings) as made:
        assert plays_alike(*made, chunks)


@installed
@pytest.mark.slow
def test_bodies_that_could_differ_from_copy_to_copy_are_the_same_in_all():
    with pair("PegInsertionSide-v1", 2, arguments={"reconfiguration_freq": 0}) as (single, env):
        wanted = single.reset(seed=4)[0]
        assert all(same(wanted, result.observation) for result in asked(env, {0: 4, 1: 4}).values())


def test_without_a_gpu_the_benchmark_says_so_and_is_content(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert maniskill_gpu.main([]) == 0 and "found no CUDA device" in capsys.readouterr().out


@installed
def test_the_checks_for_a_gpu_hold_for_copies_on_the_cpu_to_the_bit(pushing, monkeypatch):
    monkeypatch.setattr(maniskill_gpu, "MEMBERS", 3)
    found = maniskill_gpu.checks(pushing[1], 2)
    assert {name: value for name, value in found.items() if value is not True} == {name: 0.0 for name in found if name.startswith("largest")}


@installed
def test_a_task_that_rebuilds_its_scene_is_refused(monkeypatch):
    env = on_cuda(monkeypatch, "PushCube-v1")
    monkeypatch.setattr("envs.maniskill.parallel.prepared", lambda scene: SimpleNamespace(reconfiguration_freq=1, close=lambda: None))
    with pytest.raises(ValueError, match="env.id=PushCube-v1: it builds its scene anew every 1 resets, .*env.backend=cpu runs it"):
        env.vector(2)


def trajectories(env: VectorEnv | ManiSkillBatch) -> list:
    policy = MLP(env.env_spec, chunk=4)
    sim = SimStage(env, TrainingLedger(0, [0], None, 2, 2).round, 1, 4, horizon=7)
    results = execute(Flow("sim", "act", 1, (), None), LocalBackend({"sim": sim, "act": ActStage(policy, 28, 0, "train", rows=2)}), 0, 1)
    return [item.payload for result in results for item in result.items]


@installed
def test_the_sim_stage_gets_the_same_trajectories_from_both(pushing):
    """4 episodes in 3 slots, of 7 steps in chunks of 4: the last chunk is cut, and slots are left in mid-episode while the fourth one is played."""
    with VectorEnv(partial(ManiSkillEnv, "PushCube-v1", **SETTINGS), 3, 0) as vector:
        wanted = trajectories(vector)
    found = trajectories(pushing[1])
    assert [(t.episode, t.steps) for t in found] == [(i, 7) for i in range(4)]
    assert all(alike(getattr(one, field.name), getattr(other, field.name)) for one, other in zip(wanted, found) for field in fields(one))


def alike(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (torch.Tensor, np.ndarray)):
        return type(one) is type(other) and np.array_equal(one, other)
    return one == other


@installed
@pytest.mark.slow
def test_pictures_are_the_single_envs_and_are_taken_once_per_chunk(chunks):
    if not vulkan.found():
        pytest.skip(f"no Vulkan device: {vulkan.MEND}")
    with pair("PickCube-v1", 2, cameras=("base_camera",), resolution=32) as (single, env):
        asked(env, {0: 0, 1: 1})
        looks = []
        inner = env._simulator._env
        inner._get_obs_sensor_data = lambda own=inner._get_obs_sensor_data: looks.append(1) or own()
        last = asked(env, actions=chunks[0])
        assert looks == [1] and last[1].observation["images/base_camera"].dtype == torch.uint8
        assert all(same(played(single, slot, chunks[:1])[-1], last[slot].observation) for slot in range(2))
