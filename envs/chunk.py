"""Gives every env `step_chunk`: at most C primitive steps, none after the end of the episode, one observation after the last.

An env's own `step_chunk` (which may render once per chunk) is used where it has one; both ways return the same numbers.
"""

from __future__ import annotations

from typing import Any, Mapping

import gymnasium
import numpy as np

SUCCESS_KEYS = ("success", "is_success")  # what Gymnasium envs call it


def success_of(info: Mapping[str, Any]) -> bool:
    """True where the env says so under one of the usual names; an env that says nothing has not succeeded."""
    return any(bool(np.any(info[key])) for key in SUCCESS_KEYS if key in info)


def step_chunk(env: gymnasium.Env, actions: np.ndarray) -> tuple[Any, np.ndarray, bool, bool, dict]:
    """Runs `actions` [C, A] (float32, int64 [C, 1] for a discrete env, texts [C, 1] for a text env) until they are used up or the episode ends.

    Returns (observation, rewards float32 [n], terminated, truncated, info) with 1 <= n <= C; actions after the end are dropped.
    `info` is that of the last step run; its `success` is True when any step run reported success, `success_at_end` when the last one did.
    Raises ValueError for an empty or misshapen chunk.
    """
    actions = np.asarray(actions)
    if actions.ndim != 2 or len(actions) == 0:
        raise ValueError(f"found a chunk of shape {list(actions.shape)}, wanted [C, A] with C >= 1; a discrete env takes int64 [C, 1], a text env texts [C, 1]")
    own = getattr(env, "step_chunk", None)
    if own is not None:
        observation, rewards, terminated, truncated, info = own(actions)
        success = success_of(info)
        return observation, np.asarray(rewards, np.float32), bool(terminated), bool(truncated), {"success_at_end": success, **info, "success": success}
    discrete, text = isinstance(env.action_space, gymnasium.spaces.Discrete), isinstance(env.action_space, gymnasium.spaces.Text)
    rewards, success = [], False
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(int(action[0]) if discrete else action[0] if text else action)
        rewards.append(float(reward))
        success = success or success_of(info)
        if terminated or truncated:
            break
    return observation, np.array(rewards, np.float32), bool(terminated), bool(truncated), {**info, "success": success, "success_at_end": success_of(info)}
