r"""Where the answer of a response stands. The first of these rules that applies decides, and no later one is tried:

1. a box: the last `\boxed{...}`, with everything in its braces; one that is never closed, or is empty, is no answer;
2. `#### x`: the last line that begins so and is no heading (`#### Step 3`); text after a number is ignored, a second number is not;
3. `Answer: x`, `the answer is x`: the last of them, to the end of its sentence;
4. the whole response, where it is one line that reads as an answer and nothing else;
5. the last number, or the last piece of mathematics between dollar signs (of an equation the right side).

So a box beats a number after it, and of two boxes the last counts. Every rule takes time linear in the length of the response.
"""

from __future__ import annotations

import re
from collections import deque

from envs.answers.clean import clean, trim
from envs.answers.read import is_answer, read

LINE = 600  # characters of a line that are looked at for an answer
SHORT = 200  # characters of a response that may be an answer as a whole
SPANS = 8  # pieces of mathematics that are looked at, from the last on

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ \t\n]{0,8}(?:(\{)|([+-]?[0-9][0-9.,/]*))?|\\.|[{}]", re.DOTALL)
_MARK = re.compile(r"(?<!#)####(?!#)")
_HEADING = re.compile(r"[*_ ]*(?:step|solution|conclusion|explanation|verification|check|final|answer|result|summary|part|case|example|approach|method|analysis|problem|question|calculation)s?\b", re.IGNORECASE)
_STATED = re.compile(r"\b(?:answers?|correct (?:option|choice))\b(?:[^\n.:=]{0,40}?(?:\b(?:is|are)\b|:|=)|[*_ ]{0,8}\n)[\s:*_]*", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=\S)(?:[.!?](?=[\s*_\"')]|$)|,? (?:because|since|so|as|which) )")
_NEGATED = re.compile(r"\b(?:not|never|isn't|cannot|can't|unknown)\b", re.IGNORECASE)
_AFTER = re.compile(r"\s?(?:or|and|,|;|/|to|-)\s?[-+$\\]{0,3}[0-9]")  # a second answer beside the first
_UNIT = r"(?:cm|mm|km|kg|mg|ml|ft|mph|km/h|m/s|min|h)\b"
_GROUP = r"\s?\{[^{}\n]{1,60}\}"
_NUMBER = re.compile(
    rf"""(?<![\w^_{{\\.])
    (?:(?<=[=:][ ])-[ ]|[-+])?(?:\\?[$€£¥][ ]?)?[-+]?
    (?:(?:[0-9]+[ ]?)?\\[dtc]?frac(?:{_GROUP}{_GROUP}|\s?[0-9][0-9])
      |[0-9]{{1,2}}:[0-9]{{2}}
      |[0-9]{{1,3}}(?:(?:,|\{{,\}}|,\\!)[0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?
      |[0-9]+[ ]{{1,3}}[0-9]+/[0-9]+
      |(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+|\s?(?:\\times|\\cdot|\*|x)\s?10\s?\^(?:\{{-?[0-9]+\}}|-?[0-9]+)|\s?/\s?[0-9]+)?
    )(?:\s?\\?%)?
    (?={_UNIT}|(?![\w^]|\.[0-9]|/[0-9]|\s?\\(?:sqrt|pi|frac|cdot|times)\b))""",
    re.VERBOSE,
)
_SPAN = re.compile(r"\$\$?(?=[^\s$])([^$\n]{1,200}?)(?<=\S)\$\$?|\\\(([^\n]{1,200}?)\\\)|\\\[([^$]{1,200}?)\\\]")


def final_answer(response: str) -> str | None:
    """The answer that `response`, which `plain` has been over, ends in; None where it has none."""
    for rule in (_boxed, _marked, _stated):
        applies, answer = rule(response)
        if applies:
            return answer
    whole = response.strip()
    if len(whole) <= SHORT and "\n" not in whole and _reads_as_answer(whole):
        return whole
    return _last_mention(response)


def gold_answer(gold: str) -> str | None:
    """The answer of a gold text: what its box or its `####` says where it has one, else all of it."""
    for rule in (_boxed, _marked):
        applies, answer = rule(gold)
        if applies:
            return answer
    return gold.strip() or None


def _boxed(text: str) -> tuple[bool, str | None]:
    if "\\boxed" not in text and "\\fbox" not in text:
        return False, None
    opened: list[tuple[int, int]] = []  # of every open brace: (start of the box around it, start of its own box), -1 for none
    around, last = -1, -1
    inside: dict[int, int] = {}  # start of a box -> start of the box around it
    ends: dict[int, int] = {}  # of the boxes that are closed
    for found in _BOX.finditer(text):
        if found.group(2):
            last = found.start(2)
            inside[last], ends[last] = around, found.end(2)
        elif found.group(1):
            last = found.end()
            opened.append((around, last))
            inside[last], around = around, last
        elif found.group() == "{":
            opened.append((around, -1))
        elif found.group() == "}" and opened:
            around, start = opened.pop()
            if start != -1:
                ends[start] = found.start()
    if last == -1:
        return False, None  # a box is only spoken of
    if last not in ends:
        return True, None
    while inside[last] in ends:
        last = inside[last]
    return True, text[last : ends[last]].strip() or None


def _marked(text: str) -> tuple[bool, str | None]:
    if "####" not in text:
        return False, None
    for found in reversed(list(_MARK.finditer(text))):
        rest = text[found.end() : found.end() + LINE].lstrip()
        if not rest:
            return True, None
        line = rest.split("\n", 1)[0]
        if not _HEADING.match(line):
            return True, _focus(line) or trim(line)
    return False, None


def _stated(text: str) -> tuple[bool, str | None]:
    found = None
    for found in _STATED.finditer(text):
        pass
    if found is None:
        return False, None
    rest = text[found.end() : found.end() + LINE]
    display = re.match(r"\\\[(.*?)\\\]|\$\$(.*?)\$\$", rest, re.DOTALL)
    if display:
        return True, display.group(1) or display.group(2)
    line = rest.split("\n", 1)[0].rstrip("! ")  # joy, and no factorial
    focused = _focus(line)
    if focused:
        return True, focused
    sentence = line[: end.start()] if (end := _SENTENCE.search(line)) else line
    focused = _focus(sentence)
    if focused is None and not _NEGATED.search(sentence):
        focused = _last_mention(sentence)
    return True, focused or trim(sentence) or None


def _focus(text: str) -> str | None:
    """All of `text` where that is an answer, else the number or mathematics at its front where prose follows; None where neither is."""
    text = text.strip(" \t*_`\"'")
    if _reads_as_answer(text):
        return text
    span = _SPAN.match(text)
    if span and _reads_as_answer(span.group()):
        return None if _AFTER.match(text, span.end()) else span.group()
    found = _NUMBER.match(text)
    if found is None or _AFTER.match(text, found.end()):
        return None
    return found.group()


def _reads_as_answer(text: str) -> bool:
    return len(text) <= LINE and is_answer(read(clean(text)))


def _last_mention(text: str) -> str | None:
    number = None
    for number in _NUMBER.finditer(text):
        pass
    spans = deque(_SPAN.finditer(text), maxlen=SPANS)
    span = next((span for span in reversed(spans) if _reads_as_answer(span.group())), None)
    if span and (number is None or span.end() >= number.end()):
        content = next(part for part in span.groups() if part)
        return re.split(r"(?<![<>!])=", content)[-1].strip() or None
    return number.group() if number else None
