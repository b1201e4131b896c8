"""`load`: the problems that a text names, each source imported only when it is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from envs.math.base import SPLITS, Problem, Problems

__all__ = ["Problem", "Problems", "load"]

REASONING = "reasoning_gym:"
KINDS = "arithmetic, reasoning_gym:TASK, a JSONL file, or a local Hugging Face dataset folder"


def load(
    problems: str,
    split: str = "train",
    seed: int = 0,
    size: int | None = None,
    held_out: float = 0.1,
    digits: int = 2,
    operations: Sequence[str] = ("add",),
    prompt_field: str | None = None,
    answer_field: str | None = None,
) -> Problems:
    """The problems of one split; item i is a pure function of these arguments (and of the file) and i. No problem is in both splits.

    problems: "arithmetic", "reasoning_gym:TASK", a JSONL file, or a local Hugging Face dataset folder. seed: draws the problems of the first
    two, and which `size` of a file's are used. size: problems to use, None for all: the first two are then without end. held_out: the share
    of the different problems, 0 to 1, that is for evaluation; a folder with parts of its own goes by those. digits, operations: arithmetic's.
    Raises ValueError for what cannot be; a split may be empty, with size 0.
    """
    if split not in SPLITS:
        raise ValueError(f"found split={split!r}, wanted one of {', '.join(SPLITS)}")
    if not isinstance(held_out, (int, float)) or not 0 <= held_out <= 1:
        raise ValueError(f"found held_out={held_out!r}, wanted a share from 0 to 1")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ValueError(f"found size={size!r}, wanted a whole number of at least 1, or null for all")
    if not isinstance(problems, str) or not problems:
        raise ValueError(f"found problems={problems!r}, wanted {KINDS}")
    if problems == "arithmetic":
        from envs.math.arithmetic import Arithmetic

        return Arithmetic(split, seed, size, held_out, digits, operations)
    if problems.startswith(REASONING):
        from envs.math.reasoning import ReasoningGym

        return ReasoningGym(problems.removeprefix(REASONING), split, seed, size, held_out)
    path = Path(problems).expanduser()
    if not path.exists():
        raise ValueError(f"found problems={problems!r}, wanted {KINDS}; there is no such file in {Path.cwd()}")
    from envs.math import files

    return files.load(path, split, seed, size, held_out, prompt_field, answer_field)
