"""What every OpenVLA is: a checkpoint folder's towers, projector, language model and codec; how its actions are read off differs.

Everything about size comes from the folder's config.json, and the weights have the reference's tensor names, so a published 7B folder
and a small one load alike. A subclass says how choices are made (`_sample`) and how given ones are judged (`_distribution`); both go
through one distribution, so `act` and `evaluate` agree. What they are given is checked here, by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np
import torch

from policies import device_images
from policies.base import ActionChunk, PolicySpec, TokenStats
from policies.codec import ActionCodec, StateCodec
from policies.checkpoints import components, loading, lora as adapters
from policies.checkpoints.components import Components
from policies.parts import given, sampling
from policies.parts.images import ImagePath, normalise
from policies.parts.network import Network, vocabulary_of
from policies.parts.platforms import platform_of
from policies.parts.prompts import Prompts
from policies.parts.value_head import ValueHead

CHUNK_KEY, IMAGES_KEY = "num_actions_chunk", "num_images_in_input"  # in config.json: C, and how many cameras
# Ours, in config.json: tokens a prompt is padded to, and what the loader was told that no other file says.
PROMPT_LENGTH_KEY, CAMERAS_KEY, NORMALIZATION_KEY = "prompt_length", "cameras", "action_normalization"


class VLA(Network, ABC):
    """A Policy (policies/base.py) but for the two methods of a subclass. Choices are indices 0..255 into the action token ids in rising id order, where a
    subclass does not say otherwise."""

    NAME: str  # of the policy
    CHUNK: int  # C: primitive actions per inference, unless config.json says `num_actions_chunk`
    COMPONENTS: tuple[str, ...] = ()  # the component files that it reads, where a folder has them
    DISTRIBUTION = True  # its choices are of a finite number

    def __init__(self, config: dict, codec: ActionCodec, images: ImagePath, prompts: Prompts, *, temperature: float = 1.0,
                 cameras: Sequence[str] = ("agentview",), value_head: bool = False, value_detach: bool = False, value_level: str = "chunk",
                 state: StateCodec | None = None, film: bool = False):  # fmt: skip
        """Parameters are left as torch makes them: use `from_pretrained`, or fresh.create_checkpoint for a random model.

        state: of the proprioception it reads; None = none. film: vision is modulated by the language.
        Raises ValueError for a temperature out of given.TEMPERATURES, or prompts that are longer than what the language model has positions for.
        """
        super().__init__()
        given.number("policy.temperature", temperature, given.TEMPERATURES, "a greedy choice is evaluation.greedy=true, or act(observation, None)")
        self.config, self.codec, self.images, self.prompts, self.temperature = config, codec, images, prompts, temperature
        self.state, self.component_names = state, {}
        self.build(config, None if state is None else state.dims, film)
        chunk = self.chunk_of(config, codec.key)
        self.value_head = ValueHead(self.width, detach=value_detach, level=value_level, actions=chunk) if value_head else None
        self.tokens = chunk * codec.dims  # L
        self._check_length(len(cameras))
        self.spec = PolicySpec(self.NAME, "continuous", codec.dims, chunk, tuple(cameras), state=None if state is None else state.dims, language=True,
                               gripper=codec.gripper, distribution=self.DISTRIBUTION)  # fmt: skip

    @classmethod
    def from_pretrained(cls, checkpoint: str | Path | None, temperature: float = 1.0, unnorm_key: str | None = None,
                        cameras: Sequence[str] | None = None, dtype: str = "float32", device: str = "cpu",
                        value_head: bool = False, value_detach: bool = False, value_level: str = "chunk", prompt_length: int | None = None, instructions: bool = False,
                        lora: Mapping[str, Any] | None = None, base: str | Path | None = None,
                        head: str = "auto", chunk: int | None = None, normalization: str | None = None, proprio: bool | None = None, initial_log_std: float = -1.5) -> "VLA":  # fmt: skip
        """Load a checkpoint folder. unnorm_key: the suite whose statistics scale the actions; None when the folder has only one.

        lora: rank, alpha, dropout and targets of adapters that are trained in place of the weights (checkpoints/lora.py); None or rank 0: none but the
        folder's own. base: the folder with the weights that the folder's adapters belong to, where it is not where they say.
        instructions: it will be given texts, so the folder must have a tokenizer. prompt_length: tokens per prompt; None takes the folder's own. dtype: what the weights are held and computed in.
        cameras: names, in order; None takes what config.json says (`cameras`, or `num_images_in_input` of the usual ones). head: "discrete", "l1", or "auto": l1 where the folder has one.
        chunk: C. normalization: "q99" or "bounds". None of either takes what config.json says, else the robot's (policies/parts/platforms.py).
        proprio: read the state; None = where the folder has its projector. initial_log_std: of an L1 head that reinforcement learning has not trained yet.
        Raises CheckpointError (a ValueError) without a folder, naming every missing file, or every missing, extra or misshapen tensor; KeyError for unnorm_key;
        ValueError for a component that is not finite, statistics that make no action, a setting that cannot be, or one that config.json contradicts.
        """
        if checkpoint is None:
            raise loading.CheckpointError(f"found no checkpoint, wanted the folder of one: policy {cls.NAME} has none of its own; give policy.checkpoint=FOLDER")
        given.dtype(dtype)
        given.number("policy.initial_log_std", initial_log_std, given.LOG_STDS, "the logarithm of a spread, of which 1 is half the statistics' range")
        folder = loading.read_folder(checkpoint, ("tokenizer.json",) if instructions else (), base)
        config = folder.config
        _said(config, PROMPT_LENGTH_KEY)
        told = {PROMPT_LENGTH_KEY: prompt_length, NORMALIZATION_KEY: normalization, CAMERAS_KEY: _renamed(config, cameras), CHUNK_KEY: _agreed(config, chunk)}
        config.update({key: value for key, value in told.items() if value is not None})
        files = components.find(folder.path)
        cls = cls.kind(head, files)
        found = components.read({name: file for name, file in files.items() if name in cls.COMPONENTS and (name, proprio) != (components.PROPRIO, False)}, folder.path)
        codec = ActionCodec(folder.statistics, unnorm_key, config.get(NORMALIZATION_KEY))
        _check_components(found, codec)
        prompts = Prompts.from_folder(folder.path, vocabulary_of(config), config.get(PROMPT_LENGTH_KEY))
        with torch.device("meta"):
            policy = cls(config, codec, ImagePath.from_config(folder.preprocessor), prompts, state=_state_codec(folder, codec, found, proprio), film=found.film,
                         temperature=temperature, cameras=cls.cameras_of(config, codec.key), value_head=value_head, value_detach=value_detach, value_level=value_level)  # fmt: skip
        policy.statistics, policy.preprocessor = folder.statistics, folder.preprocessor
        policy.materialise(dtype, device)
        if policy.value_head is not None:
            policy.value_head.reset()
        loading.load_weights(policy, folder.weights, optional=("value_head.", *components.APART), check=folder.require_base)
        policy.load_components(found, initial_log_std)
        adapters.attach(policy, lora, folder)
        return policy

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `from_pretrained` loads to the same numbers: whole weights, or adapters and heads alone where there are adapters.

        Of a checkpoint that lies there, what this policy does not have is taken away. Raises CheckpointError where that would be the base of its adapters."""
        adapters.require_elsewhere(folder, self)
        adapted = adapters.attached(self)
        config = self.config if adapted else loading.declaring(self.config, self.language_model.lm_head.weight.dtype)
        texts = {loading.CONFIG: config, loading.STATISTICS: self.statistics, loading.PREPROCESSOR: self.preprocessor}
        loading.write_folder(folder, None if adapted else self, texts, self.prompts.files, apart=components.APART)
        components.write(self, Path(folder), self.component_names)
        if adapted:
            adapters.write(Path(folder), self)

    def probe(self) -> torch.Tensor:
        """[2, 12, 256] float32 logits by the pass that sees everything, over random pixels, prompts and states that are the same every time: what merging adapters must not change."""
        generator, rows, length = torch.Generator().manual_seed(0), 2, 12
        side = self.vision_backbone.featurizer.image_size
        pixels = torch.randn(rows, 6, side, side, generator=generator)
        prompt = torch.randint(3, self.first_action, (rows, length), generator=generator)
        state = None if self.proprio_projector is None else torch.randn(rows, self.proprio_projector.fc1.in_features, generator=generator)
        embeddings, valid = self.context(pixels, prompt, None, state)
        return self.logits(self.language_model(embeddings, valid)[:, -length:]).float()

    @classmethod
    def kind(cls, head: str, files: Mapping[str, Path]) -> type["VLA"]:
        """The class that reads a folder with these component files. Raises ValueError for a head that this policy does not have."""
        if head not in ("auto", "discrete"):
            raise ValueError(f"policy.head: found {head!r}, wanted auto or discrete: policy={cls.NAME} says its actions in tokens; other heads belong to policy=openvla_oft")
        return cls

    @classmethod
    def chunk_of(cls, config: Mapping, key: str) -> int:
        """C, of a config.json and the key of the action statistics."""
        return config.get(CHUNK_KEY, cls.CHUNK)

    @classmethod
    def cameras_of(cls, config: Mapping, key: str) -> tuple[str, ...]:
        """The cameras that it looks at, in order. Raises ValueError where they are no list of names, or config.json says how many and they are not so many."""
        count = _said(config, IMAGES_KEY)
        named = given.cameras("policy.cameras", config[CAMERAS_KEY] if CAMERAS_KEY in config else platform_of(key).cameras[: count or 1])
        if count not in (None, len(named)):
            raise ValueError(f"policy.cameras: found {list(named)}, wanted {count}, as config.json says ({IMAGES_KEY}); name them in the order of training, as in policy.cameras=[agentview,wrist]")
        return named

    def load_components(self, found: Components, initial_log_std: float) -> None:
        """What stands beside the weights. Raises CheckpointError naming every tensor that does not fit."""
        components.load(self, found)
        self.component_names = {name: file.name for name, file in found.files.items()}

    def prepare(self, observation: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """-> pixels [b, n, h, w, 3] uint8 of n cameras, prompt_ids [b, S] int64, prompt_mask [b, S] bool, and where it reads it state [b, s]
        float32, normalised. What came as a tensor stays on its device (device_images.py), the rest is on the CPU. Raises ValueError naming what is not there, or is of another kind or size."""
        pixels = torch.stack([self._pixels(pictures) for pictures in given.pictures(observation, self.spec.cameras)], dim=1)
        prompt_ids, prompt_mask = self.prompts(given.instructions(observation, len(pixels)))
        inputs = {"pixels": pixels, "prompt_ids": prompt_ids, "prompt_mask": prompt_mask}
        if self.state is not None:
            inputs["state"] = torch.as_tensor(self.state.encode(given.state(observation, len(pixels), self.state.dims)))
        return inputs

    def _pixels(self, pictures: np.ndarray | torch.Tensor) -> torch.Tensor:
        return device_images.pixels(self.images, pictures) if isinstance(pictures, torch.Tensor) else torch.from_numpy(self.images.pixels(pictures))

    @torch.no_grad()
    def act(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None) -> ActionChunk:
        """noise: [b, L] float64 inside (0, 1), or None for the greedy choice. Actions are in the env's convention.

        Raises ValueError as `prepare`, for noise of another size or with an end of (0, 1) in it, and where what comes out is not finite.
        """
        inputs = self.prepare(observation)
        choices, logprobs, values = self._sample(inputs, given.noise(noise, len(inputs["pixels"]), self.tokens))
        choices, logprobs = choices.cpu(), logprobs.cpu()
        actions = self._decoded(choices.view(-1, self.spec.chunk, self.spec.action_dims).numpy())
        for name, found in (("log-probabilities", logprobs), ("actions", actions)):
            given.finite(f"policy={self.NAME}: {name}", found, "the weights hold, or overflow to, what is no number: load them again, or take an earlier checkpoint")
        values = None if values is None else values.cpu()
        return ActionChunk(choices, logprobs, torch.ones_like(choices, dtype=torch.bool), actions, values, inputs)

    def evaluate(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor, distribution: bool = False) -> TokenStats:
        """inputs as `prepare` gives them, choices [n, L] -> TokenStats with gradient; `distribution` adds [n, L, 256] log-probabilities."""
        choices = choices.to(self.language_model.lm_head.weight.device)
        logprobs, values = self._distribution(inputs, choices)
        chosen = sampling.gather(logprobs, choices)
        return TokenStats(chosen, sampling.entropy(logprobs), values, logprobs if distribution else None)

    def encode(self, actions: np.ndarray) -> torch.Tensor:
        """[n, C, A] actions in the env's convention -> choices [n, L] int64."""
        return torch.as_tensor(self.codec.encode(actions)).reshape(len(actions), self.tokens)

    def _decoded(self, choices: np.ndarray) -> np.ndarray:
        """[b, C, A] choices -> [b, C, A] float32 actions in the env's convention."""
        return self.codec.decode(choices)

    @abstractmethod
    def _sample(self, inputs: dict[str, torch.Tensor], noise: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """-> choices [b, L] int64, their log-probabilities [b, L] float32, values [b] or [b, K] float32 or None."""

    @abstractmethod
    def _distribution(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """choices [b, L] int64 on the model's device -> log-probabilities [b, L, 256] float32, values [b] or [b, K] float32 or None."""

    def _placed(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `prepare` gives -> normalised pixels [b, 6n, H, W], prompt_ids [b, S], prompt_mask [b, S] on the model's device."""
        device = self.language_model.lm_head.weight.device
        pixels, prompt_ids, prompt_mask = (inputs[name].to(device) for name in ("pixels", "prompt_ids", "prompt_mask"))
        if pixels.shape[1] != len(self.spec.cameras):
            raise ValueError(f"inputs 'pixels': found {pixels.shape[1]} cameras, wanted {len(self.spec.cameras)} ({', '.join(self.spec.cameras)}); prepare the inputs with this policy")
        return normalise(pixels, self.images.means, self.images.stds), prompt_ids, prompt_mask

    def _check_length(self, cameras: int) -> None:
        """Raises ValueError for prompts that leave the sequence longer than the language model's positions."""
        others = cameras * self.vision_backbone.featurizer.pos_embed.shape[1] + (self.state is not None) + self.tokens + 1
        positions = self.language_model.model.config.max_position_embeddings
        if self.prompts.length > positions - others:
            raise ValueError(f"policy.prompt_length: found {self.prompts.length}, wanted 1 to {positions - others}: the language model has {positions} positions (config.json: max_position_embeddings), and pictures, state and actions take {others}")


def _said(config: Mapping, key: str) -> int | None:
    """A count of config.json; None where it says none. Raises ValueError for what is no whole number above 0."""
    return None if config.get(key) is None else given.whole(f"config.json: {key}", config[key], "copy the whole checkpoint folder again")


def _agreed(config: Mapping, chunk: int | None) -> int | None:
    """C as the loader was told. Raises ValueError where that, or what config.json says, is no whole number above 0, or they are two."""
    said = _said(config, CHUNK_KEY)
    if chunk is not None:
        given.whole("policy.chunk", chunk, "leave it out for the checkpoint's own, or the robot's")
    if chunk is not None and said not in (None, chunk):
        raise ValueError(f"policy.chunk: found {chunk}, wanted {said}, as config.json says; leave policy.chunk out")
    return chunk


def _renamed(config: Mapping, cameras: Sequence[str] | None) -> list[str] | None:
    """The cameras as the loader was told: envs name them differently, but there are as many. Raises ValueError where there are not."""
    said = given.cameras(f"config.json: {CAMERAS_KEY}", config[CAMERAS_KEY]) if CAMERAS_KEY in config else None
    if cameras is None:
        return None
    named = given.cameras("policy.cameras", cameras)
    if said is not None and len(said) != len(named):
        raise ValueError(f"policy.cameras: found {list(named)}, wanted {len(said)}, as config.json says ({CAMERAS_KEY}: {list(said)}): it was made for so many; name the env's in the same order, or leave policy.cameras out")
    return list(named)


def _check_components(found: Components, codec: ActionCodec) -> None:
    """Raises ValueError for a tensor that is not finite, or a regression head of other actions than the statistics'."""
    for component, tensors in found.tensors.items():
        for name, tensor in tensors.items():
            given.finite(f"{found.files[component]}: {name}", tensor, "copy the whole checkpoint folder again")
    if found.log_std is not None:
        given.finite(f"{components.LOG_STD}: log_std", found.log_std, "delete the file to start the spread anew")
    last = found.tensors.get(components.HEAD, {}).get("model.fc2.weight")
    if last is not None and last.dim() == 2 and len(last) != codec.dims:
        raise loading.CheckpointError(f"{loading.STATISTICS}: action statistics {codec.key!r} have {codec.dims} dims, wanted {len(last)}, as many as {found.files[components.HEAD].name} gives; give the statistics of its training (policy.unnorm_key chooses among them)")


def _state_codec(folder: loading.Folder, codec: ActionCodec, found: Components, proprio: bool | None) -> StateCodec | None:
    """Raises ValueError where the projector and the proprio statistics are of two sizes, or one of them is not there."""
    if found.state is None:
        if proprio:
            raise loading.CheckpointError(f"{folder.path}: found no {components.PROPRIO}--*_checkpoint.pt, wanted one for policy.proprio=true; copy the whole checkpoint folder, or leave it out")
        return None
    state = StateCodec(folder.statistics, codec.key, folder.config.get(NORMALIZATION_KEY))
    if state.dims != found.state:
        raise loading.CheckpointError(f"{found.files[components.PROPRIO]}: found a projector of {found.state} numbers, wanted {state.dims}, as many as the proprio statistics {state.key!r} have ({loading.STATISTICS}); give the two of one training")
    return state
