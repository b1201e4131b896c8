"""Any env that `gymnasium.make` can build, with its observation flattened to `{"state": float32 [S]}`.

A user's own env needs no edit here: `id="my_package:MyEnv-v0"` imports the package, which registers it.
"""

from __future__ import annotations

import difflib
from typing import Any, Mapping

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.chunk import SUCCESS_KEYS, success_of
from envs.spec import EnvSpec, from_spaces

LEDGER_OPTIONS = ("task", "init_state")  # ours; an env with one task and seeded starts has no use for them


class GymEnv(gymnasium.Env):
    """`gymnasium.make(id, **kwargs)`; spaces that are not a Box (Discrete, Dict...) are flattened as Gymnasium does.

    horizon: step budget; None keeps the one the env is registered with.
    `info["success"]`: the env's own `success` or `is_success` where it gives one; else whether the return so far has reached
    `success_return` (None: the registered reward threshold) at the episode's end; without either always False.
    `info["return"]`: sum of the rewards so far.
    Raises ValueError for an unknown id, with the nearest ones, and TypeError for an action space that is neither Discrete nor a Box [A].
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        id: str,
        kwargs: Mapping[str, Any] | None = None,
        horizon: int | None = None,
        success_return: float | None = None,
    ):
        self._env = _make(id, dict(kwargs or {}), horizon)
        registered = self._env.spec
        inner = self._env.observation_space
        self.observation_space = spaces.Dict({"state": _float_box(inner)})
        action = self._env.action_space
        self._first = int(action.start) if isinstance(action, spaces.Discrete) else None
        self.action_space = spaces.Discrete(int(action.n)) if self._first is not None else action
        self.env_spec: EnvSpec = from_spaces(registered.id, self.observation_space["state"], self.action_space, registered.max_episode_steps)
        self._success_return = registered.reward_threshold if success_return is None else success_return
        self._return = 0.0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        rest = {key: value for key, value in (options or {}).items() if key not in LEDGER_OPTIONS}
        observation, info = self._env.reset(seed=seed, options=rest or None)
        self._return = 0.0
        return self._observation(observation), info

    def step(self, action: Any) -> tuple[dict, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = self._env.step(action if self._first is None else int(action) + self._first)
        self._return += float(reward)
        if any(key in info for key in SUCCESS_KEYS):
            success = success_of(info)
        else:
            reached = self._success_return is not None and self._return >= self._success_return
            success = reached and bool(terminated or truncated)
        info = {**info, "success": success, "return": self._return}
        return self._observation(observation), float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        self._env.close()

    def _observation(self, observation: Any) -> dict[str, np.ndarray]:
        return {"state": np.asarray(spaces.flatten(self._env.observation_space, observation), np.float32)}


def _make(id: str, kwargs: dict, horizon: int | None) -> gymnasium.Env:
    try:
        return gymnasium.make(id, max_episode_steps=horizon, disable_env_checker=True, **kwargs)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        near = difflib.get_close_matches(id, gymnasium.registry, n=3, cutoff=0.3)
        hint = "an env of your own package is named 'package:Id-v0'"
        raise ValueError(f"found env id {id!r}, wanted one that Gymnasium knows, such as {', '.join(near) or 'CartPole-v1'}; {hint}") from error
    except ModuleNotFoundError as error:
        if ":" not in id:
            raise
        package = id.split(":")[0]
        raise ValueError(f"found env id {id!r}, but {error}; install {package!r} or put its folder on PYTHONPATH") from error


def _float_box(inner: gymnasium.Space) -> spaces.Box:
    flat = spaces.flatten_space(inner)
    if not isinstance(flat, spaces.Box):
        raise TypeError(f"found observation space {inner}, whose size is not fixed; wrap the env so that it gives a Box")
    return spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
