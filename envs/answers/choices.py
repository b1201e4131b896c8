"""Choices: which letter of a question's options a text is. One that names several is none.

A capital letter from A to J is a choice, and so are `(a)`, `B) 12 cm` and `option C`; a bare small letter is a variable.
"""

from __future__ import annotations

import re

_CHOICE = re.compile(r"(?:[Oo]ption |[Cc]hoice )?(?:([A-J])|\( ?([A-Ja-j]) ?\)(?: [^+*/=^-].*)?|([A-J]) ?[.):](?: .*)?)")
_OTHER_CHOICE = re.compile(
    r"(?<![A-Za-z])\( ?([A-Ja-j]) ?\)|(?<![A-Za-z'])([A-J])[).:](?= |$)|(?:^(?=.$)|[,;/.|!?]|(?<![A-J] )\b(?i:or|and)\b|\b(?i:no|wait|actually|rather|instead|is|option|choice)\b) ?([A-J])(?![\w'])(?<!A(?= [a-z]))(?<!I(?= ))"
)
_TOGETHER = re.compile(r"\b(?:both|neither|all of|none of|any of)\b", re.IGNORECASE)  # what choices are named after it are what a choice says


def choice(text: str) -> str | None:
    """The capital letter of the one choice that `text`, which `clean` has been over, is; None where it is none, or several."""
    found = _CHOICE.fullmatch(text)
    return _letter(found) if found and not several_choices(text) else None


def several_choices(text: str) -> bool:
    """Whether `text` begins with a choice and goes on to another: `(A) or (B)`, `A. No, B.`; `(C) both A and B` does not."""
    found = _CHOICE.fullmatch(text)
    if found is None:
        return False
    start = next(end for end in map(found.end, (1, 2, 3)) if end != -1)
    rest = _TOGETHER.split(text[start:].lstrip(" ).:"), maxsplit=1)[0]
    return any(_letter(other) != _letter(found) for other in _OTHER_CHOICE.finditer(rest))


def _letter(found: re.Match) -> str:
    return next(part for part in found.groups() if part).upper()
