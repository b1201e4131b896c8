"""Bodies of a catalogue's things and tables in a ManiSkill scene. Imports the simulator, so it is itself imported late."""

from __future__ import annotations

from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.utils.structs.pose import Pose
from sapien.physx import PhysxMaterial

from envs.maniskill.put_on_plate.catalogue import BASE, RIM, Table, Thing

UPRIGHT = [np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0]  # SAPIEN's cylinders lie along x
ROUND = 16  # sides of a round rim
TOP_AT, TOP_HALF = (-0.135, 0.0), [0.6, 1.2, 0.0005]  # metres: of the top of ManiSkill's table
FLOOR = -0.9196429  # metres: where the table stands
ROLLING = 5.0  # per second: how a ball's turning fades, which it does not on an even ground


def body(scene: Any, thing: Thing, name: str, place: sapien.Pose) -> Any:
    """A dynamic actor. place: where it is at first."""
    builder = scene.create_actor_builder()
    builder.initial_pose = place
    if thing.mesh is not None:
        mesh, material = thing.mesh, PhysxMaterial(static_friction=1.0, dynamic_friction=1.0, restitution=0.0)
        builder.add_multiple_convex_collisions_from_file(filename=str(mesh.collision), scale=[mesh.scale] * 3, material=material, density=mesh.density)
        builder.add_visual_from_file(filename=str(mesh.visual), scale=[mesh.scale] * 3)
        return builder.build(name=name)
    look = sapien.render.RenderMaterial(base_color=[*thing.colour, 1.0])
    _shapes(builder, thing, look)
    actor = builder.build(name=name)
    if thing.shape == "ball":
        actor.set_angular_damping(ROLLING)
    return actor


def table_top(scene: Any, table: Table, name: str) -> Any:
    """A kinematic actor that nothing collides with, far below at first."""
    builder = scene.create_actor_builder()
    builder.initial_pose = hidden()
    builder.add_box_visual(half_size=TOP_HALF, material=sapien.render.RenderMaterial(base_color=[*table.colour, 1.0]))
    return builder.build_kinematic(name=name)


def hidden() -> sapien.Pose:
    return sapien.Pose([0.0, 0.0, -50.0])


def parked(kind: str, number: int, rest: float) -> sapien.Pose:
    """On the floor far behind the cameras, where the things that an episode does not use lie."""
    return sapien.Pose([{"object": 6.0, "plate": 8.0}[kind], 0.3 * number, FLOOR + rest])


def gathered(actors: dict[int, Any], chosen: list[int]) -> Pose:
    """The pose of one actor in each env: that whose number is chosen there."""
    raw = {number: actors[number].pose.raw_pose for number in set(chosen)}
    return Pose.create(torch.stack([raw[number][row] for row, number in enumerate(chosen)]))


def _shapes(builder: Any, thing: Thing, look: Any) -> None:
    x, y, z = thing.half
    if thing.shape == "ball":
        builder.add_sphere_collision(radius=z)
        builder.add_sphere_visual(radius=z, material=look)
    elif thing.shape == "box":
        _box(builder, [0.0, 0.0, 0.0], [x, y, thing.floor], 0.0, look)
    elif thing.shape == "tray":
        _box(builder, [0.0, 0.0, 0.0], [x, y, BASE], 0.0, look)
        for turn in range(4):
            _rim(builder, x - RIM, x, turn * np.pi / 2, look)
    else:
        _cylinder(builder, x, thing.floor, look)
        for turn in range(ROUND if thing.shape == "dish" else 0):
            _rim(builder, x - RIM, x * np.tan(np.pi / ROUND), turn * 2 * np.pi / ROUND, look)


def _cylinder(builder: Any, radius: float, half_length: float, look: Any) -> None:
    pose = sapien.Pose(q=UPRIGHT)
    builder.add_cylinder_collision(pose=pose, radius=radius, half_length=half_length)
    builder.add_cylinder_visual(pose=pose, radius=radius, half_length=half_length, material=look)


def _rim(builder: Any, away: float, half_length: float, angle: float, look: Any) -> None:
    """One straight piece of a rim, its middle `away` metres from the plate's."""
    _box(builder, [away * np.cos(angle), away * np.sin(angle), BASE + RIM], [RIM, half_length, RIM], angle, look)


def _box(builder: Any, middle: list[float], half: list[float], yaw: float, look: Any) -> None:
    pose = sapien.Pose(middle, [np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])
    builder.add_box_collision(pose=pose, half_size=half)
    builder.add_box_visual(pose=pose, half_size=half, material=look)
