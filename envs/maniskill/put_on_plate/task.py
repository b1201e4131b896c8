"""PutOnPlateStandIn-v1, a ManiSkill task for the Panda: the object that the text names goes on the plate that it names.

Guarantees: all bodies that an episode of the split may use are built once, and those that it does not use lie far away; how an episode begins,
what it says and what disturbs it is drawn from its seed alone. Imports the simulator, so it is itself imported late.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.agents.robots import Panda
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import sapien_utils
from mani_skill.utils.registration import register_env
from mani_skill.utils.scene_builder.table import TableSceneBuilder
from mani_skill.utils.structs.pose import Pose

from envs.maniskill.put_on_plate import building, pictures
from envs.maniskill.put_on_plate.assets import from_folder
from envs.maniskill.put_on_plate.catalogue import stand_ins
from envs.maniskill.put_on_plate.splits import BUDGET, MOVED_AFTER, TEXTS, Episode, drawn, split_of

BESIDE, ABOVE, TOUCHING = 0.01, 0.05, 0.03  # metres, metres, newtons: the bounds of success


@register_env("PutOnPlateStandIn-v1", max_episode_steps=BUDGET)
class PutOnPlateStandIn(BaseEnv):
    """split: a name of `splits.SPLITS`. assets: a folder as `assets` describes, None = the stand-ins.

    Success, as RL4VLA and RLinf judge it: the object's middle is at most 1 cm further from the plate's in the plane than half the plate's longest
    side, above it by at most 5 cm more than half the heights of both, and the two push each other with more than 0.03 N. A hand may still hold it.
    """

    SUPPORTED_ROBOTS = ["panda", "panda_wristcam"]
    SUPPORTED_REWARD_MODES = ("sparse", "none")
    agent: Panda

    def __init__(self, *args, robot_uids: str = "panda", split: str = "train", assets: str | None = None, **kwargs):
        self.split = split_of(split)
        self.catalogue = stand_ins() if assets is None else from_folder(assets)
        super().__init__(*args, robot_uids=robot_uids, **kwargs)

    @property
    def _default_sensor_configs(self):
        pose = sapien_utils.look_at(eye=[0.3, -0.4, 0.45], target=[-0.06, 0, 0.04])  # from aside: the hand hides nothing of the table's middle
        return [CameraConfig("base_camera", pose, 128, 128, 0.85, 0.01, 100)]

    @property
    def _default_human_render_camera_configs(self):
        pose = sapien_utils.look_at([0.6, 0.7, 0.6], [0.0, 0.0, 0.35])
        return CameraConfig("render_camera", pose, 512, 512, 1, 0.01, 100)

    def _load_agent(self, options: dict):
        super()._load_agent(options, sapien.Pose(p=[-0.615, 0, 0]))

    def _load_scene(self, options: dict):
        self.table_scene = TableSceneBuilder(self, robot_init_qpos_noise=0.0)
        self.table_scene.build()
        needs, catalogue = self.split.needs, self.catalogue
        self._objects = {number: self._built("object", number, catalogue.objects[number]) for number in needs["object"]}
        self._plates = {number: self._built("plate", number, catalogue.plates[number]) for number in needs["plate"]}
        coloured = {number: catalogue.tables[number] for number in needs["table"] if catalogue.tables[number].colour is not None}
        self._tops = {number: building.table_top(self.scene, table, f"table-{number}") for number, table in coloured.items()}
        self._episodes: list[Episode] = [drawn(self.split, 0)] * self.num_envs
        self._pictures: dict[tuple, torch.Tensor] = {}

    def _built(self, kind: str, number: int, thing: Any) -> Any:
        return building.body(self.scene, thing, f"{kind}-{number}", building.parked(kind, number, thing.rest))

    def _things(self, kind: str) -> dict[int, tuple[Any, Any, sapien.Pose]]:
        """number -> (actor, thing, where it lies unused)."""
        actors, things = {"object": (self._objects, self.catalogue.objects), "plate": (self._plates, self.catalogue.plates)}[kind]
        return {number: (actor, things[number], building.parked(kind, number, things[number].rest)) for number, actor in actors.items()}

    def _after_reconfigure(self, options: dict):
        bodies = [*self.agent.robot.get_links(), *self._objects.values(), *self._plates.values()]
        self._kept_ids = torch.unique(torch.cat([body.per_scene_id for body in bodies]))  # what no picture of a table hides

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict):
        with torch.device(self.device):
            self.table_scene.initialize(env_idx)
            episodes = [drawn(self.split, int(self._episode_seed[row])) for row in env_idx.tolist()]
            for row, episode in zip(env_idx.tolist(), episodes):
                self._episodes[row] = episode
            if self.split.strange_pose:
                added = torch.tensor([[*episode.joints, 0.0, 0.0] for episode in episodes])
                self.agent.reset(self.agent.robot.get_qpos()[env_idx] + added)
            second = self.split.second
            for number, (actor, thing, parked) in self._things("object").items():
                places = [(e.object_at, e.yaw) if e.object == number else (e.third_at, e.yaw) if second == "object" and e.second == number else None for e in episodes]
                _put(actor, places, thing.rest, parked)
            for number, (actor, thing, parked) in self._things("plate").items():
                places = [(e.plate_at, 0.0) if e.plate == number else (e.third_at, 0.0) if second == "plate" and e.second == number else None for e in episodes]
                _put(actor, places, thing.rest, parked)
            for number, actor in self._tops.items():
                _put(actor, [(building.TOP_AT, 0.0) if e.table == number else None for e in episodes], 0.0, building.hidden())

    # What an expert and an observation look at: one pose per env.

    @property
    def chosen_object(self) -> Any:
        return SimpleNamespace(pose=building.gathered(self._objects, [episode.object for episode in self._episodes]))

    @property
    def chosen_plate(self) -> Any:
        return SimpleNamespace(pose=building.gathered(self._plates, [episode.plate for episode in self._episodes]))

    @property
    def resting_place(self) -> Any:
        """Where the object's origin comes to rest on the plate."""
        raw = self.chosen_plate.pose.raw_pose.clone()
        heights = [self.catalogue.plates[episode.plate].floor + self.catalogue.objects[episode.object].rest for episode in self._episodes]
        raw[:, 2] += torch.tensor(heights, device=self.device)
        return SimpleNamespace(pose=Pose.create(raw))

    def evaluate(self) -> dict:
        offset = self.chosen_object.pose.p - self.chosen_plate.pose.p
        thing, plate = self._halves()
        beside = torch.linalg.norm(offset[:, :2], dim=1) <= plate.max(dim=1).values + BESIDE
        above = (offset[:, 2] > 0) & (offset[:, 2] - plate[:, 2] - thing[:, 2] <= ABOVE)
        success = beside & above
        for pair in {(e.object, e.plate) for e, near in zip(self._episodes, success.tolist()) if near}:
            rows = [row for row, episode in enumerate(self._episodes) if (episode.object, episode.plate) == pair]
            force = self.scene.get_pairwise_contact_forces(self._objects[pair[0]], self._plates[pair[1]])
            success[rows] &= torch.linalg.norm(force[rows], dim=1) > TOUCHING
        return {"success": success}

    def _get_obs_extra(self, info: dict) -> dict:
        seen = {"tcp_pose": self.agent.tcp.pose.raw_pose}
        if "state" in self.obs_mode:
            thing, plate = self._halves()
            seen |= {"object_pose": self.chosen_object.pose.raw_pose, "object_half": thing, "plate_pose": self.chosen_plate.pose.raw_pose, "plate_half": plate}
        return seen

    def _halves(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, 3] metres each, of the object and of the plate."""
        things = [self.catalogue.objects[episode.object].half for episode in self._episodes]
        plates = [self.catalogue.plates[episode.plate].half for episode in self._episodes]
        return torch.tensor(things, device=self.device), torch.tensor(plates, device=self.device)

    def get_language_instruction(self) -> list[str]:
        """One text per env."""
        return [TEXTS[e.text].format(object=self.catalogue.objects[e.object].name, plate=self.catalogue.plates[e.plate].name) for e in self._episodes]

    def _after_control_step(self):
        if not self.split.moved:
            return
        due = (self._elapsed_steps == MOVED_AFTER - 1).tolist()  # this step is counted after it
        if any(due) and self.gpu_sim_enabled:
            self.scene._gpu_fetch_all()  # so that the other envs' bodies stay where this step has brought them
        for number in {episode.object for episode, now in zip(self._episodes, due) if now}:
            raw = self._objects[number].pose.raw_pose.clone()
            for row, episode in enumerate(self._episodes):
                if due[row] and episode.object == number:
                    raw[row] = torch.tensor(_raw(episode.third_at, episode.yaw, self.catalogue.objects[number].rest))
            self._objects[number].set_pose(Pose.create(raw))
        if any(due) and self.gpu_sim_enabled:
            self.scene._gpu_apply_all()

    def _get_obs_sensor_data(self, apply_texture_transforms: bool = True) -> dict:
        found = super()._get_obs_sensor_data(apply_texture_transforms)
        tables = [self.catalogue.tables[episode.table] for episode in self._episodes]
        if self.split.texture or any(table.picture for table in tables):
            for name, data in found.items():
                seen = self._sensors[name].get_obs(rgb=False, depth=False, position=False, segmentation=True)["segmentation"][..., 0]
                things = torch.isin(seen, self._kept_ids.to(seen.device))
                data["rgb"] = torch.stack([self._shown(row, data["rgb"][row], things[row]) for row in range(self.num_envs)])
        return found

    def _shown(self, row: int, seen: torch.Tensor, things: torch.Tensor) -> torch.Tensor:
        """seen [H, W, 3] uint8, things [H, W] bool -> [H, W, 3] uint8."""
        episode, (height, width) = self._episodes[row], things.shape
        table = self.catalogue.tables[episode.table]
        if table.picture is not None:
            behind = self._picture(("picture", episode.table), height, width, seen.device)
            seen = pictures.over(seen, things, behind)
        if episode.texture is not None:
            texture = self._picture(("texture", episode.texture), 2 * height, 2 * width, seen.device)
            seen = pictures.textured(seen, things, texture, self.split.texture * self.catalogue.tables[episode.texture].mix, self.split.whole)
        return seen

    def _picture(self, which: tuple[str, int], height: int, width: int, device: torch.device) -> torch.Tensor:
        key = (*which, height, width)
        if key not in self._pictures:
            kind, number = which
            path = getattr(self.catalogue.tables[number], kind)
            found = pictures.pattern(number, max(height, width))[:height, :width] if path is None else pictures.picture(path, height, width)
            self._pictures[key] = torch.from_numpy(np.ascontiguousarray(found)).to(device)
        return self._pictures[key]


def _put(actor: Any, places: list, rest: float, away: sapien.Pose) -> None:
    """places: per env that begins, ((x, y), yaw) or None where the actor is not used."""
    rows = [[*away.p, *away.q] if place is None else _raw(*place, rest) for place in places]
    actor.set_pose(Pose.create(torch.tensor(np.array(rows, np.float32))))


def _raw(place: tuple[float, float], yaw: float, rest: float) -> list[float]:
    """Position and quaternion (w, x, y, z) of a thing that lies on the table."""
    return [*place, rest, float(np.cos(yaw / 2)), 0.0, 0.0, float(np.sin(yaw / 2))]
