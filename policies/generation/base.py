"""What generation gives and what it is asked by, whoever does it: the engine here (engine.py) or vLLM (vllm.py).

A sample's randomness is its own: which others run beside it changes nothing of it but float rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Hashable, Protocol, Sequence

Noise = Sequence[float] | Callable[[int], float] | None  # uniforms in (0, 1), one per step of the answer, as numbers or as a function of the step; None = greedy


@dataclass(frozen=True)
class Finished:
    id: Hashable
    tokens: list[int]  # of the answer; the last is the end token where reason is "eos", and completes the stop string where it is "stop"
    logprobs: list[float]  # of each token, under the distribution that it was sampled from
    reason: str  # "eos" | "stop" | "length"


class Generator(Protocol):
    """Continuous batching: what is submitted waits, runs as soon as there is room, and comes out when it ends."""

    def submit(self, id: Hashable, prompt: Sequence[int], noise: Noise, max_tokens: int) -> None:
        """prompt: token ids, at least one. Those of equal prompts that wait at once are a group: the prompt is computed once. Raises ValueError for what cannot be run."""

    def step(self) -> list[Finished]:
        """One token for every sample that runs; those that ended with it."""

    @property
    def busy(self) -> bool:
        """Something waits or runs."""


class Stopping:
    """When an answer ends before its last token: at an end token, or once the text of its tokens holds a stop string.

    A stop string may begin in one token and end in another. It is looked for in the text of the last tokens only, special ones included.
    """

    def __init__(self, end: Sequence[int], strings: Sequence[str] = (), decode: Callable[[list[int]], str] | None = None) -> None:
        """end: ids. decode: tokens -> text; needed where there are strings. Raises ValueError for an empty string, or strings without it."""
        if any(not isinstance(string, str) or not string for string in strings):
            raise ValueError(f"policy.stop: found {list(strings)!r}, wanted texts of at least one character each")
        if strings and decode is None:
            raise ValueError(f"found stop strings {list(strings)!r} and no decode, wanted a function from tokens to text: stop strings are looked for in text")
        self.end, self.strings, self._decode = frozenset(end), tuple(strings), decode
        # a character may take 4 tokens of a byte-level vocabulary, and the first ones of the window may be the rest of one
        self._window = 4 * max(map(len, strings), default=0) + 4

    def reason(self, tokens: list[int], max_tokens: int) -> str | None:
        """Why an answer of these tokens has ended; None where it goes on."""
        if tokens[-1] in self.end:
            return "eos"
        if self.strings:
            text = self._decode(tokens[-self._window :])
            if any(string in text for string in self.strings):
                return "stop"
        return "length" if len(tokens) >= max_tokens else None
