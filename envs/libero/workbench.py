"""One built task with all that an episode of it needs: physics, settled starts, poses and pictures.

A process builds a task once, however many envs of it run there: each env keeps the Snapshot its episode has come to, and
the workbench takes up whichever it is handed. Taking up is exact, so an episode does not notice that others ran in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.libero.physics import Arm, Snapshot
from envs.libero.simulator import Simulator
from envs.libero.suites import Task
from envs.libero.view import View

WAIT_ACTION = np.array([0, 0, 0, 0, 0, 0, -1], dtype=np.float64)  # at rest, gripper open


@dataclass(frozen=True)
class Setup:
    """What makes two envs able to share a workbench."""

    suite: str
    task: int
    exact: bool
    resolution: int  # pixels; 0 without a renderer
    backend: str | None  # None renders nothing
    wait_steps: int


_built: dict[Setup, "Workbench"] = {}


def borrow(setup: Setup, task: Task) -> "Workbench":
    """The process's workbench of this setup, built where it is the first; to be given back."""
    if setup not in _built:
        _built[setup] = Workbench(setup, task)
    _built[setup].users += 1
    return _built[setup]


def give_back(workbench: "Workbench") -> None:
    """Closes it after its last user."""
    workbench.users -= 1
    if workbench.users == 0:
        del _built[workbench.setup]
        workbench.close()


class Workbench:
    def __init__(self, setup: Setup, task: Task):
        self.setup, self.users, self.instruction = setup, 0, task.instruction
        self._init_states = task.init_states
        self.simulator = Simulator(task)
        self.arm = Arm(self.simulator)
        self._view = View(self.simulator)
        self._settled: dict[int, Snapshot] = {}
        self._current: Snapshot | None = None
        self._renderer = None
        if setup.backend is not None:
            from envs.libero.render import Renderer

            profile, size = "exact" if setup.exact else "fast", setup.resolution
            self._renderer = Renderer(self.simulator.model, size, size, profile, setup.backend)

    def start(self, init_state: int) -> Snapshot:
        """Where the wait steps from this initial state end; computed once, by exact physics."""
        if init_state not in self._settled:
            self.arm.start(self._init_states[init_state])
            for _ in range(self.setup.wait_steps):
                self.arm.step(WAIT_ACTION, exact=True)
            self._settled[init_state] = self.arm.snapshot()
            self._current = None
        return self._settled[init_state]

    def resume(self, snapshot: Snapshot) -> None:
        if snapshot is not self._current:
            self.arm.restore(snapshot)
            self._current = snapshot
            self.simulator.update_visuals()

    def pause(self) -> Snapshot:
        self._current = self.arm.snapshot()
        return self._current

    def step(self, action: np.ndarray) -> bool:
        """One control step; True where the goal is reached."""
        # A stock env updates what glows after it has taken its pictures, so the pictures show the previous step's.
        self.simulator.update_visuals()
        self._current = None
        self.arm.step(action, self.setup.exact)
        return self.simulator.success()

    def look(self) -> None:
        """Fixes what `picture`, `state` and `privileged` report."""
        self._view.look(self.arm.seen_qpos)

    def picture(self, camera: str) -> np.ndarray:
        """[H, W, 3] uint8."""
        return self._renderer.render(self._view.data, self.simulator.env.sim.model.camera_name2id(camera))

    def state(self) -> np.ndarray:
        """[8] float32."""
        return self._view.state(self.arm.seen_fingers)

    def privileged(self, suite: int) -> np.ndarray:
        """[P] float32; suite: its number in the vector."""
        return self._view.privileged(suite, self.arm.seen_fingers)

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
