"""What may follow a number without being part of it: units, percent and money, and words of scale such as `million`; and the numbers that words name.

A unit is ignored where only one side has one. Where both sides have one that is known here, they must agree.
"""

from __future__ import annotations

import re

_SAME = {
    "cm": "centimeter centimetre",
    "mm": "millimeter millimetre",
    "km": "kilometer kilometre",
    "m": "meter metre",
    "in": "inch inche",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "kg": "kilogram kilo",
    "g": "gram",
    "mg": "milligram",
    "lb": "pound",
    "oz": "ounce",
    "l": "liter litre",
    "ml": "milliliter millilitre",
    "s": "second sec",
    "min": "minute",
    "h": "hour hr",
    "day": "",
    "week": "",
    "month": "",
    "year": "yr",
    "mph": "",
    "kph": "",
    "deg": "degree",
    "rad": "radian",
    "$": "dollar usd buck",
    "cent": "",
    "€": "euro eur",
    "£": "gbp",
    "¥": "yen yuan",
    "%": "percent",
    "unit": "",
    "hz": "hertz",
}
_KNOWN = {word: name for name, words in _SAME.items() for word in (name, *words.split())}
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
# Words after a number that say something of it rather than of what it counts.
_NOT_UNITS = frozenset(
    "a an and as at because but by choose e else except exp cos for from has have i if is it least less ln log max min minus mod modulo more most neither no nor not of off or over pi plus remainder sin so sqrt squared"
    " tan than that the then there thus times to too unless was were when where which while with wrong".split()
) - {"min"}
COUNT_WORDS = tuple("two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety".split())
_COUNTS = {"zero": 0, "one": 1} | {word: number if number <= 20 else 10 * (number - 18) for number, word in enumerate(COUNT_WORDS, 2)}
_WORD = re.compile(r"[A-Za-z]+")
_SHAPE = re.compile(r"(?:(?:per|sq|square|cubic|[A-Za-z]+\.?)(?:\^(?:\{[23]\}|[23]))?(?: ?/ ?| |-|$)){1,4}")
_CURRENCY = re.compile(r"([+-]?) ?([$€£¥]) ?")


def split_money(text: str) -> tuple[str, str]:
    """(`text` without a sign of money at its front, that sign)."""
    found = _CURRENCY.match(text)
    return (found.group(1) + text[found.end() :], found.group(2)) if found else (text, "")


def scale(text: str) -> tuple[int, str]:
    """(What a word of scale at the front of `text` multiplies by, the rest)."""
    found = _WORD.match(text)
    factor = _SCALES.get(found.group().lower().removesuffix("s") if found else "", 1)
    return (factor, text[found.end() :].strip()) if factor != 1 else (1, text)


def unit(text: str, spaced: bool) -> str | None:
    """The one name of the unit that `text` writes out, None where it is none. `spaced`: a space is between it and its number."""
    text = text.strip()
    if text in (r"^\circ", "%", "$", "€", "£", "¥"):
        return "deg" if text == r"^\circ" else text
    if text == "¢":
        return "cent"
    if text in (r"^\circ C", r"^\circ F", r"^\circ c", r"^\circ f"):
        return "deg" + text[-1].lower()
    if not _SHAPE.fullmatch(text) or len(text) > 60:
        return None
    words = [word.lower() for word in _WORD.findall(text)]
    if any(word in _NOT_UNITS or word in _SCALES or word in COUNT_WORDS for word in words):
        return None
    names = [_name(word) for word in words]
    if None in names and (not spaced or any(len(word) == 1 for word, name in zip(words, names) if name is None)):
        return None  # 5x and 5 x are products
    if not spaced and len(words[0]) == 1:
        return None  # and so is 5m
    return _canonical(text.lower(), words, names)


def known(name: str) -> bool:
    """Whether every part of the unit `name` is known here."""
    return all(part.split("^")[0] in _KNOWN or part in ("degc", "degf") for part in name.split("/"))


def _name(word: str) -> str | None:
    return _KNOWN.get(word) or _KNOWN.get(word.removesuffix("s")) or _KNOWN.get(word.removesuffix("es"))


def _canonical(text: str, words: list[str], names: list[str | None]) -> str:
    for word, name in zip(words, names):
        if name:
            text = re.sub(rf"(?<![a-z]){word}(?![a-z])\.?", name, text, count=1)
    text = re.sub(r"\{([23])\}", r"\1", text)
    text = re.sub(r"\b(?:sq|square) (\S+)", r"\1^2", text)
    text = re.sub(r"\bcubic (\S+)", r"\1^3", text)
    return re.sub(r" ?(?:/|\bper\b) ?", "/", text).strip()


def counted(words: str) -> int | None:
    """The number from 0 to 99 that `words` name."""
    first, _, second = words.lower().replace("-", " ").partition(" ")
    if second:
        return _COUNTS[first] + _COUNTS[second] if _COUNTS.get(first, 0) >= 20 and 0 < _COUNTS.get(second, 0) < 10 else None
    return _COUNTS.get(first)
