"""A ManiSkill episode full of contacts is the same to the bit whatever ran before it, also after an episode that ends in the middle of a grasp."""

import importlib.util

import numpy as np
import pytest

from envs.maniskill import ManiSkillEnv, tasks
from policies.experts.maniskill import action_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mani_skill") is None, reason="no mani_skill here: pip install 'm2flow[maniskill]'")
FAST = ("PickCube-v1", "PullCube-v1")  # a flag of the last grasp; a cube that is pushed along the ground
OTHERS = [id for id in tasks.KNOWN if id not in FAST]


def episode(env: ManiSkillEnv, seed: int, steps: int) -> list[bytes]:
    """The states of an episode: of the expert where one knows the task, else of a hand that is driven down and about."""
    observation, _ = env.reset(seed=seed, options={"play_on": True})
    rng, seen = np.random.default_rng(seed), [observation["state"].tobytes()]
    for _ in range(steps):
        action = action_of(observation["privileged"]) if "privileged" in observation else rng.uniform([-1, -1, -1, -1, -1, -1, -1], [1, 1, 0, 1, 1, 1, 1])
        observation, *_ = env.step(action.astype(np.float32))
        seen.append(observation["state"].tobytes())
    return seen


@pytest.mark.parametrize("id", [*FAST, *(pytest.param(id, marks=pytest.mark.slow) for id in OTHERS)])
def test_an_episode_of_contacts_is_the_same_in_a_used_env_as_in_a_new_one(id):
    def made() -> ManiSkillEnv:
        return ManiSkillEnv(id, cameras=(), privileged=tasks.KNOWN[id].bodies is not None)

    used, new = made(), made()
    episode(used, 2, 40)
    episode(used, 7, 18)  # cut while the fingers close
    assert episode(used, 1, 40) == episode(new, 1, 40)
    used.close()
    new.close()
