"""What a run reports: one json line per iteration (metrics.jsonl, and TensorBoard) and one per episode (episodes.jsonl).

Every line is flushed when written. A log taken up again at iteration N first drops what was written after N, so the file of a run that
was cut and resumed equals that of an unbroken one. Row N tells of the state after N iterations (0: before the first).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .folder import to_json, write_text

EPISODE_FIELDS = ("phase", "iteration", "episode", "suite", "task", "init_state", "seed", "success", "steps", "return", "terminated", "truncated", "errored")
PHASES = ("before", "train", "after", "evaluate")


class MetricsLog:
    """metrics.jsonl and TensorBoard events in a run's folder.

    `resume_at` None starts the log and raises FileExistsError where one is; N goes on after row N.
    """

    def __init__(self, folder: str | Path, tensorboard: bool = True, resume_at: int | None = None):
        self._folder = Path(folder)
        self._wants_events = tensorboard
        self._events = None
        self._purge = None if resume_at is None else resume_at + 1
        kept, self._file = _open_log(self._folder / "metrics.jsonl", "step", resume_at)
        self._last = max((row["step"] for row in kept), default=-1)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one row. NaN and infinities become strings; the names of such values stand under "not_finite".

        `values` may nest dicts; scalars go to TensorBoard under their path ("seconds/sim"). Raises ValueError when step does not rise.
        """
        if step <= self._last:
            raise ValueError(f"found a row for step {step} after one for step {self._last}, wanted rising steps; pass resume_at when a run is taken up again")
        self._last = step
        scalars = dict(_scalars(values))
        odd = sorted(name for name, value in scalars.items() if value != value or value in (float("inf"), float("-inf")))
        row = {"step": step, **to_json(dict(values)), **({"not_finite": odd} if odd else {})}
        _append(self._file, row)
        if self._wants_events:
            if self._events is None:
                self._events = self._open_events()
            for name, value in scalars.items():
                self._events.add_scalar(name, value, step)
            self._events.flush()

    def cut(self, step: int) -> None:
        """Takes out every row after `step`: what they tell of is done again."""
        self.close()
        self.__init__(self._folder, self._wants_events, step)

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()

    def _open_events(self):
        from torch.utils.tensorboard import SummaryWriter  # a second to import: only when it is wanted

        return SummaryWriter(str(self._folder / "tensorboard"), purge_step=self._purge)


class EpisodeLog:
    """episodes.jsonl: each (phase, iteration, episode) once.

    An episode that was written before is passed over, so what a resumed run does again does not count twice; one that had errored is
    written again, and its last row holds.
    """

    def __init__(self, folder: str | Path, resume_at: int | None = None):
        self._path = Path(folder) / "episodes.jsonl"
        kept, self._file = _open_log(self._path, "iteration", resume_at)
        self._errored = {_key(row): bool(row["errored"]) for row in kept}

    def write(self, row: Mapping[str, Any]) -> bool:
        """Append one episode (EPISODE_FIELDS, and any other fields); False when it is there already. Raises ValueError naming missing fields."""
        missing = [name for name in EPISODE_FIELDS if name not in row]
        if missing:
            raise ValueError(f"found an episode row without {', '.join(missing)}, wanted {', '.join(EPISODE_FIELDS)}")
        if row["phase"] not in PHASES:
            raise ValueError(f"found phase {row['phase']!r}, wanted one of {', '.join(PHASES)}")
        if self._errored.get(_key(row)) is False:
            return False
        self._errored[_key(row)] = bool(row["errored"])
        _append(self._file, to_json(dict(row)))
        return True

    def forget(self, phase: str) -> None:
        """Takes the rows of one phase out of the file: it is about to be played anew."""
        kept = [row for row in read_episodes(self._path) if row["phase"] != phase]
        if len(kept) == len(self._errored):
            return
        self._file.close()
        write_text(self._path, "".join(_line(row) for row in kept))
        self._file = open(self._path, "a", encoding="utf-8")
        self._errored = {_key(row): bool(row["errored"]) for row in kept}

    def cut(self, iteration: int) -> None:
        """Takes out every row after `iteration`: it is played again."""
        self.close()
        self.__init__(self._path.parent, iteration)

    def rows(self, phase: str | None = None) -> list[dict]:
        """What is written so far, one row per episode, of one phase or of all."""
        return read_episodes(self._path, phase)

    def close(self) -> None:
        self._file.close()


def read_episodes(path: str | Path, phase: str | None = None) -> list[dict]:
    """The rows of an episodes.jsonl, one per (phase, iteration, episode), the last of each; a last line cut short is left out."""
    found = {_key(row): row for row in _rows(Path(path))}
    return [row for row in found.values() if phase in (None, row["phase"])]


def _key(row: Mapping[str, Any]) -> tuple:
    return row["phase"], row["iteration"], row["episode"]


def _scalars(values: Mapping[str, Any], prefix: str = ""):
    """(path, float) of every number inside, those of numpy and torch too."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, (bool, int, float)):
            yield f"{prefix}{name}", float(value)
        elif hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
            yield f"{prefix}{name}", float(value.item())


def _rows(path: Path) -> list[dict]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    return [json.loads(line) for line in lines]


def _open_log(path: Path, counter: str, resume_at: int | None):
    """(rows kept, file open for appending): everything whose counter is past `resume_at` is cut off."""
    rows = _rows(path)
    if resume_at is None and path.exists() and path.stat().st_size:
        raise FileExistsError(f"{path}: found {len(rows)} rows of an earlier run, wanted none; pass resume_at (the step of the checkpoint taken up), or use a run folder of its own")
    kept = [row for row in rows if resume_at is not None and row[counter] <= resume_at]
    if path.exists():
        write_text(path, "".join(_line(row) for row in kept))
    return kept, open(path, "a", encoding="utf-8")


def _append(file, row: dict) -> None:
    file.write(_line(row))
    file.flush()


def _line(row: dict) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
