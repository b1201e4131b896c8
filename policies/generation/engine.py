"""Continuous batching on a transformers model: a slot whose answer has ended is taken at once by the next prompt that waits.

Guarantees: a sample's tokens are a function of (weights, prompt, its own uniforms), to float rounding: matrix kernels may round a row by how many
stand beside it, so a token on whose edge a uniform falls to the last bits can differ; nothing else can. Log-probabilities are read
from the very logits that were sampled from. Prompts that are equal and wait at once are computed once, and their keys and values copied.
Nothing of a prompt or a sample is kept once it has ended, so weights may change whenever the engine is not `busy`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Hashable, Sequence

import torch
from torch import nn
from transformers import DynamicCache

from policies.generation.base import Finished, Noise, Stopping
from policies.generation import windows
from policies.generation.slots import Prefilled, Slots
from policies.parts import sampling
from policies.parts.decoder import CACHE


@dataclass
class _Sample:
    id: Hashable
    prompt: tuple[int, ...]
    noise: Noise
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def uniform(self) -> float | None:
        """Of the token that comes next."""
        step = len(self.tokens)
        if self.noise is None:
            return None
        return self.noise(step) if callable(self.noise) else self.noise[step]


class Engine:
    """A Generator (base.py)."""

    def __init__(self, model: nn.Module, slots: int, stopping: Stopping, temperature: float = 1.0, top_p: float = 1.0, prefill: int = 8) -> None:
        """model: a causal LM of transformers with full attention (or windows, generation/windows.py), in "sdpa" or "eager". slots: samples that run at once. prefill: waiting prompts that are
        computed in one pass, whole, beside which their keys and values are held until they have a slot.

        Raises ValueError for a model that keeps something else than the keys and values of every position.
        """
        if slots < 1 or prefill < 1:
            raise ValueError(f"found slots={slots} and prefill={prefill}, wanted at least 1 of each")
        windows.reach(model.config)
        if model.config._attn_implementation not in ("sdpa", "eager"):
            raise ValueError(f"generation: found {model.config.model_type} by {model.config._attn_implementation}, wanted sdpa or eager; load it with attn_implementation=sdpa")
        self._model, self._stopping, self._temperature, self._top_p, self._ahead = model, stopping, temperature, top_p, prefill
        self._slots = Slots(slots)
        self._waiting: deque[_Sample] = deque()
        self._running: list[_Sample] = []  # row by row
        self._prefilled: dict[tuple[int, ...], Prefilled] = {}
        self._wanted: Counter[tuple[int, ...]] = Counter()  # waiting samples of each prompt
        self._logits: torch.Tensor | None = None  # [slots, V] that the next token of each row is sampled from

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def submit(self, id: Hashable, prompt: Sequence[int], noise: Noise, max_tokens: int) -> None:
        """As Generator says. Raises ValueError for an empty prompt, too few uniforms, or more tokens than the model has positions for."""
        positions = getattr(self._model.config, "max_position_embeddings", None) or len(prompt) + max_tokens
        if not len(prompt) or max_tokens < 1:
            raise ValueError(f"sample {id!r}: found a prompt of {len(prompt)} tokens and max_tokens={max_tokens}, wanted at least 1 of each")
        if len(prompt) + max_tokens > positions:
            raise ValueError(f"sample {id!r}: found a prompt of {len(prompt)} tokens and an answer of up to {max_tokens}, wanted at most {positions} together (config.json: max_position_embeddings); lower policy.max_tokens, or shorten the prompt")
        windows.require(self._model.config, len(prompt) + max_tokens)
        if noise is not None and not callable(noise) and len(noise) < max_tokens:
            raise ValueError(f"sample {id!r}: found {len(noise)} uniforms, wanted {max_tokens}, one per token of the answer")
        sample = _Sample(id, tuple(map(int, prompt)), noise, max_tokens)
        self._waiting.append(sample)
        self._wanted[sample.prompt] += 1

    @torch.no_grad()
    def step(self) -> list[Finished]:
        self._admit()
        if not self._running:
            return []
        chosen = self._sample()
        finished = self._retire()
        if self._running:
            self._decode(torch.tensor([sample.tokens[-1] for sample in self._running], device=chosen.device))
        return finished

    def _admit(self) -> None:
        while self._waiting and self._slots.count < self._slots.rows:
            sample = self._waiting.popleft()
            if sample.prompt not in self._prefilled:
                self._prefill(sample.prompt)
            found = self._prefilled[sample.prompt]
            row = self._slots.take(found)
            if self._logits is None:
                self._logits = found.logits.new_zeros(self._slots.rows, len(found.logits))
            self._logits[row] = found.logits
            self._running.append(sample)
            self._wanted[sample.prompt] -= 1
            if not self._wanted[sample.prompt]:
                del self._wanted[sample.prompt], self._prefilled[sample.prompt]

    def _prefill(self, first: tuple[int, ...]) -> None:
        """Compute a prompt, and those that wait behind it, padded on the right: under a causal mask no token sees what stands behind it."""
        prompts = [first]
        for sample in self._waiting:
            if len(prompts) == self._ahead:
                break
            if sample.prompt not in self._prefilled and sample.prompt not in prompts:
                prompts.append(sample.prompt)
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts])
        device = next(self._model.parameters()).device
        ids = torch.zeros(len(prompts), int(ends.max()) + 1, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        cache, (kept, place) = DynamicCache(), ends.unique(return_inverse=True)
        logits = self._model(ids.to(device), **{CACHE: cache}, use_cache=True, logits_to_keep=kept.to(device)).logits
        for row, prompt in enumerate(prompts):
            store = torch.stack([torch.stack([layer.keys[row, :, : len(prompt)], layer.values[row, :, : len(prompt)]]) for layer in cache.layers])
            self._prefilled[prompt] = Prefilled(store, logits[row, place[row]])

    def _sample(self) -> torch.Tensor:
        """One token for each row: [count] int64."""
        distribution = sampling.log_softmax(self._logits[: self._slots.count], self._temperature)
        if self._top_p < 1:
            distribution = sampling.nucleus(distribution, self._top_p)
        uniforms = [sample.uniform() for sample in self._running]
        if None in uniforms:
            chosen = sampling.choose(distribution, None)
            drawn = [row for row, uniform in enumerate(uniforms) if uniform is not None]
            if drawn:
                chosen[drawn] = sampling.choose(distribution[drawn], torch.tensor([uniforms[row] for row in drawn], dtype=torch.float64))
        else:
            chosen = sampling.choose(distribution, torch.tensor(uniforms, dtype=torch.float64))
        for sample, token, logprob in zip(self._running, chosen.tolist(), sampling.gather(distribution, chosen).tolist()):
            sample.tokens.append(token)
            sample.logprobs.append(logprob)
        return chosen

    def _retire(self) -> list[Finished]:
        ended = [(row, sample, reason) for row, sample in enumerate(self._running) if (reason := self._stopping.reason(sample.tokens, sample.max_tokens))]
        for row, _, _ in reversed(ended):  # from the back, so that no row that has ended moves into a place before it is freed
            self._running[row] = self._running[self._slots.free(row)]
            self._running.pop()
        return [Finished(sample.id, sample.tokens, sample.logprobs, reason) for _, sample, reason in ended]

    def _decode(self, tokens: torch.Tensor) -> None:
        """[count] int64, the last token of each row: its keys and values are kept, and the logits after it."""
        positions, mask = self._slots.begin(self._logits.dtype, tokens.device)
        answer = self._model(tokens[:, None], attention_mask=mask, position_ids=positions, **{CACHE: self._slots}, use_cache=True)
        self._logits[: self._slots.count] = answer.logits[:, -1]
