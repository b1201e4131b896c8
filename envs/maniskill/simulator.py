"""One ManiSkill scene on the CPU, stepped without looking: pictures and state are made when asked for, so a chunk costs one render.

Guarantees: nothing is downloaded and nothing is read from the terminal; without cameras no Vulkan device is needed; every start is given
its seed, which alone decides it. This module imports the simulator, so it is itself imported late.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from envs.maniskill import cuda, vulkan
from envs.maniskill.tasks import FROM_THE_WHEEL, Bodies, Task

if not vulkan.found():
    vulkan.do_without()

import mani_skill.envs  # noqa: E402  (registers the tasks)
from mani_skill.agents.registration import REGISTERED_AGENTS  # noqa: E402
from mani_skill.sensors.camera import parse_camera_configs  # noqa: E402
from mani_skill.utils import assets, common, download_asset  # noqa: E402
from mani_skill.utils.registration import REGISTERED_ENVS  # noqa: E402

import envs.maniskill.put_on_plate.task  # noqa: E402, F401  (registers our own)
from envs.maniskill import renewing, shaders, stepping  # noqa: E402

logging.getLogger("mani_skill ").setLevel(logging.ERROR)  # its name ends in a space
shaders.use_lean()

_RUN = f"without any download there run {', '.join(FROM_THE_WHEEL)}"


@dataclass(frozen=True)
class Scene:
    """What has to be known to build one."""

    id: str
    control_mode: str | None  # None: the robot's own
    robot: str | None  # None: the task's own
    reward: str | None  # None: the task's first
    cameras: tuple[str, ...]  # names in ManiSkill; () builds no renderer
    resolution: int  # pixels, square
    shader: str
    full_state: bool  # True: the poses of all bodies; False: what ManiSkill gives a policy with pictures
    show_goal: bool
    arguments: tuple[tuple[str, Any], ...] = ()  # more keyword arguments for the task's constructor
    envs: int = 1  # copies that step at once; several only on CUDA
    physics: str = "physx_cpu"  # or physx_cuda

    @property
    def observes(self) -> str:
        return "+".join([*(["rgb"] if self.cameras else []), *(["state"] if self.full_state else [])]) or "none"


class Simulator:
    """Raises ValueError for a task, robot, camera, control mode or reward that is not there, RuntimeError without a Vulkan device where there are cameras."""

    def __init__(self, scene: Scene):
        self._scene = scene
        self._env = prepared(scene)

    def reset(self, seed: int) -> None:
        """seed: below 2**32."""
        env = self._env
        renewing.renew(env)
        _, self._info = env.reset(seed=[seed])
        dress(env, self._scene)
        stepping.hasten(env)

    def step(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """action [A] float32 in the simulator's convention -> (reward, success, failure)."""
        _, reward, _, _, self._info = self._env.step(action)
        return float(reward), self._said("success"), self._said("fail")

    def state(self) -> np.ndarray:
        """[S] float32."""
        return _flat(self._env._get_obs_state_dict(self._info))

    def pictures(self) -> dict[str, np.ndarray]:
        """camera -> [H, W, 3] uint8; one render of each."""
        return {name: data["rgb"][0].cpu().numpy() for name, data in self._env._get_obs_sensor_data().items()}

    def instruction(self) -> str:
        """The episode's text, of a task that gives each its own."""
        return self._env.get_language_instruction()[0]

    def privileged(self, task: int, bodies: Bodies) -> np.ndarray:
        """[P] float32 in the order of `tasks.PRIVILEGED`. task: its number there."""
        env = self._env
        poses = [_pose(getattr(env, name)) if name else np.zeros(7, np.float32) for name in (bodies.object, bodies.second, bodies.goal)]
        opening = env.agent.robot.get_qpos()[0, -2:].sum().item()  # the two fingers are the last joints
        return np.concatenate([[task], _pose(env.agent.tcp), [opening], *poses]).astype(np.float32)

    def close(self) -> None:
        self._env.close()

    def _said(self, key: str) -> bool:
        return bool(self._info[key].any()) if key in self._info else False


def prepared(scene: Scene) -> Any:
    """The task's env, which looks only when asked: it would after every step. Raises what `Simulator` raises."""
    check_installed(scene.id)
    env = _built(scene)
    if scene.cameras and shaders.has_map(env):
        env.close()
        shaders.use_whole()  # and from now on: a scene may be built anew at any reset
        env = _built(scene)
    missing = [name for name in scene.cameras if name not in env._sensors]
    if missing:
        raise ValueError(f"found camera {missing[0]!r}, wanted any of {', '.join(env._sensors)}: those of {scene.id} with robot {env.robot_uids}")
    env.get_obs = lambda info=None, unflattened=False: {}
    env._flatten_raw_obs = lambda observation: observation
    return env


def dress(env: Any, scene: Scene) -> None:
    """What the cameras see: after a reset, which may have built all of it anew."""
    if scene.cameras:
        env._sensors = {name: env._sensors[name] for name in scene.cameras}  # nobody sees the others
        env.scene.sensors = env._sensors
    if scene.show_goal and scene.cameras:
        for body in env._hidden_objects:
            body.show_visual()
        env._hidden_objects = []


def check_installed(id: str) -> None:
    """Raises ValueError, naming tasks that can be run, for one that is not registered or whose assets are not on this machine."""
    if id not in REGISTERED_ENVS:
        near = difflib.get_close_matches(id, REGISTERED_ENVS, n=1, cutoff=0.5)
        raise ValueError(f"env.id={id}: ManiSkill has no such task{f'; did you mean {near[0]}?' if near else ''}; {_RUN}")
    missing = _missing(REGISTERED_ENVS[id].asset_download_ids)
    if missing:
        raise ValueError(
            f"env.id={id}: its assets ({', '.join(missing)}) are not in {assets.DATA_SOURCES[missing[0]].output_dir}; fetch them with "
            f"python -m mani_skill.utils.download_asset {id} (MS_ASSET_DIR chooses the folder); {_RUN}"
        )


def check_reward(id: str, reward: str) -> None:
    """Raises ValueError for one that the task does not give, or a task that cannot run."""
    check_installed(id)
    there = REGISTERED_ENVS[id].cls.SUPPORTED_REWARD_MODES
    if reward not in there:
        raise ValueError(f"env.reward: found {reward!r}, wanted one of {', '.join(there)} for {id}")


@lru_cache(maxsize=64)
def measured(id: str, control_mode: str, robot: str | None, arguments: tuple[tuple[str, Any], ...] = (), physics: str = "physx_cpu") -> Task:
    """What the table would say of a task or robot that it does not have: from a scene that is built without a renderer and closed at once.

    physics: as that of the scene to come: a process that has begun with PhysX on the CPU may not have it on CUDA.
    """
    check_installed(id)
    env = _built(Scene(id, control_mode, robot, None, (), 0, "default", True, False, arguments, physics=physics))
    try:
        info = env.get_info()
        full = _flat(env._get_obs_state_dict(info))
        space = env.single_action_space
        if not hasattr(space, "low") or len(space.shape) != 1:
            raise ValueError(f"env.id={id}: its actions are {space}, wanted one list of numbers; a task with several robots is not supported")
        cameras = parse_camera_configs(env._default_sensor_configs) | parse_camera_configs(env.agent._sensor_configs)
        robot_uid = env.robot_uids if isinstance(env.robot_uids, str) else env.agent.uid
        bounds = (tuple(map(float, space.low)), tuple(map(float, space.high)))
        speaks = hasattr(env, "get_language_instruction")
    finally:
        env.close()
    env = _built(Scene(id, control_mode, robot, None, (), 0, "default", False, False, arguments, physics=physics))
    try:
        own = _flat(env._get_obs_state_dict(env.get_info()))
    finally:
        env.close()
    return Task(None, REGISTERED_ENVS[id].max_episode_steps or 0, len(full), len(own), bounds, tuple(cameras), None, robot_uid, speaks)


def _built(scene: Scene) -> Any:
    """The task's env, unwrapped: the budget is counted by whoever asks."""
    if scene.cameras:
        vulkan.require()
    if scene.physics != "physx_cpu":
        cuda.require_library()
    chosen = dict(scene.arguments) if scene.robot is None else {**dict(scene.arguments), "robot_uids": scene.robot}
    sensors = {"width": scene.resolution, "height": scene.resolution, "shader_pack": scene.shader} if scene.cameras else {}
    registered = REGISTERED_ENVS[scene.id]
    if scene.reward is not None:
        check_reward(scene.id, scene.reward)
    if scene.robot is not None and scene.robot not in REGISTERED_AGENTS:
        raise ValueError(f"env.robot: found {scene.robot!r}, wanted one of {', '.join(sorted(REGISTERED_AGENTS))}")
    try:
        return registered.make(
            num_envs=scene.envs, obs_mode=scene.observes, reward_mode=scene.reward, control_mode=scene.control_mode, sensor_configs=sensors,
            sim_backend=scene.physics, render_backend="gpu" if scene.cameras else "none", **chosen,
        )  # fmt: skip
    except (KeyError, AssertionError, AttributeError, NotImplementedError, OSError, RuntimeError, TypeError) as error:  # seen from its tasks' constructors
        if scene.control_mode is not None:  # which modes there are, only a built robot says
            env = _built(replace(scene, control_mode=None, envs=1))
            modes = env.agent.supported_control_modes
            env.close()
            if scene.control_mode not in modes:
                raise ValueError(f"env.control_mode: found {scene.control_mode!r}, wanted one of {', '.join(modes)} for {scene.id}") from error
        where = "" if scene.cameras else " without a renderer"
        raise ValueError(f"env.id={scene.id}: it cannot be built here{where}: {type(error).__name__}: {error}; {_RUN}") from error


def _missing(asset_ids: Any) -> list[str]:
    """Those of the assets and groups of assets that are not on this machine."""
    single = []
    for asset in asset_ids or ():
        single += assets.expand_data_group_into_individual_data_source_ids(asset) if asset in assets.DATA_GROUPS else [asset]
    return [asset for asset in single if not assets.is_data_source_downloaded(asset)]


def _refuse(message: str) -> bool:
    """In the place of ManiSkill's question on the terminal."""
    raise ValueError(f"{message.split('.')[0]}; nothing is downloaded on its own: python -m mani_skill.utils.download_asset ID; {_RUN}")


download_asset.prompt_yes_no = _refuse


def _pose(body: Any) -> np.ndarray:
    """[7] float32: position and quaternion (w, x, y, z) of an actor or a link."""
    return body.pose.raw_pose[0].cpu().numpy()


def _flat(parts: dict) -> np.ndarray:
    return common.flatten_state_dict(parts, use_torch=True, device=torch.device("cpu"))[0].cpu().numpy().astype(np.float32)


