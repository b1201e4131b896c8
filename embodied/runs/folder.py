"""A run folder: `outputs/<date>/<time>-<env>-<policy>/`, unique to its run, written by one process at a time.

`run.json` marks a folder as a run's. The writer holds a lock on it that the operating system drops when the process ends, however
it ends, so a crashed run can be taken up again and a living one cannot be written to twice. Every json file appears whole or not at all.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

MARKER = "run.json"


class NotARunFolder(FileNotFoundError):
    """The path is not a folder that a run made."""


class RunFolderInUse(RuntimeError):
    """Another process is writing to this run folder."""


class RunFolder:
    """The paths of one run. `create` and `open(..., writing=True)` hold the writer's lock until `close` or the end of the process."""

    def __init__(self, path: Path, lock: IO | None = None):
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, root: str | Path = "outputs", env_name: str = "env", policy_name: str = "policy", now: datetime | None = None, kind: str = "train") -> RunFolder:
        """Make and lock `root/<date>/<time>-<env>-<policy>/`; a second one within the same second gets `-2`, and so on.

        `now` is local time, read from the clock when None. `kind` ("train", "evaluate", ...) is what `runs` tells runs apart by.
        """
        now = now or datetime.now()
        day = Path(root) / f"{now:%Y-%m-%d}"
        day.mkdir(parents=True, exist_ok=True)
        stem = f"{now:%H-%M-%S}-{_slug(env_name)}-{_slug(policy_name)}"
        attempt = 1
        while True:
            path = day / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                path.mkdir()  # the one step that only one process can win
                break
            except FileExistsError:
                attempt += 1
        about = {"kind": kind, "env": env_name, "policy": policy_name, "created": now.isoformat(timespec="microseconds"), "attempt": attempt}
        write_json(path / MARKER, about)
        return cls.open(path, writing=True)

    @classmethod
    def open(cls, path: str | Path, writing: bool = False) -> RunFolder:
        """The run at `path`. Raises NotARunFolder, and RunFolderInUse when `writing` and another process (or object) writes to it."""
        path = Path(path)
        if not (path / MARKER).is_file():
            found = "a folder without" if path.is_dir() else "a file, not a folder with" if path.exists() else "nothing there, so no"
            raise NotARunFolder(f"{path}: found {found} {MARKER}, wanted a run folder such as outputs/<date>/<time>-<env>-<policy>")
        return cls(path, _lock(path) if writing else None)

    def close(self) -> None:
        """Give the writer's lock back. Harmless when there is none."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def about(self) -> dict:
        """{kind, env, policy, created (ISO local time), attempt}."""
        return json.loads((self.path / MARKER).read_text())

    config_yaml = property(lambda self: self.path / "config.yaml")
    plan_json = property(lambda self: self.path / "plan.json")
    metrics_jsonl = property(lambda self: self.path / "metrics.jsonl")
    episodes_jsonl = property(lambda self: self.path / "episodes.jsonl")
    timeline_json = property(lambda self: self.path / "timeline.json")
    summary_json = property(lambda self: self.path / "summary.json")
    checkpoints = property(lambda self: self.path / "checkpoints")
    videos = property(lambda self: self.path / "videos")
    tensorboard = property(lambda self: self.path / "tensorboard")


def runs(root: str | Path, env_name: str, policy_name: str, kind: str = "train") -> list[Path]:
    """The folders of the runs of this kind with this env and policy, newest first. Folders that are no runs are passed over."""
    found = []
    for marker in Path(root).glob(f"*/*/{MARKER}"):
        try:
            about = json.loads(marker.read_text())
        except ValueError:
            continue
        if not isinstance(about, dict) or not {"created", "attempt"} <= about.keys():
            continue
        if (about.get("kind"), about.get("env"), about.get("policy")) == (kind, env_name, policy_name):
            found.append((about["created"], about["attempt"], marker.parent))
    return [path for *_, path in sorted(found, reverse=True)]


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` so that a reader sees the old file or the whole new one, also after a power cut."""
    write_text(path, json.dumps(to_json(value), indent=2, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """As `write_json`, for text that is ready."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: a rename is only on disk once its folder is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(value: Any) -> Any:
    """`value` in plain json types: dataclasses and mappings to dicts, scalars of numpy and torch to numbers, paths to strings.

    JSON has no NaN and no infinity: they become the strings "NaN", "Infinity" and "-Infinity". Raises TypeError for anything else.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(asdict(value))
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays and tensors, of any rank
        return to_json(value.tolist())
    raise TypeError(f"found a {type(value).__name__} ({value!r}), wanted something json can hold: a number, string, list, dict or dataclass")


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("._") or "unnamed"


def _lock(path: Path) -> IO:
    file = open(path / ".lock", "a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise RunFolderInUse(f"{path}: found another writer (process {holder}), wanted the folder to be free; wait for that run to end or stop it, or start a run of its own") from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
