"""The LIBERO env keeps Gymnasium's contract and its own: episodes begin and end exactly as declared."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.libero import LiberoEnv

ROOT = Path(__file__).parents[2]
START = {"task": 0, "init_state": 3}
HORIZON = 9


@pytest.fixture(scope="module")
def env():
    made = LiberoEnv(resolution=32, horizon=HORIZON, privileged=True)
    yield made
    made.close()


@pytest.fixture
def actions():
    return np.random.default_rng(7).uniform(-1, 1, (HORIZON, 7)).astype(np.float32)


def _qpos(env) -> np.ndarray:
    return env._workbench(0).simulator.data.qpos.copy()


def _same(first: dict, second: dict) -> bool:
    return all(np.array_equal(first[key], second[key]) for key in first)


def test_it_passes_gymnasiums_own_check(env):
    check_env(env)


def test_it_can_be_made_by_its_registered_name():
    made = gymnasium.make("envs.libero:m2flow/Libero-v0", suite="libero_object", cameras=())
    assert made.unwrapped.env_spec.name == "libero_object"


def test_an_observation_has_the_declared_entries_and_types(env):
    observation, info = env.reset(options=START)
    found = {key: (value.dtype, value.shape) for key, value in observation.items() if key != "instruction"}
    assert found == {
        "images/agentview": (np.uint8, (32, 32, 3)),
        "state": (np.float32, (8,)),
        "privileged": (np.float32, (env.env_spec.privileged,)),
    }
    assert observation["instruction"] == "pick up the black bowl between the plate and the ramekin and place it on the plate"
    assert info == {"success": False}


def test_ten_wait_steps_pass_before_the_first_observation_and_are_not_charged(env, actions):
    env.reset(options=START)
    assert env._workbench(0).simulator.data.time == pytest.approx(10 * 0.05)  # control steps of 50 ms
    _, rewards, _, truncated, _ = env.step_chunk(np.tile(actions, (2, 1)))
    assert (len(rewards), truncated) == (HORIZON, True)


def test_past_the_budget_an_unsolved_episode_is_truncated_and_never_stepped_again(env, actions):
    env.reset(options=START)
    for action in actions[:-1]:
        assert env.step(action)[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step(actions[-1])
    assert (reward, terminated, truncated, info) == (0.0, False, True, {"success": False})
    before = _qpos(env)
    with pytest.raises(RuntimeError, match="wanted reset\\(\\) first"):
        env.step(actions[0])
    assert np.array_equal(_qpos(env), before)


def test_a_chunk_gives_what_its_single_steps_give(env, actions):
    env.reset(options=START)
    for action in actions[:5]:
        single, *_ = env.step(action)
    state = _qpos(env)
    env.reset(options=START)
    chunked, rewards, terminated, truncated, _ = env.step_chunk(actions[:5])
    assert np.array_equal(_qpos(env), state) and _same(single, chunked)
    assert (rewards.tolist(), terminated, truncated) == ([0.0] * 5, False, False)


def test_an_episode_is_the_same_whatever_ran_before_it(env, actions):
    def episode():
        first, _ = env.reset(options=START)
        last, *_ = env.step_chunk(actions[:6])
        return first, last, _qpos(env)

    env._workbench(0)._settled.clear()
    settled = episode()
    env.reset(options={"task": 0, "init_state": 20})
    env.step_chunk(-actions)
    cached = episode()
    assert all(_same(a, b) for a, b in zip(settled[:2], cached[:2])) and np.array_equal(settled[2], cached[2])


def test_two_envs_of_a_process_share_one_simulator_and_do_not_notice(env, actions):
    env.reset(options=START)
    env.step_chunk(actions[:3])
    alone, *_ = env.step_chunk(actions[3:6])

    other = LiberoEnv(resolution=32, horizon=HORIZON, privileged=True)
    other.reset(options={"task": 0, "init_state": 8})
    assert other._workbench(0) is env._workbench(0)
    env.reset(options=START)
    env.step_chunk(actions[:3])
    other.step_chunk(-actions[:5])
    beside, *_ = env.step_chunk(actions[3:6])
    other.close()
    assert _same(alone, beside)


def test_without_options_the_seed_alone_picks_the_episode(env):
    first, _ = env.reset(seed=11)
    again, _ = env.reset(seed=11)
    other, _ = env.reset(seed=12)
    assert _same(first, again) and not np.array_equal(first["privileged"], other["privileged"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": 4}, "found task 4, wanted one of \\[0\\]"),
        ({"init_state": 50}, "found init_state 50, wanted 0 to 49"),
        ({"initial_state": 3}, "wanted only 'task' and 'init_state'"),
    ],
)
def test_a_reset_that_cannot_be_done_says_what_can(env, options, message):
    with pytest.raises(ValueError, match=message):
        env.reset(options=options)


@pytest.mark.parametrize(("chunk", "message"), [(np.zeros((2, 6)), "wanted \\[C, 7\\]"), (np.full((1, 7), np.nan), "not finite")])
def test_a_misshapen_or_infinite_action_is_refused_before_it_moves_anything(env, chunk, message):
    env.reset(options=START)
    before = _qpos(env)
    with pytest.raises(ValueError, match=message):
        env.step_chunk(chunk)
    assert np.array_equal(_qpos(env), before)


def test_the_gripper_opens_at_minus_one_and_closes_at_plus_one(env):
    widths = {}
    for command in (-1.0, 1.0):
        env.reset(options=START)
        observation, *_ = env.step_chunk(np.array([[0, 0, 0, 0, 0, 0, command]] * 8))
        widths[command] = observation["state"][6] - observation["state"][7]  # metres between the fingers
    assert widths[-1.0] > 0.075 and widths[1.0] < 0.03


def test_the_compiled_control_law_gives_the_stock_controllers_torques(env, actions):
    env.reset(options=START)
    arm = env._workbench(0).arm
    for action in actions:
        arm.step(action.astype(np.float64), exact=False)
        compiled = arm._fast_substep(None)
        arm._read()
        stock = arm._torques()  # built on robosuite's own functions; test_libero_stock holds it against a stock env
        np.testing.assert_allclose(compiled, stock, rtol=1e-9, atol=1e-9 * np.abs(stock).max())


def test_decimation_thins_what_is_seen_and_keeps_what_is_touched(env):
    from envs.libero.simulator import Simulator

    model, whole = env._workbench(0).simulator.model, Simulator(env._tasks[0]).model
    solid = (whole.geom_contype != 0) | (whole.geom_conaffinity != 0)
    touched = {int(mesh) for mesh in whole.geom_dataid[solid & (whole.geom_type == mujoco.mjtGeom.mjGEOM_MESH)]}
    assert all(model.mesh_facenum[mesh] == whole.mesh_facenum[mesh] for mesh in touched)
    assert model.mesh_facenum.sum() < 0.4 * whole.mesh_facenum.sum()
    assert np.array_equal(model.mesh_vert, whole.mesh_vert)


def _elsewhere(code: str, **environ: str) -> list[str]:
    """The last line that a fresh process prints, as words."""
    kept = {key: value for key, value in os.environ.items() if key not in ("MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID", "CUDA_VISIBLE_DEVICES")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=kept | environ, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()[-1].split()


def test_without_cameras_no_opengl_is_imported():
    code = (
        "import sys; from envs.libero import LiberoEnv, gl; gl.egl_devices = lambda: []; gl.ctypes.util.find_library = lambda name: None\n"
        "LiberoEnv(cameras=()).reset(seed=0); print('OpenGL' in sys.modules, 'mujoco' in sys.modules)"
    )
    assert _elsewhere(code) == ["False", "True"]


def test_a_visible_cuda_device_beyond_egls_count_draws_on_egls_own():
    code = (
        "import os; from envs.libero import LiberoEnv; env = LiberoEnv(resolution=16); image = env.reset(seed=0)[0]['images/agentview']\n"
        "env.close(); print(os.environ['MUJOCO_EGL_DEVICE_ID'], image.mean() > 30)"
    )
    assert _elsewhere(code, CUDA_VISIBLE_DEVICES="99") == ["0", "True"]


def test_of_several_tasks_only_so_many_stay_built():
    made = LiberoEnv(tasks=(0, 1), cameras=(), horizon=HORIZON, loaded_tasks=1)
    first, _ = made.reset(options={"task": 0, "init_state": 0})
    made.reset(options={"task": 1, "init_state": 0})
    assert list(made._workbenches) == [1]
    again, _ = made.reset(options={"task": 0, "init_state": 0})
    assert list(made._workbenches) == [0] and _same(first, again)
    made.close()
