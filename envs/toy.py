"""A counting env whose best return is known, with every kind of observation: the test bench of everything else.

Each step shows a target level in 0..choices-1; an action that names it is a match, and `goal` matches end the episode with
success. Always matching takes exactly `goal` steps and returns 1.0, the most there is. The steps run since the reset are
drawn into the picture and are `state[0]`, so a step that is lost, doubled or out of order shows. All is a pure function of
(task, init_state), or of the seed where `init_states` is None.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.spec import IMAGE_PREFIX, ActionSpec, EnvSpec

COLOURS = {
    "red": (220, 40, 40), "green": (40, 190, 60), "blue": (50, 80, 230), "yellow": (230, 210, 40),
    "purple": (150, 50, 190), "orange": (240, 140, 30), "cyan": (40, 200, 210), "pink": (240, 130, 180),
}  # fmt: skip
COUNT_BITS = 8  # the picture's count is modulo 256
PRIVILEGED = 2  # target, drift


@dataclass(frozen=True)
class Fault:
    """A planned accident, for tests of what survives it. It strikes where every condition given holds; None holds always.

    kind: "raise", "hang" (for ever) or "die" (SIGKILL to the own process). phase: "start", "reset", "step" or "close".
    episode: how many resets this instance has had before. step: steps since the reset. once: path of a file that is made
    as it strikes and keeps it from striking again, in whatever process.
    """

    kind: str
    phase: str
    task: int | None = None
    init_state: int | None = None
    seed: int | None = None
    episode: int | None = None
    step: int | None = None
    once: str | None = None

    def strike(self, phase: str, **at: int | None) -> None:
        if phase != self.phase or any(getattr(self, key) not in (None, value) for key, value in at.items()):
            return
        if self.once is not None:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        if self.kind == "raise":
            raise RuntimeError(f"planned fault in {phase}")
        if self.kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:  # through PyDLL, which keeps the interpreter's lock as a stuck graphics driver may
            ctypes.PyDLL(None).sleep(3600)


class ToyEnv(gymnasium.Env):
    """See the module. Reset options: `task` (one of `tasks`), `init_state` (below `init_states`).

    action: "discrete" (int, the level) or "continuous" (float32 [dims] in [-1, 1]: dim 0 names level i anywhere in the i-th of
    `choices` equal parts of [-1, 1], other dims are free). With a `gripper` convention the last dim must also be closed for
    odd targets and open for even ones.
    reward: "sparse" (1.0 with success) or "dense" (1/goal per match); the best return is 1.0 either way.
    drift: added to the target, modulo `choices`, with each step; a chunk is matched by following it from the target shown.
    Observation: `images/<camera>` uint8 [size, size, 3]; `state` float32 [2 + choices] = steps, matches, one-hot target;
    `instruction` str; with `privileged`, float32 [2] = target, drift.
    step_seconds: time one step takes, to stand in for a simulator. fault: fields of a Fault.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        horizon: int = 8,
        goal: int = 4,
        tasks: Sequence[int] = (0,),
        init_states: int | None = 50,
        action: str = "discrete",
        choices: int = 4,
        dims: int = 7,
        gripper: str | None = None,
        reward: str = "sparse",
        drift: int = 0,
        cameras: Sequence[str] = ("front",),
        size: int = 32,
        privileged: bool = False,
        step_seconds: float = 0.0,
        fault: Mapping[str, Any] | None = None,
    ):
        self._fault = Fault(**fault) if fault else None
        self._strike("start")
        if goal > horizon or min(goal, choices) < 1 or size < 4 * COUNT_BITS or size < choices:
            found = f"horizon={horizon}, goal={goal}, choices={choices}, size={size}"
            raise ValueError(f"found {found}; wanted 1 <= goal <= horizon, choices >= 1, size >= {4 * COUNT_BITS} and >= choices")
        if any(not isinstance(task, int) or task < 0 for task in tasks) or init_states is not None and init_states < 1:
            raise ValueError(f"found tasks={list(tasks)}, init_states={init_states}; wanted tasks of at least 0, init_states of at least 1, or null to draw them by seed")
        self._goal, self._horizon, self._choices, self._drift = goal, horizon, choices, drift
        self._dense = _one_of("reward", reward, ("sparse", "dense")) == "dense"
        self._size, self._privileged, self._step_seconds = size, privileged, step_seconds
        self._gripper = _one_of("gripper", gripper, (None, "open_-1_close_+1", "open_1_close_0"))
        self._discrete = _one_of("action", action, ("discrete", "continuous")) == "discrete"
        if self._discrete:
            actions = ActionSpec("discrete", 1, choices)
            self.action_space = spaces.Discrete(choices)
        else:
            actions = ActionSpec("continuous", dims, low=(-1.0,) * dims, high=(1.0,) * dims, gripper=gripper)
            self.action_space = spaces.Box(-1.0, 1.0, (dims,), np.float32)
        self.env_spec = EnvSpec(
            "toy", actions, {camera: (size, size) for camera in cameras}, state=2 + choices, language=True,
            privileged=PRIVILEGED * privileged, horizon=horizon, tasks=tuple(tasks), init_states=init_states,
            protocol={"goal": goal, "drift": drift, "reward": reward},
        )  # fmt: skip
        self.observation_space = self._space()
        self._resets = -1
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Raises ValueError for a task or init_state that the spec does not have."""
        super().reset(seed=seed)
        options = options or {}
        self._resets += 1
        self._task, init_state = options.get("task", self.env_spec.tasks[0]), options.get("init_state")
        if self._task not in self.env_spec.tasks:
            raise ValueError(f"found task {self._task}, wanted one of {list(self.env_spec.tasks)}")
        states = self.env_spec.init_states
        if init_state is not None and not (states is not None and 0 <= init_state < states):
            raise ValueError(f"found init_state {init_state}, wanted {'none: a seed draws it' if states is None else f'0 to {states - 1}'}")
        if init_state is None:
            init_state = int(self.np_random.integers(2**31 if states is None else states))
        self._init_state = init_state
        self._steps = self._matches = 0
        self._over = False
        self._start = int(np.random.Generator(np.random.Philox(key=[self._task, init_state])).integers(self._choices))
        self._strike("reset", task=self._task, init_state=init_state, seed=seed, episode=self._resets)
        return self._observation(), {"task": self._task, "init_state": init_state, "steps": 0}

    def step(self, action: Any) -> tuple[dict, float, bool, bool, dict]:
        """Raises RuntimeError after the end of an episode."""
        reward, terminated, truncated = self._advance(action)
        return self._observation(), reward, terminated, truncated, self._info(terminated)

    def step_chunk(self, actions: np.ndarray) -> tuple[dict, np.ndarray, bool, bool, dict]:
        """As envs.chunk.step_chunk, with the picture drawn once."""
        rewards = []
        for action in actions:
            reward, terminated, truncated = self._advance(action[0] if self._discrete else action)
            rewards.append(reward)
            if terminated or truncated:
                break
        return self._observation(), np.array(rewards, np.float32), terminated, truncated, self._info(terminated)

    def close(self) -> None:
        self._strike("close")

    @property
    def target(self) -> int:
        return (self._start + self._drift * self._steps) % self._choices

    def _advance(self, action: Any) -> tuple[float, bool, bool]:
        if self._over:
            raise RuntimeError("step in an episode that is over; reset first")
        self._strike("step", task=self._task, init_state=self._init_state, episode=self._resets, step=self._steps)
        if self._step_seconds:
            time.sleep(self._step_seconds)
        matched = self._matched(action)
        self._matches += matched
        self._steps += 1
        success = self._matches == self._goal
        truncated = not success and self._steps == self._horizon
        self._over = success or truncated
        reward = matched / self._goal if self._dense else float(success)
        return reward, success, truncated

    def _matched(self, action: Any) -> bool:
        if self._discrete:
            return int(action) == self.target
        action = np.asarray(action)
        level = min(int((float(action[0]) + 1) / 2 * self._choices), self._choices - 1)
        if self._gripper is None:
            return level == self.target
        closed = action[-1] > 0 if self._gripper == "open_-1_close_+1" else action[-1] < 0.5
        return level == self.target and bool(closed) == bool(self.target % 2)

    def _info(self, success: bool) -> dict[str, Any]:
        return {"success": success, "steps": self._steps, "matches": self._matches}

    def _strike(self, phase: str, **at: int | None) -> None:
        if self._fault is not None:
            self._fault.strike(phase, **at)

    def _space(self) -> spaces.Dict:
        letters = "abcdefghijklmnopqrstuvwxyz0123456789 ,"
        found: dict[str, gymnasium.Space] = {
            IMAGE_PREFIX + camera: spaces.Box(0, 255, (*shape, 3), np.uint8) for camera, shape in self.env_spec.images.items()
        }
        found["state"] = spaces.Box(0.0, np.inf, (self.env_spec.state,), np.float32)
        found["instruction"] = spaces.Text(64, charset=letters)
        if self._privileged:
            found["privileged"] = spaces.Box(-np.inf, np.inf, (PRIVILEGED,), np.float32)
        return spaces.Dict(found)

    def _observation(self) -> dict[str, Any]:
        name, colour = list(COLOURS.items())[self._task % len(COLOURS)]
        state = np.zeros(self.env_spec.state, np.float32)
        state[0], state[1], state[2 + self.target] = self._steps, self._matches, 1.0
        found: dict[str, Any] = {
            IMAGE_PREFIX + camera: draw(self._size, self.target, self._choices, self._steps, colour, index)
            for index, camera in enumerate(self.env_spec.images)
        }
        found |= {"state": state, "instruction": f"match the {name} bar"}
        if self._privileged:
            found["privileged"] = np.array([self.target, self._drift], np.float32)
        return found


def draw(size: int, target: int, choices: int, steps: int, colour: tuple[int, int, int], camera: int) -> np.ndarray:
    """uint8 [size, size, 3]: a coloured bar in the target's column; below it the steps in binary, white on black; a margin that tells cameras apart."""
    picture = np.full((size, size, 3), 40 + 30 * (camera % 5), np.uint8)
    edges = np.linspace(0, size, choices + 1).astype(int)
    picture[: size - size // 4, edges[target] : edges[target + 1]] = colour
    cell = size // COUNT_BITS
    bits = np.unpackbits(np.array([steps % 2**COUNT_BITS], np.uint8))
    picture[size - size // 8 :] = 0
    picture[size - size // 8 :, : cell * COUNT_BITS] = np.repeat(bits * 255, cell)[None, :, None].astype(np.uint8)
    return picture


def read_steps(picture: np.ndarray) -> int:
    """The steps that `draw` put into a picture [H, W, 3], modulo 256."""
    size = picture.shape[0]
    cell = size // COUNT_BITS
    row = picture[size - size // 16 - 1, cell // 2 : cell * COUNT_BITS : cell, 0]
    return int(np.packbits(row > 127)[0])


def _one_of(name: str, found: Any, wanted: tuple) -> Any:
    if found not in wanted:
        raise ValueError(f"found {name}={found!r}, wanted one of {', '.join(map(repr, wanted))}")
    return found
