"""Any causal language model of transformers as a policy: a prompt in, the tokens of one answer out, by continuous batching (policies/generation).

A chunk is one answer: C = 1 action of A = L = max_tokens tokens, of which the mask keeps those that were generated, the end token among them. Behind
them choices are NO_TOKEN. `act` and `evaluate` have one distribution: the same temperature, and below top_p = 1 the same renormalised nucleus.
Padding changes no number but by float rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from policies.base import ActionChunk, PolicySpec, TokenStats
from policies.checkpoints import causal, lora as adapters
from policies.generation import limits
from policies.generation.answering import Answering
from policies.generation.base import Generator, Stopping
from policies.generation.engine import Engine
from policies.generation.texts import Texts
from policies.generation.vllm import VLLM
from policies.parts import given, sampling
from policies.parts.value_head import ValueHead

NO_TOKEN = -1  # a choice behind the end of an answer
ENGINES = ("slots", "vllm")


class CausalLM(nn.Module):
    """A Policy (policies/base.py). Choices are token ids."""

    def __init__(
        self, model: nn.Module, texts: Texts, *, temperature: float = 1.0, top_p: float = 1.0, max_tokens: int = 256, prompt_length: int = 256,
        stop: Sequence[str] = (), slots: int = 32, engine: str = "slots", value_head: bool = False, value_detach: bool = False, value_level: str = "chunk",
        folder: str | Path | None = None, long_prompts: str = "error",
    ) -> None:  # fmt: skip
        """model: of transformers. prompt_length: P, tokens a prompt may have. slots: answers that are generated at once. engine: "slots" (generation/engine.py)
        or "vllm" (generation/vllm.py), which reads `folder`. long_prompts: what becomes of a prompt of more than P tokens (parts/prompts.py: WAYS).
        Raises ValueError for a setting that cannot be."""
        super().__init__()
        given.number("policy.temperature", temperature, given.TEMPERATURES, "a greedy choice is evaluation.greedy=true, or act(observation, None)")
        given.number("policy.top_p", top_p, (1e-6, 1.0), "the share of the probability that is sampled from; 1 for all of it")
        for name, value in (("max_tokens", max_tokens), ("prompt_length", prompt_length), ("slots", slots)):
            given.whole(f"policy.{name}", value, "give one")
        if engine not in ENGINES:
            raise ValueError(f"policy.engine: found {engine!r}, wanted one of {', '.join(ENGINES)}")
        if engine == "vllm" and adapters.attached(model):
            raise ValueError("found policy.engine=vllm and adapters, wanted whole weights: vLLM is given the weights by name; set policy.engine=slots, or merge the adapters first")
        positions = getattr(model.config, "max_position_embeddings", None)
        if positions is not None and prompt_length + max_tokens > positions:
            raise ValueError(f"found policy.prompt_length={prompt_length} and policy.max_tokens={max_tokens}, wanted at most {positions} together: the model has so many positions (config.json: max_position_embeddings)")
        if value_level not in ("token", "chunk", "action"):
            raise ValueError(f"policy.value_level: found {value_level!r}, wanted token, or chunk for the whole answer")
        self.model, self.texts = model, texts
        self.temperature, self.top_p, self.tokens, self.prompt_length, self.slots = temperature, top_p, max_tokens, prompt_length, slots
        self._stopping, self._engine, self.folder = Stopping(texts.end, stop, texts.raw), engine, folder
        self.value_head = ValueHead(model.config.hidden_size, detach=value_detach, level=value_level) if value_head else None
        self._vllm: VLLM | None = None  # built when first asked for, and kept
        self._long, self._trims = long_prompts, True
        limits.fit([], prompt_length, long_prompts, texts.head)
        self.spec = PolicySpec("causal_lm", "text", max_tokens, 1, streams=True)
        self.protocol = {
            "template": texts.words, "temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "prompt_length": prompt_length, "stop": list(stop), "engine": engine,
        }  # fmt: skip

    @classmethod
    def from_pretrained(
        cls, checkpoint: str | Path | None, temperature: float = 1.0, top_p: float = 1.0, max_tokens: int = 256, prompt_length: int = 256, stop: Sequence[str] = (),
        chat: bool | None = None, system: str | None = None, template: Mapping[str, Any] | None = None, dtype: str = "float32", device: str = "cpu",
        value_head: bool = False, value_detach: bool = False, value_level: str = "chunk", lora: Mapping[str, Any] | None = None, base: str | Path | None = None,
        slots: int = 32, engine: str = "slots", long_prompts: str = "error",
    ) -> CausalLM:  # fmt: skip
        """Load a local folder (checkpoints/causal.py). chat, system, template: how prompts are worded (generation/texts.py). lora, base: as policies/parts/vla.py has them.

        Raises CheckpointError (a ValueError) naming what is missing or does not fit; ValueError for a setting that cannot be.
        """
        given.dtype(dtype)
        folder = causal.read_folder(checkpoint, base)
        model = causal.load(folder, dtype, device, lora, prompt_length + max_tokens)
        texts = Texts.from_folder(folder.path, _end_tokens(model), chat=chat, system=system, template=template)
        policy = cls(
            model, texts, temperature=temperature, top_p=top_p, max_tokens=max_tokens, prompt_length=prompt_length, stop=stop, slots=slots, engine=engine,
            value_head=value_head, value_detach=value_detach, value_level=value_level, folder=folder.base, long_prompts=long_prompts,
        )  # fmt: skip
        if policy.value_head is not None:
            policy.value_head.to(device=device, dtype=model.dtype)
            if not causal.load_value_head(folder.path, policy.value_head):
                policy.value_head.reset()
        return policy

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `from_pretrained` loads to the same numbers, and AutoModelForCausalLM too where it holds whole weights. Raises CheckpointError where it would replace the base of adapters."""
        causal.save(Path(folder), self.model, self.texts.tokenizer, self.value_head)

    def probe(self) -> torch.Tensor:
        """[2, 12, V] float32 logits over random tokens that are the same every time: what merging adapters must not change."""
        tokens = torch.randint(self.model.config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0))
        return self.model(tokens.to(self.model.device), use_cache=False).logits.float()

    def prepare(self, observation: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """`prompt`, a list of b texts -> prompt_ids [b, P] int64, prompt_mask [b, P] bool, padded on the left, and prompt_over [b] int64, the
        tokens that it had beyond P.

        Raises ValueError where there is none, or one has more than P tokens and such are errors.
        """
        found = observation.get("prompt")
        if not isinstance(found, (list, tuple)) or not found or not all(isinstance(text, str) for text in found):
            raise ValueError(f"observation 'prompt': found {found!r:.80} (among {', '.join(sorted(observation))}), wanted a list of texts, one per row; use an env that gives one, as env=math")
        ids = torch.zeros(len(found), self.prompt_length, dtype=torch.int64)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        fitted = limits.fit([self.texts.prompt(text) for text in found], self.prompt_length, self._long, self.texts.head)
        for row, tokens in enumerate(fitted.prompts):
            ids[row, self.prompt_length - len(tokens) :] = torch.tensor(tokens)
            mask[row, self.prompt_length - len(tokens) :] = True
        return {"prompt_ids": ids, "prompt_mask": mask, "prompt_over": torch.tensor(fitted.over)}

    def act(self, observation: Mapping[str, Any], noise: np.ndarray | None) -> ActionChunk:
        """One answer per row; noise [b, L] float64 inside (0, 1), or None for the greedy one. Raises ValueError as `prepare`, or for noise of another size."""
        inputs = self.prepare(observation)
        rows = len(inputs["prompt_ids"])
        answering, parts = self.answering(), {}
        answering.submit(range(rows), inputs, given.noise(noise, rows, self.tokens))
        while answering.busy:
            parts |= answering.ended()
        _, tokens, logprobs = zip(*(parts[row] for row in range(rows)))
        return self.chunk(inputs, tokens, logprobs)

    def answering(self) -> Answering:
        """Rows answered one by one as they end; those of equal prompts that wait together share the pass over the prompt."""
        return Answering(self, self._begin())

    def chunk(self, inputs: dict[str, torch.Tensor], tokens: Sequence[list[int]], logprobs: Sequence[list[float]]) -> ActionChunk:
        """What `prepare` gave for b rows and the answer to each, with the log-probabilities that it was sampled with. Raises ValueError for one that is no number."""
        rows = len(tokens)
        choices = torch.full((rows, self.tokens), NO_TOKEN, dtype=torch.int64)
        sampled = torch.zeros(rows, self.tokens)
        for row, (answer, its) in enumerate(zip(tokens, logprobs)):
            choices[row, : len(answer)] = torch.tensor(answer, dtype=torch.int64)
            sampled[row, : len(answer)] = torch.tensor(its)
        given.finite("policy=causal_lm: log-probabilities", sampled, "the weights hold, or overflow to, what is no number: load them again, or take an earlier checkpoint")
        mask = choices != NO_TOKEN
        texts, remarks = np.empty((rows, 1, 1), dtype=object), np.empty(rows, dtype=object)
        texts[:, 0, 0] = self.decode(choices, mask)
        remarks[:] = [limits.remark(over, self._long == "drop", self.prompt_length) for over in inputs["prompt_over"].tolist()]
        return ActionChunk(choices, sampled, mask, texts, self._values(inputs, choices), inputs, remarks=remarks)

    def too_long(self, prompts: Sequence[str]) -> str | None:
        """How many of the prompts are beyond the limit and what becomes of them; None where there is none. Raises ValueError where they are errors."""
        over = limits.fit([self.texts.prompt(text) for text in prompts], self.prompt_length, self._long, self.texts.head).over
        longer = sum(tokens > 0 for tokens in over)
        return f"{longer} of {len(prompts)} problems: {limits.remark(1, self._long == 'drop', self.prompt_length)}" if longer else None

    def dropped(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """[b] bool: rows that are not to be answered, because their prompt is too long."""
        return (inputs["prompt_over"] > 0) & (self._long == "drop")

    def evaluate(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor, distribution: bool = False) -> TokenStats:
        """inputs as `prepare` gives them, choices [n, L] -> TokenStats with gradient, 0 behind an answer's end. `distribution` adds [n, L, V] log-probabilities.

        A choice that has left the nucleus since it was sampled counts as the last one in it.
        """
        choices = choices.to(self.model.device)
        answer, count = self._forward(inputs, choices)
        kept = choices[:, :count]
        valid, tokens = kept != NO_TOKEN, kept.clamp(min=0)
        logprobs = sampling.log_softmax(answer.logits, self.temperature)
        if self.top_p < 1:
            logprobs = sampling.nucleus(logprobs, self.top_p, tokens)
        rest = (0, self.tokens - count)
        chosen = F.pad(torch.where(valid, sampling.gather(logprobs, tokens), 0.0), rest)
        entropy = F.pad(torch.where(valid, sampling.entropy(logprobs), 0.0), rest)
        return TokenStats(chosen, entropy, self._judged(answer, count), F.pad(logprobs, (0, 0, *rest)) if distribution else None)

    def encode(self, actions: np.ndarray | Sequence[str]) -> torch.Tensor:
        """[n, 1, 1] or n texts -> choices [n, L] int64 that end in the end token, NO_TOKEN behind it: what imitation trains on where they are not NO_TOKEN. Raises ValueError for one that is longer than L."""
        texts = [str(text) for text in np.asarray(actions, dtype=object).reshape(-1)]
        choices = torch.full((len(texts), self.tokens), NO_TOKEN, dtype=torch.int64)
        for row, text in enumerate(texts):
            tokens = self.texts.answer(text)
            if len(tokens) > self.tokens:
                raise ValueError(f"the answer {text!r:.80} has {len(tokens)} tokens with its end, wanted at most {self.tokens}: set policy.max_tokens={len(tokens)} or more, or leave it out")
            choices[row, : len(tokens)] = torch.tensor(tokens)
        return choices

    def longest(self, rows: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """(inputs, choices) of so many rows of the longest prompt and answer. Of a copy that is only measured: from then on it computes padding too."""
        self._trims = False
        ids, mask = torch.zeros(rows, self.prompt_length, dtype=torch.int64), torch.ones(rows, self.prompt_length, dtype=torch.bool)
        return {"prompt_ids": ids, "prompt_mask": mask, "prompt_over": ids[:, 0]}, torch.zeros(rows, self.tokens, dtype=torch.int64)

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values of as many answers as are generated at once, all of them the longest, and the logits beside them."""
        config = self.model.config
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        position = 2 * config.num_hidden_layers * (config.num_key_value_heads or config.num_attention_heads) * width
        return self.slots * self.model.dtype.itemsize * (position * (self.prompt_length + self.tokens) + config.vocab_size)

    def decode(self, choices: torch.Tensor, mask: torch.Tensor) -> list[str]:
        """[n, L] twice -> the answers, without special tokens; a stop string stays."""
        return [self.texts.text(row[kept].tolist()) for row, kept in zip(choices.cpu(), mask.cpu())]

    def _forward(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor, logits: bool = True) -> tuple[Any, int]:
        """One pass over prompts and answers, without the columns that are padding in every row -> what the model gives, M: answer tokens up to the end of the longest.

        Its last M positions are those that the answers' tokens are read from. logits: False leaves all but the last out."""
        count = max(1, int((choices != NO_TOKEN).sum(1).max())) if self._trims else self.tokens
        mask = inputs["prompt_mask"].to(self.model.device)
        first = self.prompt_length - int(mask.sum(1).max()) if self._trims else 0
        ids = torch.cat([inputs["prompt_ids"].to(self.model.device)[:, first:], choices[:, : count - 1].clamp(min=0)], dim=1)
        # what stands behind an answer's end needs no mask: no token of the answer sees it
        seen = F.pad(mask[:, first:], (0, count - 1), value=True)
        positions = (seen.cumsum(1) - 1).clamp(min=0)
        return self.model(
            ids, attention_mask=seen.long(), position_ids=positions, use_cache=False, logits_to_keep=count if logits else 1, output_hidden_states=self.value_head is not None
        ), count  # fmt: skip

    def _judged(self, answer: Any, count: int) -> torch.Tensor | None:
        """Values [n], [n, 1] or [n, L] as the value head's level is; each has seen what stands before its token."""
        if self.value_head is None:
            return None
        values = self.value_head.causal(answer.hidden_states[-1][:, -count:])
        return F.pad(values, (0, self.tokens - count)) if self.value_head.level == "token" else values

    @torch.no_grad()
    def _values(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor) -> torch.Tensor | None:
        """By a pass of their own, when the answers are whole: a value head is for PPO alone, and generation need not know it."""
        if self.value_head is None:
            return None
        answer, count = self._forward(inputs, choices.to(self.model.device), logits=False)
        return self._judged(answer, count).cpu()

    def _begin(self) -> Generator:
        if self._engine == "slots":
            return Engine(self.model, self.slots, self._stopping, self.temperature, self.top_p)
        if self._vllm is None:
            self._vllm = VLLM(self.folder, self.slots, self._stopping, self.temperature, self.top_p, self.prompt_length + self.tokens, str(self.model.dtype).removeprefix("torch."))
        self._vllm.load(self.model.state_dict().items())
        return self._vllm


def _end_tokens(model: nn.Module) -> list[int]:
    """Of generation_config.json, and of config.json."""
    found: list[int] = []
    for config in (model.generation_config, model.config):
        said = getattr(config, "eos_token_id", None)
        found += said if isinstance(said, list) else [] if said is None else [said]
    return found
