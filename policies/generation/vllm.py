"""vLLM behind the interface of generation (base.py), where it is installed: the same prompts, end tokens, stop strings, temperature and nucleus.

What differs: vLLM draws its own numbers, so a sample's randomness is a seed made of its first uniform. It is fixed by the sample all the same, but
its tokens are others than the engine's here; and log-probabilities are those of vLLM's kernels, near those of `evaluate` and not equal.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Hashable, Iterable, Sequence

import torch

from policies.generation.base import Finished, Noise, Stopping


class VLLM:
    """A Generator. Of a greedy answer the log-probabilities are at temperature 1."""

    def __init__(self, folder: str | Path, slots: int, stopping: Stopping, temperature: float = 1.0, top_p: float = 1.0, positions: int | None = None, dtype: str = "bfloat16") -> None:
        """folder: of the model, in transformers' layout. positions: the longest prompt and answer together. Raises ImportError saying how to do without it, where vLLM is not there."""
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # in this process, so that weights are handed over by reference
        try:
            import vllm
        except ImportError as error:
            raise ImportError(f"policy.engine=vllm: found no vLLM ({error}), wanted it; `pip install vllm` on a machine with a GPU, or set policy.engine=slots") from error
        self._llm = vllm.LLM(model=str(folder), tokenizer=str(folder), max_num_seqs=slots, max_model_len=positions, dtype=dtype, logprobs_mode="processed_logprobs")
        self._parameters, self._temperature, self._top_p, self._stopping = vllm.SamplingParams, temperature, top_p, stopping
        self._ids: dict[str, Hashable] = {}
        self._number = 0

    @property
    def busy(self) -> bool:
        return self._llm.llm_engine.has_unfinished_requests()

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Other weights, by the names that the folder has them by; what was computed with those before is forgotten."""
        named = list(weights)
        self._llm.apply_model(lambda model: model.load_weights(named))
        self._llm.reset_prefix_cache()

    def submit(self, id: Hashable, prompt: Sequence[int], noise: Noise, max_tokens: int) -> None:
        first = None if noise is None else noise(0) if callable(noise) else noise[0]
        parameters = self._parameters(
            temperature=0.0 if first is None else self._temperature, top_p=self._top_p, max_tokens=max_tokens, seed=None if first is None else int(first * 2**53), logprobs=0,
            stop=list(self._stopping.strings) or None, include_stop_str_in_output=True, stop_token_ids=sorted(self._stopping.end),
        )  # fmt: skip
        name, self._number = str(self._number), self._number + 1
        self._ids[name] = id
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": list(prompt)}, parameters)

    def step(self) -> list[Finished]:
        """Raises RuntimeError where vLLM gave a sample up."""
        return [self._finished(output) for output in self._llm.llm_engine.step() if output.finished]

    def _finished(self, output: Any) -> Finished:
        answer, id = output.outputs[0], self._ids.pop(output.request_id)
        if answer.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"sample {id!r}: vLLM ended it as {answer.finish_reason!r}, wanted stop or length; its own log says why")
        tokens = list(answer.token_ids)
        reason = "length" if answer.finish_reason == "length" else "stop" if isinstance(answer.stop_reason, str) else "eos"
        return Finished(id, tokens, [found[token].logprob for found, token in zip(answer.logprobs, tokens)], reason)
