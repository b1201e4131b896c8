"""What becomes of prompts that are longer than the model's limit: each is refused, dropped or cut, and its row says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

WAYS = ("error", "drop", "left_cut")


@dataclass(frozen=True)
class Fitted:
    """Prompts of at most `limit` tokens each."""

    prompts: list[list[int]]  # of a dropped one, what a cut would leave: it stands for nothing and is not answered
    over: list[int]  # tokens that each had beyond the limit; 0 where it fits


def remark(over: int, drops: bool, limit: int) -> str | None:
    """What the log says of a prompt that had so many tokens beyond the limit; None of one that had none."""
    return f"prompt longer than {limit} tokens: {'dropped' if drops else 'cut on the left'}" if over else None


def fit(prompts: Sequence[Sequence[int]], limit: int, how: str = "error", head: int = 0) -> Fitted:
    """Token ids of prompts, each made to have at most `limit` tokens.

    how: "error" raises ValueError; "drop" (such are not to be answered) and "left_cut" take tokens away from the left, after the first `head`
    (a chat template's header, or <bos>), which stay. The same ids have to go to generation and to training.
    Raises ValueError for a way that is none of these, and for a head that leaves no room.
    """
    if how not in WAYS:
        raise ValueError(f"policy.long_prompts: found {how!r}, wanted one of {', '.join(WAYS)}")
    if limit < 1 or not 0 <= head < limit:
        raise ValueError(f"policy.prompt_length: found {limit}, wanted more than {head}: so many tokens stand before every prompt (the chat template's, or <bos>)")
    longer = [len(tokens) for tokens in prompts if len(tokens) > limit]
    if longer and how == "error":
        raise ValueError(f"found {len(longer)} of {len(prompts)} prompts with more tokens than policy.prompt_length={limit}, the longest of {max(longer)}; set policy.prompt_length={max(longer)} or more, or policy.long_prompts=drop or left_cut")
    fitted = [list(tokens) if len(tokens) <= limit else [*tokens[:head], *tokens[head - limit :]] for tokens in prompts]
    return Fitted(fitted, [max(0, len(tokens) - limit) for tokens in prompts])
