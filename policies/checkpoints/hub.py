"""OpenVLA as a transformers model: after `import policies.checkpoints.hub`, AutoConfig and AutoModelForImageTextToText read its folders.

    import policies.checkpoints.hub
    from transformers import AutoModelForImageTextToText
    model = AutoModelForImageTextToText.from_pretrained(folder)  # weights as they are stored; dtype=... for others

The import registers the classes under model_type "openvla" (transformers has no other way to hear of them, and importing it takes seconds, so
`import policies` alone does not). Published folders name code of their own in `auto_map`: it is neither needed nor run. A folder that
`save_pretrained` writes has the names, shapes and dtypes that were read, the config's keys, and the statistics, preprocessor, tokenizer and
component files of the folder that was read, so the policies (policies/openvla.py, policies/openvla_oft.py) load it as well. Heads and FiLM in
component files are no part of this model: loading says so. Saving leaves no weights of before, and other files that lie there as they are.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForImageTextToText, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from policies.checkpoints import components, loading
from policies.checkpoints.loading import CheckpointError
from policies.codec import BINS, ActionCodec, centres
from policies.parts.decoder import llama_config, pad_after_first, require_bidirectional
from policies.parts.network import Network
from policies.parts.prompts import FILES, LLAMA_SPACE, LLAMA_VOCABULARY

IGNORED = -100  # a label that is not learned from, as everywhere in transformers


class OpenVLAConfig(PretrainedConfig):
    """What config.json holds, key for key; `text_config` is a LlamaConfig here, and in the file what was read."""

    model_type = "openvla"

    def __init__(self, text_config: dict | None = None, **keys: Any) -> None:
        self._read = copy.deepcopy({**keys, "text_config": text_config or {}})
        super().__init__(**keys)
        self.text_config = llama_config(text_config or {})

    @property
    def content(self) -> dict:
        """config.json as this object stands: what was read, and on top of it what has been changed since."""
        found = super().to_dict()
        whole = {**self._read, **{key: value for key, value in found.items() if key != "text_config"}}
        return {key: value for key, value in whole.items() if key != "name_or_path" and not key.startswith("_")}  # where it lay is not what it is

    def to_dict(self) -> dict:
        found = self.content | {"model_type": self.model_type}
        return found | {"torch_dtype": found["dtype"]} if found.get("dtype") else found  # what transformers before 4.56 reads

    def to_diff_dict(self) -> dict:
        """All keys: what equals a default of this version may not of another."""
        return self.to_dict()


class OnDisk:
    """A tensor of a safetensors file, read when it is indexed; the file stays mapped as long as what was read is in use."""

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name

    def __getitem__(self, index: Any) -> torch.Tensor:
        with safe_open(self._file, "pt") as opened:
            return opened.get_slice(self._name)[index]

    @property
    def dtype(self) -> torch.dtype:
        return self[...].dtype

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point


class OpenVLAForActionPrediction(Network, PreTrainedModel):
    """The causal OpenVLA: next-token logits over the whole vocabulary, and greedy actions."""

    config_class = OpenVLAConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _no_split_modules = ["LlamaDecoderLayer", "Block"]
    _supports_sdpa = True
    _keys_to_ignore_on_load_unexpected = [*(f"^{re.escape(name)}" for name in (loading.VALUE_HEAD, *components.APART)), re.escape(loading.RECOMPUTED) + "$"]

    def __init__(self, config: OpenVLAConfig) -> None:
        """Raises ValueError for towers or a language model that are not known."""
        PreTrainedModel.__init__(self, config)
        self.build(config.content)
        self.companions: dict[str, bytes] = {}  # the small files of the folder that was read
        self.components: tuple[Path, ...] = ()  # its component files, where they lie
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *rest: Any, output_loading_info: bool = False, **settings: Any) -> Any:
        """As PreTrainedModel's, for a folder on this machine; its files are mapped tensor by tensor and let go, so loading takes what the model takes.

        Raises CheckpointError (a ValueError) for a folder that is not there, or whose weights are not those that its config describes, naming every missing,
        extra and misshapen tensor; RuntimeError where the installed transformers puts a mask of its own over the network's.
        """
        require_bidirectional()  # here, as from inside a load it would probe a layer without weights
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            raise CheckpointError(f"found no folder {folder}, wanted a checkpoint folder on this machine; download it first")
        files, lost = loading.weight_files(folder)
        if lost:
            raise CheckpointError(f"{folder}: found no {', '.join(lost)}, wanted a folder with whole weights on this machine; adapters alone are read by peft.PeftModel.from_pretrained(model of their base, folder/{loading.ADAPTER})")
        tensors = {name: OnDisk(file, name) for file in files for name in loading.shapes_of(file)}
        quantised = [f"{name} is {dtype}" for file in files for name, dtype in loading.quantised(file).items()]
        if quantised:
            raise CheckpointError(f"{folder}: found {', '.join(quantised[:5])}, wanted one of {', '.join(loading.FLOATS)}: quantised weights are not read; take the checkpoint as it was trained")
        model, info = super().from_pretrained(None, *rest, state_dict=tensors, output_loading_info=True, **{"config": folder, **settings, "ignore_mismatched_sizes": True})
        _require_all(folder, info)
        model.config.name_or_path = str(folder)
        model.companions = {name: (folder / name).read_bytes() for name in (loading.STATISTICS, loading.PREPROCESSOR, *FILES) if (folder / name).is_file()}
        model.components = (*components.find(folder).values(), *folder.glob(loading.LOG_STD))
        if model.components:
            print(f"{folder}: {', '.join(file.name for file in model.components)} stay unused, this is the causal model alone; save_pretrained takes them along as they are", flush=True)
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: str | os.PathLike, is_main_process: bool = True, *rest: Any, **settings: Any) -> None:
        """As PreTrainedModel's, and the small and the component files of the folder that was read. Weights that were there before are taken away.

        Raises CheckpointError where a component file is no longer where it was.
        """
        folder = Path(save_directory)
        lost = [str(file) for file in self.components if not file.is_file()]
        if lost:
            raise CheckpointError(f"found no {', '.join(lost)} any more, wanted to copy them into {folder}; put them back, or set model.components=() to save without them")
        if is_main_process:
            (folder / loading.INDEX).unlink(missing_ok=True)  # transformers would leave it beside weights in one file
        super().save_pretrained(save_directory, is_main_process, *rest, **settings)
        if not is_main_process:
            return
        if settings.get("variant") is None:
            for old in {*folder.glob(loading.WEIGHTS), *folder.glob(loading.SHARDS)}.difference(loading.weight_files(folder)[0]):
                old.unlink()
        for name, content in self.companions.items():
            (folder / name).write_bytes(content)
        for file in self.components:
            if not (folder / file.name).exists() or not file.samefile(folder / file.name):
                shutil.copyfile(file, folder / file.name)
        left = {file.name for name in loading.PARTS for file in folder.glob(f"{name}--*_checkpoint.pt")} - {file.name for file in self.components}
        if left:
            print(f"{folder}: {', '.join(sorted(left))} were there before, and are not this model's; take them away unless they belong to it", flush=True)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.language_model.model.embed_tokens

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.language_model.lm_head

    def forward(
        self, input_ids: torch.Tensor, pixel_values: torch.Tensor, attention_mask: torch.Tensor | None = None, labels: torch.Tensor | None = None, **unused: Any
    ) -> CausalLMOutput:  # fmt: skip
        """[b, S] ids that start with BOS, [b, 6n, H, W] normalised pixels, [b, S] (0: padding, left or right), [b, S] ids or -100
        -> logits [b, S, V] in the weights' dtype: those at s say what follows token s (at BOS: what follows the patches), and the loss, the mean
        cross-entropy of labels[:, s + 1] given logits[:, s] in float32. What stands at padding means nothing."""
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        embeddings, valid = self.context(pixel_values, input_ids, mask)
        states = self.language_model.after(embeddings, valid)
        states = states[:, states.shape[1] - input_ids.shape[1] :]  # of the last patch, then the prompt without BOS, in the network's order
        place, _ = pad_after_first(torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids), mask)
        logits = self.language_model.lm_head(torch.zeros_like(states).scatter(1, place[..., None].expand_as(states), states))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED)
        return CausalLMOutput(loss=loss, logits=logits)

    @torch.no_grad()
    def predict_action(
        self, input_ids: torch.Tensor, pixel_values: torch.Tensor, unnorm_key: str | None = None, attention_mask: torch.Tensor | None = None
    ) -> np.ndarray:  # fmt: skip
        """Prompts [b, S] and normalised pixels [b, 6n, H, W] -> [b, A] float64 actions in the model's convention (gripper 1 open, 0 close):
        the likeliest of the 256 action tokens, one after another. The bare space that Llama's prompts end in is added where it lacks.

        unnorm_key: the suite whose statistics scale them; None where there is only one. Raises KeyError or ValueError for unfit statistics.
        """
        codec = ActionCodec(self._statistics(), unnorm_key)
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        if self.first_action + BINS == LLAMA_VOCABULARY and not (input_ids[:, -1] == LLAMA_SPACE).any():
            input_ids, mask = F.pad(input_ids, (0, 1), value=LLAMA_SPACE), F.pad(mask, (0, 1), value=True)
        choices, _ = self.unroll(*self.context(pixel_values, input_ids, mask), codec.dims, lambda step, logits: logits.argmax(-1))
        return codec.unnormalise(centres(choices.cpu().numpy()))

    def _statistics(self) -> dict:
        """What fine-tuning left in a file of its own, else what the config holds."""
        own = self.companions.get(loading.STATISTICS)
        return self.config.content.get("norm_stats") or {} if own is None else json.loads(own)


def _require_all(folder: Path, info: dict) -> None:
    """info: transformers' loading info. Raises CheckpointError naming every tensor that the folder and its config do not agree on."""
    problems = [f"missing {name}" for name in sorted(info["missing_keys"])] + [f"extra {name}" for name in sorted(info["unexpected_keys"])]
    problems += [f"misshapen {name}: found {tuple(found)}, wanted {tuple(wanted)}" for name, found, wanted in sorted(info["mismatched_keys"], key=lambda each: each[0])]
    if problems:
        raise CheckpointError(f"{folder}: {len(problems)} tensors do not fit the model that {loading.CONFIG} describes; the config and the weights are of different models:\n  " + "\n  ".join(problems))


AutoConfig.register(OpenVLAConfig.model_type, OpenVLAConfig)
AutoModelForImageTextToText.register(OpenVLAConfig, OpenVLAForActionPrediction)
