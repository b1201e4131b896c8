"""One built task with all that an episode of it needs: physics, settled starts, poses and pictures."""

from __future__ import annotations

import numpy as np

from envs.libero.physics import Arm, Snapshot
from envs.libero.simulator import Simulator
from envs.libero.suites import Task
from envs.libero.view import View

WAIT_ACTION = np.array([0, 0, 0, 0, 0, 0, -1], dtype=np.float64)  # at rest, gripper open


class Workbench:
    def __init__(self, task: Task, exact: bool, resolution: int, backend: str | None, wait_steps: int):
        self.instruction = task.instruction
        self._task, self._exact, self._wait_steps = task, exact, wait_steps
        self._simulator = Simulator(task)
        self._arm = Arm(self._simulator)
        self._view = View(self._simulator)
        self._settled: dict[int, Snapshot] = {}
        self._renderer = None
        if backend is not None:
            from envs.libero.render import Renderer

            self._renderer = Renderer(self._simulator.model, resolution, resolution, "exact" if exact else "fast", backend)

    def start(self, init_state: int) -> None:
        """Puts the simulator where the wait steps from this initial state end; computed once, restored afterwards."""
        if self._wait_steps and init_state in self._settled:
            self._arm.restore(self._settled[init_state])
        else:
            self._arm.start(self._task.init_states[init_state])
            for _ in range(self._wait_steps):
                self._arm.step(WAIT_ACTION, exact=True)
            if self._wait_steps:
                self._settled[init_state] = self._arm.snapshot()
        self._simulator.update_visuals()

    def step(self, action: np.ndarray) -> None:
        # A stock env updates what glows after it has taken its pictures, so the pictures show the previous step's.
        self._simulator.update_visuals()
        self._arm.step(action, self._exact)

    def success(self) -> bool:
        return self._simulator.success()

    def look(self) -> None:
        self._view.look(self._arm.seen_qpos)

    def picture(self, camera: str) -> np.ndarray:
        """[H, W, 3] uint8 of what `look` saw."""
        return self._renderer.render(self._view.data, self._simulator.env.sim.model.camera_name2id(camera))

    def state(self) -> np.ndarray:
        return self._view.state(self._arm.seen_fingers)

    def privileged(self, suite: int) -> np.ndarray:
        return self._view.privileged(suite, self._arm.seen_fingers)

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
