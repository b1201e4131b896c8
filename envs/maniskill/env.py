"""A ManiSkill task as a Gymnasium env, on the CPU: one episode is (task, seed), and nothing else decides how it begins. On CUDA, it makes the one simulator
that all slots are (`vector`), and what can be promised of that is in batched.py and parallel.py.

Guarantees, on the CPU: an episode is bit for bit the same whatever ran before it (as far as the task's own reset places every body); pictures are taken once per chunk, after its last step; `truncated` is
true exactly at the budget; nothing is asked on the terminal; without cameras no Vulkan device is needed.
"""

from __future__ import annotations

import string
from dataclasses import replace
from importlib import metadata
from typing import Any, Mapping, Sequence

import gymnasium
import numpy as np

from envs.maniskill import tasks, vulkan
from envs.maniskill.episode import Episode, for_simulator, plays_on
from envs.spec import IMAGE_PREFIX, ActionSpec, EnvSpec

REWARDS = ("sparse", "normalized_dense", "dense")
STATES = ("auto", "full", "robot")
BACKENDS = {"cpu": "physx_cpu", "cuda": "physx_cuda"}
TESTED = "3.0.1"


class ManiSkillEnv(gymnasium.Env):
    """One slot of a ManiSkill task.

    id: any registered task whose assets are on this machine. control_mode: the robot's. robot: None = the Panda where the table has the task
    (with its hand camera if that is asked for), else the task's own.
    cameras: the task's ("base_camera", "hand_camera"; "agentview" and "wrist" mean these two); () renders nothing. resolution: pixels, square.
    shader: ManiSkill's shader pack. show_goal: cameras see what ManiSkill hides from them (the goal of PickCube).
    state: "full" = ManiSkill's state observation with the poses of all bodies, "robot" = what it gives a policy with pictures, "auto" = full without cameras.
    reward: "sparse" (1.0 with success, -1.0 with failure), "normalized_dense" or "dense". horizon: step budget, None = the registered one.
    fixed_horizon: every episode goes on past success, to the end of its budget; else only those do that are begun with options={"play_on": True}.
    instruction: None = the table's, else each episode's own where the task gives one; "" = none. privileged: adds poses for a scripted expert.
    arguments: more keyword arguments for the task's constructor. backend: "cpu", or "cuda": all slots are one simulator, made by `vector`.
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
        instruction: str | None = None,
        privileged: bool = False,
        arguments: Mapping[str, Any] | None = None,
        backend: str = "cpu",
    ):
        self._versions = _versions()
        _check(resolution, state, reward, horizon, backend)
        self._backend = backend
        self._id, self._control_mode, self._cameras, self._resolution, self._shader = id, control_mode, tuple(cameras), int(resolution), shader
        self._show_goal, self._reward, self._fixed, self._privileged = bool(show_goal), reward, bool(fixed_horizon), bool(privileged)
        self._sensors = {name: tasks.CAMERA_ALIASES.get(name, name) for name in self._cameras}  # our name -> ManiSkill's
        self._arguments = tuple(sorted((arguments or {}).items()))
        self._robot, self._task = _known(id, control_mode, robot, tuple(self._sensors.values()), self._arguments, BACKENDS[backend], reward)
        self._full = state == "full" or (state == "auto" and not self._cameras)
        self._instruction = tasks.instruction_of(id, self._task, instruction, bool(self._cameras))
        self._speaks = self._task.speaks and instruction is None and not self._instruction  # else every episode has the one text
        if privileged and self._task.bodies is None:
            raise ValueError(f"env.id={id}: no scripted expert knows this task with robot {self._task.robot} and control mode {control_mode}, wanted one of {', '.join(tasks.EXPERT_TASKS)} with the Panda and pd_ee_delta_pose")
        self._horizon = int(horizon) if horizon is not None else self._task.budget
        if not self._horizon:
            raise ValueError(f"env.id={id}: it is registered without a step budget, wanted one: env.horizon=100")
        if self._cameras:
            vulkan.require()
        self._simulator: Any = None
        self._episode: Episode | None = None  # none was started
        self.env_spec = self._describe()
        action = self.env_spec.action
        self.action_space = gymnasium.spaces.Box(np.array(action.low, np.float32), np.array(action.high, np.float32), dtype=np.float32)
        self.observation_space = self._spaces()

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """options: {"task": 0}, {"play_on": True}, both or nothing; the seed (below 2**32) draws the initial state, and without one the last seed's stream goes on."""
        super().reset(seed=seed)
        play_on = plays_on(self._id, options)
        if self._backend != "cpu":
            raise RuntimeError(f"found reset() with backend={self._backend}, wanted vector(slots): there all slots are one simulator; backend=cpu has one for each env")
        if self._simulator is None:
            self._simulator = self._built()
        self._simulator.reset(int(self.np_random.integers(2**31)) if seed is None else int(seed))
        self._episode = self._begun(play_on)
        return self._observe(), self._episode.info()

    def step(self, action: np.ndarray):
        """action: [A] float within the action space; with a Panda the last one is the gripper (-1 opens, +1 closes)."""
        observation, rewards, terminated, truncated, info = self.step_chunk(np.asarray(action)[None])
        return observation, float(rewards[0]), terminated, truncated, info

    def step_chunk(self, actions: np.ndarray):
        """actions: [C, A] -> (observation, rewards [n] float32, terminated, truncated, info), n <= C steps run.

        info: `success` (at any step of the episode so far), `success_at_end` (at the last step run), `fail`.
        """
        actions, episode, rewards = for_simulator(actions, self.env_spec.action), self._episode, []
        if episode is None or episode.over:
            raise RuntimeError("found a step outside an episode (it is over, or none was started), wanted reset() first")
        for action in actions[: episode.left]:
            reward, *ends = self._simulator.step(action)
            episode.count(*ends)
            rewards.append(reward)
            if episode.terminated:
                break
        return self._observe(), np.array(rewards, np.float32), episode.terminated, episode.truncated, episode.info()

    def vector(self, slots: int) -> Any:
        """So many slots as one simulator on CUDA: a `ManiSkillBatch`, with the interface of envs.vector.VectorEnv. Raises ValueError, EnvError."""
        from envs.maniskill.batched import ManiSkillBatch  # here because it imports torch

        def simulator() -> Any:
            from envs.maniskill.parallel import Parallel, Shown

            privileged = (tasks.EXPERT_TASKS.index(self._id), self._task.bodies) if self._privileged else None
            scene = replace(self._scene(), envs=slots, physics=BACKENDS[self._backend])
            return Parallel(scene, Shown(self._sensors, None if self._speaks else self._instruction, privileged))

        return ManiSkillBatch(simulator, slots, self.env_spec, self._begun)

    def render(self) -> np.ndarray:
        """[H, W, 3] uint8: the first camera's picture."""
        if not self._cameras or self._simulator is None:
            raise RuntimeError("found nothing to show, wanted an env with a camera, after reset()")
        return self._simulator.pictures()[self._sensors[self._cameras[0]]]

    def close(self) -> None:
        if self._simulator is not None:
            self._simulator.close()
        self._simulator = self._episode = None

    def _built(self) -> Any:
        # Imported here because it imports the simulator.
        from envs.maniskill.simulator import Simulator

        return Simulator(self._scene())

    def _scene(self) -> Any:
        from envs.maniskill.simulator import Scene

        sensors = tuple(self._sensors.values())
        return Scene(self._id, self._control_mode, self._robot, self._reward, sensors, self._resolution, self._shader, self._full, self._show_goal, self._arguments)

    def _begun(self, play_on: bool) -> Episode:
        return Episode(self._horizon, self._fixed or play_on)

    def _observe(self) -> dict:
        simulator = self._simulator
        pictures = simulator.pictures() if self._cameras else {}
        observation: dict[str, Any] = {IMAGE_PREFIX + name: pictures[sensor] for name, sensor in self._sensors.items()}
        observation["state"] = simulator.state()
        if self.env_spec.language:
            observation["instruction"] = simulator.instruction() if self._speaks else self._instruction
        if self._privileged:
            observation["privileged"] = simulator.privileged(tasks.EXPERT_TASKS.index(self._id), self._task.bodies)
        return observation

    def _spaces(self) -> gymnasium.spaces.Dict:
        spec = self.env_spec
        spaces: dict[str, gymnasium.Space] = {IMAGE_PREFIX + name: gymnasium.spaces.Box(0, 255, (*size, 3), np.uint8) for name, size in spec.images.items()}
        spaces["state"] = gymnasium.spaces.Box(-np.inf, np.inf, (spec.state,), np.float32)
        if spec.language:
            spaces["instruction"] = gymnasium.spaces.Text(512, charset=frozenset(string.printable if self._speaks else self._instruction))
        if spec.privileged:
            spaces["privileged"] = gymnasium.spaces.Box(-np.inf, np.inf, (spec.privileged,), np.float32)
        return gymnasium.spaces.Dict(spaces)

    def _describe(self) -> EnvSpec:
        layout, task = tasks.privileged_layout(), self._task
        low, high = task.action
        protocol = {
            "budget": self._horizon, "registered_budget": task.budget, "fixed_horizon": self._fixed, "success": "at any step (success once)",
            "robot": task.robot, "control_mode": self._control_mode, "reward": self._reward, "sim": BACKENDS[self._backend],
            "shader": self._shader if self._cameras else "none", "resolution": self._resolution if self._cameras else 0,
            "goal_shown": self._show_goal and bool(self._cameras), "state": "full" if self._full else "robot", **self._versions,
        }  # fmt: skip
        return EnvSpec(
            name=self._id,
            action=ActionSpec("continuous", len(low), low=low, high=high, gripper="open_-1_close_+1" if task.robot in tasks.PANDAS else None),
            images={name: (self._resolution, self._resolution) for name in self._cameras},
            state=task.state if self._full else task.robot_state,
            language=bool(self._instruction) or self._speaks,
            privileged=max(stop for _, stop in layout.values()) if self._privileged else 0,
            horizon=self._horizon,
            instructions=tuple(dict.fromkeys([*filter(None, [self._instruction]), *tasks.instructions()])),
            protocol=protocol,
            plays_on=True,
            batched=self._backend == "cuda",
            privileged_layout=layout,
        )


def _known(id: str, control_mode: str, robot: str | None, sensors: tuple[str, ...], arguments: tuple[tuple[str, Any], ...], physics: str, reward: str) -> tuple[str | None, tasks.Task]:
    """(robot to build, None for the task's own; what is known of the task with its action bounds). Raises ValueError for a camera or a reward that it does not have."""
    task = tasks.KNOWN.get(id)
    if task is not None and robot is None:
        robot = tasks.WRIST_ROBOTS[task.robot] if "hand_camera" in sensors else task.robot
    if task is not None and robot in tasks.PANDAS and control_mode in tasks.PANDA_CONTROL:
        task = tasks.with_panda(task, robot, control_mode)
    else:
        from envs.maniskill.simulator import check_reward, measured

        check_reward(id, reward)
        task = tasks.named(measured(id, control_mode, robot, arguments, physics), task)
    unknown = [name for name in sensors if name not in task.cameras]
    if unknown:
        raise ValueError(f"env.cameras: found {unknown[0]!r}, wanted any of {', '.join(task.cameras) or 'none'}: those of {id} with robot {task.robot}")
    return robot, task


def _versions() -> dict[str, str]:
    try:
        return {name: metadata.version(name) for name in ("mani_skill", "sapien")}
    except metadata.PackageNotFoundError as error:
        raise ImportError(f"found no {error.name}, wanted mani_skill {TESTED} for env=maniskill; pip install 'm2flow[maniskill]'") from error


def _check(resolution: int, state: str, reward: str, horizon: int | None, backend: str) -> None:
    for name, found, wanted in (("state", state, STATES), ("reward", reward, REWARDS), ("backend", backend, BACKENDS)):
        if found not in wanted:
            raise ValueError(f"found {name} {found!r}, wanted one of {', '.join(wanted)}")
    for name, value, least in (("resolution", resolution, 8), ("horizon", horizon, 1)):
        if value is not None and int(value) < least:
            raise ValueError(f"found {name} {value}, wanted at least {least}")
    if backend == "cuda":
        from envs.maniskill import cuda  # here because it imports torch

        cuda.require_device()
