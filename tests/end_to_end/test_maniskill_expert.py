"""The scripted expert on real ManiSkill: what it solves, within the budget each task is registered with."""

import importlib.util

import numpy as np
import pytest

from envs.maniskill import ManiSkillEnv, tasks
from policies.experts.maniskill import ManiSkillExpert

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mani_skill") is None, reason="no mani_skill here: pip install 'm2flow[maniskill]'")


def solved(id: str, seeds: range, play_on: bool = False) -> list[bool]:
    """Whether the last step of each episode was a success."""
    env, expert, found = ManiSkillEnv(id, cameras=(), privileged=True), ManiSkillExpert(), []
    for seed in seeds:
        observation, _ = env.reset(seed=seed, options={"play_on": play_on})
        terminated = truncated = False
        while not (terminated or truncated):
            seen = {"privileged": observation["privileged"][None], "episode": np.array([seed])}
            observation, _, terminated, truncated, info = env.step(expert.act(seen).actions[0, 0])
        found.append(info["success_at_end"])
    env.close()
    return found


@pytest.mark.parametrize("id", tasks.EXPERT_TASKS)
def test_the_expert_solves_two_starts_of_every_task_it_knows(id):
    assert solved(id, range(2)) == [True, True]


def test_a_stacked_cube_stays_stacked_to_the_end_of_the_budget():
    assert solved("StackCube-v1", range(1), play_on=True) == [True]


@pytest.mark.slow
@pytest.mark.parametrize("id", tasks.EXPERT_TASKS)
def test_the_expert_solves_95_of_100_starts(id):
    assert sum(solved(id, range(100))) >= 95
