"""Sums, differences and products of whole numbers: `12+39=?`, with the worked steps that a small model can be taught to write.

A problem is held out by its operands in order of size: 39+12 is where 12+39 is.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Sequence

from envs.math.base import Drawn, Problem

SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}
MOST_DIGITS = 30  # two operands of these are well within one draw
_PROMPT = re.compile(r"([0-9]+)([-+*])([0-9]+)=\?\n")


class Arithmetic(Drawn):
    """`digits`: operands are uniform in 0 to 10**digits - 1. `operations`: any of add, subtract (never below 0), multiply, as often each."""

    def __init__(self, split: str, seed: int, size: int | None, share: float, digits: int, operations: Sequence[str]):
        if isinstance(operations, str) or not operations or not set(operations) <= set(SIGNS):
            raise ValueError(f"found operations={operations if isinstance(operations, str) else list(operations)}, wanted a list of one or more of {', '.join(SIGNS)}")
        if not isinstance(digits, int) or not 1 <= digits <= MOST_DIGITS:
            raise ValueError(f"found digits={digits!r}, wanted 1 to {MOST_DIGITS}: of each operand")
        super().__init__("arithmetic", split, seed, size, share)
        self._signs, self._below = [SIGNS[name] for name in operations], 10**digits
        self.about |= {"digits": digits, "operations": "/".join(operations)}

    def identity(self, number: int) -> str:
        first, sign, second = self._parts(number)
        return f"{max(first, second)}{sign}{min(first, second)}"

    def make(self, index: int) -> Problem:
        first, sign, second = self._parts(self.number(index))
        return Problem(f"{first}{sign}{second}=?\n", str(_result(first, sign, second)), self.source, index)

    def _parts(self, number: int) -> tuple[int, str, int]:
        number, sign = divmod(number, len(self._signs))
        number, first = divmod(number, self._below)
        second = number % self._below
        if self._signs[sign] == "-":
            first, second = max(first, second), min(first, second)
        return first, self._signs[sign], second


def worked(problem: Problem) -> str:
    """The demonstration: digit by digit from the right, then the answer. ValueError for a problem that is no arithmetic.

    12+39: `2+9+0=11;1+3+1=5;#### 51`, the third number being what was carried. 52-39: `12-9-0=3;5-3-1=1;#### 13`, ten being borrowed where
    the first number has two digits. 12*39: `12*9=108;12*30=360;108+360=468;#### 468`, a product per digit and the running sums.
    """
    found = _PROMPT.fullmatch(problem.prompt)
    if found is None:
        raise ValueError(f"found the problem {problem.prompt[:80]!r} of {problem.source}, wanted one of problems=arithmetic: only those have worked steps")
    first, sign, second = found.groups()
    steps = {"+": _added, "-": _subtracted, "*": _multiplied}[sign](first, second)
    return ";".join([*steps, f"#### {problem.answer}"])


def _result(first: int, sign: str, second: int) -> int:
    return first + second if sign == "+" else first - second if sign == "-" else first * second


def _digits(first: str, second: str) -> list[tuple[int, int]]:
    """The digits of both from the right, the shorter one filled up with zeros."""
    return [(int(one), int(other)) for one, other in zip_longest(reversed(first), reversed(second), fillvalue="0")]


def _added(first: str, second: str) -> list[str]:
    steps, carry = [], 0
    for one, other in _digits(first, second):
        total = one + other + carry
        steps.append(f"{one}+{other}+{carry}={total}")
        carry = total // 10
    return steps


def _subtracted(first: str, second: str) -> list[str]:
    steps, borrow = [], 0
    for one, other in _digits(first, second):
        above = one + 10 * (one < other + borrow)
        steps.append(f"{above}-{other}-{borrow}={above - other - borrow}")
        borrow = above // 10
    return steps


def _multiplied(first: str, second: str) -> list[str]:
    rows = [(int(first), int(digit) * 10**place) for place, digit in enumerate(reversed(second))]
    steps, total = [f"{one}*{other}={one * other}" for one, other in rows], rows[0][0] * rows[0][1]
    for one, other in rows[1:]:
        steps.append(f"{total}+{one * other}={total + one * other}")
        total += one * other
    return steps
