"""From a finished attempt to the episode that a demonstration folder keeps, and the frames of its video."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import numpy as np

from embodied.stages.sim import Attempt
from envs.record import DemonstrationWriter
from envs.spec import IMAGE_PREFIX, EnvSpec
from envs.texts import TextWriter


def recorder(folder: str, spec: EnvSpec, policy: str) -> Callable[[Attempt], bool]:
    """Makes the folder, and gives what keeps an attempt there where it is a success. policy: the name of who demonstrates.

    Raises FileExistsError where the folder already holds demonstrations.
    """
    if spec.action.kind == "text":
        texts = TextWriter(folder)
        return lambda attempt: texts.write(answers(attempt), attempt.success)
    arrays = DemonstrationWriter(folder, spec, policy)
    return lambda attempt: arrays.write(demonstration(attempt))


def answers(attempt: Attempt) -> list[tuple[str, str]]:
    """Of a text env: each prompt as the policy saw it, and the answer it gave."""
    return [(seen["prompt"], str(action[0, 0])) for seen, action in zip(attempt.observations, attempt.actions)]


def demonstration(attempt: Attempt) -> dict[str, Any]:
    """Arrays [T, ...] as envs.record.DemonstrationWriter takes them. The policy acts one step at a time, so row t was seen before step t."""
    seen = attempt.observations[:-1]
    executed = np.concatenate(attempt.actions)
    labels = [action if label is None else label for action, label in zip(attempt.actions, attempt.labels)]
    arrays = {key: np.stack([o[key] for o in seen]) for key in seen[0] if key.startswith(IMAGE_PREFIX) or key == "state"}
    rewards = np.array([sum(record.rewards) for record in attempt.records], dtype=np.float32)
    episode = attempt.episode
    return arrays | {
        "actions": np.concatenate(labels), "executed": executed, "rewards": rewards, "success": attempt.success, "task": episode.task,
        "init_state": episode.init_state, "seed": episode.seed, "instruction": seen[0].get("instruction"),
    }  # fmt: skip


def frames(attempt: Attempt) -> Iterator[np.ndarray]:
    """[H, W, 3] uint8, one per chunk and the last one: the cameras side by side."""
    for observation in attempt.observations:
        pictures = [value for key, value in observation.items() if key.startswith(IMAGE_PREFIX)]
        if pictures:
            yield np.concatenate(pictures, axis=1)
