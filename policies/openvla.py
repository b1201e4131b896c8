"""OpenVLA: pictures and an instruction in, one action out, its tokens made one after another; one class for every size.

The sequence is BOS, patches, prompt, then the action tokens; attention is causal; token k is read one position before it, and depends
on the tokens before it. Sampling keeps keys and values from step to step; evaluation is one pass over given tokens, to the same numbers.
A batch may hold prompts of different lengths: their padding stands in front, right after the patches, unseen and not counted as positions.
Layout, pictures and prompts are those of OpenVLA-OFT: a folder that does not say `num_actions_chunk` loads as either, and was trained as one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from policies.parts import sampling
from policies.parts.vla import VLA


class OpenVLA(VLA):
    """A Policy (policies/base.py). Choices are indices 0..255 into the action token ids in rising id order; C is 1, so L is A."""

    NAME, CHUNK = "openvla", 1

    def __init__(self, config: dict, *rest, **settings):
        """As VLA. Raises ValueError for a config.json whose policy gives several actions at once."""
        chunk = config.get("num_actions_chunk", self.CHUNK)
        if chunk != self.CHUNK:
            raise ValueError(f"config.json: found num_actions_chunk={chunk}, wanted {self.CHUNK}: OpenVLA gives one action per inference; load this checkpoint with policy=openvla_oft")
        super().__init__(config, *rest, **settings)

    def action_logits(self, pixel_values: torch.Tensor, prompt_ids: torch.Tensor, tokens: torch.Tensor, prompt_mask: torch.Tensor | None = None) -> torch.Tensor:
        """[b, 6n, H, W] normalised pixels, [b, S] ids that start with BOS, [b, L] token ids (any of the vocabulary; the last column
        is not read), [b, S] bool (False: padding, left or right) -> [b, L, 256] logits of the action ids in rising id order."""
        return self.logits(self._states(pixel_values, prompt_ids, prompt_mask, tokens))

    def _sample(self, inputs: dict[str, torch.Tensor], noise: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        context, valid = self._whole_context(*self._placed(inputs))
        uniforms = None if noise is None else torch.as_tensor(noise, dtype=torch.float64, device=context.device)
        logprobs = []

        def choose(step: int, logits: torch.Tensor) -> torch.Tensor:
            distribution = sampling.log_softmax(logits, self.temperature)
            choices = sampling.choose(distribution, None if uniforms is None else uniforms[:, step])
            logprobs.append(sampling.gather(distribution, choices))
            return choices

        choices, states = self.unroll(context, valid, self.tokens, choose)
        values = None if self.value_head is None else self.value_head.causal(states)
        return choices, torch.stack(logprobs, dim=1), values

    def _distribution(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        states = self._states(*self._placed(inputs), self.first_action + choices)
        values = None if self.value_head is None else self.value_head.causal(states)
        return sampling.log_softmax(self.logits(states), self.temperature), values

    def _states(self, pixel_values: torch.Tensor, prompt_ids: torch.Tensor, prompt_mask: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """-> [b, L, D] hidden states from which the tokens are read, each a function of the tokens before its own."""
        context, valid = self._whole_context(pixel_values, prompt_ids, prompt_mask)
        given = self.language_model.model.embed_tokens(tokens[:, :-1])
        states = self.language_model.after(torch.cat([context, given], dim=1), F.pad(valid, (0, given.shape[1]), value=True))
        return states[:, context.shape[1] - 1 :]

    def _whole_context(self, pixel_values: torch.Tensor, prompt_ids: torch.Tensor, prompt_mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """`context` with a mask in any case."""
        whole = torch.ones_like(prompt_ids, dtype=torch.bool) if prompt_mask is None else prompt_mask
        return self.context(pixel_values, prompt_ids, whole)
