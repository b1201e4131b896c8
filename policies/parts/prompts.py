"""Instructions -> prompt ids of one fixed length, so that a row's numbers do not depend on its neighbours' instructions."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Sequence

import torch
from tokenizers import Tokenizer

from policies.parts import given

BOS, STOP = 1, 2
FILLER = 0  # stands where the mask is False; any id would do
LLAMA_VOCABULARY = 32000
LLAMA_SPACE = 29871  # the bare space: Llama's prompts end in it, as in training
DEFAULT_LENGTH = 64  # tokens: LIBERO's longest instruction takes about 40 in Llama's vocabulary
BEFORE, AFTER = "In: What action should the robot take to ", "?\nOut:"
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model")


def prompt_text(instruction: str) -> str:
    return f"{BEFORE}{instruction.lower()}{AFTER}"


class Prompts:
    """The tokenizer of one checkpoint folder, and its files, so that they can be written again."""

    def __init__(self, files: dict[str, bytes], vocabulary: int, length: int | None):
        """vocabulary: text and action ids, without the padding rows. length: tokens per prompt; None takes DEFAULT_LENGTH. Raises ValueError for a length that is no whole number above 0."""
        self.files = files
        self.vocabulary = vocabulary
        self.length = DEFAULT_LENGTH if length is None else given.whole("policy.prompt_length", length, f"leave it out for the checkpoint's own, or {DEFAULT_LENGTH}")
        self.tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode()) if "tokenizer.json" in files else None
        self._ids = lru_cache(maxsize=1024)(self._tokenize)

    @classmethod
    def from_folder(cls, folder: Path, vocabulary: int, length: int | None) -> "Prompts":
        files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
        return cls(files, vocabulary, length)

    def __call__(self, instructions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """b instructions -> ids [b, length] int64, mask [b, length] bool, padded on the right.

        Raises FileNotFoundError without a tokenizer, ValueError when a prompt is longer than `length`.
        """
        rows = [self._ids(str(instruction)) for instruction in instructions]
        ids = torch.full((len(rows), self.length), FILLER, dtype=torch.int64)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = True
        return ids, mask

    def _tokenize(self, instruction: str) -> list[int]:
        if self.tokenizer is None:
            raise FileNotFoundError("the checkpoint folder has no tokenizer.json, wanted one to read instructions; copy it from the model this checkpoint was made from")
        tokens = self.tokenizer.encode(prompt_text(instruction)).ids
        if tokens[:1] != [BOS]:
            tokens = [BOS, *tokens]
        if self.vocabulary == LLAMA_VOCABULARY and tokens[-1] != LLAMA_SPACE:
            tokens = [*tokens, LLAMA_SPACE]
        if len(tokens) > self.length:
            raise ValueError(f"the prompt for {instruction!r} has {len(tokens)} tokens, wanted at most {self.length}: set policy.prompt_length={len(tokens)} or more")
        return tokens
