"""Many copies of one ManiSkill task in one simulator, which steps them all at once: its physics and its cameras on CUDA, its tensors left there.

A copy's start is a function of its seed alone, whichever copy it is, however many there are, and whichever are reset with it. ManiSkill would seed
torch's generator once for all that are reset together and deal its draws out to them; here each copy draws by itself, from its own seed, and all else of
a reset is done once for all of them. Members of a group draw alike: a state dict to copy would not hold what some tasks keep beside it. A reset leaves the
other copies' bodies, controllers and random numbers as they are, unless the task steps its physics to begin an episode (the bridge twins).
What is not repeatable: the copies stand metres apart and the GPU knows them by float32 positions in one world, so the same start in two of them is the same
to that rounding, about a micrometre; CUDA draws other numbers for a seed than the CPU does, so a start is another than with env.backend=cpu, and its
inverse kinematics is another; PhysX on the GPU promises the same motion only for the same number of copies that have all gone through the same.
This module imports the simulator, so it is itself imported late.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import numpy as np
import torch
from mani_skill.utils import common

from envs.maniskill.simulator import Scene, dress, prepared
from envs.maniskill.tasks import Bodies
from envs.spec import IMAGE_PREFIX

BUILT_WITH = 2022  # ManiSkill's own seed for building a single env


@dataclass(frozen=True)
class Shown:
    """What an observation holds beside the state."""

    cameras: dict[str, str]  # our name -> ManiSkill's
    instruction: str | None  # "" = none, None = the task gives each episode its own
    privileged: tuple[int, Bodies] | None  # the task's number in tasks.EXPERT_TASKS, and where its bodies are


class Parallel:
    """scene: with `envs` and `physics` as wanted. Raises what `prepared` raises, and ValueError for a task that builds its scene anew at resets."""

    def __init__(self, scene: Scene, shown: Shown):
        self._shown = shown
        env = self._env = prepared(scene)
        if env.reconfiguration_freq != 0:
            env.close()
            raise ValueError(f"env.id={scene.id}: it builds its scene anew every {env.reconfiguration_freq} resets, and a batched simulator is reset slot by slot; env.backend=cpu runs it, or choose another task")
        if env.scene.actor_views or env.scene.articulation_views:
            # Bodies put together from one of each copy may differ, and a start would depend on the copy: each gets those that a single env is built with.
            env.reset(seed=[BUILT_WITH] * scene.envs, options={"reconfigure": True})
        dress(env, scene)
        env._initialize_episode = partial(_one_by_one, env, env._initialize_episode)
        self.device: torch.device = env.device
        self._info = env.get_info()

    def reset(self, seeds: dict[int, int]) -> None:
        """Begins episodes. seeds: copy -> seed, below 2**32; at least one."""
        env, copies = self._env, list(seeds)
        generators, controllers = env._batched_episode_rng, _copied(env.agent.get_controller_state())
        _, self._info = env.reset(seed=[seeds.get(copy, 0) for copy in range(env.num_envs)], options={"env_idx": torch.tensor(copies, device=env.device)})
        for copy in copies:  # ManiSkill has seeded all of them
            generators[copy] = env._batched_episode_rng[copy]
        env._batched_episode_rng = generators
        if controllers:  # those that steer after a target of their own: ManiSkill has put all of them back
            env.agent.set_controller_state(_with_rows(controllers, env.agent.get_controller_state(), copies))

    def step(self, actions: torch.Tensor) -> np.ndarray:
        """actions [N, A] float32 on `device`, in the simulator's convention -> [3, N] float32 on the host: rewards, successes, failures."""
        _, rewards, _, _, self._info = self._env.step(actions)
        return torch.stack([rewards.float(), self._said("success"), self._said("fail")]).cpu().numpy()

    def look(self) -> dict[str, Any]:
        """The observation of every copy as it is: `images/<camera>` [N, H, W, 3] uint8 and `state` [N, S] float32 on `device`, one render of each camera;
        `privileged` [N, P] float32 on the host; `instruction`, N texts."""
        env, shown, found = self._env, self._shown, {}
        if shown.cameras:
            pictures = env._get_obs_sensor_data()
            # A copy: the next render goes into the same memory.
            found = {IMAGE_PREFIX + name: pictures[sensor]["rgb"].clone(memory_format=torch.contiguous_format) for name, sensor in shown.cameras.items()}
        found["state"] = common.flatten_state_dict(env._get_obs_state_dict(self._info), use_torch=True, device=env.device).float()
        if shown.instruction != "":
            found["instruction"] = list(env.get_language_instruction()) if shown.instruction is None else [shown.instruction] * env.num_envs
        if shown.privileged is not None:
            found["privileged"] = self._privileged(*shown.privileged)
        return found

    def close(self) -> None:
        self._env.close()

    def _privileged(self, task: int, bodies: Bodies) -> np.ndarray:
        """[N, P] in the order of `tasks.PRIVILEGED`."""
        env = self._env
        column = torch.full((env.num_envs, 1), float(task), device=env.device)
        poses = [getattr(env, name).pose.raw_pose if name else column.new_zeros(env.num_envs, 7) for name in (bodies.object, bodies.second, bodies.goal)]
        opening = env.agent.robot.get_qpos()[:, -2:].sum(1, keepdim=True)  # the two fingers are the last joints
        return torch.cat([column, env.agent.tcp.pose.raw_pose, opening, *poses], dim=1).float().cpu().numpy()

    def _said(self, key: str) -> torch.Tensor:
        """[N] float32, 1 where the task says so; 0 where it never does."""
        found = self._info.get(key)
        return torch.zeros(self._env.num_envs, device=self.device) if found is None else found.reshape(self._env.num_envs, -1).any(1).float()


def _one_by_one(env: Any, begin: Callable[[torch.Tensor, dict], None], copies: torch.Tensor, options: dict) -> None:
    """In the place of a task's `_initialize_episode`, `begin`: once for each copy, alone and with its own seed."""
    mask = env.scene._reset_mask  # which copies what is set belongs to
    for copy in copies.tolist():
        env.scene._reset_mask = torch.zeros_like(mask)
        env.scene._reset_mask[copy] = True
        torch.manual_seed(int(env._episode_seed[copy]))  # within ManiSkill's own fork of the generators
        begin(torch.tensor([copy], device=copies.device), options)
    env.scene._reset_mask = mask


def _copied(state: Any) -> Any:
    return {name: _copied(part) for name, part in state.items()} if isinstance(state, dict) else state.clone()


def _with_rows(state: Any, other: Any, rows: list[int]) -> Any:
    """`state` with some rows of `other`, which has the same parts."""
    if isinstance(state, dict):
        return {name: _with_rows(part, other[name], rows) for name, part in state.items()}
    state[rows] = other[rows]
    return state
