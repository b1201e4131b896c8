"""Grading of math answers: `grade(response, gold)` is 1.0 or 0.0, whatever the texts hold.

What counts as the answer of a response is said in `extract`, what counts as equal in `compare`. Numbers, fractions, lists, intervals, choices
and words are decided here, exactly and with the standard library alone. Only where that leaves it open is math-verify asked,
in a process of its own that is ended after a second: see `symbolic`. `grade` may be called from any thread and any process.
"""

from __future__ import annotations

from envs.answers import symbolic
from envs.answers.clean import clean, plain
from envs.answers.compare import same
from envs.answers.extract import final_answer, gold_answer
from envs.answers.read import Answer, read

LONGEST = 512  # characters of an answer that is read as mathematics; a longer one counts only if it is the gold word for word

__all__ = ["grade"]


def grade(response: str, gold: str) -> float:
    """1.0 where the final answer of `response` is `gold`, else 0.0. Raises on no text, and never hangs.

    `gold` is the bare answer, or a solution that ends in `#### x` or holds a box. No answer in either: 0.0.
    """
    if not isinstance(response, str) or not isinstance(gold, str):
        return 0.0
    answer, wanted = final_answer(plain(response)), gold_answer(plain(gold))
    return 1.0 if answer and wanted and _right(answer, wanted) else 0.0


def _right(answer: str, wanted: str) -> bool:
    if answer.split() == wanted.split():
        return True
    if max(len(answer), len(wanted)) > LONGEST:
        return False
    found, sought = read(clean(answer)), read(clean(wanted))
    verdict = same(found, sought)
    return symbolic.equal(_asked(found, sought), _asked(sought, found)) if verdict is None else verdict


def _asked(answer: Answer, other: Answer) -> str:
    """The text that algebra gets: with the name, where the other side is an equation that is not solved for one."""
    return f"{answer.name}={answer.text}" if answer.name and not other.name and "=" in other.text else answer.text
