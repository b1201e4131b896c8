"""OpenVLA-OFT with the discrete head: pictures and an instruction in, a chunk of actions in one parallel pass out; one class for every size.

Sampling and evaluation share one distribution over the 256 action tokens.
The sequence is BOS, patches, prompt, L zeroed action slots, stop; attention is bidirectional; slot k is read one position before it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from policies.parts import sampling
from policies.parts.prompts import STOP
from policies.parts.vla import VLA


class OpenVLAOFT(VLA):
    """A Policy (policies/base.py). Choices are indices 0..255 into the action token ids in rising id order."""

    NAME, CHUNK = "openvla_oft", 8

    def action_logits(self, pixel_values: torch.Tensor, prompt_ids: torch.Tensor, prompt_mask: torch.Tensor | None = None) -> torch.Tensor:
        """[b, 6n, H, W] normalised pixels, [b, S] ids that start with BOS, [b, S] bool (False: padding, left or right)
        -> [b, L, 256] logits of the action ids in rising id order."""
        return self.logits(self._slot_states(pixel_values, prompt_ids, prompt_mask))

    def _sample(self, inputs: dict[str, torch.Tensor], noise: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        distribution, values = self._distribution(inputs)
        choices = sampling.choose(distribution, noise)
        return choices, sampling.gather(distribution, choices), values

    def _distribution(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """No slot depends on what is chosen in another: `choices` is not read."""
        states = self._slot_states(*self._placed(inputs))
        values = None if self.value_head is None else self.value_head(states)
        return sampling.log_softmax(self.logits(states), self.temperature), values

    def _slot_states(self, pixel_values: torch.Tensor, prompt_ids: torch.Tensor, prompt_mask: torch.Tensor | None) -> torch.Tensor:
        """-> [b, L, D] hidden states from which the slots are read."""
        context, valid = self.context(pixel_values, prompt_ids, prompt_mask)
        if valid is not None:
            valid = F.pad(valid, (0, self.tokens + 1), value=True)
        slots = context.new_zeros(len(context), self.tokens, context.shape[-1])
        stop = self.language_model.model.embed_tokens.weight[STOP].expand(len(context), 1, -1)
        start = context.shape[1]
        states = self.language_model(torch.cat([context, slots, stop], dim=1), valid, (start, self.tokens))
        return states[:, start - 1 : start - 1 + self.tokens]
