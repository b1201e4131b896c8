"""`load`: the problems that a text names, each source imported only when it is chosen."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Sequence

from envs.math.base import SPLITS, Distinct, Problem, Problems

__all__ = ["Problem", "Problems", "load"]

REASONING = "reasoning_gym:"
PACKAGED = "packaged:"
JUDGED = 1000  # different problems of arithmetic that are for evaluation, where nothing else is said
SHARE = 0.1  # that is held out where nothing else is said
KINDS = "arithmetic, reasoning_gym:TASK, packaged:FILE, a JSONL, JSON, CSV or Parquet file, or a local Hugging Face dataset folder"


def load(
    problems: str | None,
    split: str = "train",
    seed: int = 0,
    size: int | None = None,
    held_out: float | None = None,
    digits: int = 2,
    operations: Sequence[str] = ("add",),
    prompt_field: str | None = None,
    answer_field: str | None = None,
    published: str | None = None,
    whole: bool = False,
) -> Problems:
    """The problems of one split; item i is a pure function of these arguments (and of the file) and i. No problem is in both splits.

    problems: "arithmetic", "reasoning_gym:TASK", "packaged:FILE" of those that travel with the package, a file, or a local Hugging Face dataset
    folder. seed: draws the problems of the first two, and which `size` of a file's are used. size: problems to use, None for all: the first two
    are then without end, but for arithmetic's evaluation, which has 1,000 different ones. held_out: the share of the different problems, 0 to 1, that is for evaluation; None: 0.1, and of a file 1 where `whole`;
    a folder with parts of its own goes by those. digits, operations: arithmetic's. published: a benchmark of `envs.math.published`, whose file it is.
    Raises ValueError for what cannot be; a split may be empty, with size 0.
    """
    known = None if published is None else _benchmark(published, problems)
    if split not in SPLITS:
        raise ValueError(f"found split={split!r}, wanted one of {', '.join(SPLITS)}")
    if held_out is not None and (not isinstance(held_out, (int, float)) or not 0 <= held_out <= 1):
        raise ValueError(f"found held_out={held_out!r}, wanted a share from 0 to 1, or null")
    share = SHARE if held_out is None else held_out
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ValueError(f"found size={size!r}, wanted a whole number of at least 1, or null for all")
    if not isinstance(problems, str) or not problems:
        raise ValueError(f"found problems={problems!r}, wanted {KINDS}")
    if problems == "arithmetic":
        from envs.math.arithmetic import Arithmetic

        found = Arithmetic(split, seed, size, share, digits, operations)
        return found if split == "train" or found.size == 0 else Distinct(found, size or JUDGED)
    if problems.startswith(REASONING):
        from envs.math.reasoning import ReasoningGym

        return ReasoningGym(problems.removeprefix(REASONING), split, seed, size, share)
    path = location(problems)
    if not path.exists():
        raise ValueError(f"found problems={problems!r}, wanted {KINDS}; there is no such file in {path.parent if problems.startswith(PACKAGED) else Path.cwd()}")
    from envs.math import files

    reading = files.Reading() if known is None else known.reading
    named = {"prompts": prompt_field, "answers": answer_field}
    reading = replace(reading, **{name: (field,) for name, field in named.items() if field is not None})
    found = files.load(path, split, seed, size, 1.0 if whole and held_out is None else share, reading)
    found.about |= {} if known is None else known.about(found.about["count"])
    return found


def location(problems: str) -> Path:
    """Where the file or folder that `problems` names is, or would be."""
    return Path(str(resources.files("assets") / problems.removeprefix(PACKAGED))) if problems.startswith(PACKAGED) else Path(problems).expanduser()


def shared(problems: str | None, *asked: Any) -> Problems:
    """`load` with the arguments in its order, once for all the envs of this process, for as long as the file stays as it is."""
    path = location(problems) if isinstance(problems, str) else None
    status = path.stat() if path is not None and path.is_file() else None
    key = tuple(tuple(each) if isinstance(each, list) else each for each in asked)
    return _loaded(problems, key, status and (path.resolve(), status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=4)
def _loaded(problems: str | None, asked: tuple[Any, ...], _: Any) -> Problems:
    return load(problems, *asked)


def _benchmark(name: str, problems: str | None) -> Any:
    from envs.math.published import benchmark

    return benchmark(name, problems)
