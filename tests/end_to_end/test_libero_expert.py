"""The scripted expert on real LIBERO: what it solves, and that an episode solved at its last permitted step is solved, not truncated."""

import numpy as np
import pytest

from envs.libero import LiberoEnv
from policies.experts.libero import LiberoExpert

UNSOLVED = {("libero_spatial", 4)}  # the bowl in the drawer, whose walls are in the fingers' way


def solve(env: LiberoEnv, expert: LiberoExpert, task: int, init_state: int, episode: int = 0) -> tuple[bool, bool, int]:
    """(terminated, truncated, steps)."""
    observation, _ = env.reset(options={"task": task, "init_state": init_state})
    for step in range(env.env_spec.horizon):
        seen = {"privileged": observation["privileged"][None], "episode": np.array([episode]), "step": np.array([step])}
        observation, _, terminated, truncated, info = env.step(expert.act(seen).actions[0, 0])
        assert info["success"] == terminated
        if terminated or truncated:
            return terminated, truncated, step + 1
    raise AssertionError("the env went past its budget without ending the episode")


@pytest.fixture(scope="module")
def env():
    made = LiberoEnv(cameras=(), privileged=True)
    yield made
    made.close()


@pytest.mark.parametrize("init_state", [0, 17, 49])
def test_the_expert_puts_the_bowl_on_the_plate(env, init_state):
    terminated, truncated, steps = solve(env, LiberoExpert(), 0, init_state)
    assert terminated and not truncated and 50 < steps < 120


def test_success_at_the_last_permitted_step_is_success_and_one_step_less_is_truncation(env):
    *_, needed = solve(env, LiberoExpert(), 0, 0)
    for horizon, ending in ((needed, (True, False, needed)), (needed - 1, (False, True, needed - 1))):
        short = LiberoEnv(cameras=(), privileged=True, horizon=horizon)
        assert solve(short, LiberoExpert(), 0, 0) == ending
        short.close()


@pytest.mark.slow
@pytest.mark.parametrize("task", range(10))
@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object"])
def test_the_expert_solves_most_initial_states_of_a_task(suite, task):
    made, expert = LiberoEnv(suite=suite, tasks=(task,), cameras=(), privileged=True), LiberoExpert()
    solved = sum(solve(made, expert, task, init_state, init_state)[0] for init_state in range(50))
    made.close()
    if (suite, task) in UNSOLVED:
        pytest.xfail(f"solved {solved} of 50")
    assert solved >= (48 if task == 0 else 33)
