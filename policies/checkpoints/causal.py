"""Folders of causal language models: transformers' own layout, read from the disk alone, with our adapters and value head beside it.

No file of a folder is executed. What transformers reports as missing, extra or misshapen is an error, not a fresh random tensor. A folder of
adapters alone (`lora_adapter/`, as checkpoints/loading.py has it) takes its base's weights. The value head is value_head.safetensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from policies.checkpoints import loading, lora as adapters
from policies.checkpoints.loading import VALUE_FILE, CheckpointError, Folder
from policies.generation import windows

logging.disable_progress_bar()  # of the seconds that a folder takes: it would cut the run's own lines


def read_folder(path: str | Path | None, base: str | Path | None = None) -> Folder:
    """The config, and where the weights and adapters lie. Raises CheckpointError naming what is missing. base: as for loading.read_folder."""
    if path is None or not Path(path).is_dir():
        raise CheckpointError(f"policy.checkpoint: found {'none' if path is None else f'no folder {path}'}, wanted the folder of a causal language model: {loading.CONFIG}, {loading.WEIGHTS} (or shards and their index) and tokenizer.json; nothing is fetched from elsewhere")
    path = Path(path)
    whole, adapter = any((path / name).is_file() for name in (loading.WEIGHTS, loading.INDEX)), path / loading.ADAPTER
    applied = adapter if not whole and (adapter / loading.ADAPTER_CONFIG).is_file() else None
    home = path
    if applied is not None:
        said = base or loading.read_json(applied / loading.ADAPTER_CONFIG).get(loading.BASE_KEY)
        if not said or not Path(said).is_dir():
            raise CheckpointError(f"{path}: found adapters alone, wanted their base's weights too, and {said!r} is no folder here; give policy.base=FOLDER")
        home = Path(said)
    elif base is not None:
        raise CheckpointError(f"{path}: found whole weights and policy.base={base}, wanted one of them: only a folder of adapters has a base; leave policy.base out")
    weights, missing = loading.weight_files(home)
    missing += [] if (path / loading.CONFIG).is_file() else [loading.CONFIG]
    if missing:
        raise CheckpointError(f"{path}: missing {', '.join(missing)}; found {', '.join(sorted(file.name for file in path.iterdir())) or 'nothing'}. Copy the whole checkpoint folder; weights are read from safetensors alone")
    return Folder(path, loading.read_json(path / loading.CONFIG), {}, {}, weights, home, applied)


def load(folder: Folder, dtype: str, device: str, lora: Mapping[str, Any] | None, tokens: int = 1) -> PreTrainedModel:
    """The model, without dropout, its adapters attached. tokens: of the longest text it is for.

    Raises CheckpointError where config.json and weights are of different models, it is none that transformers knows, or it does not see so long a text as a whole."""
    try:
        config = _config(folder, tokens)
        model, report = AutoModelForCausalLM.from_pretrained(
            folder.base, config=config, dtype=getattr(torch, dtype), attn_implementation="sdpa", use_safetensors=True, local_files_only=True,
            ignore_mismatched_sizes=True, output_loading_info=True,
        )  # fmt: skip
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{folder.path}: found no causal language model that transformers reads ({' '.join(str(error).split())[:400]}), wanted one whose code is a part of transformers; copy the whole folder again") from error
    wrong = [f"missing {name}" for name in sorted(report["missing_keys"])] + [f"extra {name}" for name in sorted(report["unexpected_keys"])]
    wrong += [f"misshapen {name}: found {tuple(found)}, wanted {tuple(wanted)}" for name, found, wanted in sorted(report["mismatched_keys"])]
    if wrong:
        raise CheckpointError(f"{folder.base}: {len(wrong)} tensors do not fit the model that {loading.CONFIG} describes; the config and the weights are of different models:\n  " + "\n  ".join(wrong))
    folder.require_base()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, copy=True)  # out of the mapped file: its alignment would decide how products round, and it may be written over
    model.to(device).eval()
    adapters.attach(model, lora, folder)
    return model


def _config(folder: Folder, tokens: int) -> Any:
    """As `load`; raises what transformers raises, and CheckpointError for a model that does not see so many tokens as a whole, or is of numbers that cannot be trained."""
    config = AutoConfig.from_pretrained(folder.path, local_files_only=True)
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(f"{folder.path}: found quantised weights (config.json: quantization_config), wanted plain ones; give the folder of the model that they were made from")
    try:
        windows.require(config, tokens)
    except ValueError as error:
        raise CheckpointError(f"{folder.path}: {error}") from error
    if hasattr(config, "attention_dropout"):
        config.attention_dropout = 0.0  # sampling and the judging of samples must be of one distribution
    return config


def save(path: Path, model: PreTrainedModel, tokenizer: Any, value_head: nn.Module | None) -> None:
    """Write a folder that `load` reads to the same numbers: whole weights, or adapters alone where there are adapters.

    Of a checkpoint that lies there nothing stays. Raises CheckpointError where that would be the base of the adapters."""
    adapters.require_elsewhere(path, model)
    loading.write_folder(path, None, {}, {})
    if adapters.attached(model):
        model.config.save_pretrained(path)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(path)
        adapters.write(path, model)
    else:
        model.save_pretrained(path, max_shard_size=loading.SHARD)
        for file in path.glob("*.safetensors"):
            file.chmod(0o644)  # as loading.write_tensors does
    tokenizer.save_pretrained(path)
    if value_head is not None:
        loading.write_tensors(path / VALUE_FILE, dict(value_head.named_parameters()))


@torch.no_grad()
def load_value_head(path: Path, value_head: nn.Module) -> bool:
    """Whether the folder had one; it is then that of the folder. Raises CheckpointError where it is of another width."""
    file = path / VALUE_FILE
    if not file.is_file():
        return False
    own, found = {name: tuple(part.shape) for name, part in value_head.named_parameters()}, loading.shapes_of(file)
    if own != found:
        raise CheckpointError(f"{file}: found {found}, wanted {own}; copy the whole folder again, or delete the file to start the value head anew")
    with safe_open(file, "pt") as opened:
        for name, part in value_head.named_parameters():
            part.copy_(opened.get_tensor(name))
    return True
