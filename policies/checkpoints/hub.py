"""OpenVLA as a transformers model: after `import policies.checkpoints.hub`, AutoConfig and AutoModelForImageTextToText read its folders.

    import policies.checkpoints.hub
    from transformers import AutoModelForImageTextToText
    model = AutoModelForImageTextToText.from_pretrained(folder)  # weights as they are stored; dtype=... for others

The import registers the classes under model_type "openvla" (transformers has no other way to hear of them, and importing it takes seconds, so
`import policies` alone does not). Published folders name code of their own in `auto_map`: it is neither needed nor run. A folder that
`save_pretrained` writes has the names, shapes and dtypes that were read, the config's keys, and the statistics, preprocessor and tokenizer
files of the folder that was read, so the policies (policies/openvla.py, policies/openvla_oft.py) load it as well.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForImageTextToText, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from policies.checkpoints import loading
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
    _keys_to_ignore_on_load_unexpected = [r"^value_head\.", r"\.rotary_emb\.inv_freq$"]

    def __init__(self, config: OpenVLAConfig) -> None:
        """Raises ValueError for towers or a language model that are not known."""
        PreTrainedModel.__init__(self, config)
        self.build(config.content)
        self.companions: dict[str, bytes] = {}  # the small files of the folder that was read
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *rest: Any, output_loading_info: bool = False, **settings: Any) -> Any:
        """As PreTrainedModel's, for a folder on this machine; its files are mapped tensor by tensor and let go, so loading takes what the model takes.

        Raises CheckpointError (a ValueError) for a folder without all its weights, RuntimeError where the installed transformers puts a mask
        of its own over the network's.
        """
        require_bidirectional()  # here, as from inside a load it would probe a layer without weights
        folder = Path(pretrained_model_name_or_path)
        files, lost = loading.weight_files(folder)
        if lost:
            raise CheckpointError(f"{folder}: found no {', '.join(lost)}, wanted a folder with whole weights on this machine; adapters alone are read by peft.PeftModel.from_pretrained(model of their base, folder/{loading.ADAPTER})")
        tensors = {name: OnDisk(file, name) for file in files for name in loading.shapes_of(file)}
        model, info = super().from_pretrained(None, *rest, state_dict=tensors, output_loading_info=True, **{"config": folder, **settings})
        if info["missing_keys"]:
            raise CheckpointError(f"{folder}: missing {', '.join(sorted(info['missing_keys']))}; the config and the weights are of different models")
        model.config.name_or_path = str(folder)
        model.companions = {name: (folder / name).read_bytes() for name in (loading.STATISTICS, loading.PREPROCESSOR, *FILES) if (folder / name).is_file()}
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: str | os.PathLike, *rest: Any, **settings: Any) -> None:
        """As PreTrainedModel's, and the small files of the folder that was read."""
        super().save_pretrained(save_directory, *rest, **settings)
        for name, content in self.companions.items():
            (Path(save_directory) / name).write_bytes(content)

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
        embeddings, valid = self.context(pixel_values, input_ids, mask)
        cache, choices = DynamicCache(), []
        for _ in range(codec.dims):
            states = self.language_model.after(embeddings, valid, cache)[:, -1]
            choices.append(self.logits(states).argmax(-1))
            embeddings, valid = self.get_input_embeddings()(self.first_action + choices[-1])[:, None], F.pad(valid, (0, 1), value=True)
        return codec.unnormalise(centres(torch.stack(choices, dim=1).cpu().numpy()))

    def _statistics(self) -> dict:
        """What fine-tuning left in a file of its own, else what the config holds."""
        own = self.companions.get(loading.STATISTICS)
        return self.config.content.get("norm_stats") or {} if own is None else json.loads(own)


AutoConfig.register(OpenVLAConfig.model_type, OpenVLAConfig)
AutoModelForImageTextToText.register(OpenVLAConfig, OpenVLAForActionPrediction)
