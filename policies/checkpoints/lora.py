"""LoRA adapters (Hu et al. 2021) by PEFT: on a network's Linear layers, trained, sent and saved in place of its weights.

The base is read first and never changes: a folder of adapters keeps its fingerprint, and is not read onto another, nor written over its own. An adapter starts as nothing (B = 0), so attaching one changes no number. What is trained beside the
adapters are the heads (HEADS), whole, as in OpenVLA-OFT. Adapters are held in float32 whatever the base is held in, as PEFT holds them.
On disk they have PEFT's names and files, so `peft.PeftModel.from_pretrained` reads them too; heads.safetensors beside them holds the heads that
have no component file (checkpoints/components.py).

Adapters of layers whose weight the network reads without calling the layer (lm_head, the patch convolution; published ones may have them)
are added to those weights as they are read, stay as they are, and are written again with the others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F

from policies.checkpoints import loading
from policies.checkpoints.components import APART
from policies.checkpoints.loading import CheckpointError

ALL_LINEAR = "all-linear"
HEADS = ("value_head", "log_std", "action_head", "proprio_projector", "film")  # parts of names
READ_DIRECTLY = ("lm_head", "patch_embed")  # parts of names of layers whose weight is read without calling them
NAME, PREFIX = "default", "base_model.model."  # PEFT's
TENSORS, HEADS_FILE = "adapter_model.safetensors", "heads.safetensors"
UNREAD = {  # keys of adapter_config.json by which the adapters mean something else, and the value that is read here
    "peft_type": "LORA", "use_dora": False, "bias": "none", "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}, "fan_in_fan_out": False,
    "layer_replication": None, "trainable_token_indices": None, "target_parameters": None, "lora_bias": False,
}  # fmt: skip


@dataclass(frozen=True)
class Lora:
    rank: int
    alpha: float
    dropout: float = 0.0  # share of a layer's inputs, while learning
    targets: str | tuple[str, ...] = ALL_LINEAR  # names of layers, or ends of names
    root_scale: bool = False  # adapters count alpha / sqrt(rank) instead of alpha / rank (rsLoRA)

    @property
    def scale(self) -> float:
        return self.alpha / (self.rank**0.5 if self.root_scale else self.rank)


def settings(given: Mapping[str, Any] | None) -> Lora | None:
    """policy.lora as the config has it -> Lora; None where its rank is 0. Raises ValueError for the first value that cannot be.

    alpha None: min(rank, 16), the reference's.
    """
    given = dict(given or {})
    unknown = sorted(given.keys() - {"rank", "alpha", "dropout", "targets"})
    if unknown:
        raise ValueError(f"lora: found {', '.join(unknown)}, wanted rank, alpha, dropout and targets")
    rank, alpha, dropout, targets = given.get("rank") or 0, given.get("alpha"), given.get("dropout") or 0.0, given.get("targets") or ALL_LINEAR
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise ValueError(f"lora.rank: found {rank!r}, wanted a whole number, or 0 for no adapters")
    if alpha is not None and (isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not alpha > 0):
        raise ValueError(f"lora.alpha: found {alpha!r}, wanted a number above 0, or null for min(rank, 16)")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise ValueError(f"lora.dropout: found {dropout!r}, wanted a share from 0 to below 1")
    if targets != ALL_LINEAR and (isinstance(targets, str) or not all(isinstance(name, str) for name in targets)):
        raise ValueError(f"lora.targets: found {targets!r}, wanted {ALL_LINEAR}, or a list of layers' names or ends of names, as [q_proj,v_proj]")
    return Lora(rank, float(alpha or min(rank, 16)), float(dropout), targets if targets == ALL_LINEAR else tuple(targets)) if rank else None


def attach(module: nn.Module, given: Mapping[str, Any] | None, folder: loading.Folder) -> None:
    """Adapters onto a module that has its base's weights: those of `folder`, else new ones as `given` says, else none.

    Raises CheckpointError for adapters that do not fit, ValueError for settings that do not, or are others than the folder's.
    """
    wanted = settings(given)
    if folder.adapter is None:
        if wanted is not None:
            layers = layers_of(module, wanted.targets)
            _require_room(module, wanted.rank, layers)
            _inject(module, wanted, layers, folder)
        return
    found = _saved_settings(folder.adapter)
    if wanted is not None and (wanted.rank, wanted.alpha) != (found.rank, found.alpha):
        raise ValueError(f"lora: found rank={wanted.rank} alpha={wanted.alpha:g}, and adapters of rank={found.rank} alpha={found.alpha:g} in {folder.adapter}, which go on as they are; leave lora out, or merge them first: python -m embodied.export")
    chosen = None if wanted is None or wanted.targets == ALL_LINEAR else layers_of(module, wanted.targets)
    _load(module, found if wanted is None else Lora(found.rank, found.alpha, wanted.dropout, found.targets, found.root_scale), folder)
    others = set() if chosen is None else {name for name, part in module.named_modules() if isinstance(part, LoraLayer)}.symmetric_difference(chosen)
    if others:
        raise ValueError(f"lora.targets: found {', '.join(wanted.targets)}, and {folder.adapter} differs by {len(others)} layers, as {min(others)}; its adapters go on where they are: leave lora.targets out")


def attached(module: nn.Module) -> bool:
    return any(isinstance(part, LoraLayer) for part in module.modules())


def carrier(module: nn.Module) -> nn.Module | None:
    """The part of it, or itself, that adapters were attached to: it knows their settings (`lora`) and their base (`lora_base`). None where there are none."""
    return next((part for part in module.modules() if isinstance(getattr(part, "lora", None), Lora)), None)


def layers_of(module: nn.Module, targets: str | tuple[str, ...] = ALL_LINEAR) -> list[str]:
    """Names of the Linear layers meant. Never lm_head or the heads. Raises ValueError listing what there is for a target that names none."""
    there = [name for name, part in module.named_modules() if isinstance(part, nn.Linear) and not {*HEADS, *READ_DIRECTLY}.intersection(name.split("."))]
    if targets == ALL_LINEAR:
        return there
    lost = [target for target in targets if not any(_ends(name, target) for name in there)]
    if lost:
        raise ValueError(f"lora.targets: found {', '.join(lost)}, which names no Linear layer; there is {', '.join(sorted({name.rsplit('.', 1)[-1] for name in there}))}, and longer ends of names, as {there[-1]}")
    return [name for name in there if any(_ends(name, target) for target in targets)]


def require_elsewhere(path: str | Path, module: nn.Module) -> None:
    """Raises CheckpointError where a module's adapters would be written in place of their base's weights."""
    if attached(module) and Path(path).resolve() == Path(module.lora_base).resolve():
        raise CheckpointError(f"{path}: found the base of these adapters there, wanted another folder: adapters are saved without their base's weights, which would be lost; save them elsewhere, or merge them first: python -m embodied.export")


def write(path: Path, module: nn.Module) -> None:
    """The adapters into `path`/lora_adapter, with where their base lies, its fingerprint and the heads beside them."""
    path, lora = path / loading.ADAPTER, module.lora
    path.mkdir(exist_ok=True)
    adapters = {_name_on_disk(name): parameter for name, parameter in module.named_parameters() if _is_adapter(name)}
    loading.write_tensors(path / TENSORS, adapters | module.lora_folded)
    heads = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad and not _is_adapter(name) and not name.startswith(APART)}
    if heads:
        loading.write_tensors(path / HEADS_FILE, heads)
    layers = sorted({name.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for name in (*adapters, *module.lora_folded)})
    config = {
        "peft_type": "LORA", "task_type": None, loading.BASE_KEY: module.lora_base, "r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout,
        "use_rslora": lora.root_scale, "target_modules": layers, "init_lora_weights": "gaussian", "bias": "none", "inference_mode": True,
    }  # fmt: skip
    (path / loading.ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    (path / loading.BASE).write_text(json.dumps({"fingerprint": module.lora_fingerprint}, indent=2) + "\n")


@torch.no_grad()
def merge(module: nn.Module) -> None:
    """Adds the adapters to their layers' weights, computed in float32, and takes them off; a module without adapters stays as it is."""
    for name, part in [(name, part) for name, part in module.named_modules() if isinstance(part, LoraLayer)]:
        layer = part.get_base_layer()
        _add(layer.weight, part.lora_A[NAME].weight, part.lora_B[NAME].weight, part.scaling[NAME])
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, layer)


class LearningDropout(nn.Dropout):
    """Dropout where gradients are asked for, and nowhere else: sampling and the judging of samples must be of one distribution."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.dropout(inputs, self.p, training=torch.is_grad_enabled())


def _require_room(module: nn.Module, rank: int, layers: list[str]) -> None:
    """Raises ValueError for a rank above a layer's own: it would add numbers and no meaning."""
    narrow = min(layers, key=lambda name: min(module.get_submodule(name).weight.shape), default=None)
    most = rank if narrow is None else min(module.get_submodule(narrow).weight.shape)
    if rank > most:
        raise ValueError(f"lora.rank: found {rank}, wanted at most {most}, the smaller side of {narrow}; lower it, or name wider layers in lora.targets")


def _inject(module: nn.Module, lora: Lora, layers: list[str], folder: loading.Folder) -> None:
    """New adapters; their A is drawn from N(0, 1 / rank^2) by a generator of its own, so every process has the same, and B is 0."""
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=layers, use_rslora=lora.root_scale, init_lora_weights="gaussian"
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        inject_adapter_in_model(config, module)
    for part in module.modules():
        if isinstance(part, LoraLayer) and lora.dropout:
            part.lora_dropout[NAME] = LearningDropout(lora.dropout)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(_is_adapter(name) or bool(set(HEADS).intersection(name.split("."))))
        if _is_adapter(name):
            parameter.data = parameter.data.float()
    module.lora, module.lora_base, module.lora_folded = lora, str(folder.base.absolute()), {}
    module.lora_fingerprint = folder.fingerprint


def _load(module: nn.Module, lora: Lora, folder: loading.Folder) -> None:
    file = folder.adapter / TENSORS
    if not file.is_file():
        raise CheckpointError(f"{folder.adapter}: found no {TENSORS}, wanted the adapters' weights; copy the whole checkpoint folder again")
    shapes = loading.shapes_of(file)
    layers = {name.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for name in shapes}
    called = {name for name in layers if not set(READ_DIRECTLY).intersection(name.split("."))}
    lost = sorted(name for name in layers if not isinstance(dict(module.named_modules()).get(name), (nn.Linear, nn.Conv2d)))
    if lost:
        raise CheckpointError(f"{file}: found adapters of {', '.join(lost[:5])}{f' and {len(lost) - 5} more' if len(lost) > 5 else ''}, wanted those of layers of {folder.base}; give the base they were trained on: policy.base=FOLDER")
    _inject(module, lora, sorted(called), folder)
    own = {_name_on_disk(name): parameter for name, parameter in module.named_parameters() if _is_adapter(name)}
    folded = {name for name in shapes if name.removeprefix(PREFIX).rsplit(".lora_", 1)[0] not in called}
    wrong = [f"missing {name} {tuple(own[name].shape)}" for name in own if name not in shapes]
    wrong += [f"misshapen {name}: found {shapes[name]}, wanted {tuple(own[name].shape)}" for name in own if name in shapes and shapes[name] != tuple(own[name].shape)]
    wrong += [f"{name} is {dtype}, wanted one of {', '.join(loading.FLOATS)}" for name, dtype in loading.quantised(file).items()]
    wrong += [f"{name}: its weight is the embedding's too, which it must not change" for name in sorted(layers - called) if _shared(module, name)]
    if wrong:
        raise CheckpointError(f"{file}: {len(wrong)} tensors do not fit {folder.base}; give the base they were trained on: policy.base=FOLDER\n  " + "\n  ".join(wrong))
    with safe_open(file, "pt") as opened, torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(opened.get_tensor(name))
        module.lora_folded = {name: opened.get_tensor(name).clone() for name in sorted(folded)}
    for layer in sorted(layers - called):
        down, up = (module.lora_folded[f"{PREFIX}{layer}.lora_{side}.weight"] for side in "AB")
        _add(module.get_submodule(layer).weight, down, up, lora.scale)
    _load_heads(module, folder.adapter / HEADS_FILE)


def _load_heads(module: nn.Module, file: Path) -> None:
    """Those that are there and here; a head that only one side has is left out, as loading.load_weights does."""
    if not file.is_file():
        return
    own, shapes = dict(module.named_parameters()), loading.shapes_of(file)
    wrong = [f"{name}: found {shapes[name]}, wanted {tuple(own[name].shape)}" for name in shapes if name in own and shapes[name] != tuple(own[name].shape)]
    if wrong:
        raise CheckpointError(f"{file}: found heads of other sizes: {'; '.join(wrong)}; use the policy's settings of the run that made them")
    with safe_open(file, "pt") as opened, torch.no_grad():
        for name in shapes.keys() & own.keys():
            own[name].copy_(opened.get_tensor(name))


def _saved_settings(adapter: Path) -> Lora:
    found = loading.read_json(adapter / loading.ADAPTER_CONFIG)
    other = [f"{key}={found.get(key)!r}" for key, read in UNREAD.items() if found.get(key) not in (None, read) and found.get(key)]
    if other:
        raise CheckpointError(f"{adapter / loading.ADAPTER_CONFIG}: found {', '.join(other)}, wanted plain LoRA; merge it into its base with PEFT (merge_and_unload) and load the result")
    return Lora(int(found["r"]), float(found["lora_alpha"]), float(found.get("lora_dropout") or 0.0), root_scale=bool(found.get("use_rslora")))


@torch.no_grad()
def _add(weight: nn.Parameter, down: torch.Tensor, up: torch.Tensor, scale: float) -> None:
    """weight [out, ...] += scale * up [out, r] down [r, ...], of a Linear or a convolution, rounded once."""
    change = scale * (up.flatten(1).float() @ down.flatten(1).float()).to(weight.device)
    weight.copy_(weight.float() + change.view_as(weight))


def _shared(module: nn.Module, layer: str) -> bool:
    """Whether a layer's weight is that of another one as well, as where embeddings are tied."""
    weight = module.get_submodule(layer).weight
    return sum(parameter is weight for _, parameter in module.named_parameters(remove_duplicate=False)) > 1


def _is_adapter(name: str) -> bool:
    return ".lora_" in name


def _name_on_disk(name: str) -> str:
    return PREFIX + name.replace(f".{NAME}.", ".")


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
