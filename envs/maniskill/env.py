"""A ManiSkill task on the CPU as a Gymnasium env: one episode is (task, seed), and nothing else decides how it begins.

Guarantees: an episode is bit for bit the same whatever ran before it; pictures are taken once per chunk, after its last step; `truncated` is
true exactly at the budget; nothing is asked on the terminal; without cameras no Vulkan device is needed.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any, Sequence

import gymnasium
import numpy as np

from envs.maniskill import tasks, vulkan
from envs.spec import IMAGE_PREFIX, ActionSpec, EnvSpec

REWARDS = ("sparse", "normalized_dense", "dense")
STATES = ("auto", "full", "robot")
SCORES = ("once", "end")
TESTED = "3.0.1"


class ManiSkillEnv(gymnasium.Env):
    """One slot of a ManiSkill task.

    id: any registered task whose assets are on this machine. control_mode: the robot's. robot: None = the Panda where the table has the task
    (with its hand camera if that is asked for), else the task's own.
    cameras: the task's ("base_camera", "hand_camera"; "agentview" and "wrist" mean these two); () renders nothing. resolution: pixels, square.
    shader: ManiSkill's shader pack. show_goal: cameras see what ManiSkill hides from them (the goal of PickCube).
    state: "full" = ManiSkill's state observation with the poses of all bodies, "robot" = what it gives a policy with pictures, "auto" = full without cameras.
    reward: "sparse" (1.0 with success, -1.0 with failure), "normalized_dense" or "dense". horizon: step budget, None = the registered one.
    fixed_horizon: every episode lasts its whole budget. score: whether `success` means success at any step ("once") or at the last one ("end").
    instruction: None = the table's, "" = none. privileged: adds poses for a scripted expert.
    Raises ValueError naming the choices for what is not there, ImportError without mani_skill, RuntimeError where cameras find no Vulkan device.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    render_mode = "rgb_array"

    def __init__(
        self,
        id: str = "PickCube-v1",
        control_mode: str = "pd_ee_delta_pose",
        robot: str | None = None,
        cameras: Sequence[str] = (),
        resolution: int = 128,
        shader: str = "default",
        show_goal: bool = True,
        state: str = "auto",
        reward: str = "sparse",
        horizon: int | None = None,
        fixed_horizon: bool = False,
        score: str = "once",
        instruction: str | None = None,
        privileged: bool = False,
    ):
        self._versions = _versions()
        _check(resolution, state, reward, horizon, score)
        self._id, self._control_mode, self._cameras, self._resolution, self._shader = id, control_mode, tuple(cameras), int(resolution), shader
        self._show_goal, self._reward, self._fixed, self._score, self._privileged = bool(show_goal), reward, bool(fixed_horizon), score, bool(privileged)
        self._sensors = {name: tasks.CAMERA_ALIASES.get(name, name) for name in self._cameras}  # our name -> ManiSkill's
        self._robot, self._task = _known(id, control_mode, robot, tuple(self._sensors.values()))
        self._full = state == "full" or (state == "auto" and not self._cameras)
        self._instruction = tasks.instruction_of(id, self._task, instruction, bool(self._cameras))
        if privileged and self._task.bodies is None:
            raise ValueError(f"env.id={id}: no scripted expert knows this task with robot {self._task.robot}, wanted one of {', '.join(tasks.EXPERT_TASKS)}")
        self._horizon = int(horizon) if horizon is not None else self._task.budget
        if not self._horizon:
            raise ValueError(f"env.id={id}: it is registered without a step budget, wanted one: env.horizon=100")
        if self._cameras:
            vulkan.require()
        self._simulator: Any = None
        self._steps, self._once, self._at_end, self._over = 0, False, False, True
        self.env_spec = self._describe()
        action = self.env_spec.action
        self.action_space = gymnasium.spaces.Box(np.array(action.low, np.float32), np.array(action.high, np.float32), dtype=np.float32)
        self.observation_space = self._spaces()

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """options: {"task": 0} or nothing; the seed (below 2**32) draws the initial state, and without one the last seed's stream goes on."""
        super().reset(seed=seed)
        options = dict(options or {})
        task, init_state = options.pop("task", 0), options.pop("init_state", None)
        if task != 0 or init_state is not None or options:
            found = f"task {task}, init_state {init_state}" + (f" and {sorted(options)}" if options else "")
            raise ValueError(f"found {found}, wanted task 0 and no init_state: this env has one task ({self._id}), and the seed draws how it begins")
        if self._simulator is None:
            self._simulator = self._built()
        self._simulator.reset(int(self.np_random.integers(2**31)) if seed is None else int(seed))
        self._steps, self._once, self._at_end, self._over = 0, False, False, False
        return self._observe(), self._info()

    def step(self, action: np.ndarray):
        """action: [A] float within the action space; with a Panda the last one is the gripper (-1 opens, +1 closes)."""
        observation, rewards, terminated, truncated, info = self.step_chunk(np.asarray(action)[None])
        return observation, float(rewards[0]), terminated, truncated, info

    def step_chunk(self, actions: np.ndarray):
        """actions: [C, A] -> (observation, rewards [n] float32, terminated, truncated, info), n <= C steps run.

        info: `success` as `score` says, `success_once` and `success_at_end` (of the last step run), `fail`.
        """
        actions = np.array(actions, dtype=np.float32)
        dims = self.env_spec.action.dims
        if actions.ndim != 2 or actions.shape[1] != dims or not len(actions):
            raise ValueError(f"found actions of shape {actions.shape}, wanted [C, {dims}] with C of at least 1")
        if not np.isfinite(actions).all():
            raise ValueError("found an action that is not finite, wanted numbers within the action space")
        if self._over:
            raise RuntimeError("found a step outside an episode (it is over, or none was started), wanted reset() first")
        if self.env_spec.action.gripper is not None:
            actions[:, -1] *= -1.0  # ManiSkill opens with +1
        rewards, failed, terminated = [], False, False
        for action in actions[: self._horizon - self._steps]:
            reward, self._at_end, failed = self._simulator.step(action)
            self._steps += 1
            self._once = self._once or self._at_end
            rewards.append(reward)
            terminated = (self._at_end or failed) and not self._fixed
            if terminated:
                break
        truncated = not terminated and self._steps >= self._horizon
        self._over = terminated or truncated
        return self._observe(), np.array(rewards, np.float32), terminated, truncated, self._info(failed)

    def render(self) -> np.ndarray:
        """[H, W, 3] uint8: the first camera's picture."""
        if not self._cameras or self._simulator is None:
            raise RuntimeError("found nothing to show, wanted an env with a camera, after reset()")
        return self._simulator.pictures()[self._sensors[self._cameras[0]]]

    def close(self) -> None:
        if self._simulator is not None:
            self._simulator.close()
        self._simulator, self._over = None, True

    def _built(self) -> Any:
        # Imported here because it imports the simulator.
        from envs.maniskill.simulator import Scene, Simulator

        sensors = tuple(self._sensors.values())
        return Simulator(Scene(self._id, self._control_mode, self._robot, self._reward, sensors, self._resolution, self._shader, self._full, self._show_goal))

    def _info(self, failed: bool = False) -> dict[str, bool]:
        success = self._once if self._score == "once" else self._over and self._at_end
        return {"success": success, "success_once": self._once, "success_at_end": self._at_end, "fail": failed}

    def _observe(self) -> dict:
        simulator = self._simulator
        pictures = simulator.pictures() if self._cameras else {}
        observation: dict[str, Any] = {IMAGE_PREFIX + name: pictures[sensor] for name, sensor in self._sensors.items()}
        observation["state"] = simulator.state()
        if self._instruction:
            observation["instruction"] = self._instruction
        if self._privileged:
            observation["privileged"] = simulator.privileged(tasks.EXPERT_TASKS.index(self._id), self._task.bodies)
        return observation

    def _spaces(self) -> gymnasium.spaces.Dict:
        spec = self.env_spec
        spaces: dict[str, gymnasium.Space] = {IMAGE_PREFIX + name: gymnasium.spaces.Box(0, 255, (*size, 3), np.uint8) for name, size in spec.images.items()}
        spaces["state"] = gymnasium.spaces.Box(-np.inf, np.inf, (spec.state,), np.float32)
        if spec.language:
            spaces["instruction"] = gymnasium.spaces.Text(512, charset=frozenset(self._instruction))
        if spec.privileged:
            spaces["privileged"] = gymnasium.spaces.Box(-np.inf, np.inf, (spec.privileged,), np.float32)
        return gymnasium.spaces.Dict(spaces)

    def _describe(self) -> EnvSpec:
        layout, task = tasks.privileged_layout(), self._task
        low, high = task.action
        protocol = {
            "budget": self._horizon, "registered_budget": task.budget, "fixed_horizon": self._fixed,
            "success": "at any step (success once)" if self._score == "once" else "at the last step (success at end)",
            "robot": task.robot, "control_mode": self._control_mode, "reward": self._reward, "sim": "physx_cpu",
            "shader": self._shader if self._cameras else "none", "resolution": self._resolution if self._cameras else 0,
            "goal_shown": self._show_goal and bool(self._cameras), "state": "full" if self._full else "robot", **self._versions,
        }  # fmt: skip
        return EnvSpec(
            name=self._id,
            action=ActionSpec("continuous", len(low), low=low, high=high, gripper="open_-1_close_+1" if task.robot in tasks.PANDAS else None),
            images={name: (self._resolution, self._resolution) for name in self._cameras},
            state=task.state if self._full else task.robot_state,
            language=bool(self._instruction),
            privileged=max(stop for _, stop in layout.values()) if self._privileged else 0,
            horizon=self._horizon,
            instructions=tuple(dict.fromkeys([*filter(None, [self._instruction]), *tasks.instructions()])),
            protocol=protocol,
            privileged_layout=layout,
        )


def _known(id: str, control_mode: str, robot: str | None, sensors: tuple[str, ...]) -> tuple[str | None, tasks.Task]:
    """(robot to build, None for the task's own; what is known of the task with its action bounds). Raises ValueError for a camera it does not have."""
    task = tasks.TASKS.get(id)
    if task is not None and robot is None:
        robot = tasks.WRIST_ROBOTS[task.robot] if "hand_camera" in sensors else task.robot
    if task is not None and robot in tasks.PANDAS and control_mode in tasks.PANDA_CONTROL:
        task = tasks.with_panda(task, robot, control_mode)
    else:
        from envs.maniskill.simulator import measured

        task = tasks.named(measured(id, control_mode, robot), task)
    unknown = [name for name in sensors if name not in task.cameras]
    if unknown:
        raise ValueError(f"env.cameras: found {unknown[0]!r}, wanted any of {', '.join(task.cameras) or 'none'}: those of {id} with robot {task.robot}")
    return robot, task


def _versions() -> dict[str, str]:
    try:
        return {name: metadata.version(name) for name in ("mani_skill", "sapien")}
    except metadata.PackageNotFoundError as error:
        raise ImportError(f"found no {error.name}, wanted mani_skill {TESTED} for env=maniskill; pip install 'm2flow[maniskill]'") from error


def _check(resolution: int, state: str, reward: str, horizon: int | None, score: str) -> None:
    for name, found, wanted in (("state", state, STATES), ("reward", reward, REWARDS), ("score", score, SCORES)):
        if found not in wanted:
            raise ValueError(f"found {name} {found!r}, wanted one of {', '.join(wanted)}")
    for name, value, least in (("resolution", resolution, 8), ("horizon", horizon, 1)):
        if value is not None and int(value) < least:
            raise ValueError(f"found {name} {value}, wanted at least {least}")
