r"""Exact values of what people write for a rational number: `rational` gives a Fraction, or None where the text is no single number.

It reads integers, decimals, `1,234` and `1 234`, `\frac{a}{b}` and `a/b`, mixed numbers (`3\frac{1}{2}` and `3 1/2` are 3.5), `1.5 * 10^{3}`
and `1.5e3`, powers, roots that come out even, and repeating decimals. It does not do sums or products: an answer that leaves those undone
repeats the question. Nothing here grows: a power beyond `BITS` is not worked out.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

BITS = 4096  # of the largest power that is worked out
DEPTH = 12  # of fractions in fractions

_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_DECIMAL = re.compile(_PLAIN)
_SCIENTIFIC = re.compile(rf"({_PLAIN})(?:[eE]([+-]?[0-9]{{1,4}})| ?[*x] ?10 ?\^ ?(?:([+-]?[0-9]{{1,4}})|\{{ ?([+-]?[0-9]{{1,4}}) ?\}}))")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot) ?(?:\{([0-9]+)\}|([0-9]))")
_MIXED = re.compile(r"([0-9]+) ?\\frac\{([0-9]+)\}\{([0-9]+)\}|([0-9]+) ([0-9]+) ?/ ?([0-9]+)")
_OPENS, _CLOSES = "({[", ")}]"


class Undefined(ArithmeticError):
    """A division by zero is written out."""


def rational(text: str, depth: int = 0) -> Fraction | None:
    """The value of `text`, which `clean` has been over; None where it is not one number. Raises Undefined."""
    text = text.strip()
    if depth > DEPTH or not text:
        return None
    if text[0] in "+-":
        rest = text[1:].lstrip()
        value = rational(rest, depth + 1) if rest[:1] not in ("+", "-") else None
        return -value if value is not None and text[0] == "-" else value
    value = _literal(text)
    if value is not None:
        return value
    if text[0] in "({" and _closing(text, 0) == len(text) - 1:
        return rational(text[1:-1], depth + 1)
    return _composed(text, depth)


def settled(text: str | None) -> Fraction | None:
    """Like `rational`, and None where it is undefined."""
    try:
        return rational(text or "")
    except Undefined:
        return None


def worked_out(text: str, depth: int = 0) -> Fraction | None:
    """The value of a sum or product of numbers, for checking it against one that is written out; None where it is none. Raises Undefined."""
    text = text.strip()
    if (value := rational(text)) is not None or depth > DEPTH:
        return value
    if text[:1] == "(" and _closing(text, 0) == len(text) - 1:
        return worked_out(text[1:-1], depth + 1)
    for signs in ("+-", "*/"):
        at = max((at for sign in signs for at in top_level(text, sign) if text[:at].rstrip()[-1:] not in ("", *"+-*/^")), default=None)
        if at is not None:
            left, right = worked_out(text[:at], depth + 1), worked_out(text[at + 1 :], depth + 1)
            return None if left is None or right is None else _combined(left, text[at], right)
    return None


def _combined(left: Fraction, sign: str, right: Fraction) -> Fraction:
    if sign in "+-":
        return left + right if sign == "+" else left - right
    return left * right if sign == "*" else _ratio(left, right)


def _literal(text: str) -> Fraction | None:
    if _DECIMAL.fullmatch(text):
        return Fraction(re.sub("[, ]", "", text).rstrip("."))
    if found := _SCIENTIFIC.fullmatch(text):
        shift = int(next(part for part in found.groups()[1:] if part))
        return _literal(found.group(1)) * Fraction(10) ** shift
    if found := _MIXED.fullmatch(text):
        whole, above, below = (int(part) for part in found.groups() if part)
        return whole + _ratio(Fraction(above), Fraction(below))
    if found := _REPEATING.fullmatch(text):
        whole, fixed, repeated = found.group(1) or "0", found.group(2), found.group(3) or found.group(4)
        tail = Fraction(int(repeated), 10 ** len(repeated) - 1) / 10 ** len(fixed)
        return Fraction(f"{whole}.{fixed or 0}") + tail
    return None


def _composed(text: str, depth: int) -> Fraction | None:
    if text.startswith(r"\frac{"):
        middle = _closing(text, 5)
        if middle and text[middle + 1 : middle + 2] == "{" and _closing(text, middle + 1) == len(text) - 1:
            return _quotient(text[6:middle], text[middle + 2 : -1], depth)
    if text.startswith(r"\sqrt{") and _closing(text, 5) == len(text) - 1:
        return _root(rational(text[6:-1], depth + 1))
    if text[0] == text[-1] == "|" and text.count("|") == 2:
        inner = rational(text[1:-1], depth + 1)
        return None if inner is None else abs(inner)
    slashes = top_level(text, "/")
    if slashes:
        return _quotient(text[: slashes[0]], text[slashes[0] + 1 :], depth) if len(slashes) == 1 else None
    carets = top_level(text, "^")
    if len(carets) == 1:
        base, exponent = rational(text[: carets[0]], depth + 1), rational(text[carets[0] + 1 :], depth + 1)
        return None if base is None or exponent is None else _power(base, exponent)
    return None


def _quotient(above: str, below: str, depth: int) -> Fraction | None:
    top, bottom = rational(above, depth + 1), rational(below, depth + 1)
    return None if top is None or bottom is None else _ratio(top, bottom)


def _ratio(above: Fraction, below: Fraction) -> Fraction:
    if below == 0:
        raise Undefined
    return above / below


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1 or (base == 0 and exponent == 0):
        return None
    if base == 0 and exponent < 0:
        raise Undefined
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    return base**exponent.numerator if abs(exponent) <= BITS and size * abs(exponent) <= BITS else None


def _root(value: Fraction | None) -> Fraction | None:
    if value is None or value < 0:
        return None
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else None


def top_level(text: str, sign: str) -> list[int]:
    r"""Where `sign` stands in `text` outside all brackets; `\{` and `\}` are brackets too."""
    depth, found = 0, []
    for at, letter in enumerate(text):
        depth += (letter in _OPENS) - (letter in _CLOSES)
        if depth == 0 and letter == sign:
            found.append(at)
    return found


def _closing(text: str, at: int) -> int | None:
    """Where the bracket that opens at `at` closes."""
    depth = 0
    for here in range(at, len(text)):
        depth += (text[here] in _OPENS) - (text[here] in _CLOSES)
        if depth == 0:
            return here
    return None
