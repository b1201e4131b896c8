"""Demonstrations on disk: one compressed .npz per episode and an index, `demonstrations.json`, that names them all.

Both are written aside and renamed, the index last, so whatever interrupts a recording leaves a folder that reads. Nothing
here is pickled, and a file that carries a pickle, is damaged or does not fit the index is refused by name.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from envs.spec import IMAGE_PREFIX, ActionSpec, EnvSpec

INDEX = "demonstrations.json"
FORMAT = 1


class DemonstrationError(ValueError):
    """A demonstration folder or file that cannot be read or does not fit; the message names it."""


@dataclass(frozen=True)
class DemonstrationInfo:
    """One line of the index."""

    file: str
    steps: int  # T
    task: int
    init_state: int | None
    seed: int | None
    instruction: str
    success: bool


class DemonstrationWriter:
    """Makes `folder` for the demonstrations of one env by one policy. only_successes: leave out episodes that failed.

    Raises FileExistsError where the folder already holds demonstrations.
    """

    def __init__(self, folder: str | os.PathLike, env_spec: EnvSpec, policy_name: str, only_successes: bool = True):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / INDEX).exists() and len(read(self.folder)):
            raise FileExistsError(f"{self.folder} already holds demonstrations; record into another folder, or remove this one")
        self._spec, self._policy, self._only_successes = env_spec, policy_name, only_successes
        self._episodes: list[DemonstrationInfo] = []
        self.left_out = 0  # failed episodes that were not kept
        self._write_index()

    def write(self, episode: Mapping[str, Any]) -> bool:
        """Stores one episode of T primitive steps; returns whether it was kept.

        Arrays, row t holding what was seen before step t: `images/<camera>` uint8 [T, H, W, 3] and `state` float32 [T, S] as the
        spec has them; `actions` [T, A] (float32, int64 where discrete), the labels in the env's convention; optionally
        `executed` [T, A] where what was done differs from the labels, and `rewards` float32 [T].
        Plain: `success` bool, `task` int, `init_state` and `seed` int or None, `instruction` str where the env has language.
        Raises DemonstrationError for an episode that does not fit the spec.
        """
        if self._only_successes and not episode["success"]:
            self.left_out += 1
            return False
        name = f"episode_{len(self._episodes):06d}.npz"
        arrays = {
            key: np.asarray(episode[key], None if key.startswith(IMAGE_PREFIX) else dtype)  # pictures of another dtype are a mistake
            for key, dtype in _dtypes(self._spec).items()
            if episode.get(key) is not None
        }
        _check(name, arrays, self._spec, len(arrays["actions"]) if "actions" in arrays else 0)
        with _aside(self.folder / name) as file:
            np.savez_compressed(file, **arrays)
        optional = {key: None if episode.get(key) is None else int(episode[key]) for key in ("init_state", "seed")}
        text = str(episode["instruction"]) if self._spec.language else ""
        steps = len(arrays["actions"])
        self._episodes.append(
            DemonstrationInfo(name, steps, int(episode["task"]), instruction=text, success=bool(episode["success"]), **optional)
        )
        self._write_index()
        return True

    def _write_index(self) -> None:
        index = {"format": FORMAT, "policy": self._policy, "env_spec": asdict(self._spec)}
        with _aside(self.folder / INDEX) as file:
            file.write(json.dumps({**index, "episodes": [asdict(info) for info in self._episodes]}, indent=1).encode())


@dataclass(frozen=True)
class Demonstrations:
    """A folder's index; the arrays stay on disk until `load`."""

    folder: Path
    env_spec: EnvSpec
    policy: str  # the name of who demonstrated
    episodes: tuple[DemonstrationInfo, ...]

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def lengths(self) -> list[int]:
        """Primitive steps of each episode."""
        return [info.steps for info in self.episodes]

    @property
    def instructions(self) -> list[str]:
        """The different instructions, in the order of their first episode."""
        return list(dict.fromkeys(info.instruction for info in self.episodes))

    def load(self, index: int) -> dict[str, np.ndarray]:
        """The arrays of one episode, as DemonstrationWriter.write describes them. Raises DemonstrationError naming the file."""
        info = self.episodes[index]
        path = self.folder / info.file
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except FileNotFoundError:
            raise DemonstrationError(f"{path} is missing, though {INDEX} lists it; record it again") from None
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise DemonstrationError(f"{path} is not a demonstration that can be read ({error}); wanted plain arrays in a whole .npz, record it again") from error
        _check(str(path), arrays, self.env_spec, info.steps)
        return arrays


def read(folder: str | os.PathLike) -> Demonstrations:
    """The demonstrations in `folder`. Raises DemonstrationError naming what is missing or broken."""
    folder = Path(folder)
    path = folder / INDEX
    try:
        index = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DemonstrationError(f"{folder} has no {INDEX}, so it holds no demonstrations; record some there, or name another folder") from None
    except ValueError as error:
        raise DemonstrationError(f"{path} is not whole JSON ({error}); record again") from error
    try:
        if index["format"] != FORMAT:
            raise DemonstrationError(f"{path} has format {index['format']}, wanted {FORMAT}; record again with this version")
        episodes = tuple(DemonstrationInfo(**line) for line in index["episodes"])
        spec = _spec_of(index["env_spec"])
        policy = str(index["policy"])
    except (KeyError, TypeError, AttributeError) as error:
        raise DemonstrationError(f"{path} is not an index of demonstrations ({error!r}); record again") from error
    for info in episodes:
        if info.file != Path(info.file).name:
            raise DemonstrationError(f"{path} lists {info.file!r}, which lies outside its folder; wanted plain file names")
    return Demonstrations(folder, spec, policy, episodes)


def _dtypes(spec: EnvSpec) -> dict[str, type]:
    action = np.int64 if spec.action.kind == "discrete" else np.float32
    found: dict[str, type] = {IMAGE_PREFIX + camera: np.uint8 for camera in spec.images}
    return found | ({"state": np.float32} if spec.state else {}) | {"actions": action, "executed": action, "rewards": np.float32}


def _check(name: str, arrays: Mapping[str, np.ndarray], spec: EnvSpec, steps: int) -> None:
    shapes: dict[str, tuple[int, ...]] = {IMAGE_PREFIX + camera: (*size, 3) for camera, size in spec.images.items()}
    if spec.state:
        shapes["state"] = (spec.state,)
    shapes["actions"] = (spec.action.dims,)
    missing = shapes.keys() - arrays.keys()
    if missing or steps < 1:
        raise DemonstrationError(f"{name} lacks {sorted(missing)} or any step; found {sorted(arrays)} with {steps} steps, wanted {sorted(shapes)}")
    shapes |= {"executed": (spec.action.dims,), "rewards": ()}
    dtypes = _dtypes(spec)
    for key, array in arrays.items():
        if key not in shapes:
            raise DemonstrationError(f"{name} holds {key!r}, which is not part of a demonstration of {spec.name}; wanted {sorted(shapes)}")
        if array.shape != (steps, *shapes[key]) or array.dtype != dtypes[key]:
            wanted = f"{np.dtype(dtypes[key])} {[steps, *shapes[key]]}"
            raise DemonstrationError(f"{name}: {key} is {array.dtype} {list(array.shape)}, wanted {wanted}")


def _spec_of(fields: dict[str, Any]) -> EnvSpec:
    action = {key: tuple(value) if isinstance(value, list) else value for key, value in fields["action"].items()}
    images = {camera: tuple(size) for camera, size in fields["images"].items()}
    lists = {key: tuple(fields.get(key, ())) for key in ("tasks", "instructions")}
    return EnvSpec(**{**fields, **lists, "action": ActionSpec(**action), "images": images})


class _aside:
    """A file opened next to `path` that takes its place when the block ends well, and is removed when it does not."""

    def __init__(self, path: Path):
        self._path, self._temporary = path, path.with_name(f".{path.name}.part")

    def __enter__(self):
        self._file = open(self._temporary, "wb")
        return self._file

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._temporary, self._path)
        else:
            self._temporary.unlink()
