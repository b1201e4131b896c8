"""A small policy on the `state` vector: categorical for discrete envs, Gaussian for continuous ones, with a value head by choice.

Sampling is by inverse CDF from the given uniforms, and the temperature acts in sampling and evaluation alike. The initial weights are
a function of `seed` alone; building one leaves torch's global random state as it was.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.utils import skip_init

from envs.spec import ActionSpec, EnvSpec
from policies.base import ActionChunk, PolicySpec, TokenStats
from policies.checkpoints import loading
from policies.parts import gaussian, sampling
from policies.parts.value_head import entries

MODEL_TYPE = "mlp"
LEAST_STD = 0.01  # of a state entry: what moves less in the demonstrations would be blown up elsewhere


class MLP(nn.Module):
    """Two tanh networks, `actor` and `critic`, that share nothing.

    chunk: C actions per inference, each of A tokens, so L = C * A. temperature: divides logits; multiplies the Gaussian's std.
    Gaussian choices are the unclipped samples in units where +-1 is a dim's finite bounds (env units where a bound is infinite);
    actions are clipped to the bounds. state_mean, state_std: fixed normalisation of the state, each [S]; None = as it comes.
    value_level: what one value of the critic judges: "chunk", "action" or "token" (1, C or L outputs).
    checkpoint: a folder of `save_pretrained`; its hidden, chunk and state normalisation replace the ones given, its weights the seed's
    (a critic that only one side has, or that gives other values there, is left as initialised, or left out).
    Raises ValueError when the env has no state vector, or the folder does not fit; FileNotFoundError when it lacks a file.
    """

    def __init__(
        self,
        env_spec: EnvSpec,
        hidden: Sequence[int] = (64, 64),
        chunk: int = 1,
        temperature: float = 1.0,
        value_head: bool = True,
        value_level: str = "chunk",
        initial_log_std: float = -0.5,
        state_mean: Sequence[float] | None = None,
        state_std: Sequence[float] | None = None,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        device: str = "cpu",
    ):
        super().__init__()
        if env_spec.state < 1:
            raise ValueError(f"policy=mlp on env {env_spec.name}: found no state vector, wanted one; choose a policy that reads pictures")
        if any(not isinstance(width, int) or width < 1 for width in hidden) or chunk < 1:
            raise ValueError(f"policy: found hidden={list(hidden)}, chunk={chunk}, wanted whole numbers of at least 1")
        if not temperature > 0:
            raise ValueError(f"policy.temperature: found {temperature}, wanted above 0; for greedy actions give no noise")
        if checkpoint is not None:
            saved = _read(checkpoint, env_spec)
            hidden, chunk, state_mean, state_std = (saved[name] for name in ("hidden", "chunk", "state_mean", "state_std"))
        action = env_spec.action
        self.spec = PolicySpec("mlp", action.kind, action.dims, chunk, state=env_spec.state, choices=action.choices, gripper=action.gripper,
                               distribution=action.kind == "discrete")  # fmt: skip
        self.temperature, self.value_level = float(temperature), value_level
        self.discrete = action.kind == "discrete"
        generator = torch.Generator().manual_seed(seed)
        length, values = chunk * action.dims, entries(value_level, chunk, action.dims)
        outputs = length * action.choices if self.discrete else length
        self.actor = _network(env_spec.state, hidden, outputs, 0.01, generator)
        critic = self.critic = _network(env_spec.state, hidden, values, 1.0, generator) if value_head else None
        mean = _per_entry("state_mean", state_mean, env_spec.state, 0.0)
        std = _per_entry("state_std", state_std, env_spec.state, 1.0)
        self.register_buffer("state_mean", mean, persistent=False)
        self.register_buffer("state_std", std, persistent=False)
        self.settings = {
            "model_type": MODEL_TYPE, "state": env_spec.state, "action": asdict(action), "hidden": list(hidden), "chunk": chunk,
            "temperature": self.temperature, "value_level": value_level, "state_mean": mean.tolist(), "state_std": std.tolist(),
        }  # fmt: skip
        if not self.discrete:
            self.log_std = nn.Parameter(torch.full((action.dims,), float(initial_log_std)))
            self._low, self._high, self._centre, self._half = _bounds(action)
        if checkpoint is not None:
            if entries(saved.get("value_level", "chunk"), chunk, action.dims) != values:
                self.critic = None
            loading.load_weights(self, (Path(checkpoint, loading.WEIGHTS),), optional="critic.")
            self.critic = critic
        self.to(device)

    def prepare(self, observation: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """{"state": [b, S] float32}."""
        state = observation["state"] if isinstance(observation["state"], torch.Tensor) else np.asarray(observation["state"], dtype=np.float32)
        return {"state": torch.as_tensor(state, dtype=torch.float32, device=self.state_mean.device)}

    @torch.no_grad()
    def act(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None) -> ActionChunk:
        """One chunk per row of the batch; noise [b, L] uniforms, or None for the likeliest (the Gaussian's mean)."""
        inputs = self.prepare(observation)
        head = self._head(inputs)
        if self.discrete:
            choices = sampling.choose(head, noise)
        else:
            choices = gaussian.sample(head, self._std(), noise)
        mask = torch.ones(choices.shape, dtype=torch.bool, device=choices.device)
        return ActionChunk(choices, self._logprobs(head, choices), mask, self._actions(choices), self._values(inputs), inputs)

    def evaluate(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor, distribution: bool = False) -> TokenStats:
        """As the contract says. Raises ValueError where a Gaussian is asked for its distribution over choices: it has none."""
        head = self._head(inputs)
        if self.discrete:
            return TokenStats(self._logprobs(head, choices), sampling.entropy(head), self._values(inputs), head if distribution else None)
        if distribution:
            raise ValueError("policy=mlp with continuous actions: found a request for [n, L, V] log-probabilities, wanted a discrete policy; set algorithm.kl_coef=0")
        return TokenStats(self._logprobs(head, choices), gaussian.entropy(self._std()).expand_as(head), self._values(inputs))

    def encode(self, actions: np.ndarray) -> torch.Tensor:
        """[n, C, A] env actions -> [n, L] choices (int64, or float32 in the units of the class docstring)."""
        if self.discrete:
            return torch.as_tensor(np.asarray(actions, dtype=np.int64)).flatten(1)
        return torch.as_tensor(((np.asarray(actions, dtype=np.float32) - self._centre) / self._half).astype(np.float32)).flatten(1)

    def hidden_matrices(self) -> set[str]:
        """Names of the weights between hidden layers: neither the one that reads the state nor the one that answers."""
        networks = {"actor": self.actor, "critic": self.critic}
        return {f"{name}.{i}.weight" for name, network in networks.items() if network is not None for i in range(2, len(network) - 1, 2)}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors into the folder, made if need be."""
        loading.write_folder(folder, self, {loading.CONFIG: self.settings}, {})

    @classmethod
    def create(
        cls, folder: str | Path, env_spec: EnvSpec, statistics: Mapping[str, Any], hidden: Sequence[int] = (64, 64), chunk: int = 1, temperature: float = 1.0,
        value_level: str = "chunk", initial_log_std: float = -0.5, seed: int = 0,
    ) -> Path:  # fmt: skip
        """Write a fresh policy that normalises the state by what demonstrations saw, and return the folder.

        statistics: {env: {"proprio": {"mean": [S], "std": [S]}}}; the rest as the constructor. Raises ValueError without them, and what the constructor raises.
        """
        seen = next(iter(statistics.values())).get("proprio")
        if seen is None:
            raise ValueError("policy.checkpoint=fresh: found no state in the demonstrations, wanted one; record them with policy=expert of an env that gives a state")
        std = [max(spread, LEAST_STD) for spread in seen["std"]]
        cls(
            env_spec, hidden, chunk, temperature, value_level=value_level, initial_log_std=initial_log_std, state_mean=seen["mean"], state_std=std, seed=seed,
        ).save_pretrained(folder)  # fmt: skip
        return Path(folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path, env_spec: EnvSpec | None = None, temperature: float | None = None, value_head: bool = True, value_level: str = "chunk") -> MLP:
        """Load what `save_pretrained` wrote. None: the env's shapes, and the temperature, that the folder was saved with.

        Raises what the constructor raises: every missing, extra and misshapen tensor is named, and both sides where the env is another.
        """
        saved = _read(folder, env_spec)
        spec = env_spec or EnvSpec("checkpoint", saved["action"], state=saved["state"])
        return cls(spec, temperature=temperature or saved["temperature"], value_head=value_head, value_level=value_level, checkpoint=folder)

    def _head(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Discrete: log-probabilities [n, L, V]; Gaussian: means [n, L]."""
        raw = self.actor(self._normal(inputs["state"]))
        return sampling.log_softmax(raw.unflatten(1, (-1, self.spec.choices)), self.temperature) if self.discrete else raw

    def _normal(self, state: torch.Tensor) -> torch.Tensor:
        normal = (state - self.state_mean) / self.state_std
        return normal.to(self.actor[0].weight.dtype)  # learned from in half precision, where sharding says so

    def _values(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """As the value level says: [b], [b, C] or [b, L]."""
        if self.critic is None:
            return None
        values = self.critic(self._normal(inputs["state"]))
        return values.squeeze(1) if self.value_level == "chunk" else values

    def _std(self) -> torch.Tensor:
        """[L]: each action of a chunk has the same."""
        return (self.log_std.exp() * self.temperature).repeat(self.spec.chunk)

    def _logprobs(self, head: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        if self.discrete:
            return sampling.gather(head, choices)
        return gaussian.logprobs(head, self._std(), choices)

    def _actions(self, choices: torch.Tensor) -> np.ndarray:
        chunks = choices.unflatten(1, (self.spec.chunk, self.spec.action_dims)).cpu().numpy()
        return chunks if self.discrete else np.clip(chunks * self._half + self._centre, self._low, self._high)


def _network(inputs: int, hidden: Sequence[int], outputs: int, gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers with tanh between: orthogonal weights (gain sqrt 2 inside, `gain` at the end), zero biases."""
    sizes, layers = [inputs, *hidden, outputs], []
    for i, (before, after) in enumerate(zip(sizes, sizes[1:])):
        # skip_init leaves out the default draw, which would come from the global generator.
        layer = skip_init(nn.Linear, before, after)
        nn.init.orthogonal_(layer.weight, gain if i == len(hidden) else math.sqrt(2), generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _bounds(action: ActionSpec) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """low, high, centre and half width of each dim, float32 [A]; centre 0 and half width 1 where a bound is infinite."""
    low = np.asarray(action.low or [-np.inf] * action.dims, dtype=np.float32)
    high = np.asarray(action.high or [np.inf] * action.dims, dtype=np.float32)
    finite = np.isfinite(low) & np.isfinite(high) & (high > low)
    bottom, top = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
    return low, high, ((top + bottom) / 2).astype(np.float32), ((top - bottom) / 2).astype(np.float32)


def _per_entry(name: str, numbers: Sequence[float] | None, size: int, default: float) -> torch.Tensor:
    if numbers is not None and len(numbers) != size:
        raise ValueError(f"policy.{name}: found {len(numbers)} numbers, wanted {size}, one per entry of the state")
    return torch.full((size,), default) if numbers is None else torch.tensor(numbers, dtype=torch.float32)


def _read(folder: str | Path, env_spec: EnvSpec | None) -> dict[str, Any]:
    """The saved settings, `action` as an ActionSpec."""
    absent = [name for name in (loading.CONFIG, loading.WEIGHTS) if not Path(folder, name).is_file()]
    if absent:
        raise FileNotFoundError(f"{folder}: found no {' and no '.join(absent)}, wanted a folder written by MLP.save_pretrained")
    settings = loading.read_json(Path(folder, loading.CONFIG))
    kind = settings.get("model_type")
    if kind != MODEL_TYPE:
        raise ValueError(f"{folder}/{loading.CONFIG}: found model_type={kind!r}, wanted {MODEL_TYPE!r}; choose the policy that wrote this folder")
    bounds = {name: settings["action"][name] and tuple(settings["action"][name]) for name in ("low", "high")}
    settings["action"] = ActionSpec(**{**settings["action"], **bounds})
    if env_spec is not None and (env_spec.state, env_spec.action) != (settings["state"], settings["action"]):
        found = f"state={settings['state']}, {settings['action']}"
        raise ValueError(f"{folder}: found a policy for {found}, wanted state={env_spec.state}, {env_spec.action}; use it on the env it was trained on")
    return settings
