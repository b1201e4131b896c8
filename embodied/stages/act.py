"""The act stage: observations in, action chunks out, with noise that belongs to (seed, stream, episode, step).

Rows go through the policy in batches of a fixed size, the last one padded, so a row's numbers do not depend on how many
slots wait with it: that is what keeps trajectories bit-equal under every number of workers and slot groups.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import torch

from embodied import seeding
from embodied.learning.memory.residence import Lease, Residence, footprint
from embodied.learning.weights import Versions
from embodied.stages.inline import Inline
from embodied.stages.sim import Observations
from scheduler.backends.base import Call, Outcome


class ActStage(Inline):
    def __init__(self, policy: Any, tokens: int, seed: int, stream: str = "train", greedy: bool = False, rows: int = 1, threads: int | None = None, residence: Residence | None = None, lag: int = 0) -> None:
        """tokens: L of one chunk. rows: the fixed batch size of one forward. residence: of the policy, where a lease brings it to its device.

        lag: versions that sampling may lie behind; so many and one alternate.
        """
        if rows < 1:
            raise ValueError(f"found act_rows={rows}, wanted at least 1 row per forward")
        self._policy, self._tokens, self._seed = policy, tokens, seed
        self._rows, self._threads = rows, threads
        self.lease = Lease([residence])
        self._versions = Versions(keep=lag + 1)
        self.assign(stream, greedy)

    def assign(self, stream: str, greedy: bool = False) -> None:
        """stream: names the noise ("train", "evaluate"). greedy: the most likely choice instead of a sample."""
        self._stream, self._greedy = f"act/{stream}", greedy

    def start(self, call: Call) -> Outcome:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        if call.weights is not None:
            self._versions.use(self._policy, call.weights)
        asked: Observations = call.payload
        observation = asked.observation | {
            "episode": np.array([episode.id for episode in asked.episodes]), "step": np.array(asked.steps),
        }
        noise = self._noise(asked)
        count = len(asked.episodes)
        with torch.no_grad():
            chunks = [self._act(observation, noise, start, min(start + self._rows, count)) for start in range(0, count, self._rows)]
        return Outcome(join(chunks))

    def _noise(self, asked: Observations) -> np.ndarray | None:
        """[b, L] float64, or None for greedy choices."""
        if self._greedy:
            return None
        return np.stack([seeding.uniforms(self._seed, self._stream, episode.id, step, self._tokens) for episode, step in zip(asked.episodes, asked.steps)])

    def unload(self) -> None:
        self.lease.release()
        self._versions.to("cpu")

    def resident(self) -> int:
        """Bytes it holds while loaded."""
        return footprint(self._policy)

    def _act(self, observation: dict[str, Any], noise: np.ndarray | None, start: int, stop: int) -> Any:
        index = np.minimum(np.arange(start, start + self._rows), stop - 1)
        part = {key: [value[i] for i in index] if isinstance(value, list) else value[index] for key, value in observation.items()}
        chunk = self._policy.act(part, None if noise is None else noise[index])
        return rows_of(chunk, 0, stop - start)  # without its padding rows


def rows_of(chunk: Any, start: int, stop: int) -> Any:
    """The chunk's rows from `start` to before `stop`."""
    return type(chunk)(**{f.name: _cut(getattr(chunk, f.name), slice(start, stop)) for f in fields(chunk)})


def _cut(value: Any, rows: slice) -> Any:
    if value is None:
        return None
    return {key: tensor[rows] for key, tensor in value.items()} if isinstance(value, dict) else value[rows]


def join(chunks: list[Any]) -> Any:
    """Chunks of several rows each -> one of all of them."""
    if len(chunks) == 1:
        return chunks[0]
    return type(chunks[0])(**{f.name: _concatenate([getattr(chunk, f.name) for chunk in chunks]) for f in fields(chunks[0])})


def _concatenate(values: list[Any]) -> Any:
    if values[0] is None:
        return None
    if isinstance(values[0], dict):
        return {key: torch.cat([value[key] for value in values]) for key in values[0]}
    return torch.cat(values) if isinstance(values[0], torch.Tensor) else np.concatenate(values)
