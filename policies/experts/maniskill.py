"""A scripted expert for ManiSkill's table-top tasks: proportional control of the Panda's hand in pd_ee_delta_pose, from the poses in `privileged`.

It remembers nothing: an action is a function of the poses before it alone, so it goes on from wherever a disturbance or another
policy has brought the scene. Each task is one function below, in the order in which the env numbers them.
"""

from __future__ import annotations

from typing import Callable, Mapping

import numpy as np

from policies.base import ActionChunk
from policies.experts.hand import HandExpert, answer

# The env's privileged vector, by name: (start, stop).
LAYOUT = {
    "task": (0, 1), "tcp": (1, 4), "tcp_quat": (4, 8), "opening": (8, 9), "object": (9, 12), "object_quat": (12, 16),
    "second": (16, 19), "second_quat": (19, 23), "goal": (23, 26), "goal_quat": (26, 30),
}  # fmt: skip
GAIN = 12.0  # action units per metre of distance; an action of 1 asks for 0.1 m
TURN = -10.0  # action units per radian of yaw; ManiSkill turns against the sign of the action
OPEN, CLOSED = -1.0, 1.0
HALF = 0.02  # metres: half the side of every cube, radius of the ball
WIDEST = 0.05  # metres: of what is put on a plate
ASKEW = 0.25  # radians from the sides of a body at which the fingers do not go down on it yet
HOVER = 0.07  # metres above a body from which to descend on it
Scene = Mapping[str, np.ndarray]


class ManiSkillExpert(HandExpert):
    """A disturbance is drawn anew at every step."""

    def act(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None = None) -> ActionChunk:
        """observation: `privileged` [b, P], `episode` int64 [b]; noise: [b, 7] in (0, 1), None = no disturbance."""
        seen = np.asarray(observation["privileged"], dtype=np.float64)
        clean = np.stack([action_of(row) for row in seen]).astype(np.float32)[:, None]
        executed = clean.copy()
        chosen = [row for row in range(len(seen)) if self._is_pushed(observation["episode"][row], noise)]
        if chosen:
            executed[chosen, 0, :3] = np.clip(clean[chosen, 0, :3] + self._normal(noise[chosen, :3]), -1.0, 1.0)
        return answer(clean, executed)


def action_of(privileged: np.ndarray) -> np.ndarray:
    """[P] -> action [7] float64. Raises ValueError for a task that the expert does not know."""
    scene = {name: privileged[start:stop] for name, (start, stop) in LAYOUT.items()}
    number = int(scene["task"][0])
    if not 0 <= number < len(SOLVERS):
        raise ValueError(f"found task number {number}, wanted 0 to {len(SOLVERS) - 1}: the scripted expert knows no other")
    target, gripper, yaw = SOLVERS[number](scene)
    action = np.zeros(7)
    action[:3] = np.clip((target - scene["tcp"]) * GAIN, -1.0, 1.0)
    action[5] = np.clip(yaw * TURN, -1.0, 1.0)
    action[6] = gripper
    return action


Move = tuple[np.ndarray, float, float]  # where the hand shall be [3], gripper, radians of yaw still to turn


def pick_cube(scene: Scene) -> Move:
    if not _held(scene, scene["object"], 2 * HALF):
        return _grasp(scene, scene["object"])
    return scene["tcp"] + scene["goal"] - scene["object"], CLOSED, 0.0


def push_cube(scene: Scene) -> Move:
    return _shove(scene, 1.0)


def stack_cube(scene: Scene) -> Move:
    return _put(scene, scene["goal"] + [0.0, 0.0, 2 * HALF])


def pull_cube(scene: Scene) -> Move:
    return _shove(scene, -1.0)


def place_sphere(scene: Scene) -> Move:
    return _put(scene, scene["goal"] + [0.0, 0.0, HALF + 0.0025], drop=0.006)  # a ball that is let go on the ground spins on


def poke_cube(scene: Scene) -> Move:
    """Takes the peg behind its middle, brings it into line with the cube, and pushes along its length, slowly: a cube that is hit slides on."""
    behind = scene["object"] + [-0.05, 0.0, 0.0]
    if not _held(scene, behind, 0.05):
        return _grasp(scene, behind, square=False)
    reach = 0.12 + HALF  # from the peg's middle to that of a cube at its head
    lag = scene["second"] - scene["object"]
    if abs(lag[1]) > 0.008 and lag[0] > reach:
        ahead = min(0.0, lag[0] - reach - 0.03)
    else:
        ahead = min(scene["goal"][0] - 0.01 - reach - scene["object"][0], 0.03)
    return scene["tcp"] + [ahead, lag[1], 0.027 - scene["object"][2]], CLOSED, 0.0


def put_on_plate_stand_in(scene: Scene) -> Move:
    """The goal is where the object's middle comes to rest."""
    return _put(scene, scene["goal"], drop=0.006, width=WIDEST)


SOLVERS: tuple[Callable[[Scene], Move], ...] = (pick_cube, push_cube, stack_cube, pull_cube, place_sphere, poke_cube, put_on_plate_stand_in)


def _held(scene: Scene, grip: np.ndarray, width: float) -> bool:
    """Whether the fingers have closed on a body of this width at `grip`."""
    return bool(np.linalg.norm(scene["tcp"] - grip) < 0.02 and scene["opening"][0] < width + 0.007)


def _grasp(scene: Scene, grip: np.ndarray, square: bool = True) -> Move:
    """Over the body, down on it, and closed. square: turns the hand to the sides of the body (all four are alike)."""
    gap = grip - scene["tcp"]
    yaw = _quarter(_yaw(scene["object_quat"]) - _yaw(scene["tcp_quat"])) if square else 0.0
    if np.linalg.norm(gap) < 0.008:
        return grip, CLOSED, 0.0  # a turn would take the body along
    above = _funnel(gap) if abs(yaw) < ASKEW else max(_funnel(gap), 2 * HALF)
    return grip + [0.0, 0.0, above], OPEN, yaw


def _put(scene: Scene, place: np.ndarray, drop: float = 0.0, width: float = 2 * HALF) -> Move:
    """Takes the object, carries it over `place`, lowers it to `drop` metres above and lets go; then the open hand goes up a little.

    width: of the object, in metres; at most, where it is not known.
    """
    thing, tcp = scene["object"], scene["tcp"]
    gap = place + [0.0, 0.0, drop] - thing
    flat = np.linalg.norm(gap[:2])
    if flat < 0.005 and -0.004 < gap[2] < 0.004 + drop:
        clear = scene["opening"][0] > 4 * HALF - 0.01
        return tcp + [0.0, 0.0, thing[2] + HOVER - tcp[2] if clear else 0.0], OPEN, 0.0
    if not _held(scene, thing, width):
        return _grasp(scene, thing)
    over = _funnel(gap)
    if flat > 0.03 and gap[2] > -0.02:  # too low to pass over what stands there
        return tcp + [0.0, 0.0, gap[2] + over], CLOSED, 0.0
    return tcp + gap + [0.0, 0.0, over], CLOSED, 0.0


def _funnel(gap: np.ndarray) -> float:
    """Metres to stay above a point that is `gap` [3] away: the less, the nearer the hand is in the plane."""
    return float(np.clip(4.0 * (np.linalg.norm(gap[:2]) - 0.006), 0.0, HOVER))


def _shove(scene: Scene, way: float) -> Move:
    """Moves the object along x with a closed hand from its other side; way: +1 or -1."""
    thing, tcp = scene["object"], scene["tcp"]
    start = thing - [way * 0.045, 0.0, 0.0]
    past = way * (start[0] - tcp[0])  # metres by which the hand is on the right side
    if tcp[2] < 0.04 and past > -0.03 and abs(tcp[1] - thing[1]) < 0.015:
        return np.array([scene["goal"][0], thing[1], HALF]), CLOSED, 0.0
    if past < -0.005 or abs(tcp[1] - thing[1]) > 0.015:
        return start + [-way * 0.02, 0.0, 0.08], CLOSED, 0.0
    return start + [-way * 0.02, 0.0, 0.0], CLOSED, 0.0


def _yaw(quat: np.ndarray) -> float:
    """Radians about z of a quaternion w, x, y, z; of a hand that points down as of a body that lies flat."""
    w, x, y, z = quat
    return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))


def _quarter(angle: float) -> float:
    """The smallest turn, in [-pi/4, pi/4], that is the same for a body with four like sides."""
    return (angle + np.pi / 4) % (np.pi / 2) - np.pi / 4
