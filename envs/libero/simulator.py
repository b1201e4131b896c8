"""One task of LIBERO built and ready: robosuite's env without its observables and renderer, under LIBERO's own goal test.

Guarantees that the simulator stands where a stock env stands after `seed(0); reset()`: the same fixtures, and the same
solver warm start to the last bit. Nothing in numpy's global random state changes for the caller.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from typing import Iterator

import mujoco
import numpy as np

from envs.libero.stock import TASK_MAPPING, MjSim, RandomizationError, bddl, robosuite
from envs.libero.suites import Task


class Simulator:
    """`env` is robosuite's, `model` and `data` MuJoCo's own. Building takes 5 to 10 seconds and about 0.4 GB."""

    def __init__(self, task: Task):
        self.task = task
        with _numpy_seed(0):
            self.env = _build(task.scene_file)
        self.model, self.data = self.env.sim.model._model, self.env.sim.data._data
        # Sites are drawn by default; a stock reset hides them, and so does nothing else.
        self.env.visualize(vis_settings={name: False for name in self.env._visualizations})
        self.env.sim.forward()
        if hasattr(self.model, "tex_colorspace"):
            # Versions from 3.3.3 on darken textures unless their colours are declared linear.
            self.model.tex_colorspace[:] = 1
        robot = self.env.robots[0]
        self.eef_site = robot.eef_site_id
        self.eef_body = self.env.sim.model.body_name2id(robot.robot_model.eef_name)
        self.finger_qpos = np.array(robot._ref_gripper_joint_pos_indexes)
        self.fingers = tuple(self.env.sim.model.body_name2id(f"gripper0_{side}finger") for side in ("left", "right"))
        self.manipulated, self.target = _of_interest(self.env)

    def success(self) -> bool:
        """LIBERO's goal predicate on the current state."""
        return bool(self.env._check_success())

    def update_visuals(self) -> None:
        """What LIBERO changes for the eye after a control step: the glow of a stove that is on."""
        self.env._post_process()


def _build(scene_file: str):
    stock = TASK_MAPPING[bddl.get_problem_info(scene_file)["problem_name"]]

    class Headless(stock):
        def _load_model(self):
            super()._load_model()
            # A stock env has loaded its model twice by the time it is reset, and draws every drawer's opening twice.
            self.object_property_initializers = self.object_property_initializers * 2

        def _initialize_sim(self, xml_string=None):
            self.sim = MjSim(_compile_apart(self.model.get_xml()))
            self.sim.forward()
            self.initialize_time(self.control_freq)

        def _reset_internal(self):
            # A stock env makes its render context here, which runs the solver once.
            self.sim.forward()
            super()._reset_internal()

    Headless.__name__ = stock.__name__  # LIBERO compares the class's name with the scene file's
    while True:
        try:
            return Headless(
                scene_file,
                robots=["Panda"],
                controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"),
                gripper_types="default",
                initialization_noise=None,
                use_camera_obs=False,
                has_renderer=False,
                has_offscreen_renderer=False,
                control_freq=20,
            )
        except RandomizationError:
            continue  # as LIBERO's own reset does: draw again


def _of_interest(env) -> tuple[tuple[str, int], tuple[str, int]]:
    """("body" | "site", id) of what the goal's first predicate moves and of where it shall be."""
    names = list(env.parsed_problem["goal_state"][0][1:])
    found = []
    for name in names[:1] + names[-1:]:
        if name not in env.obj_body_id and name in env.object_sites_dict:
            parent = env.object_sites_dict[name].parent_name if hasattr(env.object_sites_dict[name], "parent_name") else None
            found.append(("body", env.obj_body_id[parent]) if parent in env.obj_body_id else ("site", env.sim.model.site_name2id(name)))
        else:
            found.append(("body", env.obj_body_id[name]))
    return tuple(found)


def _compile_apart(xml: str) -> mujoco.MjModel:
    """Compiles a scene in a process of its own: the compiler keeps every decoded mesh and texture, some 700 MB, for next time."""
    with tempfile.TemporaryFile() as scene:  # nameless: nothing stays behind however this ends
        path, environ = f"/proc/self/fd/{scene.fileno()}", os.environ | {"MUJOCO_GL": "disable"}
        command = [sys.executable, "-c", _COMPILE, path, str(os.getpid())]
        done = subprocess.run(command, input=xml, text=True, capture_output=True, env=environ, pass_fds=[scene.fileno()])
        if done.returncode != 0:
            raise RuntimeError(f"found a LIBERO scene that MuJoCo cannot compile:\n{done.stderr.strip()}")
        return mujoco.MjModel.from_binary_path(path)


# The compiler ends with whoever wanted the scene: PR_SET_PDEATHSIG is 1, and 9 cannot be missed.
_COMPILE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[2]):
    sys.exit()
import mujoco
mujoco.mj_saveModel(mujoco.MjModel.from_xml_string(sys.stdin.read()), sys.argv[1], None)
"""


@contextlib.contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)
