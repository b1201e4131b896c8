"""The tasks of the library reasoning-gym, imported only when one is chosen.

Its own scorers give part of a point for an answer that merely contains the gold, and some raise on what they cannot read. So the answer is
extracted here, numbers are compared here, and a task's scorer is asked only for the rest, guarded, and believed only when it gives the whole point.
"""

from __future__ import annotations

import difflib
import functools
from typing import Any

from envs.answers import grade
from envs.answers.clean import clean, plain
from envs.answers.extract import final_answer
from envs.answers.read import read
from envs.math.base import Drawn, Problem

LONGEST = 4096  # characters of an answer that a scorer is shown
WHOLE = 1 - 1e-6  # the score that counts as right


class ReasoningGym(Drawn):
    """`task`: a name of reasoning-gym's, with its default difficulty; a problem is held out by its question.

    Item i is the first question of a dataset seeded by its draw, so it depends on no size. Raises ValueError where the library is missing, or
    the task is unknown or cannot be made by its name alone.
    """

    def __init__(self, task: str, split: str, seed: int, size: int | None, share: float):
        super().__init__(f"reasoning_gym:{task}", split, seed, size, share)
        self._library, self._task = _library(self.source), task
        self._made = functools.lru_cache(maxsize=1024)(self._make)
        self._made(0)

    def identity(self, number: int) -> str:
        return str(self._made(number)[1]["question"])

    def make(self, index: int) -> Problem:
        entry = self._made(self.number(index))[1]
        return Problem(str(entry["question"]), "" if entry["answer"] is None else str(entry["answer"]), self.source, index)

    def score(self, problem: Problem, response: str) -> float:
        """1.0 or 0.0: the last `<answer>...</answer>` where the response has such a tag, else what `envs.answers` finds to be its answer."""
        answer = extracted(response)
        if not answer or len(answer) > LONGEST:
            return 0.0
        if read(clean(plain(problem.answer))).kind == "number":
            return grade(answer, problem.answer)
        if answer == problem.answer.strip():
            return 1.0
        dataset, entry = self._made(self.number(problem.index))
        try:
            return float(float(dataset.score_answer(answer, entry)) >= WHOLE)
        except Exception:  # a task's scorer may break in any way on an answer: what it cannot read is wrong
            return 0.0

    def _make(self, number: int) -> tuple[Any, dict]:
        """(dataset, its one entry) of a draw."""
        try:
            dataset = self._library.create_dataset(self._task, size=1, seed=number % 2**31)
            return dataset, dataset[0]
        except Exception as error:  # each task is a module of its own, with its own ways to refuse
            known = getattr(getattr(self._library, "factory", None), "DATASETS", {})
            near = difflib.get_close_matches(self._task, known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near and self._task not in known else "wanted a task that reasoning-gym makes from its name alone, such as chain_sum"
            raise ValueError(f"problems={self.source}: reasoning-gym says {type(error).__name__}: {error}; {hint}") from error


def extracted(response: str) -> str | None:
    """The answer of a response, as it was written; None where it has none, or its last answer tag is never closed."""
    start = response.rfind("<answer>")
    if start == -1:
        return final_answer(response)
    end = response.find("</answer>", start)
    return response[start + len("<answer>") : end].strip() or None if end != -1 else None


def _library(source: str) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise ValueError(f"problems={source}: found no library reasoning-gym ({error}); pip install 'reasoning-gym>=0.1.25', Python 3.11 or later, or use problems=arithmetic") from error
    return reasoning_gym
