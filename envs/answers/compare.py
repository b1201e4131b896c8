"""When two answers are the same: `same` says True, False, or None where only algebra can tell.

Numbers are compared exactly: 0.333333 is not 1/3. A percent sign is a unit or a hundredth, where only one side has it: 50% is 50, and is 1/2. Sets
are equal in any order, pairs and intervals in theirs and with the same brackets. A sum or product of numbers that is left undone is no number,
or repeating the question would be an answer; two products are the same where their factors are.
"""

from __future__ import annotations

import re

from envs.answers.numbers import top_level
from envs.answers.read import Answer
from envs.answers.units import known

_SEVERAL = re.compile(r"\.\.|[0-9}] ?_|[?:;~&]|^[^|]*\|[^|]*$|\\[bp]?mod(?![A-Za-z])")  # algebra reads a number before it as all there is
_BY_THE_LETTER = {"choice", "time", "words", "prose", "undefined"}


def same(found: Answer, sought: Answer) -> bool | None:
    """Whether the answer that was found is the one that was sought; None: ask somebody who can do algebra."""
    if found.name and sought.name and found.name != sought.name:
        return False
    kinds = {found.kind, sought.kind}
    if kinds == {"number"}:
        return _numbers(found, sought)
    if kinds == {"time"}:
        return found.text == sought.text and (found.unit == sought.unit or "" in (found.unit, sought.unit))
    if found.text and spelling(found) == spelling(sought):
        return _units_agree(found, sought)
    if len(found.text) == len(sought.text) == 1 and kinds == {"math"}:
        return False  # x is not X, though algebra takes them for one
    if kinds & _BY_THE_LETTER or not (found.text and sought.text):
        return False
    if kinds == {"group"}:
        return found.unit == sought.unit and _all_same(found.items, sought.items)
    if kinds == {"set"} or kinds == {"union"}:
        return _matched(found.items, sought.items)
    if kinds == {"undone"} and found.items and sought.items:
        return sorted(item.value for item in found.items) == sorted(item.value for item in sought.items)
    if kinds == {"set", "group"} or ("number" in kinds and kinds & {"undone", "set", "group", "union"}):
        return False
    if "number" in kinds and any(sign in found.text + sought.text for sign in "=<>"):
        return False  # an equation is no number
    if "number" in kinds and (_SEVERAL.search(found.text) or _SEVERAL.search(sought.text)):
        return False
    if found.kind == "math" and sought.kind == "number" and any(at for sign in "+-*" for at in top_level(found.text, sign)):
        return False  # nor is a sum that is left undone, with 0x added to it
    return None if _units_agree(found, sought) else False


def spelling(answer: Answer) -> str:
    """Two answers with the same spelling are the same without being understood."""
    if answer.kind in ("words", "prose"):
        return " ".join(answer.text.casefold().split())
    text = re.sub(r"(?<=[A-Za-z]) (?=[A-Za-z])|(?<=[0-9]) (?=[0-9])", "\0", answer.text)  # a space that separates
    text = text.replace(" ", "").removeprefix("+")
    text = re.sub(r"(?<=[0-9])\*(?=[A-Za-z\\(])", "", text)
    text = re.sub(r"(?<!\^)\\frac\{([0-9]+|[A-Za-z]|\\[a-z]+|[0-9]*\\sqrt\{[0-9]+\})\}\{([0-9]+|[A-Za-z]|\\[a-z]+)\}(?=$|[+\-,)=\]])", r"\1/\2", text)
    return re.sub(r"(?<=[\^_])\{([0-9A-Za-z])\}", r"\1", text)


def _numbers(found: Answer, sought: Answer) -> bool:
    units = (found.unit, sought.unit)
    if "%" in units and "" in units:
        rate, number = (found.value, sought.value) if found.unit == "%" else (sought.value, found.value)
        return number in (rate, rate / 100)
    return found.value == sought.value and _units_agree(found, sought)


def _units_agree(found: Answer, sought: Answer) -> bool:
    first, second = found.unit, sought.unit
    return not first or not second or first == second or not (known(first) and known(second))


def _all_same(found: tuple[Answer, ...], sought: tuple[Answer, ...]) -> bool | None:
    if len(found) != len(sought):
        return False
    verdicts = [same(one, other) for one, other in zip(found, sought)]
    return False if False in verdicts else None if None in verdicts else True


def _matched(found: tuple[Answer, ...], sought: tuple[Answer, ...]) -> bool | None:
    """Whether each item of one has its like in the other."""
    verdicts = [[same(one, other) for other in sought] for one in found]
    both = [*verdicts, *zip(*verdicts)]
    if all(True in line for line in both):
        return True
    return False if any(True not in line and None not in line for line in both) else None
