"""What every OpenVLA is: a checkpoint folder's towers, projector, language model and codec; how its 256 action tokens are read off differs.

Everything about size comes from the folder's config.json, and the weights have the reference's tensor names, so a published 7B folder
and a small one load alike. A subclass says how choices are made (`_sample`) and how given ones are judged (`_distribution`); both go
through one distribution, so `act` and `evaluate` agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Mapping, Sequence

import numpy as np
import torch

from policies.base import ActionChunk, PolicySpec, TokenStats
from policies.codec import ActionCodec
from policies.checkpoints import loading
from policies.parts import sampling
from policies.parts.images import ImagePath, normalise
from policies.parts.network import Network, vocabulary_of
from policies.parts.prompts import Prompts
from policies.parts.value_head import ValueHead

PROMPT_LENGTH_KEY = "prompt_length"  # ours, in config.json: tokens a prompt is padded to


class VLA(Network, ABC):
    """A Policy (policies/base.py) but for the two methods of a subclass. Choices are indices 0..255 into the action token ids in rising id order."""

    NAME: str  # of the policy
    CHUNK: int  # C: primitive actions per inference, unless config.json says `num_actions_chunk`

    def __init__(self, config: dict, codec: ActionCodec, images: ImagePath, prompts: Prompts, *, temperature: float = 1.0,
                 cameras: Sequence[str] = ("agentview",), value_head: bool = False, value_detach: bool = False):  # fmt: skip
        """Parameters are left as torch makes them: use `from_pretrained`, or fresh.create_checkpoint for a random model."""
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"found temperature={temperature}, wanted a number above 0; a greedy choice is act(observation, None)")
        self.config, self.codec, self.images, self.prompts, self.temperature = config, codec, images, prompts, temperature
        self.build(config)
        self.value_head = ValueHead(self.width, detach=value_detach) if value_head else None
        chunk = config.get("num_actions_chunk", self.CHUNK)
        self.tokens = chunk * codec.dims  # L
        self.spec = PolicySpec(self.NAME, "continuous", codec.dims, chunk, tuple(cameras), language=True, gripper="open_1_close_0")

    @classmethod
    def from_pretrained(cls, checkpoint: str | Path | None, temperature: float = 1.0, unnorm_key: str | None = None,
                        cameras: Sequence[str] = ("agentview",), dtype: str = "float32", device: str = "cpu",
                        value_head: bool = False, value_detach: bool = False, prompt_length: int | None = None, instructions: bool = False) -> "VLA":  # fmt: skip
        """Load a checkpoint folder. unnorm_key: the suite whose statistics scale the actions; None when the folder has only one.

        instructions: it will be given texts, so the folder must have a tokenizer. prompt_length: tokens per prompt; None takes the folder's own. dtype: what the weights are held and computed in.
        Raises CheckpointError (a ValueError) without a folder, naming every missing file, or every missing, extra or misshapen tensor; KeyError for unnorm_key.
        """
        if checkpoint is None:
            raise loading.CheckpointError(f"found no checkpoint, wanted the folder of one: policy {cls.NAME} has none of its own; give policy.checkpoint=FOLDER")
        folder = loading.read_folder(checkpoint, ("tokenizer.json",) if instructions else ())
        config = folder.config
        if prompt_length is not None:
            config[PROMPT_LENGTH_KEY] = prompt_length
        prompts = Prompts.from_folder(folder.path, vocabulary_of(config), config.get(PROMPT_LENGTH_KEY))
        with torch.device("meta"):
            policy = cls(config, ActionCodec(folder.statistics, unnorm_key), ImagePath.from_config(folder.preprocessor), prompts,
                         temperature=temperature, cameras=cameras, value_head=value_head, value_detach=value_detach)  # fmt: skip
        policy.statistics, policy.preprocessor = folder.statistics, folder.preprocessor
        policy.materialise(dtype, device)
        if policy.value_head is not None:
            policy.value_head.reset()
        loading.load_weights(policy, folder.weights, optional="value_head.")
        return policy

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `from_pretrained` loads to the same numbers."""
        texts = {loading.CONFIG: self.config, loading.STATISTICS: self.statistics, loading.PREPROCESSOR: self.preprocessor}
        loading.write_folder(folder, self, texts, self.prompts.files)

    def prepare(self, observation: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """-> pixels [b, n, h, w, 3] uint8 of n cameras, prompt_ids [b, S] int64, prompt_mask [b, S] bool; on the CPU."""
        pixels = np.stack([self.images.pixels(observation[f"images/{camera}"]) for camera in self.spec.cameras], axis=1)
        prompt_ids, prompt_mask = self.prompts(observation["instruction"])
        return {"pixels": torch.from_numpy(pixels), "prompt_ids": prompt_ids, "prompt_mask": prompt_mask}

    @torch.no_grad()
    def act(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None) -> ActionChunk:
        """noise: [b, L] float64 in (0, 1), or None for the greedy choice. Actions are in the env's convention."""
        inputs = self.prepare(observation)
        choices, logprobs, values = self._sample(inputs, noise)
        choices = choices.cpu()
        actions = self.codec.decode(choices.view(-1, self.spec.chunk, self.spec.action_dims).numpy())
        values = None if values is None else values.cpu()
        return ActionChunk(choices, logprobs.cpu(), torch.ones_like(choices, dtype=torch.bool), actions, values, inputs)

    def evaluate(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor, distribution: bool = False) -> TokenStats:
        """inputs as `prepare` gives them, choices [n, L] -> TokenStats with gradient; `distribution` adds [n, L, 256] log-probabilities."""
        choices = choices.to(self.language_model.lm_head.weight.device)
        logprobs, values = self._distribution(inputs, choices)
        chosen = sampling.gather(logprobs, choices)
        return TokenStats(chosen, sampling.entropy(logprobs), values, logprobs if distribution else None)

    def encode(self, actions: np.ndarray) -> torch.Tensor:
        """[n, C, A] actions in the env's convention -> choices [n, L] int64."""
        return torch.as_tensor(self.codec.encode(actions)).reshape(len(actions), self.tokens)

    @abstractmethod
    def _sample(self, inputs: dict[str, torch.Tensor], noise: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """-> choices [b, L] int64, their log-probabilities [b, L] float32, values [b] float32 or None."""

    @abstractmethod
    def _distribution(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """choices [b, L] int64 on the model's device -> log-probabilities [b, L, 256] float32, values [b] float32 or None."""

    def _placed(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `prepare` gives -> normalised pixels [b, 6n, H, W], prompt_ids [b, S], prompt_mask [b, S] on the model's device."""
        device = self.language_model.lm_head.weight.device
        pixels, prompt_ids, prompt_mask = (inputs[name].to(device) for name in ("pixels", "prompt_ids", "prompt_mask"))
        return normalise(pixels, self.images.means, self.images.stds), prompt_ids, prompt_mask
