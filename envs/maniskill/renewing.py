"""Physics that remember nothing: `renew` moves what is in a scene on the CPU, as it stands, into a scene of the same parts whose physics were never stepped.

PhysX keeps contacts, and the order in which it solves them, over a reset; they show in the last bits of the next episode and grow at every grasp.
Bodies that are taken out of a scene and put back find some of it again. In a new `PhysxCpuSystem` there is nothing to find, and nothing is loaded anew.
"""

from __future__ import annotations

from typing import Any

import sapien
from mani_skill.render import set_shader_pack


def renew(env: Any) -> None:
    """Bodies keep their poses, order and numbers in the scene; the renderer stays. Before a reset, which places the bodies."""
    old, physics = env.scene.sub_scenes[0], env.scene.px
    entities = old.entities
    env._set_scene_config()  # what a physics system is made with is kept in globals
    fresh = sapien.physx.PhysxCpuSystem()
    fresh.timestep = physics.timestep
    systems: list[Any] = [fresh]
    if env.scene.can_render():
        systems.append(old.render_system)
        for sensor in env._sensors.values():  # a camera that enters a scene takes the shaders that are set then
            set_shader_pack(sensor.config.shader_config)
    scene = sapien.Scene(systems)
    for entity in entities:
        old.remove_entity(entity)
    for entity in entities:
        scene.add_entity(entity)
    env.scene.px, env.scene.sub_scenes = fresh, [scene]
