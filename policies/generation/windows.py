"""How far back the layers of a language model see, by its config.

What is generated keeps every position, so a model that would forget some within one text is not run: its samples and their
probabilities would be of two models. A window that no text reaches the end of changes no number.
"""

from __future__ import annotations

from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' names


def reach(config: Any) -> int | None:
    """Positions that every layer sees, a token's own among them; None = all before it. Raises ValueError for layers that look back in another way, or by an unknown width."""
    kinds, width = set(getattr(config, "layer_types", None) or ()), getattr(config, "sliding_window", None)
    if kinds - {FULL, SLIDING} or SLIDING in kinds and not width:
        raise ValueError(f"found {config.model_type} with {', '.join(sorted(kinds))}, wanted {FULL} in every layer, or sliding windows of a width that is known (config.json: layer_types, sliding_window); give another model")
    if kinds == {FULL} or not kinds and getattr(config, "use_sliding_window", None) is False:
        return None
    return width or None


def require(config: Any, tokens: int) -> None:
    """Raises ValueError where a text of so many tokens is longer than some layer sees, or as `reach`. tokens: of prompt and answer together."""
    width = reach(config)
    if width is not None and width < tokens:
        raise ValueError(f"found {config.model_type} with a sliding window of {width} positions (config.json: sliding_window), wanted at least {tokens}, policy.prompt_length + policy.max_tokens: within one text nothing may slide out of sight; lower those two, or give a model without sliding windows (config.json: use_sliding_window=false)")
