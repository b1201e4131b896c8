"""One control step: 25 physics substeps of 2 ms under operational-space control, and nothing else.

`exact` repeats robosuite's order of operations, solver passes included, and is bit-identical to a stock env.
`fast` leaves out the two redundant dynamics passes of every substep and computes the same control law in one compiled
function; it differs from `exact` by rounding, which contacts then amplify.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from envs.libero import kernel
from envs.libero.simulator import Simulator
from envs.libero.stock import nullspace_torques, opspace_matrices, orientation_error, set_goal_orientation

SUBSTEPS = 25
# robosuite samples every observable once per control step. After a reset and one `set_init_state`, that is after the
# 24th substep, with the poses computed at its beginning.
SAMPLED = 23
GRIPPER_SPEED = 0.01


@dataclass(frozen=True)
class Snapshot:
    """All that the future depends on, between two control steps."""

    state: np.ndarray  # MuJoCo's integration state, warm start and controls included
    goal_pos: np.ndarray
    goal_ori: np.ndarray
    gripper: np.ndarray
    seen_qpos: np.ndarray
    seen_fingers: np.ndarray
    fresh: bool  # True before the first control step after `start`


class Arm:
    """The Panda's controller and the control step. After each step, `seen_qpos` is the pose to observe."""

    def __init__(self, simulator: Simulator):
        self.model, self.data = simulator.model, simulator.data
        robot = simulator.env.robots[0]
        stock = robot.controller
        self._site = simulator.eef_site
        self._joints, self._dofs = np.array(stock.qpos_index, np.int64), np.array(stock.qvel_index, np.int64)
        self._motors = list(robot._ref_joint_actuator_indexes)
        self._gripper_motors = list(robot._ref_joint_gripper_actuator_indexes)
        self._finger_qpos = simulator.finger_qpos
        limits = self.model.actuator_ctrlrange
        self._low, self._high = limits[self._motors, 0].copy(), limits[self._motors, 1].copy()
        bounds = limits[self._gripper_motors]
        self._gripper_bias, self._gripper_weight = 0.5 * (bounds[:, 1] + bounds[:, 0]), 0.5 * (bounds[:, 1] - bounds[:, 0])
        self._scale_action, self._kp, self._kd = stock.scale_action, stock.kp, stock.kd
        self._rest = np.array(stock.initial_joint)
        self._jacp, self._jacr = np.zeros((3, self.model.nv)), np.zeros((3, self.model.nv))
        self._mass = np.zeros((self.model.nv, self.model.nv))
        # Views of MuJoCo's own memory, valid as long as `data` lives.
        self._site_pos, self._site_mat = self.data.site_xpos[self._site], self.data.site_xmat[self._site]
        self._all_qpos, self._all_qvel, self._bias = self.data.qpos, self.data.qvel, self.data.qfrc_bias
        # What the stock controller last read before `set_init_state`; its first substep still acts on it.
        self._stale = {name: np.array(getattr(stock, name)) for name in _READ}
        self._pristine = self._state()
        self.seen_qpos = self.data.qpos.copy()
        self.seen_fingers = self.data.qpos[self._finger_qpos].copy()

    def start(self, init_state: np.ndarray) -> None:
        """As a stock env after `seed(0); reset(); set_init_state(init_state)`. init_state: [1 + nq + nv] float64."""
        nq = self.model.nq
        mujoco.mj_setState(self.model, self.data, self._pristine, mujoco.mjtState.mjSTATE_INTEGRATION)
        self.data.time = init_state[0]
        self.data.qpos[:] = init_state[1 : 1 + nq]
        self.data.qvel[:] = init_state[1 + nq :]
        mujoco.mj_forward(self.model, self.data)
        self._recall_stale()
        self.goal_pos, self.goal_ori = np.array(self.ee_pos), np.array(self.ee_ori_mat)
        self._gripper = np.zeros(1)
        self._fresh = True
        self.seen_qpos, self.seen_fingers = self.data.qpos.copy(), self.data.qpos[self._finger_qpos].copy()

    def snapshot(self) -> Snapshot:
        seen = self.seen_qpos, self.seen_fingers
        return Snapshot(self._state(), self.goal_pos, self.goal_ori, self._gripper, *seen, self._fresh)

    def restore(self, snapshot: Snapshot) -> None:
        mujoco.mj_setState(self.model, self.data, snapshot.state, mujoco.mjtState.mjSTATE_INTEGRATION)
        self.goal_pos, self.goal_ori, self._gripper = snapshot.goal_pos, snapshot.goal_ori, snapshot.gripper
        self.seen_qpos, self.seen_fingers = snapshot.seen_qpos, snapshot.seen_fingers
        self._fresh = snapshot.fresh
        if self._fresh:
            self._recall_stale()

    def _recall_stale(self) -> None:
        for name, value in self._stale.items():
            setattr(self, name, value)

    def step(self, action: np.ndarray, exact: bool) -> None:
        """action: [7] float64, -1 to 1; the last is the gripper, -1 opens."""
        delta = self._scale_action(action[:6])
        towards = np.array([-1.0, 1.0]) * GRIPPER_SPEED * np.sign(action[6:])
        substep = self._exact_substep if exact else self._fast_substep
        data = self.data
        for index in range(SUBSTEPS):
            torques = substep(delta if index == 0 else None)
            data.ctrl[self._motors] = np.minimum(np.maximum(torques, self._low), self._high)
            self._gripper = np.minimum(np.maximum(self._gripper + towards, -1.0), 1.0)
            data.ctrl[self._gripper_motors] = self._gripper_bias + self._gripper_weight * self._gripper
            if index == SAMPLED:
                self.seen_qpos = data.qpos.copy()
            mujoco.mj_step2(self.model, data)
            if index == SAMPLED:
                self.seen_fingers = data.qpos[self._finger_qpos].copy()

    def _exact_substep(self, delta: np.ndarray | None) -> np.ndarray:
        """[7] torques. delta: [6] where a control step begins, else None."""
        mujoco.mj_step1(self.model, self.data)
        self._solve()
        if not self._fresh:
            self._solve()
            self._read()
        if delta is not None:
            self._set_goal(delta)
        self._fresh = False
        return self._torques()

    def _fast_substep(self, delta: np.ndarray | None) -> np.ndarray:
        model, data = self.model, self.data
        mujoco.mj_step1(model, data)
        mujoco.mj_jacSite(model, data, self._jacp, self._jacr, self._site)
        _full_mass(model, data, self._mass)
        if delta is not None:
            self._fresh = False
            self.ee_pos, self.ee_ori_mat = self._site_pos.copy(), self._site_mat.reshape(3, 3).copy()
            self._set_goal(delta)
        return kernel.torques(
            self._site_pos, self._site_mat, self._jacp, self._jacr, self._all_qpos, self._all_qvel, self._bias, self._mass,
            self._dofs, self._joints, self.goal_pos, self.goal_ori, self._rest, self._kp, self._kd,
        )  # fmt: skip

    def _solve(self) -> None:
        # What is left of mj_forward when the position and velocity stages are already done: it moves the warm start.
        mujoco.mj_fwdActuation(self.model, self.data)
        mujoco.mj_fwdAcceleration(self.model, self.data)
        mujoco.mj_fwdConstraint(self.model, self.data)

    def _state(self) -> np.ndarray:
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(self.model, kind))
        mujoco.mj_getState(self.model, self.data, state, kind)
        return state

    def _read(self) -> None:
        self.ee_pos, self.ee_ori_mat = self._site_pos.copy(), self._site_mat.reshape(3, 3).copy()
        mujoco.mj_jacSite(self.model, self.data, self._jacp, self._jacr, self._site)
        self.ee_pos_vel = np.dot(self._jacp, self._all_qvel)
        self.ee_ori_vel = np.dot(self._jacr, self._all_qvel)
        self.joint_pos, self.joint_vel = self._all_qpos[self._joints], self._all_qvel[self._dofs]
        # The memory order of these arrays decides the last bit of the products below.
        self.J_pos, self.J_ori = self._jacp[:, self._dofs], self._jacr[:, self._dofs]
        self.J_full = np.vstack([self.J_pos, self.J_ori])
        _full_mass(self.model, self.data, self._mass)
        self.mass_matrix = self._mass[self._dofs, :][:, self._dofs]

    def _set_goal(self, delta: np.ndarray) -> None:
        # The orientation goal is kept, not renewed, while an action asks for no rotation at all.
        if any(abs(value) > 0.0 for value in delta[3:]):
            self.goal_ori = set_goal_orientation(delta[3:], self.ee_ori_mat)
        self.goal_pos = self.ee_pos + delta[:3]

    def _torques(self) -> np.ndarray:
        """[7] float64 newton-metres, robosuite's law in robosuite's order of operations."""
        kp, kd = self._kp, self._kd
        force = (self.goal_pos - self.ee_pos) * kp[:3] + -self.ee_pos_vel * kd[:3]
        torque = orientation_error(self.goal_ori, self.ee_ori_mat) * kp[3:] + -self.ee_ori_vel * kd[3:]
        _, lambda_pos, lambda_ori, nullspace = opspace_matrices(self.mass_matrix, self.J_full, self.J_pos, self.J_ori)
        wrench = np.concatenate([np.dot(lambda_pos, force), np.dot(lambda_ori, torque)])
        torques = np.dot(self.J_full.T, wrench) + self._bias[self._dofs]
        torques += nullspace_torques(self.mass_matrix, nullspace, self._rest, self.joint_pos, self.joint_vel)
        return torques


_READ = ("ee_pos", "ee_ori_mat", "ee_pos_vel", "ee_ori_vel", "joint_pos", "joint_vel", "J_pos", "J_ori", "J_full", "mass_matrix")
_OLD_MASS_CALL = tuple(map(int, mujoco.__version__.split(".")[:2])) < (3, 4)


def _full_mass(model, data, out: np.ndarray) -> None:
    if _OLD_MASS_CALL:
        mujoco.mj_fullM(model, out, data.qM)
    else:
        mujoco.mj_fullM(model, data, out)
