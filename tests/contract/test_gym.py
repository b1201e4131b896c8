import gymnasium
import numpy as np
import pytest

from envs.gym import GymEnv
from envs.vector import VectorEnv


def rollout(env: GymEnv, action) -> tuple[int, bool, bool, dict]:
    env.reset(seed=0, options={"task": 0, "init_state": 0})
    for steps in range(1, 1000):
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return steps, terminated, truncated, info
    raise AssertionError("never ended")


def test_the_spec_of_cartpole_comes_from_its_registration():
    spec = GymEnv("CartPole-v1").env_spec
    assert (spec.name, spec.state, spec.horizon, spec.action.kind, spec.action.choices) == ("CartPole-v1", 4, 500, "discrete", 2)


def test_success_is_the_reward_threshold_reached_by_the_episodes_end():
    steps, terminated, _, info = rollout(GymEnv("CartPole-v1"), 1)
    assert terminated and info["success"] is False and info["return"] == steps  # one per step, far from the registered 475
    assert rollout(GymEnv("CartPole-v1", success_return=5), 1)[3]["success"] is True


def test_success_that_the_env_reports_itself_comes_first():
    class Reporting(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            assert options is None, "task and init_state stay outside"
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), 100.0, False, False, {"is_success": action == 1}

    gymnasium.register("Reporting-v0", Reporting, max_episode_steps=3, reward_threshold=1.0)
    try:
        assert rollout(GymEnv("Reporting-v0"), 0) == (3, False, True, {"is_success": False, "success": False, "return": 300.0})
        assert rollout(GymEnv("Reporting-v0"), 1)[3]["success"] is True
    finally:
        del gymnasium.registry["Reporting-v0"]


def test_a_horizon_of_ones_own_truncates():
    assert rollout(GymEnv("Pendulum-v1", horizon=7), np.zeros(1, np.float32))[:3] == (7, False, True)


def test_kwargs_reach_the_env():
    assert GymEnv("FrozenLake-v1", {"map_name": "8x8"}).env_spec.state == 64


def test_actions_that_do_not_start_at_zero_are_shifted():
    class Shifted(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(3, start=5)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.array([action], np.float32), 0.0, False, False, {}

    gymnasium.register("Shifted-v0", Shifted)
    try:
        env = GymEnv("Shifted-v0")
        env.reset(seed=0)
        assert env.step(2)[0]["state"].tolist() == [7.0]
    finally:
        del gymnasium.registry["Shifted-v0"]


PACKAGE = """
import gymnasium
import numpy as np


class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, False, False, {}


gymnasium.register("Mine-v0", Mine, max_episode_steps=4)
"""


def mine():
    return GymEnv("own_envs_package:Mine-v0")


def test_an_env_of_the_users_own_package_works_by_its_id_in_a_worker_too(tmp_path, monkeypatch):
    (tmp_path / "own_envs_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    with VectorEnv(mine, 1, 1) as vector:
        assert (vector.env_spec.state, vector.env_spec.horizon, vector.env_spec.action.dims) == (3, 4, 2)
        vector.reset(0, 0, {"task": 0})
        vector.wait()
        vector.step(0, np.zeros((9, 2), np.float32))
        (result,) = vector.wait()
    assert (len(result.rewards), result.truncated) == (4, True)


@pytest.mark.parametrize("id, says", [("CartPol-v1", "such as CartPole-v1"), ("CartPole-v9", "such as CartPole-v1"), ("no_such_pkg:A-v0", "no_such_pkg")])
def test_an_unknown_id_is_refused_with_the_nearest_or_the_missing_package(id, says):
    with pytest.raises(ValueError, match=says):
        GymEnv(id)
