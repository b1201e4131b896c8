"""What an observation shows of a simulator: poses as a stock env would report them after the same control step.

A stock env's observation is not the final state of a control step but the poses at the beginning of its 24th substep.
They are recomputed here from the joint positions noted then, in a second MjData, so that physics never sees it.
"""

from __future__ import annotations

import mujoco
import numpy as np

from envs.libero.observation import axis_angle
from envs.libero.simulator import Simulator

class View:
    def __init__(self, simulator: Simulator):
        self._simulator, self._model = simulator, simulator.model
        self.data = mujoco.MjData(simulator.model)

    def look(self, qpos: np.ndarray) -> None:
        """Computes the poses that belong to these joint positions."""
        self.data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self.data)
        mujoco.mj_comPos(self._model, self.data)
        mujoco.mj_camlight(self._model, self.data)

    def state(self, fingers: np.ndarray) -> np.ndarray:
        """[8] float32: position of the grip site, axis-angle of the hand, the two finger joints."""
        quat = self.data.xquat[self._simulator.eef_body][[1, 2, 3, 0]]
        position = self.data.site_xpos[self._simulator.eef_site]
        return np.concatenate([position, axis_angle(quat), fingers]).astype(np.float32)

    def privileged(self, suite: int, fingers: np.ndarray) -> np.ndarray:
        """[P] float32 in the order of `observation.privileged_layout`."""
        simulator = self._simulator
        left, right = (self.data.xpos[body] for body in simulator.fingers)
        moved, moved_quat = self._pose(simulator.manipulated)
        target, target_quat = self._pose(simulator.target)
        apart = left - right
        parts = (
            [suite],
            [simulator.task.index],
            self.data.site_xpos[simulator.eef_site],
            apart / np.linalg.norm(apart),
            [fingers[0] - fingers[1]],
            moved,
            moved_quat,
            target,
            target_quat,
        )
        return np.concatenate(parts).astype(np.float32)

    def _pose(self, what: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
        kind, index = what
        if kind == "body":
            return self.data.xpos[index], self.data.xquat[index]
        quat = np.empty(4)
        mujoco.mju_mat2Quat(quat, self.data.site_xmat[index])
        return self.data.site_xpos[index], quat
