"""The ledger: which episode comes next, and everything that fixes its randomness. A pure function of the run's seed and a round number.

So any number of workers, a different order of finishing, and a run cut and resumed meet the same episodes, each once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Sequence

from embodied import seeding


@dataclass(frozen=True)
class Episode:
    id: int  # unique in the run and phase; keys the noise of the policy
    order: int  # place in its round, from 0
    group: int  # episodes with one group share task, initial state and env seed
    task: int
    init_state: int | None  # None where the seed draws it
    seed: int  # for env.reset
    play_on: bool = False  # past success, to the end of the budget; for an env whose spec says that it can

    @property
    def options(self) -> dict:
        return {"task": self.task} | ({} if self.init_state is None else {"init_state": self.init_state}) | ({"play_on": True} if self.play_on else {})

    @property
    def label(self) -> str:
        state = f"seed {self.seed}" if self.init_state is None else f"init state {self.init_state}"
        return f"task {self.task}, {state}"


@dataclass(frozen=True)
class Played:
    """What the logs need of an episode that is over."""

    episode: Episode
    success: bool  # at any step
    success_at_end: bool  # at the last one
    steps: int  # primitive steps executed
    chunks: int  # inferences
    total: float  # undiscounted return
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class TrainingLedger:
    """`groups` groups of `group_size` episodes a round. Groups go through all (task, init state) pairs in a shuffled order, again and again."""

    seed: int
    tasks: Sequence[int]
    init_states: Sequence[int] | None
    groups: int
    group_size: int

    def round(self, number: int) -> list[Episode]:
        episodes = []
        for place in range(self.groups):
            group = number * self.groups + place
            task, state = self._start(group)
            seed = seeding.integer(self.seed, "env/train", group)
            for member in range(self.group_size):
                order = place * self.group_size + member
                episodes.append(Episode(group * self.group_size + member, order, group, task, state, seed))
        return episodes

    def _start(self, group: int) -> tuple[int, int | None]:
        pairs = _pairs(self.tasks, self.init_states)
        lap, place = divmod(group, len(pairs))
        return pairs[seeding.generator(self.seed, "ledger", lap).permutation(len(pairs))[place]]


@dataclass(frozen=True)
class EvaluationLedger:
    """`episodes` episodes in one round: every (task, init state) once before any twice, all tasks alike. Not tied to slots (each state is met once however many run)."""

    seed: int
    tasks: Sequence[int]
    init_states: Sequence[int] | None
    episodes: int
    play_on: bool = False

    def round(self, number: int) -> list[Episode]:
        pairs = _pairs(self.tasks, self.init_states)
        return [
            Episode(i, i, i, *pairs[i % len(pairs)], seeding.integer(self.seed, "env/evaluate", i if self.init_states is None else i % len(pairs)), self.play_on)
            for i in range(self.episodes)
        ]


def _pairs(tasks: Sequence[int], init_states: Sequence[int] | None) -> list[tuple[int, int | None]]:
    return [(task, state) for state, task in product(init_states if init_states is not None else (None,), tasks)]
