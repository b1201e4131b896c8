"""ManiSkill's controllers for one env on the CPU without its batches of tensors of one row: `hasten`.

Guarantees: to the bit the joint targets that the simulator's own controllers set (mani_skill 3.0.1, and tests/contract/test_maniskill_stepping.py
compares whole episodes). The arithmetic is theirs, operation by operation, in float32 scalars; square roots, sines, cosines and matrix products stay
torch's, whose last bits differ from numpy's. A controller that is not one of those below, or is set up in another way, is left as it is.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import numpy as np
import sapien
import torch
from mani_skill.agents.base_agent import BaseAgent
from mani_skill.agents.controllers.base_controller import BaseController, CombinedController
from mani_skill.agents.controllers.pd_ee_pose import PDEEPosController, PDEEPoseController
from mani_skill.agents.controllers.pd_joint_pos import PDJointPosController, PDJointPosMimicController
from mani_skill.agents.robots import Panda
from mani_skill.utils.structs import Pose

Quaternion = tuple[np.float32, np.float32, np.float32, np.float32]  # w, x, y, z
Position = tuple[np.float32, np.float32, np.float32]  # metres
MOVING, ROTATING = "root_translation", "root_translation:root_aligned_body_rotation"  # the frames whose arithmetic is here
ONE, ZERO, LEAST = np.float32(1), np.float32(0), np.float32(0.1)


def hasten(env: Any) -> None:
    """Has the env's robot take its actions [A] float32 by the functions below where they know all its controllers. After each reset: it may build them anew."""
    agent, kind = env.agent, type(env.agent)
    if not issubclass(kind, BaseAgent):
        return
    if kind.is_grasping is Panda.is_grasping:
        agent.is_grasping = partial(is_grasping, agent, partial(Panda.is_grasping, agent))
    own = (BaseAgent.set_action, BaseAgent.before_simulation_step)
    controller = agent.controller
    if (kind.set_action, kind.before_simulation_step) != own or type(controller) is not CombinedController:
        return
    movers = [(slice(*controller.action_mapping[name]), mover_of(part)) for name, part in controller.controllers.items()]
    if any(mover is None for _, mover in movers):
        return

    def set_action(action: torch.Tensor) -> None:
        row = action.numpy()[0]
        for part, move in movers:
            move(row[part])

    agent.set_action = set_action
    agent.before_simulation_step = _nothing  # only interpolating controllers have something to do there


def mover_of(controller: BaseController) -> Callable[[np.ndarray], None] | None:
    """What takes this controller's actions [a] float32, None where it is not known how to."""
    config = controller.config
    if getattr(config, "use_target", True) or getattr(config, "interpolate", True):
        return None
    if type(controller) is PDJointPosController:
        return Joints(controller)
    if type(controller) is PDJointPosMimicController and not config.use_delta:
        return Fingers(controller) if Fingers.knows(controller) else None
    if type(controller) is PDEEPoseController and config.use_delta and config.frame == ROTATING and controller._normalize_action and isinstance(config.rot_lower, float):
        return Hand(controller)
    if type(controller) is PDEEPosController and config.use_delta and config.frame == MOVING:
        return Hand(controller)
    return None


class Joints:
    """Joint positions, or changes of them: a number per joint, in [-1, 1] where the controller normalises."""

    def __init__(self, controller: PDJointPosController):
        self._robot = controller.articulation._objs[0]
        self._joints = [joint._objs[0] for joint in controller.joints]
        self._indices = controller.active_joint_indices.numpy()
        self._delta = controller.config.use_delta
        self._scaled = scaled(controller)

    def __call__(self, action: np.ndarray) -> None:
        action = self._scaled(action)
        self._aim(self._robot.qpos[self._indices] + action if self._delta else np.broadcast_to(action, self._indices.shape))

    def _aim(self, targets: np.ndarray) -> None:
        for index, joint in enumerate(self._joints):
            joint.drive_target = targets[index : index + 1]


class Fingers(Joints):
    """Joint positions where some joints repeat others: a number per joint that leads."""

    def __init__(self, controller: PDJointPosMimicController):
        super().__init__(controller)
        self._leaders = controller.control_joint_indices.numpy()
        self._followers, self._followed = controller.mimic_joint_indices.numpy(), controller.mimic_control_joint_indices.numpy()
        self._factors, self._offsets = controller._multiplier.numpy(), controller._offset.numpy()

    @staticmethod
    def knows(controller: PDJointPosMimicController) -> bool:
        """Whether each joint leads or follows, so that no target outlives its step."""
        moved = {*controller.control_joint_indices.tolist(), *controller.mimic_joint_indices.tolist()}
        return moved == set(range(len(controller.joints)))

    def __call__(self, action: np.ndarray) -> None:
        targets = np.empty(len(self._joints), np.float32)
        targets[self._leaders] = self._scaled(action)
        targets[self._followers] = targets[self._followed] * self._factors + self._offsets
        self._aim(targets)


class Hand(Joints):
    """Changes of the hand's pose in the frame of the robot's base, by inverse kinematics: metres, then (for poses) Euler angles X, Y, Z in radians."""

    def __init__(self, controller: PDEEPosController):
        super().__init__(controller)
        self._turns = isinstance(controller, PDEEPoseController)
        self._hand, self._base = controller.ee_link._objs[0], controller.root_link._objs[0]
        solver = controller.kinematics
        known, self._solved = solver.pmodel_active_joint_indices.numpy(), solver.pmodel_controlled_joint_indices.numpy()
        self._known = slice(None) if np.array_equal(known, np.arange(len(self._robot.qpos))) else known
        self._solve = partial(solver.pmodel.compute_inverse_kinematics, solver.end_link_idx, active_qmask=solver.qmask.numpy(), max_iterations=100)
        self._scale = controller.config.rot_lower if self._turns else None  # float
        self._rotations = torch.zeros(3, 1, 3, 3)  # about X, Y and Z; each a batch of one, as the controller multiplies them
        self._rotations[[0, 1, 2], 0, [0, 1, 2], [0, 1, 2]] = 1.0

    def __call__(self, action: np.ndarray) -> None:
        moved = tuple(self._scaled(action[:3]))
        position, quaternion = self._pose()
        if self._turns:
            turned = standard(product(self._turned(action[3:]), quaternion))
            placed = tuple(now + change for now, change in zip(position, moved))
        else:  # a change of pose that turns by nothing, times the pose
            still = (ONE, ZERO, ZERO, ZERO)
            turned = standard(product(still, quaternion))
            placed = tuple(change + now for change, now in zip(moved, rotated(still, position)))
        joints = self._robot.qpos
        found, success, _ = self._solve(sapien.Pose(placed, turned), initial_qpos=joints[self._known])
        self._aim(found[self._solved].astype(np.float32) if success else joints[self._indices])

    def _pose(self) -> tuple[Position, Quaternion]:
        """Of the hand, in the frame of the base."""
        base, hand = self._base.entity_pose, self._hand.entity_pose
        w, x, y, z = base.q
        away = (w, -x, -y, -z)
        origin = rotated(away, tuple(-base.p))
        turned = standard(product(away, tuple(hand.q)))
        return tuple(start + step for start, step in zip(origin, rotated(away, tuple(hand.p)))), turned

    def _turned(self, angles: np.ndarray) -> Quaternion:
        """The quaternion of an action's rotation, which is shortened to a length of 1 before it is scaled."""
        row = torch.from_numpy(angles[None])
        length = torch.linalg.norm(row, axis=1)
        if length > 1:
            row = torch.mul(row, 1 / length[:, None])
        row = row * self._scale
        cosines, sines, turns = torch.cos(row).numpy()[0], torch.sin(row).numpy()[0], self._rotations.numpy()
        for axis in range(3):
            one, other = (axis + 1) % 3, (axis + 2) % 3
            turns[axis, 0, one, one] = turns[axis, 0, other, other] = cosines[axis]
            turns[axis, 0, other, one], turns[axis, 0, one, other] = sines[axis], -sines[axis]
        about_x, about_y, about_z = self._rotations
        return quaternion_of(torch.matmul(torch.matmul(about_x, about_y), about_z).numpy()[0])


def scaled(controller: BaseController) -> Callable[[np.ndarray], np.ndarray]:
    """What takes actions in [-1, 1] to the units of the controller; as they are where it does not normalise."""
    if not controller._normalize_action:
        return np.copy
    low, high = controller.action_space_low.numpy(), controller.action_space_high.numpy()
    if isinstance(controller, PDEEPoseController):
        low, high = low[:3], high[:3]  # rotations are scaled by their length
    centre, half = np.float32(0.5) * (high + low), np.float32(0.5) * (high - low)
    return lambda action: centre + half * np.clip(action, -1, 1)


def product(a: Quaternion, b: Quaternion) -> Quaternion:
    (aw, ax, ay, az), (bw, bx, by, bz) = a, b
    return (
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    )


def standard(quaternion: Quaternion) -> Quaternion:
    """The same rotation with w >= 0."""
    return tuple(-part for part in quaternion) if quaternion[0] < 0 else quaternion


def rotated(quaternion: Quaternion, position: Position) -> Position:
    w, x, y, z = quaternion
    return product(product(quaternion, (ZERO, *position)), (w, -x, -y, -z))[1:]


def quaternion_of(matrix: np.ndarray) -> Quaternion:
    """matrix: [3, 3] float32, a rotation."""
    (m00, m01, m02), (m10, m11, m12), (m20, m21, m22) = matrix
    sizes = np.array([ONE + m00 + m11 + m22, ONE + m00 - m11 - m22, ONE - m00 + m11 - m22, ONE - m00 - m11 + m22])
    sizes = torch.sqrt(torch.from_numpy(sizes).clamp(min=0)).numpy()
    best = int(sizes.argmax())
    row = [
        (sizes[0] * sizes[0], m21 - m12, m02 - m20, m10 - m01),
        (m21 - m12, sizes[1] * sizes[1], m10 + m01, m02 + m20),
        (m02 - m20, m10 + m01, sizes[2] * sizes[2], m12 + m21),
        (m10 - m01, m20 + m02, m21 + m12, sizes[3] * sizes[3]),
    ][best]
    divisor = np.float32(2) * max(sizes[best], LEAST)
    return standard(tuple(part / divisor for part in row))


def pose_of(cls: type, pose: Any, device: Any = None) -> Pose:
    """`Pose.create`, at once for what the simulator asks of each body in turn: a list of one SAPIEN pose, on the CPU."""
    if type(pose) is list and len(pose) == 1 and type(pose[0]) is sapien.Pose and (device is None or device.type == "cpu"):
        return cls(raw_pose=torch.from_numpy(np.concatenate([pose[0].p, pose[0].q])[None]))
    return _pose_of(pose, device)


_pose_of = Pose.create
Pose.create = classmethod(pose_of)


def is_grasping(agent: Panda, own: Callable, object: Any, min_force: float = 0.5, max_angle: float = 85) -> torch.Tensor:
    """[1] bool, as `own` says: which is false, without looking at directions, where a finger hardly touches the object."""
    for finger in (agent.finger1_link, agent.finger2_link):
        if torch.linalg.norm(agent.scene.get_pairwise_contact_forces(finger, object), axis=1) < min_force:
            return torch.zeros(1, dtype=torch.bool)
    return own(object, min_force, max_angle)


def _nothing() -> None:
    """In the place of the walk through controllers before each step of physics."""
