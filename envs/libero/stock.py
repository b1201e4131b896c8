"""Imports LIBERO's own simulator quietly: no log file, no advice on the console, and no say in which OpenGL is used.

Everything of robosuite that this package needs is imported through here, so that it is prepared before its first import.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path

from envs.libero.gl import choose_backend, without


def _prepare() -> None:
    if "robosuite" in sys.modules:
        return
    folder = importlib.util.find_spec("robosuite").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("robosuite.macros", Path(folder) / "macros.py")
    macros = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    # Its log file lies in a shared place under a fixed name, which a second user of the machine may not open.
    macros.MUJOCO_GPU_RENDERING, macros.FILE_LOGGING_LEVEL = False, None
    sys.modules["robosuite.macros"] = macros


# Without a word about OpenGL robosuite would want a window system.
os.environ.setdefault("MUJOCO_GL", choose_backend() or "disable")
_prepare()
_disabled = logging.root.manager.disable
logging.disable(logging.WARNING)
# robosuite takes EGL's device number for CUDA's, and refuses the pair when they differ.
with without("MUJOCO_EGL_DEVICE_ID"):
    import libero.libero.envs.bddl_utils as bddl
    import robosuite
    import robosuite.macros
    from libero.libero.envs import TASK_MAPPING
    from robosuite.utils.binding_utils import MjSim
    from robosuite.utils.control_utils import nullspace_torques, opspace_matrices, orientation_error, set_goal_orientation
    from robosuite.utils.errors import RandomizationError
logging.disable(_disabled)

robosuite.macros = sys.modules["robosuite.macros"]

__all__ = [
    "TASK_MAPPING",
    "MjSim",
    "RandomizationError",
    "bddl",
    "nullspace_torques",
    "opspace_matrices",
    "orientation_error",
    "robosuite",
    "set_goal_orientation",
]
