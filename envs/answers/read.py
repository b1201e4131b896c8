r"""What kind of answer a text is, and its value: `read` turns one that `clean` has been over into an `Answer`.

A comma between digits is a thousands separator where groups of three follow (`1,234`), and separates items otherwise; within brackets a comma
that has a space after it separates first, so `(1,000, 2)` is a pair. A bare list is a set: the order of roots says nothing. `x = 5` is 5, named x,
and so is `x = 5 = 2 + 3`; `5 = 6` is no number. Of a number with a remark in brackets, `12 (twelve)`, the remark must say the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from envs.answers.choices import choice
from envs.answers.numbers import Undefined, rational, settled, top_level, worked_out
from envs.answers.units import counted, known, scale, split_money, unit

DEPTH = 4  # of lists in lists
ITEMS = 64  # of a list

_NAME = re.compile(r"(?:[A-Za-z]|\\[a-z]+ ?)(?:_(?:[0-9A-Za-z]|\{ ?[0-9A-Za-z]+ ?\}))?(?:\([A-Za-z]\))?")
_STATEMENT = re.compile(r"(?:(?:so|thus|hence|therefore|the|my|final|correct),? )*answer ?(?:is|:|=) ?", re.IGNORECASE)
_REMARK = re.compile(r"([^()]*[0-9}]) ?\(([^()]*)\)")
_AGAIN = re.compile(r"(.*[0-9}]),? (?:i\.e\.|that is),? (.*)")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2}) ?(?:([aApP])\.? ?[mM])?\.?")
_TAIL = re.compile(r"(?<=[0-9}).])( ?)(?=[A-Za-z%$€£¥¢]|\^\\circ)")
_UNIT = re.compile(r"(?<=[0-9})a-z]) (?=[A-Za-z%$€£¥])|(?<=[0-9})a-z]) ?(?=\^\\circ)")
_UNDONE = re.compile(r"(?:[0-9+\-*/^(){}. ]|\\frac|\\sqrt|,(?=[0-9]{3}))+")
_WORDS = re.compile(r"[^\\^_=+*/<>{}()\[\]|!%$0-9]+")
_FUNCTIONS = frozenset("sin cos tan cot sec csc log exp arcsin arccos arctan sinh cosh tanh max min gcd lcm mod sqrt lim det dim deg".split())
_SMALL_WORDS = frozenset("is so or if in to of we be as at by it an on no ok and".split())
_BARE_SEPARATOR = re.compile(r";|,? (?:or|and) |,(?= )")


@dataclass(frozen=True)
class Answer:
    """One answer, or one item of it."""

    kind: str  # number | undefined | choice | time | group | set | union | undone | words | prose | math
    text: str  # what was read, for comparing by the letter and for math-verify
    value: Fraction | None = None  # of a number
    unit: str = ""  # of a number, or of mathematics
    items: tuple[Answer, ...] = ()  # of a group, a set, a union; the factors of an undone product where all are numbers
    name: str = ""  # x in x = 5


def read(text: str, depth: int = 0) -> Answer:
    """Never raises, whatever `text` is."""
    text = text.strip()
    stated = _STATEMENT.match(text)
    name, rest = _named(text[stated.end() :] if stated else text)
    answer = _read(rest, depth)
    return replace(answer, name=name) if name else answer


def is_answer(answer: Answer) -> bool:
    """Whether it reads as an answer by itself, and not as a sentence about one."""
    if answer.kind == "words":
        return len(answer.text.split()) <= 3
    return answer.kind != "prose" and answer.text != ""


def _read(text: str, depth: int) -> Answer:
    try:
        found = _number(text) or _remarked(text, depth)
    except Undefined:
        return Answer("undefined", text)
    found = found or _choice(text) or _time(text)
    if found is None and depth < DEPTH:
        found = _plus_minus(text, depth) or _union(text, depth) or _group(text, depth) or _bare(text, depth)
    return found or _rest(text)


def _named(text: str) -> tuple[str, str]:
    """(The name that an equation gives its right side, that side), or ("", text). What is worked out on the way to the last `=` goes."""
    membership = re.match(r"([A-Za-z]) ?\\in(?![A-Za-z]) ?", text)
    if membership:
        return membership.group(1), text[membership.end() :]
    if re.search("[<>!]", text) or not (signs := top_level(text, "=")):
        return "", text
    heads = [head.strip() for head in re.split("=", text[: signs[-1]])]
    if not all(not head or _NAME.fullmatch(head) or _UNDONE.fullmatch(head) or _WORDS.fullmatch(head) for head in heads):
        return "", text
    last = text[signs[-1] + 1 :].strip()
    if len(heads) == 1 and re.fullmatch("[A-Za-z]", last) and settled(heads[0]) is not None:
        return last, heads[0]  # 5 = x
    answer = _side([head for head in heads if _UNDONE.fullmatch(head)], last)
    if answer is None:
        return "", text
    return heads[0] if _NAME.fullmatch(heads[0]) else "", answer


def _side(heads: list[str], last: str) -> str | None:
    """The answer of equations from the numbers `heads` to `last`: `last`, or a number that it comes to as in `12 = 3*4`. None: not one answer."""
    number = next((head for head in heads if settled(head) is not None), None)
    if settled(last) is not None:
        plain = number is not None and not set(number + last) & set("/\\^")  # 1/3 = 0.33 is rounded
        return None if plain and settled(number) != settled(last) else last
    try:
        value, measured = worked_out(last), _number(last)
    except Undefined:
        return None
    if number is not None and value is not None:
        return number if settled(number) == value else None
    variable = re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", last))
    return None if heads and variable and not _WORDS.fullmatch(last) and measured is None else last


def _remarked(text: str, depth: int) -> Answer | None:
    """A number after which brackets say how it comes about, its name in words or its unit, or that is said again: `12 (3*4 = 12)`, `12 (twelve)`, `1/2, i.e. 0.5`."""
    found = _REMARK.fullmatch(text) or _AGAIN.fullmatch(text)
    number = _number(found.group(1)) if found and depth < DEPTH else None
    if found is None or number is None:
        return None
    remark = found.group(2).strip()
    if "=" in remark or found.re is _AGAIN:
        return number if read(remark, depth + 1).value == number.value else None
    if counted(remark) == number.value:
        return number
    measure = unit(remark, True) if not number.unit else None
    return replace(number, unit=measure) if measure and known(measure) else None


def _number(text: str) -> Answer | None:
    bare, money = split_money(text)
    value = rational(bare)
    if value is not None:
        return Answer("number", text, value, money)
    for _, found in zip(range(6), _TAIL.finditer(bare)):
        value = rational(bare[: found.start()])
        if value is None:
            continue
        factor, rest = scale(bare[found.end() :])
        measure = unit(rest, bool(found.group(1)) or factor != 1) if rest else ""
        if measure is not None:
            return Answer("number", bare[: found.start()] if factor == 1 else str(value * factor), value * factor, money or measure)
    return None


def _choice(text: str) -> Answer | None:
    letter = choice(text)
    return Answer("choice", letter) if letter else None


def _time(text: str) -> Answer | None:
    found = _TIME.fullmatch(text)
    return Answer("time", f"{int(found.group(1))}:{found.group(2)}", unit=(found.group(3) or "").lower()) if found else None


def _plus_minus(text: str, depth: int) -> Answer | None:
    if text.count(r"\pm") != 1:
        return None
    both = [re.sub(r" ?\\pm ?", sign, text).removeprefix("+") for sign in "+-"]
    return Answer("set", text, items=tuple(read(one, depth + 1) for one in both))


def _union(text: str, depth: int) -> Answer | None:
    parts = re.split(r" ?\\cup(?![A-Za-z]) ?", text)
    items = tuple(_group(part.strip(), depth + 1) for part in parts) if 1 < len(parts) <= ITEMS else (None,)
    return None if None in items else Answer("union", text, items=items)


def _group(text: str, depth: int) -> Answer | None:
    """What stands in brackets of its own: `unit` holds them where they are ( or [, and a set has none."""
    braces = text.startswith(r"\{") and text.endswith(r"\}")
    inner = text[2:-2] if braces else text[1:-1]
    ends = text[:1] + text[-1:]
    if not braces and ends not in ("()", "[]", "(]", "[)", "{}") or len(text) < 2 or not _whole(text):
        return None
    if not inner.strip():
        return Answer("words", r"\emptyset") if braces else None
    parts = _items(inner)
    if len(parts) > ITEMS or (len(parts) == 1 and not braces and ends != "[]"):
        return None
    items = tuple(read(part, depth + 1) for part in parts)
    if braces or ends == "{}":
        return items[0] if len(items) == 1 else Answer("set", text, items=items)
    return Answer("group", text, unit=ends, items=items)


def _bare(text: str, depth: int) -> Answer | None:
    """A list without brackets; a sentence that has a comma is none."""
    parts = [part for chunk in _top_split(text, _BARE_SEPARATOR) for part in _items(chunk)]
    if not 1 < len(parts) <= ITEMS or not all(part.strip() for part in parts):
        return None
    items = tuple(read(part, depth + 1) for part in parts)
    words = sum(item.kind == "words" for item in items)
    if words not in (0, len(items)) or not all(map(is_answer, items)):
        return None
    return Answer("set", text, items=items)


def _rest(text: str) -> Answer:
    if _UNDONE.fullmatch(text) and re.search(r"[0-9)}] ?[+\-*]", text):
        return Answer("undone", text, items=_factors(text))
    bare = re.sub(r"\\(?:begin|end) ?\{[A-Za-z]+\*?\}|\\[A-Za-z]+", " ", text)
    words = [word.lower() for word in re.findall(r"[^\W\d_]+", bare)]
    telling = [word for word in words if (len(word) > 2 and word not in _FUNCTIONS) or word in _SMALL_WORDS or (len(word) > 1 and not word.isascii())]
    if telling and bare == text and _WORDS.fullmatch(text):
        return Answer("words", text)
    return _measured(text) or Answer("prose" if telling else "math", text)


def _measured(text: str) -> Answer | None:
    """A number that is not rational and its unit, as in `4 \\pi cm`."""
    for _, found in zip(range(6), _UNIT.finditer(text)):
        measure, body = unit(text[found.end() :], True), text[: found.start()]
        if measure is not None and not re.search(r"(?<![\\A-Za-z])[A-Za-z]", body):
            return Answer("math", body, unit=measure)
    return None


def _factors(text: str) -> tuple[Answer, ...]:
    """The factors of a product of numbers, powers written out; () where it is none."""
    edges = [-1, *top_level(text, "*"), len(text)]
    factors: list[Answer] = []
    for start, end in zip(edges, edges[1:]):
        part = text[start + 1 : end].strip()
        power = re.fullmatch(r"([0-9]+)\^\{? ?([0-9]{1,2}) ?\}?", part)
        try:
            value = rational(power.group(1) if power else part)
        except Undefined:
            return ()
        if value is None:
            return ()
        factors += [Answer("number", part, value)] * (int(power.group(2)) if power else 1)
    return tuple(factors) if len(edges) > 2 else ()


def _items(text: str) -> list[str]:
    """`text` at its commas outside brackets, less those between thousands."""
    chunks = _top_split(text, re.compile(r",(?= )"))
    thousands = re.compile(r" ?[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)? ?")
    alone = len(chunks) == 1  # (1,234) is a pair: nothing says otherwise
    return [part for chunk in chunks for part in ([chunk] if not alone and thousands.fullmatch(chunk) else _top_split(chunk, re.compile(",")))]


def _top_split(text: str, separator: re.Pattern) -> list[str]:
    outside = set(range(len(text)))
    depth = 0
    for at, letter in enumerate(text):
        depth += letter in "([{"
        if depth > 0:
            outside.discard(at)
        depth -= letter in ")]}" and depth > 0
    parts, start = [], 0
    for found in separator.finditer(text):
        if found.start() in outside and found.end() - 1 in outside:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def _whole(text: str) -> bool:
    """Whether the first bracket is closed by the last."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth <= 0 and at < len(text) - 1 and letter != "\\":
            return False
    return depth == 0
