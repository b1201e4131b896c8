r"""Where the answer of a response stands. What is thought before the last `</think>` is set aside: where nothing follows it, there is no answer.
Thought that is never closed is read like the rest. The first of these rules that applies decides, and no later one is tried:

1. a box: the last `\boxed{...}`, with everything in its braces; one that is never closed, or is empty, is no answer;
2. `#### x`: the last line that begins so and is no heading (`#### Step 3`); words around a number are ignored, a second number is not;
3. `Answer: x`, `the answer is x`: the last of them that holds one (`this answer is correct` does not), to the end of its sentence;
   of `either 5 or 6` and its like neither counts;
4. the whole response, where it is one line that reads as an answer and nothing else;
5. the last number, or the last piece of mathematics between dollar signs (of an equation the right side).

So a box beats a number after it, and of two boxes the last counts. Every rule takes time linear in the length of the response.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction

from envs.answers.choices import several_choices
from envs.answers.clean import clean, trim
from envs.answers.read import is_answer, read
from envs.answers.units import COUNT_WORDS, counted

LINE = 600  # characters of a line that are looked at for an answer
SHORT = 200  # characters of a response that may be an answer as a whole
SPANS = 8  # pieces of mathematics that are looked at, from the last on
STATEMENTS = 8  # of an answer that are looked at, from the last on

_THOUGHT = "</think>"
_SPECIAL = re.compile(r"</?s>|<(?:eos|bos|pad|end_of_turn)>|<\|[A-Za-z][\w\u2581]{2,40}\|>")  # tokens that end or part texts

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ \t\n]{0,8}(?:(\{)|([+-]?[0-9][0-9.,/]*))?|\\.|[{}]", re.DOTALL)
_MARK = re.compile(r"(?<!#)####(?!#)")
_BLANK = re.compile(r"\s*")
_HEADING = re.compile(r"[*_ ]*(?:step|solution|conclusion|explanation|verification|check|final|answer|result|summary|part|case|example|approach|method|analysis|problem|question|calculation)s?\b", re.IGNORECASE)
_STATED = re.compile(r"\b(?:answers?|correct (?:option|choice))\b(?!\s\(?[-+$\\]{0,3}[0-9])(?:[^\n.:=]{0,40}?(?:\b(?:is|are)\b|:|=)|[*_ ]{0,8}\n)[\s:*_]*", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=\S)(?:[.!?](?=[\s*_\"')]|$)|,? (?:because|since|so|as|which) )")
_REASON = re.compile(r",? (?:because|since|so|as|which) ")
_ABOUT = re.compile(
    r"(?:indeed |also |thus |therefore |now |in fact )?(?:correct|right|verified|confirmed|checked|valid|reasonable|clear|unclear|consistent|helpful|useful|accurate|plausible|shown|given|stated|boxed|obtained|found|derived|computed|calculated"
    r"|an? (?:[a-z]+ )?(?:integer|number|fraction))"
    r"(?=\s*(?:[.!?,;)*_\n]|$|(?:and|because|since|above|below|by|in|too|for|if|with|as (?:above|required|expected|stated|before|shown|we|you|it))\b))",
    re.IGNORECASE,
)  # what is said of an answer, and is none
_CONDITION = re.compile(r"\b(?:if|whether) (?:\w+ )?$", re.IGNORECASE)
_RETRACTED = re.compile(r"[.!?,;]\s+(?:no[,.!:]|no wait|wait|actually|correction|sorry|oops|hmm)(?![A-Za-z])", re.IGNORECASE)
_NEGATED = re.compile(r"\b(?:not|never|isn't|cannot|can't|unknown)\b", re.IGNORECASE)
_COUNT = "|".join(COUNT_WORDS)
_AFTER = re.compile(rf"[$)]{{0,2}}\s?\(?(?:[A-Za-z']+\s)?(?:(?:or|and|then|to|,|;|/|-|:(?!\s)|\||\.\.\.?)\s?)?(?:[-+$\\(]{{0,3}}[0-9]|(?:{_COUNT})\b)", re.IGNORECASE)  # a second answer beside the first
_CHANGED = re.compile(
    r"[$)]{0,2}[\s-]?(?:and an?|squared|cubed|hal(?:f|ves)|thirds?|fourths?|fifths?|quarters?|factorial|hundred|thousand|million|billion|trillion|dozen)(?![A-Za-z])",
    re.IGNORECASE,
)  # words that make another number of the one before them
_RIVAL = re.compile(r"\b(?:or|and|then|to|but|maybe|perhaps|also)\b|[;,/|]|\.\.")  # after it, a number is another answer
_CONTRAST = re.compile(r"\bnot [$\\]{0,2}[-+]?[0-9.,]*[0-9]")
_REMARK = re.compile(r"\(([^()]*=[^()]*|[A-Za-z -]*)\)")
_SET = re.compile(r"(?<![A-Za-z}^_0-9])\\?\{")
_CHAIN = re.compile(r"(?<![\w.])[-+(]?[0-9](?:[0-9.,()+*/ -]|\\times|\\cdot){1,80}= ?(?=[-+$\\]{0,3}[0-9])")
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
    response = _SPECIAL.sub("\n", response.rpartition(_THOUGHT)[2])
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
        start = _BLANK.match(text, found.end()).end()  # type: ignore[union-attr]
        if start == len(text):
            return True, None
        if not _HEADING.match(text, start):
            line = text[start:].split("\n", 1)[0].strip()
            return True, _focus(line, strict=True) or _only_mention(line[:LINE]) or (trim(line) if len(line) <= LINE else line)
    return False, None


def _stated(text: str) -> tuple[bool, str | None]:
    applies, words = False, None
    for found in reversed(deque(_STATED.finditer(text), maxlen=STATEMENTS)):
        rest = text[found.end() : found.end() + LINE]
        if _ABOUT.match(rest) or _CONDITION.search(text, max(0, found.start() - 30), found.start()):
            continue
        applies = True
        holds, answer = _statement(rest)
        if holds:
            return True, answer
        words = words or answer
    return applies, words


def _statement(rest: str) -> tuple[bool, str | None]:
    """(Whether the statement of an answer that goes on with `rest` holds one, or says that there is none; that answer, or what it says)."""
    display = re.match(r"\\\[(.*?)\\\]|\$\$(.*?)\$\$", rest, re.DOTALL)
    if display:
        return True, display.group(1) or display.group(2)
    line = rest.split("\n", 1)[0].rstrip("! ")  # joy, and no factorial
    if _RETRACTED.search(line) or several_choices(clean(_REASON.split(line, maxsplit=1)[0])):
        return True, line
    sentence = line[: end.start()] if (end := _SENTENCE.search(line)) else line
    answer = _focus(line) or _focus(sentence)
    if answer:
        return True, answer
    said = trim(sentence) or None
    if _NEGATED.search(sentence):
        return True, said
    return bool(_NUMBER.search(sentence) or _SPAN.search(sentence)), _only_mention(sentence) or said


def _focus(text: str, strict: bool = False) -> str | None:
    """All of `text` where that is an answer, else the number or mathematics at its front where prose follows; None where neither is.

    strict: no other number may follow, in whatever words.
    """
    text = text.strip(" \t*_`\"'")
    if _reads_as_answer(text):
        return text
    span = _SPAN.match(text)
    found = span if span and _reads_as_answer(span.group()) else _NUMBER.match(text)
    return found.group() if found and _stands_alone(found, strict) else None


def _stands_alone(found: re.Match, strict: bool) -> bool:
    """Whether what follows the answer `found` in its sentence names no other, and does not make another of it."""
    text, start = found.string, found.end()
    end = (_REASON if strict else _SENTENCE).search(text, start, start + LINE)
    rest = text[start : end.start() if end else start + LINE]
    value = _value(found.group())

    def unless_same(remark: re.Match) -> str:
        return "" if value is not None and value in (_value(remark.group(1)), counted(remark.group(1))) else remark.group()

    rest = _REMARK.sub(unless_same, _CONTRAST.sub("", rest))
    if _CHANGED.match(rest) or _AFTER.match(rest):
        return False
    if not strict:
        rest = rest[rival.start() :] if (rival := _RIVAL.search(rest)) else ""
    return all(_value(other.group()) == value for other in _NUMBER.finditer(_without_sums(rest)))


def _only_mention(text: str) -> str | None:
    """The number or piece of mathematics in a sentence, where it names no other and does not deny it."""
    if _NEGATED.search(text):
        return None
    text = _SET.sub(" ", _without_sums(text))
    spans = {span.group().strip("$ ") for span in _SPAN.finditer(text) if _reads_as_answer(span.group())}
    numbers = list(_NUMBER.finditer(_SPAN.sub(" ", text) if spans else text))
    if len(spans) + len({_value(number.group()) for number in numbers}) != 1 or any(not _stands_alone(number, strict=True) for number in numbers):
        return None
    return _last_mention(text)


def _without_sums(text: str) -> str:
    """`text` with 12 where it says 3 * 4 = 12."""
    return _CHAIN.sub(lambda sums: "" if re.search(r"[+*/\\-]", sums.group()[1:]) else sums.group(), text)


def _value(text: str) -> Fraction | None:
    return read(clean(text)).value if len(text) <= LINE else None


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
