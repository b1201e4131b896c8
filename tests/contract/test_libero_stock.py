"""`render=exact` against LIBERO as shipped: recorded pixels, and physics side by side through a grasp."""

from pathlib import Path

import numpy as np
import pytest

from envs.libero import LiberoEnv
from policies.experts.libero import LiberoExpert

FIXTURES = Path(__file__).parents[1] / "fixtures" / "libero"


@pytest.fixture(scope="module")
def exact():
    env = LiberoEnv(render="exact", cameras=("agentview", "wrist"), resolution=256, privileged=True)
    yield env
    env.close()


def _assert_golden(env: LiberoEnv, suite: str) -> None:
    golden = np.load(FIXTURES / f"{suite}.npz")
    observation, _ = env.reset(options={"task": 0, "init_state": 0})
    for camera in ("agentview", "wrist"):
        difference = observation[f"images/{camera}"].astype(int) - golden[camera][::-1, ::-1]
        assert np.abs(difference).mean() < 0.5
    state = observation["state"]
    np.testing.assert_allclose(state[:3], golden["eef_pos"], atol=1e-6)
    np.testing.assert_allclose(state[6:], golden["gripper_qpos"], atol=1e-6)
    np.testing.assert_allclose(env._workbench(0).simulator.data.qpos, golden["qpos"], atol=1e-9)


def test_the_first_frame_of_libero_spatial_has_the_recorded_pixels_and_pose(exact):
    _assert_golden(exact, "libero_spatial")


def test_fast_pictures_differ_from_the_recorded_ones_in_detail_only():
    env = LiberoEnv(render="fast", cameras=("agentview",), resolution=256)
    observation, _ = env.reset(options={"task": 0, "init_state": 0})
    golden = np.load(FIXTURES / "libero_spatial.npz")["agentview"][::-1, ::-1]
    difference = np.abs(observation["images/agentview"].astype(int) - golden)
    assert difference.mean() < 6 and np.median(difference) <= 1  # grey levels of 255
    env.close()


@pytest.mark.slow
def test_the_first_frame_of_libero_object_has_the_recorded_pixels_and_pose():
    env = LiberoEnv(suite="libero_object", render="exact", cameras=("agentview", "wrist"), resolution=256)
    _assert_golden(env, "libero_object")
    env.close()


def _stock(suite_task):
    from envs.libero import stock  # noqa: F401  prepares robosuite before its first import
    from libero.libero.envs import OffScreenRenderEnv

    env = OffScreenRenderEnv(bddl_file_name=suite_task.scene_file, camera_heights=64, camera_widths=64)
    env.seed(0)
    env.reset()
    for name, observable in env.env._observables.items():
        if name.endswith("_image"):  # enabling restarts an observable's clock, so the others are left alone
            observable.set_enabled(False)
    return env


def test_a_grasp_is_bit_for_bit_that_of_a_stock_env(exact):
    expert, episode = LiberoExpert(), {"task": 0, "init_state": 7}
    observation, _ = exact.reset(options=episode)
    stock = _stock(exact._tasks[0])
    stock.set_init_state(exact._tasks[0].init_states[7])
    for _ in range(10):
        shown, *_ = stock.step([0, 0, 0, 0, 0, 0, -1])
    over, step, simulator = False, 0, exact._workbench(0).simulator
    while not over:
        seen = {"privileged": observation["privileged"][None], "episode": np.array([0]), "step": np.array([step])}
        action = expert.act(seen).actions[0, 0]
        exact._cameras = ()  # pictures are compared elsewhere
        observation, _, terminated, truncated, _ = exact.step(action)
        shown, _, done, _ = stock.step(action.astype(np.float64))
        assert np.array_equal(simulator.data.qpos, stock.sim.data.qpos), f"step {step}"
        assert np.array_equal(observation["state"][:3], shown["robot0_eef_pos"].astype(np.float32))
        assert np.array_equal(observation["state"][6:], shown["robot0_gripper_qpos"].astype(np.float32))
        assert terminated == done
        over, step = terminated or truncated, step + 1
    assert terminated and step > 50
    exact._cameras = ("agentview", "wrist")
    stock.close()
