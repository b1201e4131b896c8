"""Problems that stand in files: one JSONL file, or a local Hugging Face dataset folder. Read once per process, in the order of the file.

Where a folder names its own training and evaluation parts they are taken as they are (less what training shares with evaluation); else
problems are held out by a hash of their prompt. A row that is no problem is never skipped: all bad ones are reported, by file and line.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Iterable, Mapping

from envs.answers.clean import plain
from envs.answers.extract import gold_answer
from envs.math import folder
from envs.math.base import Problem, Problems, held_out

PROMPTS = ("prompt", "question", "problem")  # the fields that are looked for, in this order
ANSWERS = ("answer", "solutions", "solution")
EVALUATION = ("test", "validation", "valid", "eval", "evaluation", "dev")  # parts of a folder that are for evaluation: the first that it has
SHOWN = 5  # bad rows that a message names

Rows = Iterable[tuple[str, Any]]  # (where it stands, the record; a ValueError where it could not be read)


class Listed(Problems):
    """Some of the rows of a file; `index` of a problem is its row."""

    def __init__(self, source: str, problems: tuple[Problem, ...]):
        super().__init__(source, len(problems))
        self._problems = problems

    def make(self, index: int) -> Problem:
        return self._problems[index]


def load(path: Path, split: str, seed: int, size: int | None, share: float, prompt_field: str | None, answer_field: str | None) -> Listed:
    """The problems of one split. size: use this many, chosen by seed. prompt_field, answer_field: None looks for the usual names.

    Raises ValueError with the bad rows, or with what the folder holds where that is no dataset.
    """
    fields = (PROMPTS if prompt_field is None else (prompt_field,), ANSWERS if answer_field is None else (answer_field,))
    files = sorted(found for depth in ("*", "*/*") for found in path.glob(depth) if found.is_file()) if path.is_dir() else [path]
    stamp = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return Listed(str(path), _chosen(path, stamp, fields, split, seed, size, share))


@functools.lru_cache(maxsize=8)
def _chosen(path: Path, stamp: tuple, fields: tuple, split: str, seed: int, size: int | None, share: float) -> tuple[Problem, ...]:
    mine = sides(_parts(path, stamp, fields), share)[split == "evaluate"]
    if size is None or size >= len(mine):
        return mine
    key = str(seed).encode()
    places = sorted(range(len(mine)), key=lambda place: hashlib.blake2b(mine[place].prompt.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest())
    return tuple(mine[place] for place in sorted(places[:size]))


@functools.lru_cache(maxsize=4)
def _parts(path: Path, stamp: tuple, fields: tuple) -> dict[str, tuple[Problem, ...]]:
    rows = folder.parts(path, jsonl_rows, {name for names in fields for name in names}) if path.is_dir() else {"": jsonl_rows(path)}
    return {name: problems_of(found, str(path), fields) for name, found in rows.items()}


def sides(parts: Mapping[str, tuple[Problem, ...]], share: float) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """(those for training, those for evaluation)."""
    evaluation = next((name for name in EVALUATION if name in parts), None)
    if "train" in parts and evaluation is not None:
        asked = {" ".join(problem.prompt.split()) for problem in parts[evaluation]}
        return tuple(problem for problem in parts["train"] if " ".join(problem.prompt.split()) not in asked), parts[evaluation]
    pool = [problem for problems in parts.values() for problem in problems]
    return tuple(p for p in pool if not held_out(p.prompt, share)), tuple(p for p in pool if held_out(p.prompt, share))


def jsonl_rows(path: Path) -> Rows:
    """One record a line, blank lines left out; numbers stay as they are written."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"line {number}", _record(line)


def problems_of(rows: Rows, source: str, fields: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[Problem, ...]:
    """Every row as a Problem. Raises ValueError naming the rows that are none."""
    problems, bad = [], []
    for index, (place, record) in enumerate(rows):
        try:
            problems.append(_problem(record, source, index, fields))
        except ValueError as error:
            bad.append(f"\n  {place}: {error}")
    if bad:
        rest = "" if len(bad) <= SHOWN else f"\n  and {len(bad) - SHOWN} more"
        total = len(problems) + len(bad)
        raise ValueError(
            f"problems={source}: found {len(bad)} bad of {total} rows; wanted an object in each, with a text under {_or(fields[0])} and a text, a number or a "
            f"list of right answers under {_or(fields[1])} (env.prompt_field and env.answer_field name others):{''.join(bad[:SHOWN])}{rest}"
        )
    return tuple(problems)


def _record(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"), parse_int=str, parse_float=str, parse_constant=lambda name: None)
    except UnicodeDecodeError as error:
        return ValueError(f"found bytes that are not UTF-8 ({error.reason} at byte {error.start})")
    except json.JSONDecodeError as error:
        return ValueError(f"found no JSON ({error.msg} at character {error.pos + 1})")
    except RecursionError:
        return ValueError("found JSON that is nested too deeply")


def _problem(record: Any, source: str, index: int, fields: tuple[tuple[str, ...], tuple[str, ...]]) -> Problem:
    if isinstance(record, ValueError):
        raise record
    if not isinstance(record, dict):
        raise ValueError(f"found {_brief(record)}, wanted an object")
    (asked, prompt), (named, answer) = (_first(record, names) for names in fields)
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"found {asked}={_brief(prompt)}, wanted a text that is not empty")
    golds = [_gold(named, entry) for entry in (answer if isinstance(answer, (list, tuple)) else [answer])]
    if not golds:
        raise ValueError(f"found {named}=[], wanted at least one answer")
    return Problem(prompt, golds[0], source, index, tuple(golds[1:]))


def _first(record: dict, names: tuple[str, ...]) -> tuple[str, Any]:
    name = next((name for name in names if name in record), None)
    if name is None:
        raise ValueError(f"found the fields {', '.join(map(str, record)) or '(none)'}, wanted {_or(names)}")
    return name, record[name]


def _gold(name: str, entry: Any) -> str:
    if isinstance(entry, bool) or not isinstance(entry, (str, int, float)):
        raise ValueError(f"found {name}={_brief(entry)}, wanted a text or a number, or a list of these")
    if not gold_answer(plain(str(entry))):
        raise ValueError(f"found {name}={_brief(entry)}, which holds no answer; wanted the bare answer, or a solution with it in a box or after ####")
    return str(entry)


def _or(names: tuple[str, ...]) -> str:
    return " or ".join(f'"{name}"' for name in names)


def _brief(found: Any) -> str:
    text = json.dumps(found, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
