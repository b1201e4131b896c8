"""Checkpoint folders: everything that is wrong with one is said in one error, and weights are read lazily.

Names and shapes are compared before anything is read; then one file after another is mapped and copied tensor by tensor, so that a load into
host memory takes what the model takes and one file (shard) at most, and one into an accelerator a file alone. Writing holds one shard at a time.
No file of a folder is ever executed: weights come from safetensors, the rest is json.

A folder may hold adapters (`lora_adapter/`) instead of weights: those are then the base's, where the adapter says it lies, and have the
fingerprint that it says, where it says one. Where a folder holds both, as published OFT folders do, the adapters are in its weights already and
are not applied again. A folder that is written over keeps no file of this layout that what is written does not have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Callable

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from policies.checkpoints import fingerprint
from policies.parts.prompts import FILES

CONFIG, STATISTICS, PREPROCESSOR = "config.json", "dataset_statistics.json", "preprocessor_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
VALUE_HEAD = "value_head."
RECOMPUTED = ".rotary_emb.inv_freq"  # old exports hold it; it follows from the config
ADAPTER, ADAPTER_CONFIG = "lora_adapter", "adapter_config.json"  # folder, and its file, as PEFT writes it
BASE_KEY = "base_model_name_or_path"  # in ADAPTER_CONFIG: the folder whose weights the adapters belong to
BASE = "base.json"  # ours, beside it: {"fingerprint": of those weights}; PEFT warns of keys that it does not know
SHARDS = "model-*-of-*.safetensors"
PARTS = HEAD, PROPRIO, VISION = "action_head", "proprio_projector", "vision_backbone"  # component files (checkpoints/components.py)
LOG_STD = "log_std.safetensors"
VALUE_FILE = "value_head.safetensors"  # of a language model; a VLA has it among its weights
TEXT = ("generation_config.json", "chat_template.jinja")  # what a language model ends its answers by, and how its prompts are worded
LAYOUT = (  # every file of a folder, but for config.json
    STATISTICS, PREPROCESSOR, *FILES, *TEXT, WEIGHTS, SHARDS, INDEX, *(f"{name}--*_checkpoint.pt" for name in PARTS), LOG_STD, VALUE_FILE,
    *(f"{ADAPTER}/{name}" for name in (ADAPTER_CONFIG, BASE, "adapter_model.safetensors", "heads.safetensors")),
)  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")  # safetensors' names
POINTER = b"version https://git-lfs"
SHARD = "5GB"


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be loaded as it is."""


@dataclass(frozen=True)
class Folder:
    path: Path
    config: dict
    statistics: dict  # {key: {"action": {...}}}
    preprocessor: dict
    weights: tuple[Path, ...]  # of the folder, or of its base
    base: Path  # where they lie
    adapter: Path | None = None  # the folder of adapters that go on top of them

    @cached_property
    def fingerprint(self) -> str:
        """Of the weights."""
        return fingerprint_of(self.weights)

    def require_base(self) -> None:
        """Raises CheckpointError where the weights are not those that the adapters were trained on; nothing where no adapters are, or do not say."""
        if self.adapter is None or not (self.adapter / BASE).is_file():
            return
        wanted = read_json(self.adapter / BASE)["fingerprint"]
        if self.fingerprint != wanted:
            raise CheckpointError(
                f"{self.adapter}: found other weights in the base {self.base} than the adapters were trained on (fingerprint {self.fingerprint}, wanted {wanted}); give the folder that "
                f"has those, policy.base=FOLDER (to embodied.export base=FOLDER), or train adapters on the new ones. To use these all the same, delete {self.adapter / BASE}"
            )


def read_folder(path: str | Path, wanted: tuple[str, ...] = (), base: str | Path | None = None) -> Folder:
    """Read the json files and find the weights. Raises CheckpointError naming every file that is missing, those of `wanted` among them.

    A folder without dataset_statistics.json may hold them as config.json's `norm_stats`, as the base models do.
    base: where the weights of a folder of adapters lie, if not where it says.
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
    whole, adapter, home = _whole(path), path / ADAPTER, home_of(path, base)
    applied = adapter if adapter.is_dir() and not whole else None
    weights, lost = weight_files(home)
    missing += [name if home == path else str(home / name) for name in lost]
    if missing:
        raise CheckpointError(f"{path}: missing {', '.join(missing)}; found {', '.join(sorted(file.name for file in path.iterdir())) or 'nothing'}. Copy the whole checkpoint folder")
    if applied is None and base is not None:
        raise CheckpointError(f"{path}: found whole weights and policy.base={base}, wanted one of them: only a folder of adapters has a base; leave policy.base out")
    if whole and (adapter / ADAPTER_CONFIG).is_file():
        print(f"{path}: its weights are whole, so {ADAPTER}/ is in them already and is not applied again", flush=True)
    return Folder(path, config, statistics, read_json(path / PREPROCESSOR), weights, home, applied)


def fingerprint_of(weights: tuple[Path, ...]) -> str:
    """Of the weights that a network has without heads of reinforcement learning. Raises CheckpointError for a file that is not whole."""
    for file in weights:
        shapes_of(file)
    return fingerprint.of_weights(weights, lambda name: not name.endswith(RECOMPUTED) and not name.startswith(VALUE_HEAD))


def parts_of(path: Path, base: str | Path | None = None) -> dict[str, str]:
    """{what: fingerprint} of all that a folder's policy is made of, wherever it lies. base: as for `read_folder`. Raises CheckpointError."""
    adapter, whole = path / ADAPTER, _whole(path)
    weights, lost = weight_files(home_of(path, base))
    found = {} if lost else {"the weights": fingerprint_of(weights)}
    if not whole and (adapter / ADAPTER_CONFIG).is_file():
        found[f"{ADAPTER}/{ADAPTER_CONFIG}"] = fingerprint.of_json({key: value for key, value in read_json(adapter / ADAPTER_CONFIG).items() if key != BASE_KEY})
    files = sorted({file for pattern in (CONFIG, *LAYOUT) for file in path.glob(pattern) if file.is_file()} - {*weights, path / INDEX, adapter / ADAPTER_CONFIG})
    for file in [file for file in files if not whole or file.parent == path]:
        found[str(file.relative_to(path))] = fingerprint.of_json(read_json(file)) if file.suffix == ".json" else fingerprint.of_file(file)
    return found


def home_of(path: Path, base: str | Path | None = None) -> Path:
    """Where a folder's weights lie: in itself, or in the base of its adapters. base: as for `read_folder`. Raises CheckpointError for adapters whose base is not there."""
    return _base_of(path / ADAPTER, base) if (path / ADAPTER).is_dir() and not _whole(path) else path


def _whole(path: Path) -> bool:
    return any((path / name).is_file() for name in (WEIGHTS, INDEX))


def _base_of(adapter: Path, given: str | Path | None) -> Path:
    if not (adapter / ADAPTER_CONFIG).is_file():
        raise CheckpointError(f"{adapter}: found no {ADAPTER_CONFIG}, wanted the file that says what the adapters belong to; copy the whole checkpoint folder again")
    said = read_json(adapter / ADAPTER_CONFIG).get(BASE_KEY)
    home = Path(given or said or "")
    if not (given or said) or not home.is_dir():
        raise CheckpointError(f"{adapter.parent}: found adapters alone, wanted their base's weights too, and {said!r}, which they name, is no folder here; give policy.base=FOLDER"
                              if given is None else f"policy.base={given}: there is no such folder, wanted the one with the weights that {adapter} belongs to")  # fmt: skip
    return home


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
        found = json.loads(file.read_text(), object_hook=lambda values: _Object(values, file))
    except ValueError as error:
        raise damaged(file, f"is not json ({error})") from error
    if not isinstance(found, dict):
        raise damaged(file, f"holds a {type(found).__name__}, wanted a json object {{...}}")
    return found


def damaged(file: Path, what: str) -> CheckpointError:
    """The error for a file that is not what it should be, and what to do; a file that git-lfs has not fetched is called that."""
    with file.open("rb") as opened:
        pointer = opened.read(len(POINTER)) == POINTER
    if pointer:
        return CheckpointError(f"{file}: found a git-lfs pointer, wanted the file that it stands for; fetch it with `git lfs pull` in the folder that it was cloned to")
    return CheckpointError(f"{file} {what}; copy the whole checkpoint folder again")


def _opened(file: Path):
    try:
        return safe_open(file, "pt")
    except SafetensorError as error:
        raise damaged(file, f"is not whole ({error})") from error


def weight_files(path: Path) -> tuple[tuple[Path, ...], list[str]]:
    """(the files that a folder's weights should be in, the names of those that are not there). Raises CheckpointError for an index that is none."""
    if (path / INDEX).is_file():
        places = read_json(path / INDEX)["weight_map"]
        if not isinstance(places, dict) or not places or not all(isinstance(name, str) and Path(name).name == name for name in places.values()):
            raise damaged(path / INDEX, f"has weight_map={places!r:.80}, wanted {{tensor: name of a file beside it}}")
        names = sorted(set(places.values()))
    else:
        names = [WEIGHTS]
    return tuple(path / name for name in names), [name for name in names if not (path / name).is_file()]


def load_weights(module: nn.Module, files: tuple[Path, ...], optional: str | tuple[str, ...] | None = None, check: Callable[[], None] = lambda: None) -> None:
    """Copy every tensor of `files` into `module`'s parameter of that name, cast to its dtype.

    Names that start with `optional` may be absent on either side. check: called once all fit, before anything is copied. Raises CheckpointError naming every missing, extra and misshapen tensor.
    """
    is_optional = lambda name: optional is not None and name.startswith(optional)
    parameters = dict(module.named_parameters())
    shapes = {name: shape for file in files for name, shape in shapes_of(file).items() if not name.endswith(RECOMPUTED)}
    problems = [f"missing {name} {tuple(parameters[name].shape)}" for name in parameters if name not in shapes and not is_optional(name)]
    problems += [f"extra {name} {shapes[name]}" for name in shapes if name not in parameters and not is_optional(name)]
    problems += [
        f"misshapen {name}: found {shapes[name]}, wanted {tuple(parameters[name].shape)}"
        for name in shapes
        if name in parameters and shapes[name] != tuple(parameters[name].shape)
    ]
    problems += [f"{name} is {dtype}, wanted one of {', '.join(FLOATS)}: quantised weights are not read" for file in files for name, dtype in quantised(file).items() if name in parameters]
    if problems:
        raise CheckpointError(f"{files[0].parent}: {len(problems)} tensors do not fit the model that {CONFIG} describes; the config and the weights are of different models:\n  " + "\n  ".join(problems))
    check()
    for file in files:
        _copy(file, parameters)


def shapes_of(file: Path) -> dict[str, tuple[int, ...]]:
    """{name: shape} of a safetensors file, from its header alone. Raises CheckpointError when it is not whole."""
    with _opened(file) as opened:
        return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}


def quantised(file: Path) -> dict[str, str]:
    """{name: dtype} of the tensors that are no plain floating point numbers."""
    with _opened(file) as opened:
        return {name: dtype for name in opened.keys() if (dtype := opened.get_slice(name).get_dtype()) not in FLOATS}


@torch.no_grad()
def _copy(file: Path, parameters: dict[str, nn.Parameter]) -> None:
    """One file's tensors into the parameters. What was mapped of it is let go with it, so that no two files are in memory."""
    with _opened(file) as opened:
        for name in opened.keys():
            if name in parameters:
                parameters[name].copy_(opened.get_tensor(name))


def write_folder(path: str | Path, module: nn.Module | None, texts: dict[str, dict], files: dict[str, bytes], shard: str | int = SHARD, apart: tuple[str, ...] = ()) -> None:
    """Write {name: json object} and {name: bytes} into `path`, made if need be, and all parameters (None: no weights) as model.safetensors,
    or where they are more than `shard` (bytes) in several files and an index. All of LAYOUT that was there before is taken away.

    apart: beginnings of names of parameters that are left out."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    for old in {file for pattern in LAYOUT for file in path.glob(pattern) if not file.is_dir()}:
        old.unlink()
    for name, content in texts.items():
        (path / name).write_text(json.dumps(content, indent=2) + "\n")
    for name, content in files.items():
        (path / name).write_bytes(content)
    if module is not None:
        _write_weights(path, {name: parameter for name, parameter in module.named_parameters() if not name.startswith(apart)}, shard)


def declaring(config: dict, dtype: torch.dtype) -> dict:
    """A config.json that says, where it says anything about it, the dtype that the weights beside it are written in."""
    return {key: str(dtype).removeprefix("torch.") if key in ("torch_dtype", "dtype") else value for key, value in config.items()}


def _write_weights(path: Path, parameters: dict[str, nn.Parameter], shard: str | int) -> None:
    split = split_torch_state_dict_into_shards(parameters, max_shard_size=shard)
    for file, names in split.filename_to_tensors.items():
        write_tensors(path / file, {name: parameters[name] for name in names})
    if split.is_sharded:
        (path / INDEX).write_text(json.dumps({"metadata": split.metadata, "weight_map": split.tensor_to_filename}, indent=2) + "\n")


def write_tensors(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    """One safetensors file, as transformers and PEFT read it."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors leaves it to its owner alone, and checkpoints are packaged and shared
