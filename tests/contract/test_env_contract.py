"""What every env must do: a new env passes by being added to ENVS."""

import importlib
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.utils.env_checker import check_env

from envs.chunk import step_chunk
from envs.gym import GymEnv
from envs.toy import ToyEnv
from envs.vector import VectorEnv
from envs.worker import describe, fields

CONFIGS = Path(__file__).parents[2] / "configs" / "env"
CONTINUOUS = {"action": "continuous", "gripper": "open_-1_close_+1", "cameras": ("front", "wrist"), "privileged": True}


def from_config(name: str) -> gymnasium.Env:
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    module, _, attribute = config["_target_"].rpartition(".")
    return getattr(importlib.import_module(module), attribute)(**{key: value for key, value in config.items() if not key.startswith("_")})


ENVS = {
    "toy.yaml": lambda: from_config("toy"),
    "gym.yaml": lambda: from_config("gym"),
    "toy continuous": lambda: ToyEnv(**CONTINUOUS),
    "gym continuous": lambda: GymEnv("Pendulum-v1"),
    "gym discrete observation": lambda: GymEnv("FrozenLake-v1"),
}


@pytest.fixture(params=ENVS)
def make_env(request):
    return ENVS[request.param]


@pytest.fixture
def env(make_env):
    made = make_env()
    yield made
    made.close()


def test_gymnasiums_own_check_passes(env):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on the ranges of spaces
        check_env(env, skip_render_check=True)


def test_the_observation_is_what_the_spec_declares(env):
    observation, _ = env.reset(seed=0, options={"task": env.env_spec.tasks[0]})
    declared = fields(describe(env))
    assert {key for key, value in observation.items() if isinstance(value, np.ndarray)} == set(declared)
    for key, (shape, dtype) in declared.items():
        assert (observation[key].shape, observation[key].dtype) == (shape, dtype)
    assert isinstance(observation.get("instruction"), str) == env.env_spec.language


def test_an_episode_is_fixed_by_its_request_and_the_actions(make_env):
    def play():
        env = make_env()
        spec = env.env_spec
        env.action_space.seed(5)
        options = {"task": spec.tasks[0]} | ({"init_state": 3} if spec.init_states else {})
        seen = [env.reset(seed=11, options=options)[0]]
        for _ in range(4):
            actions = np.stack([np.atleast_1d(env.action_space.sample()) for _ in range(2)])
            observation, rewards, terminated, truncated, _ = step_chunk(env, actions)
            seen += [observation, rewards, terminated, truncated]
            if terminated or truncated:
                break
        env.close()
        return seen

    one, other = play(), play()
    assert len(one) == len(other)
    for left, right in zip(one, other):
        if isinstance(left, dict):
            assert all(np.array_equal(left[key], right[key]) for key in left)
        else:
            assert np.array_equal(left, right)


def test_it_runs_as_a_slot(make_env):
    with VectorEnv(make_env, 1, 0) as vector:
        vector.reset(0, 0, {"task": vector.env_spec.tasks[0]})
        assert vector.wait()[0].kind == "reset"
