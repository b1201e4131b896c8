"""Rows of prompts in, a chunk for those whose answers have ended out, while the others go on: `policies.base.Answering` for a causal language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Hashable, Sequence

import numpy as np
import torch

from policies.base import ActionChunk
from policies.generation.base import Generator

if TYPE_CHECKING:
    from policies.causal_lm import CausalLM


class Answering:
    """A generator with what a chunk is made of around it. A row whose prompt was dropped ends at once, without a token."""

    def __init__(self, policy: CausalLM, generator: Generator) -> None:
        self._policy, self._generator = policy, generator
        self._inputs: dict[Hashable, dict[str, torch.Tensor]] = {}  # of the rows that wait or run, each [1, ...]
        self._dropped: list[Hashable] = []

    @property
    def busy(self) -> bool:
        return bool(self._inputs)

    def submit(self, ids: Sequence[Hashable], inputs: dict[str, torch.Tensor], noise: np.ndarray | None) -> None:
        """ids: one per row, none of them under way. noise: [b, L], or None for the greedy answers. Raises ValueError as the generator does."""
        for row, id in enumerate(ids):
            self._inputs[id] = {name: part[row : row + 1] for name, part in inputs.items()}
            if self._policy.dropped(self._inputs[id])[0]:
                self._dropped.append(id)
                continue
            prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row]].tolist()
            self._generator.submit(id, prompt, None if noise is None else noise[row], self._policy.tokens)

    def step(self) -> tuple[list[Hashable], ActionChunk | None]:
        ended = self.ended()
        if not ended:
            return [], None
        inputs, tokens, logprobs = zip(*ended.values())
        joined = {name: torch.cat([part[name] for part in inputs]) for name in inputs[0]}
        return list(ended), self._policy.chunk(joined, tokens, logprobs)

    def ended(self) -> dict[Hashable, tuple[dict[str, torch.Tensor], list[int], list[float]]]:
        """One token more for every row that runs: of those that ended with it their inputs, tokens and log-probabilities."""
        answers = {id: ([], []) for id in self._dropped}
        self._dropped = []
        if self._generator.busy:
            answers |= {finished.id: (finished.tokens, finished.logprobs) for finished in self._generator.step()}
        return {id: (self._inputs.pop(id), *answer) for id, answer in answers.items()}
