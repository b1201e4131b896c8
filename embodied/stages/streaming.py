"""The act stage of a policy that answers row by row: what it is asked joins what it is at, and each call ends with the last of its own rows.

Nothing waits for a straggler but its own slot group. Calls of other weights wait until what was begun with the old ones has ended. As in `ActStage`
the noise belongs to (seed, stream, episode, step); which rows run side by side can change the last bit of a number, and nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from embodied.stages.act import ActStage, join, rows_of
from embodied.stages.sim import Observations
from scheduler.backends.base import Call, Outcome


@dataclass
class _Asked:
    call: Call
    rows: dict[int, Any] = field(default_factory=dict)  # row -> the chunk [1, ...] that answers it


class StreamingActStage(ActStage):
    """`start` takes a call in, and `ready` does the work: whoever drives it lets it work while nothing else may."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._waiting: deque[Call] = deque()  # not begun
        self._begun: dict[int, _Asked] = {}  # by number of the call
        self._answering: Any = None  # made when first needed, and anew for other weights

    def start(self, call: Call) -> None:
        self._waiting.append(call)

    def ready(self, timeout: float | None) -> list[tuple[Call, Outcome]]:
        """Calls that have ended. timeout: seconds to work for at the most, until one has; None = until one has; with 0 nothing is done."""
        until = None if timeout is None else time.monotonic() + timeout
        while timeout != 0.0 and (self._waiting or self._begun):
            ended = self._work()
            if ended or (until is not None and time.monotonic() >= until):
                return ended
        return []

    def connections(self) -> list[Any]:
        """None: its work is done in `ready`."""
        return []

    def abandon(self) -> None:
        """Drops every call."""
        self._waiting.clear()
        self._begun.clear()
        self._answering = None

    def _work(self) -> list[tuple[Call, Outcome]]:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while self._waiting and self._may_begin(self._waiting[0]):
            self._begin(self._waiting.popleft())
        ids, chunk = self._answering.step()
        ended = []
        for place, (number, row) in enumerate(ids):
            asked = self._begun[number]
            asked.rows[row] = rows_of(chunk, place, place + 1)
            if len(asked.rows) == len(asked.call.payload.episodes):
                del self._begun[number]
                ended.append((asked.call, Outcome(join([asked.rows[row] for row in sorted(asked.rows)]))))
        return ended

    def _may_begin(self, call: Call) -> bool:
        """Whether it samples with the weights that what is under way samples with, or nothing is."""
        return not self._begun or all(asked.call.version == call.version for asked in self._begun.values())

    def _begin(self, call: Call) -> None:
        if not self._begun:
            if call.weights is not None:
                self._versions.use(self._policy, call.weights)
            self._answering = self._policy.answering()
        asked: Observations = call.payload
        self._begun[call.number] = _Asked(call)
        self._answering.submit([(call.number, row) for row in range(len(asked.episodes))], self._policy.prepare(asked.observation), self._noise(asked))
