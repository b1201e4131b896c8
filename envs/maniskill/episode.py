"""One ManiSkill episode, counted the same in a simulator of its own and in one that many share: its budget, its successes, its end, its info.

Also what may be asked of it: the options of a reset and the actions of a chunk, checked and turned into the simulator's convention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.spec import ActionSpec


@dataclass
class Episode:
    horizon: int  # step budget, primitive steps
    fixed: bool  # it goes on past success, to the end of its budget
    steps: int = 0
    once: bool = False  # success at any step so far
    at_end: bool = False  # at the last step run
    failed: bool = False

    @property
    def left(self) -> int:
        """Primitive steps until the budget is used up."""
        return self.horizon - self.steps

    @property
    def terminated(self) -> bool:
        return (self.at_end or self.failed) and not self.fixed

    @property
    def truncated(self) -> bool:
        return not self.terminated and self.steps >= self.horizon

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated

    def count(self, success: bool, failed: bool) -> None:
        """One primitive step and what the simulator says after it."""
        self.steps += 1
        self.at_end, self.failed = bool(success), bool(failed)
        self.once = self.once or self.at_end

    def info(self) -> dict[str, bool]:
        return {"success": self.once, "success_at_end": self.at_end, "fail": self.failed}


def plays_on(id: str, options: dict | None) -> bool:
    """Whether the options of a reset ask for an episode that goes on past success. Raises ValueError for a task other than 0, an initial state, or any other option."""
    options = dict(options or {})
    task, init_state, play_on = options.pop("task", 0), options.pop("init_state", None), options.pop("play_on", False)
    if task != 0 or init_state is not None or options:
        found = f"task {task}, init_state {init_state}" + (f" and {sorted(options)}" if options else "")
        raise ValueError(f"found {found}, wanted task 0 and no init_state: this env has one task ({id}), and the seed draws how it begins")
    return bool(play_on)


def for_simulator(actions: np.ndarray, spec: ActionSpec) -> np.ndarray:
    """[C, A] in the env's convention -> the same, a float32 copy in ManiSkill's, which opens the gripper with +1. Raises ValueError for another shape or what is not finite."""
    actions = np.array(actions, dtype=np.float32)
    if actions.ndim != 2 or actions.shape[1] != spec.dims or not len(actions):
        raise ValueError(f"found actions of shape {actions.shape}, wanted [C, {spec.dims}] with C of at least 1")
    if not np.isfinite(actions).all():
        raise ValueError("found an action that is not finite, wanted numbers within the action space")
    if spec.gripper is not None:
        actions[:, -1] *= -1.0
    return actions
