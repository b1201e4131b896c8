"""Checkpoint folders: everything that is wrong with one is said in one error, and weights are read tensor by tensor.

No file of a folder is ever executed: weights come from safetensors, the rest is json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

CONFIG, STATISTICS, PREPROCESSOR = "config.json", "dataset_statistics.json", "preprocessor_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
RECOMPUTED = ".rotary_emb.inv_freq"  # old exports hold it; it follows from the config


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be loaded as it is."""


@dataclass(frozen=True)
class Folder:
    path: Path
    config: dict
    statistics: dict  # {key: {"action": {...}}}
    preprocessor: dict
    weights: tuple[Path, ...]


def read_folder(path: str | Path, wanted: tuple[str, ...] = ()) -> Folder:
    """Read the json files and find the weights. Raises CheckpointError naming every file that is missing, those of `wanted` among them.

    A folder without dataset_statistics.json may hold them as config.json's `norm_stats`, as the base models do.
    """
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(f"found no folder {path}, wanted a checkpoint folder with {CONFIG}, {WEIGHTS}, {STATISTICS} and {PREPROCESSOR}")
    missing = [name for name in (CONFIG, PREPROCESSOR, *wanted) if not (path / name).is_file()]
    config = read_json(path / CONFIG) if CONFIG not in missing else {}
    if (path / STATISTICS).is_file():
        statistics = read_json(path / STATISTICS)
    else:
        statistics = config.get("norm_stats") or {}
        missing += [] if statistics else [STATISTICS]
    weights, lost = _weight_files(path)
    missing += lost
    if missing:
        raise CheckpointError(f"{path}: missing {', '.join(missing)}; found {', '.join(sorted(file.name for file in path.iterdir())) or 'nothing'}. Copy the whole checkpoint folder")
    return Folder(path, config, statistics, read_json(path / PREPROCESSOR), weights)


class _Object(dict):
    """A json object that says which file lacks a key."""

    def __init__(self, values: dict, file: Path):
        super().__init__(values)
        self._file = file

    def __missing__(self, key: str) -> None:
        raise CheckpointError(f"{self._file}: found no {key!r}, wanted it (beside {', '.join(map(repr, self)) or 'nothing'}); copy the whole checkpoint folder again")


def read_json(file: Path) -> dict:
    """The json object in a file; a key it lacks is an error that names file and key, also deeper down. Raises CheckpointError."""
    try:
        return json.loads(file.read_text(), object_hook=lambda values: _Object(values, file))
    except ValueError as error:
        raise CheckpointError(f"{file} is not json ({error}); copy the whole checkpoint folder again") from error


def _opened(file: Path):
    try:
        return safe_open(file, "pt")
    except SafetensorError as error:
        raise CheckpointError(f"{file} is not whole ({error}); copy the whole checkpoint folder again") from error


def _weight_files(path: Path) -> tuple[tuple[Path, ...], list[str]]:
    if (path / INDEX).is_file():
        names = sorted(set(read_json(path / INDEX)["weight_map"].values()))
    else:
        names = [WEIGHTS]
    return tuple(path / name for name in names), [name for name in names if not (path / name).is_file()]


def load_weights(module: nn.Module, files: tuple[Path, ...], optional: str | None = None) -> None:
    """Copy every tensor of `files` into `module`'s parameter of that name, cast to its dtype.

    Names that start with `optional` may be absent on either side. Raises CheckpointError naming every missing, extra and misshapen tensor.
    """
    is_optional = lambda name: optional is not None and name.startswith(optional)
    parameters = dict(module.named_parameters())
    handles = [_opened(file) for file in files]
    found = {name: handle for handle in handles for name in handle.keys() if not name.endswith(RECOMPUTED)}
    shapes = {name: tuple(handle.get_slice(name).get_shape()) for name, handle in found.items()}
    problems = [f"missing {name} {tuple(parameters[name].shape)}" for name in parameters if name not in found and not is_optional(name)]
    problems += [f"extra {name} {shapes[name]}" for name in found if name not in parameters and not is_optional(name)]
    problems += [
        f"misshapen {name}: found {shapes[name]}, wanted {tuple(parameters[name].shape)}"
        for name in found
        if name in parameters and shapes[name] != tuple(parameters[name].shape)
    ]
    if problems:
        raise CheckpointError(f"{files[0].parent}: {len(problems)} tensors do not fit the model that {CONFIG} describes; the config and the weights are of different models:\n  " + "\n  ".join(problems))
    with torch.no_grad():
        for name in parameters.keys() & found.keys():
            parameters[name].copy_(found[name].get_tensor(name))


def write_folder(path: str | Path, module: nn.Module, texts: dict[str, dict], files: dict[str, bytes]) -> None:
    """Write {name: json object} and {name: bytes} and all parameters as model.safetensors into `path`, made if need be."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        (path / name).write_text(json.dumps(content, indent=2) + "\n")
    for name, content in files.items():
        (path / name).write_bytes(content)
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in module.named_parameters()}
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    (path / WEIGHTS).chmod(0o644)  # safetensors leaves it to its owner alone, and checkpoints are packaged and shared
