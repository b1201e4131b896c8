"""The network of an OpenVLA under the reference's tensor names: towers, projector, language model, and the rows of the head that say actions.

Everything about size comes from config.json. What is read off the hidden states, and in which order, is the business of who has this class as a base.
"""

from __future__ import annotations

from typing import Callable

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache

from policies.codec import BINS
from policies.parts.decoder import WIDTH, LanguageModel, llama_config, pad_after_first
from policies.parts.heads import ProprioProjector
from policies.parts.prompts import LLAMA_VOCABULARY, STOP
from policies.parts.vision import Projector, VisionBackbone, towers_of


class Network(nn.Module):
    """A base that has no constructor of its own: `build` makes the modules once nn.Module's has run."""

    def build(self, config: dict, state: int | None = None, film: bool = False) -> None:
        """config: what config.json holds. state: S numbers of proprioception, one more token; None = none. film: vision is modulated by the language.

        Raises ValueError for towers or a language model that are not known.
        """
        towers = towers_of(config)
        llama = llama_config(config["text_config"])
        self.vision_backbone = VisionBackbone(towers, llama.hidden_size if film else None)
        self.projector = Projector(sum(tower.embed_dim for tower in towers), llama.hidden_size)
        self.proprio_projector = None if state is None else ProprioProjector(state, llama.hidden_size)
        self.language_model = LanguageModel(llama)
        self.first_action = vocabulary_of(config) - BINS

    @property
    def width(self) -> int:
        """D: channels of a hidden state."""
        return self.language_model.lm_head.in_features

    def materialise(self, dtype: str, device: str) -> None:
        """Give a model built on the meta device memory (uninitialised) and its rotary frequencies."""
        self.to(getattr(torch, dtype)).to_empty(device=device)
        self.language_model.place_rotary(device)

    def blocks(self) -> list[nn.Module]:
        """The transformer blocks that run, in order: what memory is saved by, one at a time."""
        return [*self.vision_backbone.featurizer.blocks[:-1], *self.vision_backbone.fused_featurizer.blocks[:-1], *self.language_model.model.layers]

    def context(self, pixel_values: torch.Tensor, prompt_ids: torch.Tensor, prompt_mask: torch.Tensor | None, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[b, 6n, H, W] normalised pixels, [b, S] ids that start with BOS, [b, S] bool (False: padding, left or right), [b, s] normalised state
        -> embeddings [b, N, D] of BOS, patches, state and the rest of the prompt, valid [b, N] bool (None: without padding).

        Every prompt ends at N - 1: its padding goes in front, right after the patches, so what follows it stands at one place in all rows.
        Raises ValueError for a state that the network has no projector for, or lacks.
        """
        if (state is None) != (self.proprio_projector is None):
            raise ValueError(f"found {'no ' if state is None else 'a '}state, wanted {'one' if state is None else 'none'}: the checkpoint has {'a' if state is None else 'no'} proprio projector")
        embed = self.language_model.model.embed_tokens
        if prompt_mask is not None:
            prompt_ids, prompt_mask = pad_after_first(prompt_ids, prompt_mask.bool())
        text = embed(prompt_ids)
        language = self._language(text, prompt_mask) if self.vision_backbone.film else None
        seen = self.projector(self.vision_backbone(pixel_values.to(embed.weight.dtype), language))
        if state is not None:
            seen = torch.cat([seen, self.proprio_projector(state.to(seen.dtype))], dim=1)
        valid = None if prompt_mask is None else F.pad(prompt_mask[:, 1:], (seen.shape[1] + 1, 0), value=True)
        return torch.cat([text[:, :1], seen, text[:, 1:]], dim=1), valid

    def _language(self, text: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """[b, S, D] embeddings of the prompt, [b, S] bool -> [b, D]: the mean over it and the stop token behind the slots; padding does not count."""
        weights = text.new_ones(text.shape[:2]) if mask is None else mask.to(text.dtype)
        stop = self.language_model.model.embed_tokens.weight[STOP]
        return (torch.einsum("bs,bsd->bd", weights, text) + stop) / (weights.sum(1, keepdim=True) + 1)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[..., D] hidden states -> [..., 256] logits of the action ids in rising id order."""
        return F.linear(states, self.language_model.lm_head.weight[self.first_action : self.first_action + BINS])


    def unroll(self, context: torch.Tensor, valid: torch.Tensor, count: int, choose: Callable[[int, torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Action tokens one after another, each seeing those before it; keys and values are kept from step to step.

        context, valid: as `context` gives them. choose: (step, logits [b, 256]) -> [b] int64 indices into the action ids.
        -> choices [b, count], the hidden states that they were read from [b, count, D].
        """
        cache, chosen, seen = DynamicCache(), [], []
        for step in range(count):
            states = self.language_model.after(context, valid, cache)[:, -1:]
            seen.append(states)
            # read WIDTH times over, as the pass itself is: a row's bits must not depend on its place
            chosen.append(choose(step, self.logits(states.expand(-1, WIDTH, -1))[:, 0]))
            context = self.language_model.model.embed_tokens(self.first_action + chosen[-1])[:, None]
            valid = F.pad(valid, (0, 1), value=True)
        return torch.stack(chosen, dim=1), torch.cat(seen, dim=1)


def vocabulary_of(config: dict) -> int:
    """Text and action ids, without the rows that pad the embedding to a multiple; the last 256 are the actions."""
    rows = config["text_config"]["vocab_size"]
    if rows == config.get("pad_token_id", LLAMA_VOCABULARY):  # the padding id is the first padding row, so there are none
        return rows
    return rows - config.get("pad_to_multiple_of", 64)
