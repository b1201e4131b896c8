"""What becomes of prompts that are longer than the model's limit: each is refused, dropped or cut, and counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

WAYS = ("error", "drop", "left_cut")


@dataclass(frozen=True)
class Fitted:
    prompts: list[list[int] | None]  # as given, None where dropped, each at most `limit` tokens
    limit: int
    cut: int  # how many were cut
    dropped: int  # how many were dropped

    def __str__(self) -> str:
        """The line for a log."""
        return f"{self.cut + self.dropped} of {len(self.prompts)} prompts longer than {self.limit} tokens: {self.cut} cut, {self.dropped} dropped"


def fit(prompts: Sequence[Sequence[int]], limit: int, how: str = "error", head: int = 0) -> Fitted:
    """Token ids of prompts, each made to have at most `limit` tokens.

    how: "error" raises ValueError, "drop" leaves None in its place, "left_cut" takes tokens away from the left, after the first `head` (a chat
    template's header, or <bos>), which stay. The same ids have to go to generation and to training.
    Raises ValueError for a way that is none of these, and for a head that leaves no room.
    """
    if how not in WAYS:
        raise ValueError(f"found how={how!r} for prompts that are too long, wanted one of {', '.join(WAYS)}")
    if limit < 1 or not 0 <= head < limit:
        raise ValueError(f"found a prompt limit of {limit} tokens with {head} to keep at the head, wanted a limit of at least 1 and fewer to keep")
    longer = [len(tokens) for tokens in prompts if len(tokens) > limit]
    if longer and how == "error":
        raise ValueError(f"found {len(longer)} of {len(prompts)} prompts longer than {limit} tokens, the longest of {max(longer)}; raise the limit, or choose drop or left_cut")
    fitted = [_shortened(list(tokens), limit, how, head) for tokens in prompts]
    return Fitted(fitted, limit, *((len(longer), 0) if how == "left_cut" else (0, len(longer))))


def _shortened(tokens: list[int], limit: int, how: str, head: int) -> list[int] | None:
    if len(tokens) <= limit:
        return tokens
    return None if how == "drop" else tokens[:head] + tokens[head - limit :]
