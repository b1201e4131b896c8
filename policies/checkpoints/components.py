"""Component files: what OpenVLA-OFT keeps beside a folder's weights, read and written under the reference's names.

`action_head--N_checkpoint.pt`, `proprio_projector--N_checkpoint.pt` and `vision_backbone--N_checkpoint.pt` are torch files of plain tensors
(N: the training step, or `latest`); no file can run code. `log_std.safetensors` is ours: the spread that reinforcement learning found.
Facts of the layout: moojink/openvla-oft, vla-scripts/finetune.py (save_training_checkpoint) and experiments/robot/openvla_utils.py.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from policies.checkpoints.loading import HEAD, LOG_STD, PARTS, PROPRIO, VISION, CheckpointError, damaged, shapes_of, write_tensors

FILM = ("vision_backbone.featurizer.film.", "vision_backbone.fused_featurizer.film.")
APART = (f"{HEAD}.", f"{PROPRIO}.", "log_std", *FILM)  # parameters that stand in these files, not among the folder's weights
WRAPPER = "module."  # the head and the projector were saved from inside DistributedDataParallel
ARCHIVE, LEGACY = b"PK\x03\x04", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # how a file that torch.save wrote begins, today and before torch 1.6
DAMAGE = (RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError, AttributeError)  # what torch.load makes of a torn file
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
LORA, BASE_LAYER = ".lora_", ".base_layer."  # parts of PEFT's names: of an adapter's matrices, and of the layer that they are added to
LORA_ALPHA = 16  # at most: the reference's alpha is the smaller of this and the rank


@dataclass(frozen=True)
class Components:
    """What a folder holds, under the names of the policy's own modules."""

    tensors: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)  # {HEAD | PROPRIO | VISION: {name: tensor}}
    files: dict[str, Path] = field(default_factory=dict)  # where each was read
    log_std: torch.Tensor | None = None  # [A] float32

    @property
    def state(self) -> int | None:
        """S: numbers that the proprio projector reads; None without one."""
        weight = self.tensors.get(PROPRIO, {}).get("fc1.weight")
        return None if weight is None else weight.shape[-1]

    @property
    def film(self) -> bool:
        return any(".film." in name for name in self.tensors.get(VISION, {}))


def find(folder: Path) -> dict[str, Path]:
    """{HEAD | PROPRIO | VISION: its newest file} of those that the folder has."""
    found = {}
    for name in PARTS:
        steps = {_step(file): file for file in sorted(folder.glob(f"{name}--*_checkpoint.pt"))}
        if steps:
            found[name] = steps[max(steps)]
    return found


def read(files: dict[str, Path], folder: Path) -> Components:
    """Read the given files of `find`, and the folder's log_std. Raises CheckpointError for a file that is not whole, or wants to run code."""
    tensors = {name: _plain(file) for name, file in files.items()}
    if VISION in tensors:
        tensors[VISION] = _vision_from_reference(tensors[VISION])
    return Components(tensors, files, _log_std(folder / LOG_STD) if HEAD in files and (folder / LOG_STD).is_file() else None)


@torch.no_grad()
def load(policy: nn.Module, components: Components) -> None:
    """Copy every tensor into the policy's parameters. Raises CheckpointError naming every missing, extra and misshapen tensor of a file."""
    for component, found in components.tensors.items():
        parameters = dict(policy.get_submodule(component).named_parameters())
        wanted = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
        problems = [f"missing {name} {wanted[name]}" for name in wanted if name not in shapes]
        problems += [f"extra {name} {shapes[name]}" for name in shapes if name not in wanted]
        problems += [f"misshapen {name}: found {shapes[name]}, wanted {wanted[name]}" for name in wanted if shapes.get(name, wanted[name]) != wanted[name]]
        if problems:
            raise CheckpointError(f"{components.files[component]}: {len(problems)} tensors do not fit the folder's model:\n  " + "\n  ".join(problems))
        for name, parameter in parameters.items():
            parameter.copy_(found[name])
    if components.log_std is not None:
        if components.log_std.shape != policy.log_std.shape:
            raise CheckpointError(f"{LOG_STD}: found {list(components.log_std.shape)}, wanted {list(policy.log_std.shape)}, one number per dim of an action; delete the file to start the spread anew")
        policy.log_std.copy_(components.log_std)


def write(policy: nn.Module, folder: Path, names: dict[str, str]) -> None:
    """Write the components that the policy has into `folder`, without adapters. names: {component: file name}; step 0 where it says none."""
    vision = policy.vision_backbone
    modules = {HEAD: getattr(policy, HEAD, None), PROPRIO: getattr(policy, PROPRIO, None), VISION: vision if vision.film else None}
    for component, module in modules.items():
        if module is None:
            continue
        parameters = {name.replace(BASE_LAYER, "."): parameter for name, parameter in module.named_parameters() if LORA not in name}
        tensors = {name: parameter.detach().cpu().clone() for name, parameter in parameters.items()}
        tensors = _vision_to_reference(tensors) if component == VISION else {WRAPPER + name: tensor for name, tensor in tensors.items()}
        torch.save(tensors, folder / names.get(component, f"{component}--0_checkpoint.pt"))
    if hasattr(policy, "log_std"):
        write_tensors(folder / LOG_STD, {"log_std": policy.log_std})


def _log_std(file: Path) -> torch.Tensor:
    if shapes_of(file).keys() != {"log_std"}:
        raise CheckpointError(f"{file}: found {', '.join(shapes_of(file)) or 'nothing'}, wanted log_std alone; delete the file to start the spread anew")
    return load_file(file)["log_std"]


def _step(file: Path) -> tuple[bool, int]:
    """Orders the files of one component: by the number, `latest` after all."""
    step = file.name.split("--")[1].removesuffix("_checkpoint.pt")
    return (step == "latest", int(step) if step.isdigit() else -1)


def _plain(file: Path) -> dict[str, torch.Tensor]:
    """{name without `module.`: tensor}."""
    if file.is_dir():
        raise CheckpointError(f"{file}: found a folder, wanted a file as torch.save writes it; copy the whole checkpoint folder again")
    with file.open("rb") as opened:
        begins = opened.read(len(LEGACY))
    if not begins.startswith((ARCHIVE, LEGACY)):
        raise damaged(file, f"is no file as torch.save writes it (it begins with {begins!r}), and is not opened")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        refused = re.search(r"\bGLOBAL ([\w.]+)", str(error))
        if refused is None:
            raise damaged(file, "is not whole (its list of tensors cannot be read)") from error
        raise CheckpointError(f"{file}: found more than plain tensors (it could run code, and is not opened: it names {refused[1]}), wanted a state dict as torch.save writes it; save it again as plain tensors") from error
    except DAMAGE as error:
        raise damaged(file, f"is not whole ({(str(error) or 'it ends too soon').splitlines()[0]})") from error
    if not isinstance(found, dict) or not all(isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in found.items()):
        raise CheckpointError(f"{file}: found no state dict, wanted {{name: tensor}}; copy the whole checkpoint folder again")
    quantised = [f"{name} is {tensor.dtype}" for name, tensor in found.items() if tensor.dtype not in FLOATS]
    if quantised:
        raise CheckpointError(f"{file}: found {', '.join(quantised[:5])}, wanted plain floating point numbers, as torch.float32: quantised weights are not read; copy the file as it was trained")
    return {name.removeprefix(WRAPPER): tensor for name, tensor in found.items()}


def _vision_from_reference(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The reference wraps the backbone and each of its blocks, and saves LoRA's matrices unmerged -> the names of VisionBackbone, merged."""
    merged = {}
    for name, tensor in tensors.items():
        if LORA in name:
            continue
        stem = name.removesuffix(f"{BASE_LAYER}weight")
        down, up = (tensors.get(f"{stem}.lora_{side}.default.weight") for side in "AB")
        if stem != name and down is not None and up is not None:
            tensor = tensor.float() + up.float() @ down.float() * (min(len(down), LORA_ALPHA) / len(down))
        merged[_own_name(name.replace(BASE_LAYER, "."))] = tensor
    return merged


def _own_name(name: str) -> str:
    name = re.sub(r"\.blocks\.(\d+)\.(scale|shift)\.", r".film.\1.\2.", name.removeprefix("vision_backbone."))
    return re.sub(r"\.blocks\.(\d+)\.block\.", r".blocks.\1.", name)


def _vision_to_reference(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in tensors.items():
        name = re.sub(r"\.blocks\.(\d+)\.", r".blocks.\1.block.", name)
        found["vision_backbone." + re.sub(r"\.film\.(\d+)\.", r".blocks.\1.", name)] = tensor
    return found
