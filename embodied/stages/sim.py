"""The sim stage: plays the round's episodes in its slots, one chunk a turn, and emits each as a Trajectory when it is over.

Guarantees: an episode of the ledger is played by exactly one slot; a free slot takes the next one; the observation after the
last step is there for bootstrapping. Which slot plays an episode changes nothing about it.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Protocol, Sequence

import numpy as np
import torch

from embodied.episodes import Episode, Played
from embodied.learning.collect import ChunkRecord, assemble, record
from embodied.learning.data import Trajectory
from envs.process import WorkerLost
from scheduler.backends.base import Call, Item, Outcome, StageLost


class Slots(Protocol):
    """envs.vector.VectorEnv, or a batched simulator with the same interface."""

    slots: int

    def reset(self, slot: int, seed: int, options: dict, label: str) -> None: ...

    def step(self, slot: int, actions: np.ndarray) -> None: ...

    def wait(self, timeout: float | None = None) -> list[Any]: ...

    def connections(self) -> list[Any]: ...

    def settle(self) -> None:
        """Waits until no slot is at work, and drops what they did."""

    def mend(self) -> None:
        """Builds anew the workers that were lost."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Observations:
    """What sim asks act: one row per slot that waits for a chunk."""

    episodes: tuple[Episode, ...]  # [b]
    steps: tuple[int, ...]  # [b] chunk-steps done in the episode
    observation: dict[str, Any]  # arrays [b, ...], tensors on their device where the simulator gives such; `instruction` a list of b str


@dataclass
class Attempt:
    """One episode in a slot."""

    episode: Episode
    observation: dict[str, Any] | None = None
    records: list[ChunkRecord] = field(default_factory=list)
    steps: int = 0  # primitive steps run
    terminated: bool = False
    truncated: bool = False
    success: bool = False  # at any step so far
    success_at_end: bool = False  # at the last one
    observations: list[dict[str, Any]] = field(default_factory=list)  # one per chunk and the last one, on the host; only when kept
    actions: list[np.ndarray] = field(default_factory=list)  # each [C, A], what was asked
    labels: list[np.ndarray | None] = field(default_factory=list)
    version: int = 0
    remark: str | None = None  # the policy's own, of the last chunk that it had any of
    said: tuple[str, str, str] | None = None  # as in Played

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


class SimStage:
    def __init__(
        self,
        env: Slots,
        episodes: Callable[[int], Sequence[Episode]],
        groups: int,
        chunk: int,
        horizon: int | None = None,
        whole: bool = True,
        on_episode: Callable[[Attempt], None] | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """share: (number, count) of the processes that run this stage: it plays every count-th episode, in its own slot groups.

        The others as in `assign`.
        """
        self._env, self._chunk, self._share = env, chunk, share
        self.assign(episodes, groups, horizon, whole, on_episode)

    def assign(
        self, episodes: Callable[[int], Sequence[Episode]], groups: int, horizon: int | None = None, whole: bool = True,
        on_episode: Callable[[Attempt], None] | None = None, slots: int | None = None,
    ) -> None:  # fmt: skip
        """What to play from now on. Between rounds, with nothing in flight.

        groups: slot groups, of all processes together. horizon: primitive steps after which an episode is cut (truncated), where that is
        sooner than the env's own budget. whole: emit Trajectories; else only what the log needs. on_episode: sees each finished attempt,
        with its observations. slots: the first so many of its slots only.
        """
        self._episodes, self._horizon, self._whole, self._on_episode = episodes, horizon, whole, on_episode
        self._latest = -1  # the newest round that was begun
        self._slots = self._env.slots if slots is None else min(slots, self._env.slots)
        self._forget()
        self.regroup(groups)

    def regroup(self, groups: int) -> None:
        """Deals the slots out to so many groups. Between rounds, with nothing in flight."""
        number, count = self._share
        mine = [group for group in range(groups) if group * count // groups == number]
        per_group = self._slots // max(1, len(mine))
        self._members = {group: range(i * per_group, (i + 1) * per_group) for i, group in enumerate(mine)}
        self._group_of = {slot: group for group, slots in self._members.items() for slot in slots}

    def cut(self) -> list[Item]:
        """The unfinished episodes as if their budget ended here; what they were is then forgotten."""
        begun = [attempt for attempt in self._attempts.values() if attempt.records and not attempt.over]
        for attempt in begun:
            attempt.truncated = True
        items = [Item(attempt.episode.order, self._trajectory(attempt), _played(attempt)) for attempt in begun]
        self._forget()
        return items

    def abandon(self) -> None:
        """Drops what it plays: the round is begun again. Waits for the steps that run, so that the slots are free."""
        self._env.settle()
        self._latest = -1
        self._forget()

    def restart(self) -> None:
        """Builds anew what was lost of its env."""
        with _losses():
            self._env.mend()
            self.abandon()

    def _forget(self) -> None:
        self._queues: dict[int, list[Episode]] = {}  # round -> what is left to play, last first; a played-out round is gone
        self._attempts: dict[int, Attempt] = {}  # slot -> what it plays
        self._asked: dict[int, set[int]] = defaultdict(set)  # group -> slots whose answer is awaited
        self._calls: dict[int, Call] = {}
        self._emitted: dict[int, list[Item]] = defaultdict(list)
        self._chunks: dict[int, tuple[Any, int]] = {}  # slot -> (action chunk, row)

    def start(self, call: Call) -> Outcome | None:
        with _losses():
            return self._start(call)

    def ready(self, timeout: float | None) -> list[tuple[Call, Outcome]]:
        finished = []
        with _losses():
            for result in self._env.wait(timeout):
                group = self._group_of[result.slot]
                self._asked[group].discard(result.slot)
                self._take(result, group)
                if not self._asked[group]:
                    finished.append((self._calls[group], self._outcome(group)))
        return finished

    def _start(self, call: Call) -> Outcome | None:
        group = call.group
        self._calls[group] = call
        if call.payload is None:
            if call.round > self._latest:
                self._latest = call.round
                number, count = self._share
                mine = [episode for episode in self._episodes(call.round) if episode.order % count == number]
                self._queues = {call.round: mine[::-1]} | {r: q for r, q in self._queues.items() if q}
            for slot in self._members[group]:
                self._next_episode(slot, call.round)
        else:
            playing = [slot for slot in self._members[group] if slot in self._attempts]
            for row, slot in enumerate(playing):
                self._step(slot, call.payload, row, call.version)
        return None if self._asked[group] else self._outcome(group)

    def connections(self) -> list[Any]:
        return self._env.connections()

    def load(self) -> None:
        """The simulators keep their cores: a CPU simulator has nothing to bring to a device."""

    def unload(self) -> None:
        """Nothing to take away, as in `load`."""

    def close(self) -> None:
        self._env.close()

    def _next_episode(self, slot: int, round_number: int) -> None:
        self._attempts.pop(slot, None)
        queue = self._queues.get(round_number)
        if not queue:
            return
        episode = queue.pop()
        self._attempts[slot] = Attempt(episode)
        self._asked[self._group_of[slot]].add(slot)
        self._env.reset(slot, episode.seed, episode.options, episode.label)

    def _step(self, slot: int, chunk: Any, row: int, version: int) -> None:
        attempt = self._attempts[slot]
        attempt.version = version
        self._chunks[slot] = (chunk, row)
        left = self._chunk if self._horizon is None else self._horizon - attempt.steps
        self._asked[self._group_of[slot]].add(slot)
        self._env.step(slot, chunk.actions[row][:left])

    def _take(self, result: Any, group: int) -> None:
        attempt = self._attempts[result.slot]
        before, attempt.observation = attempt.observation, result.observation
        if self._on_episode is not None:
            attempt.observations.append(on_host(result.observation))
        if result.kind == "reset":
            return
        chunk, row = self._chunks.pop(result.slot)
        attempt.records.append(record(chunk, row, result.rewards))
        if chunk.remarks is not None:
            attempt.remark = chunk.remarks[row] or attempt.remark
        if "prompt" in before:
            attempt.said = (before["prompt"], str(chunk.actions[row][-1, 0]), str(result.info.get("gold", "")))
        attempt.success = attempt.success or bool(result.info["success"])
        attempt.success_at_end = bool(result.info["success_at_end"])
        attempt.steps += len(result.rewards)
        attempt.terminated = result.terminated
        attempt.truncated = result.truncated or (self._horizon is not None and attempt.steps >= self._horizon)
        if self._on_episode is not None:
            attempt.actions.append(chunk.actions[row])
            attempt.labels.append(None if chunk.labels is None else chunk.labels[row])
        if attempt.over:
            self._emitted[group].append(Item(attempt.episode.order, self._trajectory(attempt) if self._whole else None, _played(attempt)))
            if self._on_episode is not None:
                self._on_episode(attempt)
            self._next_episode(result.slot, self._calls[group].round)

    def _trajectory(self, attempt: Attempt) -> Trajectory:
        episode = attempt.episode
        return assemble(
            attempt.records, episode=episode.id, group=episode.group, chunk=self._chunk, terminated=attempt.terminated, truncated=attempt.truncated,
            final_observation=None if attempt.terminated else stack([on_host(attempt.observation)]), success=attempt.success, version=attempt.version,
        )  # fmt: skip

    def _outcome(self, group: int) -> Outcome:
        items = tuple(self._emitted.pop(group, ()))
        playing = [self._attempts[slot] for slot in self._members[group] if slot in self._attempts]
        if not playing:
            return Outcome(None, items)
        observation = stack([attempt.observation for attempt in playing])
        steps = tuple(len(attempt.records) for attempt in playing)
        return Outcome(Observations(tuple(attempt.episode for attempt in playing), steps, observation), items)


@contextmanager
def _losses() -> Iterator[None]:
    """A worker process that was lost is the stage's loss; an env that raised is the env's own error."""
    try:
        yield
    except WorkerLost as error:
        raise StageLost("sim", str(error)) from error


def _played(attempt: Attempt) -> Played:
    total = sum(sum(record.rewards) for record in attempt.records)
    return Played(attempt.episode, attempt.success, attempt.success_at_end, attempt.steps, len(attempt.records), total, attempt.terminated, attempt.truncated and not attempt.terminated, attempt.remark, attempt.said)


def stack(observations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """b observations -> one with arrays [b, ...], or with tensors [b, ...] on the device they are on; strings become a list."""
    return {key: _stacked([o[key] for o in observations]) for key in observations[0]}


def _stacked(entries: list[Any]) -> Any:
    if isinstance(entries[0], str):
        return entries
    return torch.stack(entries) if isinstance(entries[0], torch.Tensor) else np.stack(entries)


def on_host(observation: Mapping[str, Any]) -> dict[str, Any]:
    """The observation with arrays in the place of tensors."""
    return {key: value.cpu().numpy() if isinstance(value, torch.Tensor) else value for key, value in observation.items()}
