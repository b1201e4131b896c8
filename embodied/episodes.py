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
    held_out: bool = False  # a start that training never has; for an env whose spec says that it holds some out

    @property
    def options(self) -> dict:
        asked = {"init_state": self.init_state, "play_on": self.play_on or None, "held_out": self.held_out or None}
        return {"task": self.task} | {name: value for name, value in asked.items() if value is not None}

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
    remark: str | None = None  # the policy's, as that the prompt was too long
    said: tuple[str, str, str] | None = None  # of texts: the last prompt, the answer to it, and what would have been right, "" where the env does not say


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
    """`episodes` starts in one round, `samples` episodes from each, which are a group: every (task, init state) once before any twice, all tasks alike.

    Not tied to slots (each state is met once however many run).
    """

    seed: int
    tasks: Sequence[int]
    init_states: Sequence[int] | None  # of those that are held out, where held_out
    episodes: int
    play_on: bool = False
    samples: int = 1
    held_out: bool = False

    @property
    def total(self) -> int:
        return self.episodes * self.samples

    @property
    def starts(self) -> str:
        """For a protocol: how many, and of how many there are."""
        there = "drawn" if self.init_states is None else f"of {len(self.init_states) * len(self.tasks)}"
        return f"{self.episodes} {there}{' held out' if self.held_out else ''}"

    def round(self, number: int) -> list[Episode]:
        pairs = _pairs(self.tasks, self.init_states)
        episodes = []
        for start in range(self.episodes):
            seed = seeding.integer(self.seed, "env/evaluate", start if self.init_states is None else start % len(pairs))
            for order in range(start * self.samples, (start + 1) * self.samples):
                episodes.append(Episode(order, order, start, *pairs[start % len(pairs)], seed, self.play_on, self.held_out))
        return episodes


def _pairs(tasks: Sequence[int], init_states: Sequence[int] | None) -> list[tuple[int, int | None]]:
    return [(task, state) for state, task in product(init_states if init_states is not None else (None,), tasks)]
