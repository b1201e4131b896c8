"""Checkpoints that are whole or are not there: written aside, flushed to disk, renamed, and proved by a checksum of every file.

`step_N/` holds `<name>.safetensors` for each dict of tensors, `state.json`, `policy/` (a checkpoint folder that the policy itself
can be loaded from) and, written last, `complete.json` with the size and SHA-256 of every other file. What comes out is bit for bit
what went in; nothing is pickled.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .folder import sync_folder

COMPLETE = "complete.json"
STATE = "state.json"
POLICY = "policy"


class DamagedCheckpoint(ValueError):
    """A checkpoint folder lacks a file or holds one that is not what was written."""


def save(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    state: Mapping[str, Any],
    write_policy: Callable[[Path], None] | None = None,
    keep: int = 2,
) -> Path:
    """Write `folder/step_<step>` and return it; an older checkpoint of the same step is replaced.

    `tensors`: file name -> flat dict of tensors. `state`: numbers, strings, None, lists, tuples and dicts (any such keys).
    `write_policy` fills a folder that it is given. Of the whole checkpoints the `keep` newest stay; one that is being read stays too.
    """
    if keep < 1:
        raise ValueError(f"found keep={keep}, wanted at least 1 checkpoint to stay")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)  # what a process left that died while writing or deleting
    aside, target = folder / f".step_{step}.writing", folder / f"step_{step}"
    aside.mkdir()
    for name, group in tensors.items():
        save_file(_own_memory(group), aside / f"{name}.safetensors")
    (aside / STATE).write_text(json.dumps(_encode(dict(state), "state", None)))
    if write_policy is not None:
        (aside / POLICY).mkdir()
        write_policy(aside / POLICY)
    files = {path.relative_to(aside).as_posix(): _fingerprint(path) for path in sorted(aside.rglob("*")) if path.is_file()}
    (aside / COMPLETE).write_text(json.dumps({"step": step, "files": files}, indent=1))
    _sync_tree(aside)
    if target.exists():
        target.rename(folder / f".step_{step}.replaced")  # damaged, or from before the run was taken up at an older step
    aside.rename(target)
    sync_folder(folder)
    _sweep(folder)
    _prune(folder, keep)
    return target


def latest(folder: str | Path, note: Callable[[str], None] = print) -> Path | None:
    """The newest whole checkpoint in `folder`, or None. `note` is told of every damaged one that is passed over."""
    for path in reversed(_steps(Path(folder))):
        try:
            verify(path)
            return path
        except DamagedCheckpoint as error:
            note(f"passing over a damaged checkpoint: {error}")
    return None


def find(path: str | Path, note: Callable[[str], None] = print) -> Path:
    """The checkpoint meant by `path`: itself, or the newest whole one of a run folder or of its `checkpoints` folder.

    Raises FileNotFoundError saying what was looked for.
    """
    path = Path(path)
    if (path / COMPLETE).is_file() or re.fullmatch(r"step_\d+", path.name):
        return path
    for folder in (path / "checkpoints", path):
        newest = latest(folder, note)
        if newest is not None:
            return newest
    raise FileNotFoundError(f"{path}: found no whole checkpoint, wanted a run folder with checkpoints/step_N/, or a step_N folder with {COMPLETE}")


def sealed(path: str | Path) -> Path | None:
    """The checkpoint that a path, which need not be there yet, lies in or is; None where it is outside of any."""
    place = Path(path).resolve()
    return next((folder for folder in (place, *place.parents) if (folder / COMPLETE).is_file()), None)


def load(path: str | Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """(tensors, state) as `save` was given them, tensors on the CPU. Raises DamagedCheckpoint naming every file at fault."""
    path = Path(path)
    with reading(path):
        verify(path)
        tensors = {file.stem: load_file(file) for file in sorted(path.glob("*.safetensors"))}
        return tensors, _decode(json.loads((path / STATE).read_text()), None)


@contextmanager
def reading(path: str | Path) -> Iterator[Path]:
    """While inside, no `save` in any process deletes this checkpoint. Raises DamagedCheckpoint when it is not one."""
    path = Path(path)
    try:
        marker = open(path / COMPLETE, "rb")
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{path}: found no {COMPLETE}, wanted the file that is written last; the checkpoint was cut short or is none, use an older step") from error
    with marker:
        fcntl.flock(marker, fcntl.LOCK_SH)
        yield path


def verify(path: Path) -> None:
    """Read every file and compare it with what was written. Raises DamagedCheckpoint naming all that are missing or changed."""
    faults = _faults(path, thorough=True)
    if faults:
        raise DamagedCheckpoint(f"{path}: found {'; '.join(faults)}, wanted the files as {COMPLETE} lists them; use an older step")


def trained(module: Any) -> dict[str, torch.Tensor]:
    """A module's state without its frozen parameters: those are as the run's start made them, and may be a large base under small adapters."""
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return {name: tensor for name, tensor in module.state_dict().items() if name not in frozen}


def with_frozen(module: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What `trained` gave, and the module's own frozen parameters beside it: a whole state dict again."""
    frozen = module.state_dict().keys() - trained(module).keys()
    return {name: tensor for name, tensor in module.state_dict().items() if name in frozen} | dict(tensors)


def flatten_optimizer(state_dict: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], Any]:
    """An optimizer's (or scheduler's) nested state dict as (flat tensors, json-able rest); `unflatten_optimizer` undoes it bit for bit."""
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _encode(dict(state_dict), "optimizer", tensors)


def unflatten_optimizer(tensors: Mapping[str, torch.Tensor], rest: Any) -> dict[str, Any]:
    """The state dict that `flatten_optimizer` was given. Raises KeyError naming the first tensor that is not there."""
    return _decode(rest, tensors)


def _encode(value: Any, where: str, tensors: dict[str, torch.Tensor] | None) -> Any:
    """Plain json in which tuples, tensors and non-string keys are marked, so that `_decode` gives back the same value."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        if tensors is None:
            raise TypeError(f"{where}: found a tensor, wanted plain values; give it in `tensors`")
        tensors[where] = value
        return {"<tensor>": where}
    if isinstance(value, tuple):
        return {"<tuple>": [_encode(item, f"{where}.{i}", tensors) for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [_encode(item, f"{where}.{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("<") for key in value):
            return {key: _encode(item, f"{where}.{key}", tensors) for key, item in value.items()}
        return {"<items>": [[_encode(key, where, None), _encode(item, f"{where}.{key}", tensors)] for key, item in value.items()]}
    raise TypeError(f"{where}: found a {type(value).__name__}, wanted numbers, strings, None, tensors, lists, tuples and dicts of them")


def _decode(value: Any, tensors: Mapping[str, torch.Tensor] | None) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "<tensor>" in value:
        name = value["<tensor>"]
        if tensors is None or name not in tensors:
            raise KeyError(f"found no tensor {name!r}, wanted it beside the state that refers to it; the two are not of one checkpoint")
        return tensors[name]
    if "<tuple>" in value:
        return tuple(_decode(item, tensors) for item in value["<tuple>"])
    if "<items>" in value:
        return {_decode(key, tensors): _decode(item, tensors) for key, item in value["<items>"]}
    return {key: _decode(item, tensors) for key, item in value.items()}


def _own_memory(group: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """CPU copies where needed: safetensors takes contiguous tensors that share no memory, so tied ones are written twice."""
    seen: set[int] = set()
    out = {}
    for name, tensor in group.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        if storage in seen or tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(storage)
        out[name] = tensor
    return out


def _fingerprint(path: Path) -> dict:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _faults(path: Path, thorough: bool) -> list[str]:
    try:
        files = json.loads((path / COMPLETE).read_text())["files"]
        if not files or not all({"bytes", "sha256"} <= wanted.keys() for wanted in files.values()):
            return [f"a {COMPLETE} that names no files"]
    except FileNotFoundError:
        return [f"no {COMPLETE}"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        return [f"an unreadable {COMPLETE}"]
    faults = []
    for name, wanted in files.items():
        file = path / name
        if not file.is_file():
            faults.append(f"no {name}")
        elif file.stat().st_size != wanted["bytes"]:
            faults.append(f"{name} with {file.stat().st_size} bytes instead of {wanted['bytes']}")
        elif thorough and _fingerprint(file) != wanted:
            faults.append(f"{name} with other contents than were written")
    return faults


def _sweep(folder: Path) -> None:
    for left in folder.glob(".step_*"):
        shutil.rmtree(left)


def _steps(folder: Path) -> list[Path]:
    """step_N folders, rising by N."""
    found = [path for path in folder.glob("step_*") if path.is_dir() and path.name[5:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[5:]))


def _prune(folder: Path, keep: int) -> None:
    """Delete what is older than the `keep` newest whole checkpoints, except what is being read."""
    steps = _steps(folder)
    whole = [path for path in steps if not _faults(path, thorough=False)]
    for path in steps[: steps.index(whole[-keep:][0])]:
        marker = path / COMPLETE
        if marker.is_file():
            with open(marker, "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
        going = path.with_name(f".{path.name}.deleting")
        path.rename(going)  # gone under its own name at once, so that nobody finds half of it
        shutil.rmtree(going)


def _sync_tree(root: Path) -> None:
    for path in sorted(root.rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(root)
