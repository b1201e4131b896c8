"""The scripted expert on every split of put-on-plate: what a split changes leaves its episodes solvable within the budget."""

import importlib.util

import numpy as np
import pytest

from envs.maniskill import PutOnPlateEnv
from envs.maniskill.put_on_plate.splits import SPLITS
from policies.experts.maniskill import ManiSkillExpert

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mani_skill") is None, reason="no mani_skill here: pip install 'm2flow[maniskill]'")


def solved(split: str, seeds: range) -> int:
    env, expert, found = PutOnPlateEnv(split=split, cameras=(), privileged=True), ManiSkillExpert(), 0
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            seen = {"privileged": observation["privileged"][None], "episode": np.array([seed])}
            observation, _, terminated, truncated, info = env.step(expert.act(seen).actions[0, 0])
        found += info["success"]
    env.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_solves_19_of_20_starts_of_every_split(split):
    assert solved(split, range(100, 120)) >= 19
