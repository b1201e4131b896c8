"""What is known of ManiSkill's tasks without starting it: their texts, budgets and sizes, and which bodies a scripted expert has to know.

Nothing here imports the simulator. A task that is not in the table runs too: what the table would say is then measured once, on the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

ROBOT_STATE = 18  # joint positions and velocities of the Panda, 9 each: metres and radians, and per second
WRIST_ROBOTS = {"panda": "panda_wristcam"}  # robot -> the same with a camera on its hand
PANDAS = ("panda", "panda_wristcam")
PANDA_CONTROL = {"pd_ee_delta_pose": 7, "pd_ee_delta_pos": 4, "pd_joint_delta_pos": 8}  # mode -> numbers per action, each in [-1, 1], gripper last
# The name that policies of other simulators know a camera by -> its name in ManiSkill.
CAMERA_ALIASES = {"agentview": "base_camera", "wrist": "hand_camera"}


@dataclass(frozen=True)
class Bodies:
    """Attributes of the task's class that hold what an expert looks at."""

    object: str  # what the hand takes or pushes
    goal: str  # where it shall be
    second: str | None = None  # what the object is to act on


@dataclass(frozen=True)
class Task:
    instruction: str | None  # None where the task has no text
    budget: int  # primitive steps, as registered
    state: int  # S of ManiSkill's own state observation, with the poses of all bodies
    robot_state: int  # S of what ManiSkill gives a policy that has pictures
    action: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # (low, high); None: as PANDA_CONTROL says
    cameras: tuple[str, ...] = ("base_camera",)
    bodies: Bodies | None = None  # None where no expert knows the task
    robot: str = "panda"
    speaks: bool = False  # it gives each episode its text (get_language_instruction)


def _task(instruction: str, budget: int, state: int, extra: int = 0, bodies: Bodies | None = None) -> Task:
    """extra: numbers beside the hand's pose that a policy with pictures is given."""
    return Task(instruction, budget, state, ROBOT_STATE + 7 + extra, bodies=bodies)


# Sizes as mani_skill 3.0.1 gives them with the Panda; the first ones are those that the expert knows, numbered in this order.
TASKS = {
    "PickCube-v1": _task("pick up the red cube and move it to the green goal", 50, 42, 4, Bodies("cube", "goal_site")),
    "PushCube-v1": _task("push the blue cube to the target", 50, 35, 0, Bodies("obj", "goal_region")),
    "StackCube-v1": _task("pick up the red cube and stack it on the green cube", 50, 48, 0, Bodies("cubeA", "cubeB")),
    "PullCube-v1": _task("pull the blue cube to the target", 50, 35, 3, Bodies("obj", "goal_region")),
    "PlaceSphere-v1": _task("pick up the blue ball and place it in the bin", 50, 39, 4, Bodies("obj", "bin")),
    "PokeCube-v1": _task("poke the red cube with the blue peg", 50, 54, 0, Bodies("peg", "goal_region", "cube")),
    "LiftPegUpright-v1": _task("lift the peg and stand it upright", 50, 32),
    "RollBall-v1": _task("roll the blue ball to the target", 80, 44),
}
# Tasks of our own, which put_on_plate/task.py registers with ManiSkill.
OWN = {"PutOnPlateStandIn-v1": Task(None, 80, 45, ROBOT_STATE + 7, bodies=Bodies("chosen_object", "resting_place", "chosen_plate"), speaks=True)}
KNOWN = TASKS | OWN
EXPERT_TASKS = tuple(id for id, task in KNOWN.items() if task.bodies is not None)

# Tasks of one robot with a sparse reward that mani_skill 3.0.1 builds from its wheel alone and without a renderer.
FROM_THE_WHEEL = (
    "DrawTriangle-v1", "FMBAssembly1Easy-v1", "LiftPegUpright-v1", "MS-HopperHop-v1", "MS-HopperStand-v1", "PegInsertionSide-v1", "PickCube-v1",
    "PickCubeSO100-v1", "PlaceSphere-v1", "PlugCharger-v1", "PokeCube-v1", "PullCube-v1", "PullCubeTool-v1", "PushCube-v1", "RollBall-v1",
    "RotateSingleObjectInHandLevel0-v1", "RotateSingleObjectInHandLevel1-v1", "RotateValveLevel0-v1", "RotateValveLevel1-v1", "RotateValveLevel2-v1",
    "RotateValveLevel3-v1", "RotateValveLevel4-v1", "SO100GraspCube-v1", "StackCube-v1", "StackPyramid-v1", "TriFingerRotateCubeLevel0-v1",
    "TriFingerRotateCubeLevel1-v1", "TriFingerRotateCubeLevel2-v1", "TriFingerRotateCubeLevel3-v1", "TriFingerRotateCubeLevel4-v1",
    "UnitreeG1PlaceAppleInBowl-v1", "UnitreeG1Stand-v1", "UnitreeG1TransportBox-v1",
)  # fmt: skip

# name -> length, in the order in which the `privileged` vector holds them; positions in metres, world frame, quaternions w, x, y, z
PRIVILEGED = {
    "task": 1,  # position in EXPERT_TASKS
    "tcp": 3,  # the point between the fingertips
    "tcp_quat": 4,
    "opening": 1,  # metres between the fingers
    "object": 3,
    "object_quat": 4,
    "second": 3,  # zeros where the task has no second body, as its quaternion
    "second_quat": 4,
    "goal": 3,
    "goal_quat": 4,
}


def with_panda(task: Task, robot: str, control_mode: str) -> Task:
    """A task of the table with the action bounds of this control mode and the cameras of this Panda."""
    dims = PANDA_CONTROL[control_mode]
    cameras = (*task.cameras, "hand_camera") if robot in WRIST_ROBOTS.values() else task.cameras
    return replace(task, action=((-1.0,) * dims, (1.0,) * dims), cameras=cameras, robot=robot)


def named(measured: Task, known: Task | None) -> Task:
    """A measured task with the table's text, which does not depend on the robot; an expert knows it only as the table has it."""
    return measured if known is None else replace(measured, instruction=known.instruction)


def privileged_layout() -> dict[str, tuple[int, int]]:
    """name -> (start, stop) in the privileged vector."""
    stops = np.cumsum(list(PRIVILEGED.values())).tolist()
    return {name: (stop - length, stop) for (name, length), stop in zip(PRIVILEGED.items(), stops)}


def instruction_of(id: str, task: Task, given: str | None, shown: bool) -> str:
    """The text of every episode: what was given, else the table's; "" where there is none and no policy with pictures asks for one, or the task gives each its own.

    shown: whether there are pictures. Raises ValueError where a policy with pictures would go without a text.
    """
    if given is not None:
        return given
    if task.instruction is None and shown and not task.speaks:
        raise ValueError(f"env.id={id}: found no instruction for this task, wanted one: env.instruction='say what shall be done' (texts are known of {', '.join(TASKS)}), or '' for none")
    return task.instruction or ""


def instructions() -> tuple[str, ...]:
    """Every text of the table, each once."""
    return tuple(dict.fromkeys(task.instruction for task in TASKS.values() if task.instruction))
