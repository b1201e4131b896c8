"""Problems that stand in files: one JSONL, JSON, CSV or Parquet file, or a local Hugging Face dataset folder. Read once per process, in the order of the file.

Where a folder names its own training and evaluation parts they are taken as they are (less what training shares with evaluation); else
problems are held out by a hash of their prompt. A row that is no problem is never skipped: all bad ones are reported, by file and line.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping

from envs.answers.clean import plain
from envs.answers.extract import gold_answer
from envs.math import folder
from envs.math.base import Problem, Problems, held_out, whole

PROMPTS = ("prompt", "question", "problem")  # the fields that are looked for, in this order
ANSWERS = ("answer", "solutions", "solution")
EVALUATION = ("test", "validation", "valid", "eval", "evaluation", "dev")  # parts of a folder that are for evaluation: the first that it has
SHOWN = 5  # bad rows that a message names

Rows = Iterable[tuple[str, Any]]  # (where it stands, the record; a ValueError where it could not be read)


@dataclass(frozen=True)
class Reading:
    """How a row is read: the fields that are looked for, in this order, once `convert` has made what has them of a row (None: the row has)."""

    prompts: tuple[str, ...] = PROMPTS
    answers: tuple[str, ...] = ANSWERS
    convert: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    columns: tuple[str, ...] = ()  # that it needs

    @property
    def all(self) -> set[str]:
        return {*self.prompts, *self.answers, *self.columns}


class Listed(Problems):
    """Some of the rows of a file; `index` of a problem is its row. about: also how many rows the file has, and the SHA-256 of its bytes."""

    def __init__(self, source: str, problems: tuple[Problem, ...], about: dict[str, Any]):
        super().__init__(source, len(problems), about)
        self._problems = problems

    def make(self, index: int) -> Problem:
        return self._problems[index]


def load(path: Path, split: str, seed: int, size: int | None, share: float, reading: Reading = Reading()) -> Listed:
    """The problems of one split. size: use this many, chosen by seed.

    Raises ValueError with the bad rows, or with what the folder holds where that is no dataset.
    """
    files = sorted(found for depth in ("*", "*/*") for found in path.glob(depth) if found.is_file()) if path.is_dir() else [path]
    stamp = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    parts = _parts(path, stamp, reading)
    about = {"count": sum(map(len, parts.values())), "sha256": _digest(stamp), "held_out": f"its part {_evaluation(parts)}" if _evaluation(parts) else share}
    return Listed(str(path), _chosen(path, stamp, reading, split, seed, size, share), about)


@functools.lru_cache(maxsize=8)
def _chosen(path: Path, stamp: tuple, reading: Reading, split: str, seed: int, size: int | None, share: float) -> tuple[Problem, ...]:
    mine = sides(_parts(path, stamp, reading), share)[split == "evaluate"]
    if size is None or size >= len(mine):
        return mine
    key = str(seed).encode()
    places = sorted(range(len(mine)), key=lambda place: hashlib.blake2b(mine[place].prompt.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest())
    return tuple(mine[place] for place in sorted(places[:size]))


@functools.lru_cache(maxsize=4)
def _parts(path: Path, stamp: tuple, reading: Reading) -> dict[str, tuple[Problem, ...]]:
    rows = folder.parts(path, jsonl_rows, reading.all) if path.is_dir() else {"": file_rows(path, reading.all)}
    return {name: problems_of(found, str(path), reading) for name, found in rows.items()}


@functools.lru_cache(maxsize=4)
def _digest(stamp: tuple) -> str:
    """The first 12 hex digits: of a file those that `sha256sum` shows, of a folder of all its files together, in the order of their names."""
    whole = hashlib.sha256()
    for name, _, _ in stamp:
        with open(name, "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                whole.update(piece)
    return whole.hexdigest()[:12]


def sides(parts: Mapping[str, tuple[Problem, ...]], share: float) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """(those for training, those for evaluation)."""
    evaluation = _evaluation(parts)
    if evaluation is not None:
        asked = {" ".join(problem.prompt.split()) for problem in parts[evaluation]}
        return tuple(problem for problem in parts["train"] if " ".join(problem.prompt.split()) not in asked), parts[evaluation]
    pool = [problem for problems in parts.values() for problem in problems]
    return tuple(p for p in pool if not held_out(p.prompt, share)), tuple(p for p in pool if held_out(p.prompt, share))


def _evaluation(parts: Mapping[str, Any]) -> str | None:
    """The part that is for evaluation, of a folder that has one and one for training."""
    return next((name for name in EVALUATION if name in parts), None) if "train" in parts else None


def file_rows(path: Path, columns: set[str]) -> Rows:
    """The rows of one file, by what its name ends in; JSONL where it says nothing else. columns: what to read of a Parquet file."""
    if path.suffix == ".parquet":
        return folder.parquet_rows(path, columns)
    return {".csv": csv_rows, ".json": json_rows}.get(path.suffix, jsonl_rows)(path)


def jsonl_rows(path: Path) -> Rows:
    """One record a line, blank lines left out; numbers stay as they are written."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"line {number}", _record(line)


def json_rows(path: Path) -> Rows:
    """The records of one list; also one a line, as some files are that end in .json. Raises ValueError for what is neither."""
    whole = path.read_bytes()
    if not whole.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        yield from jsonl_rows(path)
        return
    found = _record(whole)
    if isinstance(found, ValueError):
        raise ValueError(f"problems={path}: {found}, wanted a list of objects, or one a line")
    yield from ((f"entry {number}", record) for number, record in enumerate(found, 1))


def csv_rows(path: Path) -> Rows:
    """One record a row, by the names in the first; a row with more fields than names is bad. Raises ValueError for bytes that are not UTF-8."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, strict=True), 1):
                yield f"row {number}", ValueError(f"found {len(row[None])} fields more than the {len(row) - 1} names in the first row") if None in row else row
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"problems={path}: found no CSV in UTF-8 ({error}), wanted rows below one with the names of the fields") from error


def problems_of(rows: Rows, source: str, reading: Reading) -> tuple[Problem, ...]:
    """Every row as a Problem. Raises ValueError naming the rows that are none."""
    problems, bad = [], []
    for index, (place, record) in enumerate(rows):
        try:
            problems.append(_problem(record, source, index, reading))
        except ValueError as error:
            bad.append(f"\n  {place}: {error}")
    if bad:
        rest = "" if len(bad) <= SHOWN else f"\n  and {len(bad) - SHOWN} more"
        total = len(problems) + len(bad)
        raise ValueError(
            f"problems={source}: found {len(bad)} bad of {total} rows; wanted an object in each, with a text under {_or(reading.prompts)} and a text, a number or a "
            f"list of right answers under {_or(reading.answers)} (env.prompt_field and env.answer_field name others):{''.join(bad[:SHOWN])}{rest}"
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


def _problem(record: Any, source: str, index: int, reading: Reading) -> Problem:
    if isinstance(record, ValueError):
        raise record
    if not isinstance(record, dict):
        raise ValueError(f"found {_brief(record)}, wanted an object")
    record = record if reading.convert is None else reading.convert(record)
    (asked, prompt), (named, answer) = (_first(record, names) for names in (reading.prompts, reading.answers))
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"found {asked}={_brief(prompt)}, wanted a text that is not empty")
    if not whole(prompt):
        raise ValueError(f"found half a surrogate pair in {asked}, wanted whole characters: no tokenizer reads it")
    golds = [_gold(named, entry) for entry in (answer if isinstance(answer, (list, tuple)) else [answer])]
    if not golds:
        raise ValueError(f"found {named}=[], wanted at least one answer")
    return Problem(prompt, golds[0], source, index, tuple(golds[1:]))


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
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
