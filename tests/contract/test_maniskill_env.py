"""The ManiSkill env keeps Gymnasium's contract and its own: episodes by seed to the bit, one look per chunk, no question on the terminal."""

import builtins
import importlib.util
import re
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.maniskill import ManiSkillEnv, tasks, vulkan
from envs.vector import VectorEnv

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mani_skill") is None, reason="no mani_skill here: pip install 'm2flow[maniskill]'")
HORIZON = 9


def push_cube() -> ManiSkillEnv:
    return ManiSkillEnv("PushCube-v1", cameras=(), horizon=HORIZON, privileged=True)


@pytest.fixture(scope="module")
def env():
    made = push_cube()
    yield made
    made.close()


@pytest.fixture
def actions():
    return np.random.default_rng(7).uniform(-1, 1, (HORIZON, 7)).astype(np.float32)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    def asked(*_):
        raise AssertionError("a question was asked on the terminal")

    monkeypatch.setattr(builtins, "input", asked)


def _same(first: dict, second: dict) -> bool:
    return all(np.array_equal(first[key], second[key]) for key in first)


def test_it_passes_gymnasiums_own_check(env):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on the ranges of spaces
        check_env(env, skip_render_check=True)


def test_an_observation_has_the_declared_entries_and_types(env):
    observation, info = env.reset(seed=0, options={"task": 0})
    found = {key: (value.dtype, value.shape) for key, value in observation.items() if key != "instruction"}
    assert found == {"state": (np.float32, (35,)), "privileged": (np.float32, (30,))}
    assert observation["instruction"] == "push the blue cube to the target"
    assert info == {"success": False, "success_at_end": False, "fail": False}


def test_the_privileged_poses_are_those_of_the_scene(env):
    observation, _ = env.reset(seed=3)
    seen = {name: observation["privileged"][start:stop] for name, (start, stop) in tasks.privileged_layout().items()}
    assert seen["task"] == 1 and seen["opening"] == pytest.approx(0.08, abs=0.005)
    assert seen["goal"] - seen["object"] == pytest.approx([0.2, 0, 0.001 - 0.02], abs=1e-6)  # the target lies 0.1 + its radius before the cube
    assert np.array_equal(seen["object"], observation["state"][28:31])  # ManiSkill's own order: 18 of the robot, hand 7, goal 3, cube 7


def test_an_episode_is_the_same_whatever_ran_before_it(env, actions):
    def episode(seed):
        first, _ = env.reset(seed=seed)
        last, *_ = env.step_chunk(actions[:6])
        return first, last

    once = episode(5)
    episode(6)
    again = episode(5)
    assert all(_same(a, b) for a, b in zip(once, again))
    assert not np.array_equal(once[0]["state"], episode(6)[0]["state"])


def test_a_chunk_gives_what_its_single_steps_give_and_looks_once(env, actions, monkeypatch):
    env.reset(seed=2)
    for action in actions[:5]:
        single, *_ = env.step(action)
    env.reset(seed=2)
    looks = []
    inner = env._simulator._env
    monkeypatch.setattr(inner, "_get_obs_extra", lambda info, own=inner._get_obs_extra: looks.append(1) or own(info))
    chunked, rewards, terminated, truncated, _ = env.step_chunk(actions[:5])
    assert _same(single, chunked) and looks == [1]
    assert (rewards.tolist(), terminated, truncated) == ([0.0] * 5, False, False)


def test_past_the_budget_an_unsolved_episode_is_truncated_and_never_stepped_again(env, actions):
    env.reset(seed=0)
    _, rewards, terminated, truncated, info = env.step_chunk(np.tile(actions, (2, 1)))
    assert (len(rewards), terminated, truncated, info["success"]) == (HORIZON, False, True, False)
    with pytest.raises(RuntimeError, match="wanted reset\\(\\) first"):
        env.step(actions[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"task": 1}, "wanted task 0"), ({"init_state": 3}, "the seed draws how it begins"), ({"env_idx": 0}, "env_idx")],
)
def test_a_reset_that_cannot_be_done_says_what_can(env, options, message):
    with pytest.raises(ValueError, match=message):
        env.reset(options=options)


@pytest.mark.parametrize(("chunk", "message"), [(np.zeros((2, 6)), "wanted \\[C, 7\\]"), (np.full((1, 7), np.nan), "not finite")])
def test_a_misshapen_or_infinite_action_is_refused(env, chunk, message):
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step_chunk(chunk)


def test_the_gripper_opens_with_minus_one_and_closes_with_plus_one(env):
    start, stop = tasks.privileged_layout()["opening"]
    still = np.zeros((4, 7), np.float32)
    env.reset(seed=0)
    still[:, 6] = 1.0
    assert env.step_chunk(still)[0]["privileged"][start:stop] < 0.01
    still[:, 6] = -1.0
    assert env.step_chunk(still)[0]["privileged"][start:stop] > 0.06


class Scripted:
    """Stands in for a simulator whose successes are planned."""

    def __init__(self, successes):
        self.left = list(successes)

    def reset(self, seed):
        """Nothing to draw."""

    def step(self, action):
        success = self.left.pop(0)
        return float(success), success, False

    def state(self):
        return np.zeros(35, np.float32)

    def close(self):
        """Nothing to close."""


@pytest.mark.parametrize(
    ("settings", "options", "successes", "ending"),
    [
        ({}, {}, [0, 1, 0, 0], (2, True, False, {"success": True, "success_at_end": True, "fail": False})),
        ({}, {"play_on": True}, [0, 1, 0, 0], (4, False, True, {"success": True, "success_at_end": False, "fail": False})),
        ({"fixed_horizon": True}, {}, [0, 1, 0, 0], (4, False, True, {"success": True, "success_at_end": False, "fail": False})),
        ({"fixed_horizon": True}, {}, [0, 1, 0, 1], (4, False, True, {"success": True, "success_at_end": True, "fail": False})),
    ],
)
def test_success_once_and_at_the_end(settings, options, successes, ending):
    made = ManiSkillEnv("PushCube-v1", cameras=(), horizon=4, **settings)
    made._simulator = Scripted(map(bool, successes))
    made.reset(seed=0, options=options)
    _, rewards, terminated, truncated, info = made.step_chunk(np.zeros((8, 7), np.float32))
    assert (len(rewards), terminated, truncated, info) == ending


def test_dense_rewards_are_maniskills_own(actions):
    made = ManiSkillEnv("PushCube-v1", cameras=(), reward="normalized_dense", horizon=3)
    made.reset(seed=1)
    _, rewards, *_ = made.step_chunk(actions)
    inner = made._simulator._env
    assert rewards[-1] == pytest.approx(float(inner.compute_normalized_dense_reward({}, None, inner.get_info())), abs=1e-6) and 0 < rewards[-1] < 1
    made.close()


def test_a_task_outside_the_table_is_measured_and_runs():
    made = ManiSkillEnv("PullCubeTool-v1", cameras=())
    spec = made.env_spec
    observation, _ = made.reset(seed=0)
    assert (spec.horizon, spec.language, spec.action.dims, observation["state"].shape) == (100, False, 7, (spec.state,))
    made.close()


MODES = [("PickCube-v1", mode) for mode in tasks.PANDA_CONTROL] + [(id, "pd_ee_delta_pose") for id in tasks.TASKS if id != "PickCube-v1"]


@pytest.mark.parametrize(("id", "mode"), [MODES[0], *(pytest.param(*pair, marks=pytest.mark.slow) for pair in MODES[1:])])
def test_the_table_says_what_the_simulator_says(id, mode):
    from envs.maniskill.simulator import measured

    found, said = measured(id, mode, "panda"), tasks.with_panda(tasks.TASKS[id], "panda", mode)
    assert (found.budget, found.state, found.robot_state, found.action, found.robot, found.cameras) == (said.budget, said.state, said.robot_state, said.action, said.robot, said.cameras)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "PickSingleYCB-v1"}, "download_asset PickSingleYCB-v1.*PushCube-v1"),
        ({"id": "PutCarrotOnPlateInScene-v1"}, "bridge_v2_real2sim.*PickCube-v1"),
        ({"id": "PickCubeWidowXAI-v1"}, "nothing is downloaded.*PickCube-v1"),
        ({"id": "PickKube-v1"}, "no such task; did you mean PickCube-v1"),
        ({"id": "PickCube-v1", "robot": "pandas"}, "found 'pandas', wanted one of .*panda"),
        ({"id": "PickCube-v1", "control_mode": "pd_ee_delta"}, "wanted one of .*pd_ee_delta_pose"),
        ({"id": "PushT-v1"}, "cannot be built here without a renderer"),
        ({"id": "TwoRobotPickCube-v1"}, "several robots"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(settings, message):
    with pytest.raises(ValueError, match=message):
        ManiSkillEnv(cameras=(), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("id", tasks.FROM_THE_WHEEL)
def test_a_task_that_is_said_to_run_from_the_wheel_runs(id):
    try:
        made = ManiSkillEnv(id, cameras=())
    except ValueError as refused:  # another robot has other modes; the first one that is named will do
        mode = re.search("wanted one of ([a-z_]+)", str(refused)).group(1)
        made = ManiSkillEnv(id, control_mode=mode, cameras=())
    observation, _ = made.reset(seed=0)
    assert made.observation_space.contains(observation)
    made.close()


@pytest.mark.slow
def test_it_runs_as_slots_of_worker_processes(env, actions):
    expected, _ = env.reset(seed=11)
    with VectorEnv(push_cube, 2, 2) as vector:
        for slot in (0, 1):
            vector.reset(slot, 11, {"task": 0})
        seen = []
        while len(seen) < 2:
            seen += vector.wait()
    assert all(_same({key: expected[key] for key in ("state", "privileged")}, result.observation) for result in seen)


@pytest.mark.slow
def test_pictures_are_taken_once_per_chunk_and_show_the_goal_by_choice(actions):
    if not vulkan.found():
        pytest.skip(f"no Vulkan device: {vulkan.MEND}")
    shown = {}
    for show in (True, False):
        made = ManiSkillEnv("PickCube-v1", cameras=("base_camera",), show_goal=show)
        shown[show], _ = made.reset(seed=0)
        renders = []
        inner = made._simulator._env
        inner.capture_sensor_data = lambda own=inner.capture_sensor_data: renders.append(1) or own()
        last, *_ = made.step_chunk(actions[:8])
        assert renders == [1] and last["images/base_camera"].shape == (128, 128, 3)
        again, _ = made.reset(seed=0)
        assert _same(shown[show], again)
        made.close()
    differ = np.abs(shown[True]["images/base_camera"].astype(int) - shown[False]["images/base_camera"]).max(-1) > 50
    assert 4 < differ.sum() < 400  # pixels of the goal's sphere
