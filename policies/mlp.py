"""A small policy on the `state` vector: categorical for discrete envs, Gaussian for continuous ones, with a value head by choice.

Sampling is by inverse CDF from the given uniforms, and the temperature acts in sampling and evaluation alike. The initial weights are
a function of `seed` alone; building one leaves torch's global random state as it was.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Mapping, Sequence

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import skip_init

from envs.spec import ActionSpec, EnvSpec
from policies.base import ActionChunk, PolicySpec, TokenStats
from policies.parts import sampling

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class MLP(nn.Module):
    """Two tanh networks, `actor` and `critic`, that share nothing.

    chunk: C actions per inference, each of A tokens, so L = C * A. temperature: divides logits; multiplies the Gaussian's std.
    Gaussian choices are the unclipped samples in units where +-1 is a dim's finite bounds (env units where a bound is infinite);
    actions are clipped to the bounds. state_mean, state_std: fixed normalisation of the state, each [S]; None = as it comes.
    Raises ValueError when the env has no state vector.
    """

    def __init__(
        self,
        env_spec: EnvSpec,
        hidden: Sequence[int] = (64, 64),
        chunk: int = 1,
        temperature: float = 1.0,
        value_head: bool = True,
        initial_log_std: float = -0.5,
        state_mean: Sequence[float] | None = None,
        state_std: Sequence[float] | None = None,
        seed: int = 0,
    ):
        super().__init__()
        if env_spec.state < 1:
            raise ValueError(f"policy=mlp on env {env_spec.name}: found no state vector, wanted one; choose a policy that reads pictures")
        if temperature <= 0:
            raise ValueError(f"policy.temperature: found {temperature}, wanted above 0; for greedy actions give no noise")
        action = env_spec.action
        self.spec = PolicySpec("mlp", action.kind, action.dims, chunk, state=env_spec.state, choices=action.choices, gripper=action.gripper)
        self.temperature = float(temperature)
        self.discrete = action.kind == "discrete"
        self.settings = {
            "state": env_spec.state, "action": asdict(action), "hidden": list(hidden), "chunk": chunk, "temperature": self.temperature,
            "value_head": value_head, "initial_log_std": initial_log_std, "seed": seed,
        }  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        length = chunk * action.dims
        outputs = length * action.choices if self.discrete else length
        self.actor = _network(env_spec.state, hidden, outputs, 0.01, generator)
        self.critic = _network(env_spec.state, hidden, 1, 1.0, generator) if value_head else None
        mean = torch.zeros(env_spec.state) if state_mean is None else torch.tensor(state_mean, dtype=torch.float32)
        std = torch.ones(env_spec.state) if state_std is None else torch.tensor(state_std, dtype=torch.float32)
        self.register_buffer("state_mean", mean.expand(env_spec.state).clone())
        self.register_buffer("state_std", std.expand(env_spec.state).clone())
        if not self.discrete:
            self.log_std = nn.Parameter(torch.full((action.dims,), float(initial_log_std)))
            self._low, self._high, self._centre, self._half = _bounds(action)

    def prepare(self, observation: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """{"state": [b, S] float32}."""
        return {"state": torch.as_tensor(np.asarray(observation["state"], dtype=np.float32), device=self.state_mean.device)}

    @torch.no_grad()
    def act(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None) -> ActionChunk:
        """One chunk per row of the batch; noise [b, L] uniforms, or None for the likeliest (the Gaussian's mean)."""
        inputs = self.prepare(observation)
        head = self._head(inputs)
        if self.discrete:
            choices = sampling.choose(head, noise)
        elif noise is None:
            choices = head
        else:
            uniform = torch.as_tensor(noise, dtype=torch.float64, device=head.device)
            choices = (head.double() + self._std().double() * torch.special.ndtri(uniform)).float()
        mask = torch.ones(choices.shape, dtype=torch.bool, device=choices.device)
        return ActionChunk(choices, self._logprobs(head, choices), mask, self._actions(choices), self._values(inputs), inputs)

    def evaluate(self, inputs: dict[str, torch.Tensor], choices: torch.Tensor, distribution: bool = False) -> TokenStats:
        """As the contract says. Raises ValueError where a Gaussian is asked for its distribution over choices: it has none."""
        head = self._head(inputs)
        if self.discrete:
            return TokenStats(self._logprobs(head, choices), sampling.entropy(head), self._values(inputs), head if distribution else None)
        if distribution:
            raise ValueError("policy=mlp with continuous actions: found a request for [n, L, V] log-probabilities, wanted a discrete policy; set algorithm.kl_coef=0")
        entropy = (0.5 * math.log(2 * math.pi * math.e) + self._std().log()).expand_as(head)
        return TokenStats(self._logprobs(head, choices), entropy, self._values(inputs))

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
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, CONFIG).write_text(json.dumps({"model_type": "mlp", **self.settings}, indent=1) + "\n")
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, str(Path(folder, WEIGHTS)))

    @classmethod
    def from_pretrained(cls, folder: str | Path, env_spec: EnvSpec | None = None, **changes: object) -> MLP:
        """Load what `save_pretrained` wrote. With env_spec, its state and actions must be the saved ones; `changes` may set `temperature`.

        Raises FileNotFoundError naming the absent files, ValueError naming every missing, extra and misshapen tensor, or both specs where they differ.
        """
        absent = [name for name in (CONFIG, WEIGHTS) if not Path(folder, name).is_file()]
        if absent:
            raise FileNotFoundError(f"{folder}: found no {' and no '.join(absent)}, wanted a folder written by MLP.save_pretrained")
        settings = json.loads(Path(folder, CONFIG).read_text())
        kind = settings.pop("model_type", None)
        if kind != "mlp":
            raise ValueError(f"{folder}/{CONFIG}: found model_type={kind!r}, wanted 'mlp'; choose the policy that wrote this folder")
        state, action = settings.pop("state"), settings.pop("action")
        bounds = {name: None if action[name] is None else tuple(action[name]) for name in ("low", "high")}
        saved = EnvSpec("checkpoint", ActionSpec(**{**action, **bounds}), state=state)
        if env_spec is not None and (env_spec.state, env_spec.action) != (saved.state, saved.action):
            raise ValueError(f"{folder}: found a policy for state={saved.state}, {saved.action}, wanted state={env_spec.state}, {env_spec.action}; evaluate it on the env it was trained on")
        policy = cls(saved, **{**settings, **changes})
        _load(policy, Path(folder, WEIGHTS))
        return policy

    def _head(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Discrete: log-probabilities [n, L, V]; Gaussian: means [n, L]."""
        raw = self.actor(self._normal(inputs["state"]))
        return sampling.log_softmax(raw.unflatten(1, (-1, self.spec.choices)), self.temperature) if self.discrete else raw

    def _normal(self, state: torch.Tensor) -> torch.Tensor:
        return (state - self.state_mean) / self.state_std

    def _values(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor | None:
        return None if self.critic is None else self.critic(self._normal(inputs["state"])).squeeze(1)

    def _std(self) -> torch.Tensor:
        """[L]: each action of a chunk has the same."""
        return (self.log_std.exp() * self.temperature).repeat(self.spec.chunk)

    def _logprobs(self, head: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        if self.discrete:
            return sampling.gather(head, choices)
        std = self._std()
        return -0.5 * ((choices - head) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)

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


def _load(policy: nn.Module, path: Path) -> None:
    found, wanted = load_file(str(path)), policy.state_dict()
    faults = [f"missing {name}" for name in wanted if name not in found]
    faults += [f"extra {name}" for name in found if name not in wanted]
    shapes = [(name, list(found[name].shape), list(wanted[name].shape)) for name in wanted if name in found]
    faults += [f"{name} of shape {has}, wanted {wants}" for name, has, wants in shapes if has != wants]
    if faults:
        raise ValueError(f"{path}: found tensors that do not fit {CONFIG}: {'; '.join(faults)}")
    policy.load_state_dict(found)
