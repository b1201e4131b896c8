"""The read stage of imitation: each round, the next rows of an endlessly reshuffled set of demonstrations.

A row is one picture with the C actions that followed it; where the episode ends sooner, the last action is repeated and masked. Of texts it is a
prompt with its answer. Choices that are whole numbers below 0 are a policy's word for no token, and masked: the end token is learned, even where it pads.
Round r's rows are a pure function of (seed, r), so a resumed run reads what an unbroken one would have.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import torch

from embodied import seeding
from embodied.learning.batching import labelled, select
from embodied.learning.data import Batch
from embodied.stages.inline import Inline
from scheduler.backends.base import Call, Item, Outcome


class ReadStage(Inline):
    def __init__(self, rows: Batch, per_round: int, seed: int) -> None:
        """rows: every row there is (`demonstration_rows`). per_round: rows a round."""
        self._rows, self._per_round, self._seed = rows, min(per_round, rows.rows), seed
        self._orders: dict[int, np.ndarray] = {}  # lap -> its order; the last one or two

    def start(self, call: Call) -> Outcome:
        first = call.round * self._per_round
        index = [self._row(place) for place in range(first, first + self._per_round)]
        return Outcome(None, (Item(0, select(self._rows, torch.tensor(index))),))

    def _row(self, place: int) -> int:
        lap, within = divmod(place, self._rows.rows)
        if lap not in self._orders:
            self._orders = {lap: seeding.generator(self._seed, "read", lap).permutation(self._rows.rows)}
        return int(self._orders[lap][within])


def demonstration_rows(policy: Any, episodes: Sequence[dict], chunk: int) -> Batch:
    """Every step of every episode as a row. Each episode: arrays [T, ...] under observation keys, `actions` [T, A], `instruction` str; `prompt` a list of
    T str where actions are texts; `place` str, where it was read.

    Raises ValueError when there is none, or with its place where the policy refuses one.
    """
    inputs: list[dict[str, torch.Tensor]] = []
    choices, masks = [], []
    for episode in episodes:
        actions = episode["actions"]
        length = len(actions)
        observation = {key: value for key, value in episode.items() if key.startswith("images/") or key == "state"}
        if "instruction" in episode:
            observation["instruction"] = [episode["instruction"]] * length
        if "prompt" in episode:
            observation["prompt"] = episode["prompt"]
        ahead = np.arange(length)[:, None] + np.arange(chunk)[None]  # [T, C] the step of each action of each row
        try:
            inputs.append(policy.prepare(observation))
            encoded = policy.encode(actions[np.minimum(ahead, length - 1)])
        except ValueError as error:
            raise ValueError(f"{episode.get('place', 'a demonstration')}: {error}") from error
        choices.append(encoded)
        executed = torch.as_tensor(ahead < length).repeat_interleave(encoded.shape[1] // chunk, dim=1)
        if policy.spec.streams:
            executed &= ~policy.dropped(inputs[-1])[:, None]
        masks.append(executed if encoded.is_floating_point() else executed & (encoded >= 0))
    if not choices:
        raise ValueError("found no demonstration, wanted at least one; record some with evaluate record=DIR")
    joined = {key: torch.cat(_widest([part[key] for part in inputs])) for key in inputs[0]}
    return labelled(joined, torch.cat(choices), torch.cat(masks))


def _widest(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Prompts of different lengths, padded on the right with 0 to the longest."""
    if parts[0].dim() != 2:
        return parts
    width = max(part.shape[1] for part in parts)
    return [torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts]
