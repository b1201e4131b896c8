"""A randomly initialised small causal language model with a tokenizer of one token per character, in transformers' own layout.

The same arguments give the same bytes. `policies/causal_lm.py` reads the folder as it reads any other; so does AutoModelForCausalLM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<bos>", "<eos>")  # ids 0 and 1; padding is <eos>, as in many published models
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # printable ASCII: with SPECIAL 98 ids
UNKNOWN = "?"  # what a character that is none of them is read as


@dataclass(frozen=True)
class Sizes:
    """Widths in channels, lengths in tokens."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 512
    positions: int = 1024  # prompt and answer together
    rope_theta: float = 10000.0


def create_checkpoint(folder: str | Path, seed: int = 0, sizes: dict | None = None, prompt_length: int = 0, max_tokens: int = 0) -> Path:
    """Write the folder and return it: a Llama with tied embeddings, 1.06 M parameters with the standard sizes.

    sizes: fields of `Sizes` to change. prompt_length, max_tokens: it has as many positions at least. Raises TypeError for an unknown size,
    ValueError for sizes that do not go together.
    """
    wanted = replace(Sizes(), **(sizes or {}))
    wanted = replace(wanted, positions=max(wanted.positions, prompt_length + max_tokens))
    if wanted.hidden % (2 * wanted.heads):
        raise ValueError(f"sizes: found hidden={wanted.hidden} and heads={wanted.heads}, wanted a width that is a multiple of {2 * wanted.heads}: rotation takes an even share of it per head")
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(CHARACTERS), hidden_size=wanted.hidden, intermediate_size=wanted.mlp, num_hidden_layers=wanted.layers,
        num_attention_heads=wanted.heads, num_key_value_heads=wanted.heads, max_position_embeddings=wanted.positions, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": wanted.rope_theta}, bos_token_id=0, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    character_tokenizer(wanted.positions).save_pretrained(folder)
    return Path(folder)


def character_tokenizer(positions: int = Sizes.positions) -> PreTrainedTokenizerFast:
    """<bos> before a text, then one id per character; decoding gives the characters back without spaces between."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1], pad_token=SPECIAL[1], model_max_length=positions, clean_up_tokenization_spaces=False)
