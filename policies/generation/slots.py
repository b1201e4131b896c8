"""Keys and values of the samples that run, one row each, behind transformers' cache interface.

Rows 0 .. count - 1 are in use, without gaps: a row that is freed is taken by the last one. Each row has a length of its own; a position beyond it
is never seen. The store grows with the longest row, so memory follows what was generated, not what might have been.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

STRIDE = 64  # positions the store has at first; it at least doubles from there


@dataclass(frozen=True)
class Prefilled:
    """One prompt, computed: what a sample of it starts from."""

    store: torch.Tensor  # [layers, 2, H, S, d] keys and values of its S tokens
    logits: torch.Tensor  # [V] after the last of them


class Slots:
    """What a decoder layer calls as its cache: `update` takes one position per row."""

    def __init__(self, rows: int) -> None:
        self.rows, self.count = rows, 0
        self.lengths = torch.zeros(rows, dtype=torch.int64)  # on the CPU: what the rows hold
        self._store: torch.Tensor | None = None  # [layers, 2, rows, H, positions, d]

    def take(self, prompt: Prefilled) -> int:
        """The row a sample of the prompt runs in, its keys and values copied there."""
        row, length = self.count, prompt.store.shape[3]
        self._reserve(prompt.store, length + 1)
        self._store[:, :, row, :, :length] = prompt.store
        self.lengths[row] = length
        self.count += 1
        return row

    def free(self, row: int) -> int:
        """Give a row back; the row that is moved into its place (its own number where it was the last)."""
        last = self.count - 1
        if row != last:
            length = int(self.lengths[last])
            self._store[:, :, row, :, :length] = self._store[:, :, last, :, :length]
            self.lengths[row] = length
        self.count = last
        return last

    def begin(self, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for one more position in every row in use -> its place [count, 1] int64 and the additive mask [count, 1, 1, longest] of what each may see."""
        lengths = self.lengths[: self.count].clone()
        longest = int(lengths.max()) + 1
        self._reserve(self._store, longest)
        self._places, self._longest = lengths.to(device), longest
        self._which = torch.arange(self.count, device=device)
        unseen = torch.arange(longest, device=device) > self._places[:, None]
        mask = torch.zeros(unseen.shape, dtype=dtype, device=device).masked_fill_(unseen, torch.finfo(dtype).min)
        self.lengths[: self.count] += 1
        return self._places[:, None], mask[:, None, None]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_, **__) -> tuple[torch.Tensor, torch.Tensor]:
        """[count, H, 1, d] of the position begun -> keys and values [count, H, longest, d] so far."""
        keys, values = self._store[layer_idx, 0, : self.count], self._store[layer_idx, 1, : self.count]
        keys[self._which, :, self._places] = key_states[:, :, 0]
        values[self._which, :, self._places] = value_states[:, :, 0]
        return keys[:, :, : self._longest], values[:, :, : self._longest]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._longest - 1

    def _reserve(self, like: torch.Tensor, positions: int) -> None:
        """like: [layers, 2, ..., H, positions, d], of what the store is to hold."""
        held = 0 if self._store is None else self._store.shape[4]
        if positions <= held:
            return
        layers, heads, width = like.shape[0], like.shape[-3], like.shape[-1]
        # zeros: what a masked position holds is multiplied by 0, and must be a number
        grown = like.new_zeros(layers, 2, self.rows, heads, max(STRIDE, 2 * held, positions), width)
        if held:
            grown[:, :, :, :, :held] = self._store
        self._store = grown
