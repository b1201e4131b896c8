"""ManiSkill's env of N copies as the batched simulator uses it, made of N single ones on the CPU, so that what comes of it can be compared with theirs.

What ManiSkill 3.0.1 does to all copies at a reset of some (controllers put back, random numbers seeded) is done here too.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Callable

import torch


def copies() -> Callable[[Any], Any]:
    """In the place of `envs.maniskill.simulator._built`."""
    from envs.maniskill import simulator

    own = simulator._built
    return lambda scene: Copies(scene) if scene.envs > 1 else own(replace(scene, physics="physx_cpu"))


class Copies:
    def __init__(self, scene: Any):
        from envs.maniskill.simulator import dress, prepared

        self._envs = [prepared(replace(scene, envs=1, physics="physx_cpu")) for _ in range(scene.envs)]
        first = self._envs[0]
        for copy, env in enumerate(self._envs):
            if first.scene.actor_views:  # bodies that are drawn when the scene is built: ManiSkill builds each copy with a seed of its own
                env.reset(seed=[2022 + copy], options={"reconfigure": True})
            dress(env, scene)
        self.num_envs, self.device, self.reconfiguration_freq = scene.envs, torch.device("cpu"), first.reconfiguration_freq
        self._sensors, self._hidden_objects = dict(first._sensors), []
        sub_scenes = [scene for env in self._envs for scene in env.scene.sub_scenes]
        self.scene = SimpleNamespace(actor_views=first.scene.actor_views, articulation_views=first.scene.articulation_views, sub_scenes=sub_scenes)
        self._infos = [env.get_info() for env in self._envs]
        self._seed(range(2022, 2022 + scene.envs))
        self.agent = Agents([env.agent for env in self._envs])

    def __getattr__(self, name: str) -> SimpleNamespace:
        """A body of the task."""
        return poses([getattr(env, name) for env in self._envs])

    def reset(self, seed: list[int], options: dict) -> tuple[dict, dict]:
        assert len(seed) == self.num_envs
        self._seed(seed)
        copies = options.get("env_idx", torch.arange(self.num_envs))
        self.scene._reset_mask = torch.zeros(self.num_envs, dtype=torch.bool)
        self.scene._reset_mask[copies] = True
        with torch.random.fork_rng():
            torch.manual_seed(seed[0])
            if options.get("reconfigure"):
                for env, own in zip(self._envs, seed):
                    env.reset(seed=[own], options=options)
            else:
                self._initialize_episode(copies, options)
        for env in self._envs:
            env.agent.controller.reset()
        self._infos = [env.get_info() for env in self._envs]
        return {}, joined(self._infos)

    def _initialize_episode(self, copies: torch.Tensor, options: dict) -> None:
        """One copy, from the seed of torch's generator: the rows that it would deal out to several are not a single env's."""
        (copy,) = copies.tolist()
        assert self.scene._reset_mask.nonzero().flatten().tolist() == [copy]
        self._envs[copy].reset(seed=[torch.initial_seed()])

    def step(self, actions: torch.Tensor) -> tuple:
        assert actions.shape[0] == self.num_envs and actions.dtype == torch.float32
        steps = [env.step(action[None]) for env, action in zip(self._envs, actions)]
        self._infos = [step[-1] for step in steps]
        return {}, joined([step[1].float() for step in steps]), None, None, joined(self._infos)

    def get_info(self) -> dict:
        return joined([env.get_info() for env in self._envs])

    def _get_obs_state_dict(self, info: dict) -> dict:
        return joined([env._get_obs_state_dict(own) for env, own in zip(self._envs, self._infos)])

    def _get_obs_sensor_data(self) -> dict:
        return joined([env._get_obs_sensor_data() for env in self._envs])

    def get_language_instruction(self) -> list[str]:
        return [env.get_language_instruction()[0] for env in self._envs]

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _seed(self, seeds: Any) -> None:
        from mani_skill.envs.utils.randomization.batched_rng import BatchedRNG

        self._episode_seed = list(seeds)
        self._batched_episode_rng = BatchedRNG.from_seeds(self._episode_seed)


class Agents:
    def __init__(self, agents: list):
        self._agents = agents
        self.robot = SimpleNamespace(get_qpos=lambda: joined([agent.robot.get_qpos() for agent in agents]))

    @property
    def tcp(self) -> SimpleNamespace:
        return poses([agent.tcp for agent in self._agents])

    def get_controller_state(self) -> dict:
        return joined([agent.get_controller_state() for agent in self._agents])

    def set_controller_state(self, state: dict) -> None:
        for row, agent in enumerate(self._agents):
            agent.set_controller_state(rows(state, row))


def poses(bodies: list) -> SimpleNamespace:
    return SimpleNamespace(pose=SimpleNamespace(raw_pose=joined([body.pose.raw_pose for body in bodies])))


def joined(parts: list) -> Any:
    """N nested dicts of tensors [1, ...] -> one of tensors [N, ...]."""
    if isinstance(parts[0], dict):
        return {key: joined([part[key] for part in parts]) for key in parts[0] if isinstance(parts[0][key], (dict, torch.Tensor))}
    return torch.cat(parts)


def rows(state: Any, row: int) -> Any:
    return {key: rows(part, row) for key, part in state.items()} if isinstance(state, dict) else state[row : row + 1].clone()
