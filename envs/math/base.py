"""What every source of problems is: a sequence whose item i is a pure function of (source, split, seed, i), and the judge of its answers.

A problem is held out for evaluation, or not, by a hash of its text alone: neither seed, order nor run moves it, so training never
meets a problem that evaluation asks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from envs.answers import grade

SPLITS = ("train", "evaluate")
TRIES = 4096  # draws in search of a problem of one's own split


@dataclass(frozen=True)
class Problem:
    prompt: str
    answer: str  # the gold; "" where the source only verifies
    source: str  # what `load` was asked for
    index: int  # within the source: of a file its row, from 0
    also: tuple[str, ...] = ()  # other golds, each as right


class Problems:
    """problems[i] for i from 0 to below `size`, or for every i of at least 0 where size is None; IndexError beyond."""

    def __init__(self, source: str, size: int | None, about: dict[str, Any]):
        """about: what a score must be read with: `held_out`, and of a file how much and which, of drawn ones how they are drawn."""
        self.source, self.size, self.about = source, size, about

    def __getitem__(self, index: int) -> Problem:
        if index < 0 or (self.size is not None and index >= self.size):
            wanted = "0 or more" if self.size is None else f"0 to {self.size - 1}" if self.size else "none: it is empty"
            raise IndexError(f"{self.source}: found problem {index}, wanted {wanted}")
        return self.make(index)

    def make(self, index: int) -> Problem:
        """The problem of an index that exists."""
        raise NotImplementedError

    def score(self, problem: Problem, response: str) -> float:
        """1.0 where the final answer of `response` is right, else 0.0."""
        return float(any(grade(response, gold) for gold in (problem.answer, *problem.also)))


class Drawn(Problems):
    """A source without end: item i is the first of the draws (seed, i, 0), (seed, i, 1)... that falls on its split's side.

    size: how many of them to use; None all. share: of the problems, from 0 to 1, is held out; a split that gets none is empty.
    """

    def __init__(self, source: str, split: str, seed: int, size: int | None, share: float):
        super().__init__(source, 0 if share == (0 if split == "evaluate" else 1) else size, {"held_out": share})
        self._split, self._seed, self._share = split, seed, share

    def identity(self, number: int) -> str:
        """What the problem of a draw asks; draws that ask the same have the same."""
        raise NotImplementedError

    def number(self, index: int) -> int:
        """The draw that item `index` is made of. Raises ValueError where there seems to be none on this side."""
        for attempt in range(TRIES):
            number = draw(self._seed, index, attempt)
            if held_out(self.identity(number), self._share) == (self._split == "evaluate"):
                return number
        raise ValueError(
            f"{self.source}: found no problem of the {self._split} split in {TRIES} draws with held_out={self._share:g}; "
            "it has too few different problems: choose a harder one, or a held_out nearer to 0.5"
        )


class Distinct(Problems):
    """The first `most` different problems of a source without end, or as many as it seems to have: none of them is judged twice as if it were another."""

    def __init__(self, source: Drawn, most: int):
        places: dict[str, int] = {}
        index = fruitless = 0
        while len(places) < most and fruitless < TRIES:
            before = len(places)
            places.setdefault(source.identity(source.number(index)), index)
            index, fruitless = index + 1, 0 if len(places) > before else fruitless + 1
        super().__init__(source.source, len(places), source.about)
        self._from, self._places = source, list(places.values())

    def make(self, index: int) -> Problem:
        return self._from[self._places[index]]

    def score(self, problem: Problem, response: str) -> float:
        return self._from.score(problem, response)


def whole(text: str) -> bool:
    """Whether a tokenizer can read it: not where it has half a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def draw(*key: int | str) -> int:
    """A number below 2**256 that is a hash of the key."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=32).digest(), "big")


def held_out(identity: str, share: float) -> bool:
    """Whether a problem with this text is one of the `share` that is held out; spacing does not count."""
    digest = hashlib.blake2b(" ".join(identity.split()).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
