"""Demonstrations in words on disk: `demonstrations.jsonl`, a prompt and the answer given to it on each line.

An episode's lines are written by one unbuffered append, so whatever interrupts a recording leaves a file that reads. A file made elsewhere is read
as well, under the names that math problems have; a line that is no demonstration is never skipped, but refused by its number.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Sequence

from envs.math.base import whole
from envs.math.files import ANSWERS, PROMPTS, jsonl_rows
from envs.record import INDEX, DemonstrationError

FILE = "demonstrations.jsonl"
ANSWER_FIELDS = ("response", *ANSWERS)  # what was written goes before what would have been right


@dataclass(frozen=True)
class Pair:
    prompt: str
    answer: str  # what was written, end token not among it
    place: str  # "FILE, line N"


class TextWriter:
    """Makes `folder` for the answers of one policy. only_successes: leave out episodes that failed.

    Raises FileExistsError where the folder already holds demonstrations.
    """

    def __init__(self, folder: str | os.PathLike, only_successes: bool = True) -> None:
        self._path, self._only_successes = Path(folder) / FILE, only_successes
        self.left_out = 0  # failed episodes that were not kept
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if (self._path.is_file() and self._path.stat().st_size) or (self._path.parent / INDEX).exists():
            raise FileExistsError(f"{folder} already holds demonstrations; record into another folder, or remove this one")
        self._path.touch()

    def write(self, answers: Sequence[tuple[str, str]], success: bool) -> bool:
        """Appends an episode: each answer with the prompt that it was given to, in order. Returns whether it was kept."""
        if self._only_successes and not success:
            self.left_out += 1
            return False
        lines = [json.dumps({"prompt": prompt, "answer": answer}, ensure_ascii=False) + "\n" for prompt, answer in answers]
        with open(self._path, "ab", buffering=0) as file:
            file.write("".join(lines).encode())
        return True


def read(path: str | os.PathLike) -> list[Pair]:
    """Every demonstration in a JSONL file, or in the one that a folder holds, in its order; an answer that is a list is one for each.

    Raises DemonstrationError naming what is missing, or each line that is none.
    """
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        held = f"demonstrations of actions ({INDEX})" if (path / INDEX).is_file() else "no such file"
        raise DemonstrationError(f"{path}: found {held}, wanted {FILE} in a folder, or a JSONL file, for an env that takes texts; record some there with evaluate record=DIR")
    pairs, bad = [], []
    for place, record in jsonl_rows(file):
        try:
            pairs += [Pair(prompt, answer, f"{file}, {place}") for prompt, answer in _pairs(record)]
        except DemonstrationError as error:
            bad.append(f"\n  {place}: {error}")
    if bad:
        rest = f"\n  and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise DemonstrationError(f"{file}: found {len(bad)} bad lines; wanted an object in each, as {{\"prompt\": TEXT, \"answer\": TEXT}}:{''.join(bad[:5])}{rest}")
    return pairs


def _pairs(record: Any) -> Iterator[tuple[str, str]]:
    if isinstance(record, ValueError):
        raise DemonstrationError(str(record))
    if not isinstance(record, dict):
        raise DemonstrationError(f"found {record!r:.60}, wanted an object")
    prompt, answer = _field(record, PROMPTS), _field(record, ANSWER_FIELDS)
    for each in answer if isinstance(answer, list) and answer else [answer]:
        for name, text in (("prompt", prompt), ("answer", each)):
            if not isinstance(text, str) or not text.strip():
                raise DemonstrationError(f"found the {name} {text!r:.60}, wanted a text that is not empty")
            if not whole(text):
                raise DemonstrationError(f"found half a surrogate pair in the {name}, wanted whole characters: no tokenizer reads it")
        yield prompt, each


def _field(record: dict, names: Sequence[str]) -> Any:
    name = next((name for name in names if name in record), None)
    if name is None:
        raise DemonstrationError(f"found the fields {', '.join(map(str, record)) or '(none)'}, wanted {' or '.join(names)}")
    return record[name]
