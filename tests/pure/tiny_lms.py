"""Random causal language models of a few kilobytes, one of each kind that is supported, and uniforms for them."""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

VOCABULARY = 98  # as the character tokenizer has
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    initializer_range=0.3, bos_token_id=0, eos_token_id=1, pad_token_id=None,
)  # fmt: skip
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 8}),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, {"head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}),
}


def tiny(kind: str, **changes):
    """changes: keys of its config."""
    model, config, own = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model(config(**SIZES | own | changes)).eval()


def prompts(count: int) -> list[list[int]]:
    """Of 1, 4, 7, ... tokens."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(2, VOCABULARY, (1 + 3 * index,), generator=generator).tolist() for index in range(count)]


def uniforms(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(2).uniform(0.001, 0.999, (rows, length))
