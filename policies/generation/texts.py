"""Texts <-> token ids, by the tokenizer of a checkpoint folder: prompts plain or as its chat template has them, answers with the end token they are to end in."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Mapping, Sequence

from transformers import PreTrainedTokenizerFast

from policies.checkpoints.loading import CheckpointError

FILE = "tokenizer.json"


class Texts:
    """end: ids that end an answer, the one it is taught to end in first."""

    def __init__(self, tokenizer: Any, chat: bool | None = None, system: str | None = None, template: Mapping[str, Any] | None = None, end: Sequence[int] = ()) -> None:
        """tokenizer: transformers'. chat: prompts are the user's turn in the tokenizer's chat template; None = where it has one. system: a turn before it.
        template: what else the template takes, as {enable_thinking: false}. end: ids beside the tokenizer's own.

        Raises ValueError for a chat without a template, settings of a template that is not used, or no end token at all.
        """
        self.tokenizer = tokenizer
        has = getattr(tokenizer, "chat_template", None) is not None
        self.chat = has if chat is None else chat
        if self.chat and not has:
            raise ValueError("policy.chat=true: found a tokenizer without a chat template, wanted one; give the folder of a model that was tuned for chat, or set policy.chat=false")
        if not self.chat and (system or template):
            raise ValueError("found policy.system or policy.template, and prompts that are plain texts, wanted a chat for them: set policy.chat=true, or leave them out")
        self._system, self._template = system, dict(template or {})
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.end = tuple(dict.fromkeys([*own, *end]))
        if not self.end:
            raise ValueError("found no end token in tokenizer_config.json (eos_token), generation_config.json or config.json (eos_token_id), wanted one: without it no answer ends; name it in tokenizer_config.json")

    @classmethod
    def from_folder(cls, folder: Path, end: Sequence[int], **settings: Any) -> Texts:
        """tokenizer.json as it stands: AutoTokenizer makes some models' anew, without the splitting that the file has. Raises CheckpointError where it cannot be read."""
        if not (folder / FILE).is_file():
            raise CheckpointError(f"{folder}: found no {FILE}, wanted the tokenizer of the model; copy the whole checkpoint folder, or have transformers write it (AutoTokenizer.from_pretrained, then save_pretrained)")
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{folder}: found no tokenizer that transformers reads ({' '.join(str(error).split())[:300]}), wanted {FILE} and tokenizer_config.json; copy the whole checkpoint folder") from error
        return cls(tokenizer, end=end, **settings)

    def prompt(self, text: str) -> list[int]:
        """Raises ValueError for a text that gives no token."""
        if self.chat:
            turns = [{"role": "system", "content": self._system}] if self._system else []
            turns.append({"role": "user", "content": text})
            ids = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False, **self._template)
        else:
            ids = self.tokenizer(text)["input_ids"]
        if not ids:
            raise ValueError(f"prompt {text!r}: found no token in it, wanted at least one; give a text that is not empty")
        return list(ids)

    @cached_property
    def head(self) -> int:
        """Tokens that every prompt begins with: of <bos> and of the chat template before the user's text."""
        one, other = self.prompt("0"), self.prompt("?")
        return next((place for place, (first, second) in enumerate(zip(one, other)) if first != second), 0)

    @property
    def words(self) -> list[Any] | None:
        """What a prompt is worded with: the chat template, what it takes besides, and the turn before; None where prompts are plain."""
        return [self.tokenizer.chat_template, self._template, self._system] if self.chat else None

    def answer(self, text: str) -> list[int]:
        """As an answer that ends by itself."""
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.end[0]]

    def raw(self, tokens: Sequence[int]) -> str:
        """With special tokens, as stop strings are looked for in."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
