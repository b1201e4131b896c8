"""OpenVLA-OFT: pictures, an instruction and maybe the state in, a chunk of actions in one parallel pass out; one class per head, for every size.

The sequence is BOS, patches camera by camera, the state's token, prompt, L zeroed action slots, stop; attention is bidirectional; slot k is
read one position before it. The discrete head is one distribution over the 256 action tokens per slot. The L1 head (OpenVLAOFTL1) reads
the slots of an action side by side as its mean, to which reinforcement learning adds a learned spread: a Gaussian.
"""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from policies.base import TokenStats
from policies.checkpoints import components
from policies.checkpoints.components import Components
from policies.checkpoints.loading import CheckpointError
from policies.parts import gaussian, given, sampling
from policies.parts.heads import L1Head
from policies.parts.platforms import UNKNOWN, platform_of
from policies.parts.prompts import STOP
from policies.parts.vla import CAMERAS_KEY, CHUNK_KEY, IMAGES_KEY, VLA


class OpenVLAOFT(VLA):
    """A Policy (policies/base.py). Choices are indices 0..255 into the action token ids in rising id order.

    `from_pretrained` gives an OpenVLAOFTL1 where the folder, or `head`, asks for one.
    """

    NAME, CHUNK = "openvla_oft", UNKNOWN.chunk
    COMPONENTS = (components.PROPRIO, components.VISION)

    @classmethod
    def kind(cls, head: str, files: Mapping[str, Path]) -> type[VLA]:
        """Raises CheckpointError where the L1 head is asked for and its file is not there, ValueError for a head that is not known."""
        if head == "l1" and components.HEAD not in files:
            raise CheckpointError(f"policy.head=l1: found no {components.HEAD}--*_checkpoint.pt in the checkpoint folder, wanted the regression head's weights; copy the whole folder, or set policy.head=discrete")
        if head not in ("auto", "discrete", "l1"):
            raise ValueError(f"policy.head: found {head!r}, wanted auto, discrete or l1")
        return OpenVLAOFT if head == "discrete" or components.HEAD not in files else OpenVLAOFTL1

    @classmethod
    def chunk_of(cls, config: Mapping, key: str) -> int:
        return config.get(CHUNK_KEY, platform_of(key).chunk)

    def action_logits(self, pixel_values: torch.Tensor, prompt_ids: torch.Tensor, prompt_mask: torch.Tensor | None = None, state: torch.Tensor | None = None) -> torch.Tensor:
        """[b, 6n, H, W] normalised pixels, [b, S] ids that start with BOS, [b, S] bool (False: padding, left or right), [b, s] normalised
        state -> [b, L, 256] logits of the action ids in rising id order."""
        return self.logits(self._slot_states(pixel_values, prompt_ids, prompt_mask, state))

    def _sample(self, inputs: dict[str, torch.Tensor], noise: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        distribution, values = self._distribution(inputs)
        choices = sampling.choose(distribution, noise)
        return choices, sampling.gather(distribution, choices), values

    def _distribution(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """No slot depends on what is chosen in another: `choices` is not read."""
        states, values = self._seen(inputs)
        return sampling.log_softmax(self.logits(states), self.temperature), values

    def _seen(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What `prepare` gives -> hidden states [b, L, D] of the slots, values or None."""
        pixels, prompt_ids, prompt_mask = self._placed(inputs)
        if "state" in inputs:
            given.finite("inputs 'state'", inputs["state"], "prepare the inputs with this policy")
        states = self._slot_states(pixels, prompt_ids, prompt_mask, inputs["state"].to(pixels.device) if "state" in inputs else None)
        return states, None if self.value_head is None else self.value_head(states)

    def _slot_states(self, pixel_values: torch.Tensor, prompt_ids: torch.Tensor, prompt_mask: torch.Tensor | None, state: torch.Tensor | None = None) -> torch.Tensor:
        """-> [b, L, D] hidden states from which the slots are read."""
        context, valid = self.context(pixel_values, prompt_ids, prompt_mask, state)
        if valid is not None:
            valid = F.pad(valid, (0, self.tokens + 1), value=True)
        slots = context.new_zeros(len(context), self.tokens, context.shape[-1])
        stop = self.language_model.model.embed_tokens.weight[STOP].expand(len(context), 1, -1)
        start = context.shape[1]
        states = self.language_model(torch.cat([context, slots, stop], dim=1), valid, (start, self.tokens))
        return states[:, start - 1 : start - 1 + self.tokens]


class OpenVLAOFTL1(OpenVLAOFT):
    """The same with the L1 head. Choices are float32 normalised actions, unclipped; each dim has one std, times the temperature, at every action of a chunk."""

    COMPONENTS = (components.HEAD, *OpenVLAOFT.COMPONENTS)
    DISTRIBUTION = False

    def __init__(self, config: dict, *rest, **settings):
        """As VLA. Raises ValueError where nothing says how many actions a chunk has."""
        super().__init__(config, *rest, **settings)
        self.action_head = L1Head(self.width, self.spec.action_dims)
        self.log_std = nn.Parameter(torch.empty(self.spec.action_dims))

    @classmethod
    def chunk_of(cls, config: Mapping, key: str) -> int:
        if CHUNK_KEY not in config and platform_of(key) is UNKNOWN:
            raise ValueError(f"found no number of actions per chunk in config.json ({CHUNK_KEY}) and no robot that is known in {key!r}, wanted one of them: the weights of a regression head do not tell; give policy.chunk=C")
        return super().chunk_of(config, key)

    @classmethod
    def cameras_of(cls, config: Mapping, key: str) -> tuple[str, ...]:
        """Where config.json says nothing, those of the robot's published policies: with this head they look through all of its cameras."""
        silent = CAMERAS_KEY not in config and IMAGES_KEY not in config
        return platform_of(key).cameras if silent else super().cameras_of(config, key)

    def materialise(self, dtype: str, device: str) -> None:
        """The spread is float32 whatever the rest is held in: its steps are too small for less."""
        super().materialise(dtype, device)
        self.log_std.data = self.log_std.data.float()

    def load_components(self, found: Components, initial_log_std: float) -> None:
        """The spread starts at initial_log_std where the folder has none."""
        nn.init.constant_(self.log_std, initial_log_std)
        super().load_components(found, initial_log_std)

    def evaluate(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor, distribution: bool = False) -> TokenStats:
        """As VLA. Raises ValueError where it is asked for its distribution over choices: a density has none."""
        if distribution:
            raise ValueError("policy=openvla_oft with the L1 head: found a request for [n, L, V] log-probabilities, wanted a discrete head; set algorithm.kl_coef=0")
        mean, values = self._mean(inputs)
        std = self._std()
        return TokenStats(gaussian.logprobs(mean, std, choices.to(mean.device)), gaussian.entropy(std).expand_as(mean), values)

    def encode(self, actions: np.ndarray) -> torch.Tensor:
        """[n, C, A] actions in the env's convention -> choices [n, L] float32."""
        return torch.as_tensor(self.codec.encode_normalised(actions)).reshape(len(actions), self.tokens)

    def _sample(self, inputs: dict[str, torch.Tensor], noise: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        (mean, values), std = self._mean(inputs), self._std()
        choices = gaussian.sample(mean, std, noise)
        return choices, gaussian.logprobs(mean, std, choices), values

    def _mean(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """-> [b, L] float32 normalised actions, values or None."""
        states, values = self._seen(inputs)
        return self.action_head(states).flatten(1), values

    def _std(self) -> torch.Tensor:
        """[L] float32."""
        return (self.log_std.float().exp() * self.temperature).repeat(self.spec.chunk)

    def _decoded(self, choices: np.ndarray) -> np.ndarray:
        return self.codec.decode_normalised(choices)
