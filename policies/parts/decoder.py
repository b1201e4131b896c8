"""The language model of a VLA: transformers' Llama, each position attending to every valid one (OFT), or to those up to itself (OpenVLA).

Which of the two it is, the caller says, never the library: each layer gets its whole 4-D mask from here and is told that it is not
causal, and the installed transformers is probed once per process. A version that puts a mask of its own over the one it is given, or
that leaves the cache it is given unused, is refused: such a model runs, and is wrong.
"""

from __future__ import annotations

import inspect
import math
from functools import lru_cache

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.nn import functional as F
from transformers import Cache, LlamaConfig, LlamaModel
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

KEPT = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act max_position_embeddings rms_norm_eps"
).split()
CACHE = "cache" if "cache" in inspect.signature(LlamaAttention.forward).parameters else "past_key_values"  # its name before transformers 5.24
WIDTH = 4  # a causal pass takes a multiple of so many positions: with fewer, CPU kernels round a row by its place in the batch


def llama_config(text_config: dict) -> LlamaConfig:
    """A config.json's `text_config` -> LlamaConfig; what is absent takes Llama-2-7B's value. Raises ValueError for scaled RoPE, or sizes that do not go together."""
    if not isinstance(text_config, dict):
        raise ValueError(f"config.json: found text_config={text_config!r}, wanted an object with the language model's sizes; copy config.json again")
    if text_config.get("rope_scaling"):
        raise ValueError(f"text_config: found rope_scaling={text_config['rope_scaling']}, wanted none: OpenVLA checkpoints have plain RoPE")
    kept = {key: text_config[key] for key in KEPT if key in text_config}
    try:
        rope = {"rope_type": "default", "rope_theta": float(text_config.get("rope_theta", 10000.0))}
        config = LlamaConfig(**kept, rope_parameters=rope, attention_dropout=0.0, use_cache=False)
    except (StrictDataclassError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"config.json: found a text_config that Llama refuses: {' '.join(str(error).split())}; wanted that of the weights, copy config.json again") from error
    sizes = {key: value for key in KEPT if isinstance(value := getattr(config, key), int)}
    if min(sizes.values()) < 1 or config.num_attention_heads % config.num_key_value_heads or config.hidden_act not in ACT2FN:
        raise ValueError(f"config.json: found text_config {sizes | {'hidden_act': config.hidden_act}}, wanted sizes above 0, heads in equal groups per key and value, and an activation that transformers knows; copy config.json again")
    config._attn_implementation = "sdpa"
    config.is_causal = False
    return config


class LanguageModel(nn.Module):
    """Tensor names `model.*` and `lm_head.weight`, as the reference's."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        require_bidirectional()
        self.model = LlamaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        _uncausal(self.model)

    def forward(self, embeddings: torch.Tensor, valid: torch.Tensor | None = None, slots: tuple[int, int] | None = None) -> torch.Tensor:
        """[b, N, D] embeddings, [b, N] bool (None: no padding) -> [b, N, D] hidden states after the last norm.

        Positions count the valid tokens only, so padding changes nothing, wherever it stands.
        slots: (first, count) of a run of valid all-zero embeddings; the result is the same, sooner.
        """
        return attend(self.model, embeddings, valid, slots)

    def after(self, embeddings: torch.Tensor, valid: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """[b, m, D] embeddings of the last m positions, [b, N] bool of all N so far -> [b, m, D] hidden states after the last norm.

        Causal: no position sees a later one, nor padding; positions count the valid tokens only. The first position must be valid.
        cache: keeps keys and values from call to call, so it must hold the N - m positions before; None where m is N.
        Raises RuntimeError when it holds another number of positions than that, or when transformers does not fill it.
        """
        return attend_backwards(self.model, embeddings, valid, cache)

    def place_rotary(self, device: torch.device | str) -> None:
        """Compute the rotary frequencies (buffers that no checkpoint holds) on `device`, in float32."""
        self.model.rotary_emb = LlamaRotaryEmbedding(self.model.config).to(device)


def attend(model: LlamaModel, embeddings: torch.Tensor, valid: torch.Tensor | None, slots: tuple[int, int] | None = None) -> torch.Tensor:
    if valid is None:
        valid = torch.ones(1, embeddings.shape[1], dtype=torch.bool, device=embeddings.device)
    mask = torch.zeros_like(valid, dtype=embeddings.dtype).masked_fill_(~valid, torch.finfo(embeddings.dtype).min)[:, None, None]
    rotary = model.rotary_emb(embeddings, (valid.cumsum(1) - 1).clamp(min=0))
    first, *rest = model.layers
    if slots is None or embeddings.dtype != torch.float32:  # log(count) is too coarse in half precision
        states = first(embeddings, attention_mask=mask, position_embeddings=rotary)
    else:
        states = _first_layer(first, embeddings, mask, rotary, *slots)
    for layer in rest:
        states = layer(states, attention_mask=mask, position_embeddings=rotary)
    return model.norm(states)


def _first_layer(layer: nn.Module, embeddings: torch.Tensor, mask: torch.Tensor, rotary: tuple, start: int, count: int) -> torch.Tensor:
    """Zero embeddings have zero queries, keys and values (no bias, and rotation keeps 0), so `count` of them are one whose key weighs
    `count`-fold: its score of 0 becomes log(count). Nearly a fifth off a four-layer model's time."""
    one = lambda whole, axis: torch.cat([whole.narrow(axis, 0, start + 1), whole.narrow(axis, start + count, whole.shape[axis] - start - count)], axis)
    heavier = one(mask, -1)
    heavier[..., start] = math.log(count)
    states = layer(one(embeddings, 1), attention_mask=heavier, position_embeddings=tuple(one(part, 1) for part in rotary))
    return torch.cat([states[:, :start], states[:, start : start + 1].expand(-1, count, -1), states[:, start + 1 :]], dim=1)


def attend_backwards(model: LlamaModel, embeddings: torch.Tensor, valid: torch.Tensor, cache: Cache | None) -> torch.Tensor:
    new, length = embeddings.shape[1], valid.shape[1]
    _require_cached(cache, length - new)
    blank = -new % WIDTH
    embeddings, valid = F.pad(embeddings, (0, 0, 0, blank)), F.pad(valid, (0, blank), value=False)
    seen = valid[:, None] & torch.ones(new + blank, length + blank, dtype=torch.bool, device=valid.device).tril(length - new)
    mask = torch.zeros_like(seen, dtype=embeddings.dtype).masked_fill_(~seen, torch.finfo(embeddings.dtype).min)[:, None]
    rotary = model.rotary_emb(embeddings, (valid.cumsum(1) - 1).clamp(min=0)[:, length - new :])
    states, kept = embeddings, {} if cache is None else {CACHE: cache}
    for layer in model.layers:
        states = layer(states, attention_mask=mask, position_embeddings=rotary, **kept)
    if cache is not None:
        if blank:  # an older crop(0) takes everything
            cache.crop(-blank)
        _require_cached(cache, length)
    return model.norm(states)[:, :new]


def _require_cached(cache: Cache | None, wanted: int) -> None:
    found = 0 if cache is None else cache.get_seq_length()
    if found != wanted:
        import transformers

        raise RuntimeError(f"found keys and values of {found} positions, wanted those of {wanted}: pass the cache of the call before; if it was passed, transformers {transformers.__version__} did not fill it: install a 5.x version that this project's constraints name")


def pad_after_first(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[b, S] prompts with padding anywhere -> the same with BOS first, then the padding, then the rest: every prompt ends at S - 1."""
    first = mask.int().argmax(1, keepdim=True)
    rank = mask.long() * 2 + (~mask).long()  # padding 1, content 2
    order = rank.scatter(1, first, 0).argsort(dim=1, stable=True)
    return ids.gather(1, order), mask.gather(1, order)


@lru_cache(maxsize=1)
def require_bidirectional() -> None:
    """Raises RuntimeError when the installed transformers does not let an earlier position see a later one."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.manual_seed(0)
        sizes = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
        probe = _uncausal(LlamaModel(llama_config(sizes)))
        embeddings = torch.randn(1, 3, 8)
        changed = embeddings.clone()
        changed[:, -1] += torch.randn(8)  # not a constant: the norm must not undo it
        before, after = (attend(probe, values, None)[:, 0] for values in (embeddings, changed))
    if torch.equal(before, after):
        import transformers

        raise RuntimeError(f"transformers {transformers.__version__} ignores the attention mask it is given, so an action slot could not see what stands behind it; wanted bidirectional attention: install a 5.x version that this project's constraints name")


def _uncausal(model: LlamaModel) -> LlamaModel:
    for layer in model.layers:
        layer.self_attn.is_causal = False
    return model
