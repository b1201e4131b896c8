"""The only place that knows action bins, normalisation statistics and gripper signs. Statistics that would make an action no number are refused.

A choice of the discrete head is an index 0..255 into the action token ids in RISING id order; the ids run against the value, so choice 0 is the
highest action (+0.99608) and choice 255 the lowest (-0.99608). Encoding and decoding one action costs at most half a bin.
The regression head's choices are the normalised actions themselves: -1 and 1 stand at the ends of the statistics, and what lies beyond is kept.
The gripper is the last dim: the model says 1 to open and 0 to close, the env -1 to open and +1 to close; a robot may have none.
"""

from __future__ import annotations

import numpy as np
import torch

from policies.parts import given
from policies.parts.platforms import platform_of

BINS = 256  # edges, and choices; 255 centres, so choices 0 and 1 mean the same
EDGES = np.linspace(-1.0, 1.0, BINS)
CENTRES = (EDGES[:-1] + EDGES[1:]) / 2
CENTRES[127] = 0.0  # linspace leaves 1e-17, and only an exact zero rotation keeps the controller's stored orientation
RANGE_FLOOR = 1e-8  # added to high - low by the reference
FILE, WAY = "dataset_statistics.json", "copy the whole checkpoint folder again"
ENDS = {"q99": ("q01", "q99"), "bounds": ("min", "max")}  # the statistics that -1 and 1 mean


def resolve_key(statistics: dict, unnorm_key: str | None) -> str:
    """The key of `statistics` to use: `unnorm_key`, else `unnorm_key` + "_no_noops"; None takes the only key there is.

    Raises KeyError listing the keys when there is no such key, or when None is given and there are several (or none), ValueError for what is no dict.
    """
    if not isinstance(statistics, dict):
        raise ValueError(f"{FILE}: found {_short(statistics)}, wanted {{key: {{'action': {{...}}}}}}; {WAY}")
    keys = sorted(statistics)
    if unnorm_key is None:
        if len(keys) == 1:
            return keys[0]
        raise KeyError(f"found {len(keys)} sets of action statistics {keys}, wanted one: name it with unnorm_key")
    for key in (unnorm_key, f"{unnorm_key}_no_noops"):
        if key in statistics:
            return key
    raise KeyError(f"found no action statistics for unnorm_key={unnorm_key!r} (nor {unnorm_key}_no_noops); this checkpoint has {keys}")


class Scale:
    """The statistics of one kind of vector: numbers <-> [-1, 1]."""

    KIND: str  # "action" | "proprio"

    def __init__(self, statistics: dict, unnorm_key: str | None = None, normalization: str | None = None):
        """statistics: what dataset_statistics.json holds: {key: {"action": {"q01": [A], "q99": [A], "mask": [A]}, "proprio": {...}}}.

        normalization: "q99" or "bounds" (min and max); None takes that of the robot that the key names, q99 where it names none.
        Raises KeyError as `resolve_key`, ValueError for another normalization, or when its two ends are missing, are no finite numbers, differ in
        length, or stand the wrong way round in a dim that is scaled. They may be equal: a dim that never moves.
        """
        self.key = resolve_key(statistics, unnorm_key)
        normalization = normalization or platform_of(self.key).normalization
        if normalization not in ENDS:
            raise ValueError(f"policy.normalization: found {normalization!r}, wanted one of {', '.join(ENDS)}, or null for that of the robot")
        found, (low, high) = self._found(statistics[self.key]), ENDS[normalization]
        missing = [name for name in (low, high) if name not in found]
        if missing:
            raise ValueError(f"{self.KIND} statistics {self.key!r} have {sorted(found)}, wanted {low} and {high}: {missing} missing, and other ends mean something else (policy.normalization chooses)")
        self.low, self.high = (self._numbers(name, found[name]) for name in (low, high))
        self.mask = self._flags(found.get("mask", [True] * len(self.low)))
        if not len(self.low) == len(self.high) == len(self.mask):
            raise ValueError(f"{self.KIND} statistics {self.key!r}: {low}, {high} and mask have {len(self.low)}, {len(self.high)} and {len(self.mask)} dims, wanted one length; {WAY}")
        turned = np.flatnonzero(self.mask & (self.low > self.high))
        if len(turned):
            dim = turned[0]
            raise ValueError(f"{self._name(low)}: found {self.low[dim]} above {high} {self.high[dim]} in dim {dim}, wanted the lower end: the axis would be turned round; {WAY}")

    @property
    def dims(self) -> int:
        """Numbers per vector; A for actions, gripper last."""
        return len(self.low)

    def unnormalise(self, normalised: np.ndarray) -> np.ndarray:
        """[..., A] in [-1, 1] -> [..., A] float64 in the model's convention (gripper 1 open, 0 close); dims with mask False as they are."""
        return np.where(self.mask, 0.5 * (normalised + 1) * (self.high - self.low + RANGE_FLOOR) + self.low, normalised)

    def normalise(self, values: np.ndarray) -> np.ndarray:
        """The inverse of `unnormalise`."""
        return np.where(self.mask, 2 * (values - self.low) / (self.high - self.low + RANGE_FLOOR) - 1, values)

    def _name(self, end: str) -> str:
        return f"{FILE}: {self.KIND} statistics {self.key!r}, {end}"

    def _found(self, entry: object) -> dict:
        found = entry.get(self.KIND, {}) if isinstance(entry, dict) else entry
        if not isinstance(found, dict):
            raise ValueError(f"{FILE}: {self.KIND} statistics {self.key!r}: found {_short(found)}, wanted {{'q01': [...], 'q99': [...]}}; {WAY}")
        return found

    def _numbers(self, end: str, found: object) -> np.ndarray:
        """[A] float64."""
        fits = isinstance(found, (list, tuple)) and found and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in found)
        if not fits:
            raise ValueError(f"{self._name(end)}: found {_short(found)}, wanted a list of numbers, one per dim; {WAY}")
        numbers = np.asarray(found, np.float64)
        given.finite(self._name(end), numbers, WAY)
        return numbers

    def _flags(self, found: object) -> np.ndarray:
        """[A] bool."""
        if not isinstance(found, (list, tuple)) or any(value not in (True, False) for value in found):
            raise ValueError(f"{self._name('mask')}: found {_short(found)}, wanted a list of true (scaled) and false (left as it is), one per dim; {WAY}")
        return np.asarray(found, bool)


class StateCodec(Scale):
    """Proprioception -> what the model reads."""

    KIND = "proprio"

    def encode(self, state: np.ndarray | torch.Tensor) -> np.ndarray | torch.Tensor:
        """[b, S] raw state -> [b, S] float32 normalised and clipped to [-1, 1]; a tensor gives a tensor on its device. Raises ValueError for another size, naming both, and for what is
        no finite number, naming its place."""
        tensor = isinstance(state, torch.Tensor)
        state = state if tensor else np.asarray(state)
        if state.ndim != 2 or state.shape[1] != self.dims:
            raise ValueError(f"observation 'state': found shape {list(state.shape)}, wanted [b, {self.dims}]: the checkpoint's proprio statistics {self.key!r} have {self.dims} numbers; use the env it was trained on")
        if state.dtype == torch.bool if tensor else state.dtype.kind not in "iuf":
            raise ValueError(f"observation 'state': found {state.dtype}, wanted numbers; the env gives it")
        given.finite("observation 'state'", state, "the env gives it")
        if not tensor:
            return np.clip(self.normalise(state.astype(np.float64)), -1.0, 1.0).astype(np.float32)
        values, (low, high, mask) = state.double(), (torch.from_numpy(numbers).to(state.device) for numbers in (self.low, self.high, self.mask))
        return torch.where(mask, 2 * (values - low) / (high - low + RANGE_FLOOR) - 1, values).clamp(-1.0, 1.0).float()


class ActionCodec(Scale):
    """Choices <-> actions of one set of statistics. A numpy array in gives a numpy array out, a tensor gives a tensor."""

    KIND = "action"

    @property
    def gripper(self) -> str | None:
        """The model's convention for the last dim; None for a robot without one, whose actions have no sign to turn."""
        return platform_of(self.key).gripper

    def decode(self, choices):
        """[..., A] integers in 0..255 -> [..., A] float32 actions in the env's convention. Raises ValueError outside 0..255."""
        return _alike(choices, lambda values: self._to_env(centres(values)))

    def encode(self, actions):
        """[..., A] actions in the env's convention -> [..., A] int64 choices; out-of-range values take the end bins."""
        return _alike(actions, lambda values: discretise(self._from_env(values)))

    def decode_normalised(self, normalised):
        """[..., A] normalised actions, not clipped (the reference does not) -> [..., A] float32 actions in the env's convention."""
        return _alike(normalised, lambda values: self._to_env(values.astype(np.float64)))

    def encode_normalised(self, actions):
        """[..., A] actions in the env's convention -> [..., A] float32 normalised actions; the inverse of `decode_normalised`, but for the gripper, which comes back as 0 or 1."""
        return _alike(actions, lambda values: self._from_env(values).astype(np.float32))

    def _to_env(self, normalised: np.ndarray) -> np.ndarray:
        actions = self.unnormalise(normalised)
        if self.gripper is not None:
            actions[..., -1] = gripper_to_env(actions[..., -1])
        return actions.astype(np.float32)

    def _from_env(self, actions: np.ndarray) -> np.ndarray:
        actions = np.array(actions, np.float64)
        if self.gripper is not None:
            actions[..., -1] = gripper_to_model(actions[..., -1])
        return self.normalise(actions)


def centres(choices: np.ndarray) -> np.ndarray:
    """[...] choices 0..255 -> [...] float64 bin centres in [-0.99608, 0.99608]. Raises ValueError outside 0..255."""
    choices = np.asarray(choices)
    if choices.size and not (0 <= choices.min() and choices.max() < BINS):
        raise ValueError(f"found choices from {choices.min()} to {choices.max()}, wanted 0..{BINS - 1}: only the {BINS} action tokens have a meaning")
    return CENTRES[np.minimum(BINS - 1 - choices, BINS - 2)]


def discretise(normalised: np.ndarray) -> np.ndarray:
    """[...] in [-1, 1] (clipped) -> [...] int64 choices."""
    return BINS - np.digitize(np.clip(normalised, -1.0, 1.0), EDGES)


def gripper_to_env(gripper: np.ndarray) -> np.ndarray:
    """Model (1 open, 0 close) -> env (-1 open, +1 close), never 0: exactly 0.5 opens, since a wrong opening costs less than a wrong grasp."""
    return np.where(np.asarray(gripper) >= 0.5, -1.0, 1.0)


def gripper_to_model(gripper: np.ndarray) -> np.ndarray:
    """Env (-1 open, +1 close) -> model (1 open, 0 close); exactly 0 opens, as 0.5 does on the way back."""
    return np.where(np.asarray(gripper) <= 0.0, 1.0, 0.0)


def _short(found: object) -> str:
    """As it stands there, the beginning of it."""
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _alike(values, function):
    if isinstance(values, torch.Tensor):
        return torch.from_numpy(function(values.detach().cpu().numpy()))
    return function(np.asarray(values))


def state_statistics_of(states: np.ndarray) -> dict:
    """[n, S] seen states -> {"mean", "std", "q01", "q99", "mask"}, each [S]."""
    states = states.astype(np.float64)
    low, high = np.quantile(states, [0.01, 0.99], axis=0)
    return {"mean": states.mean(0).tolist(), "std": states.std(0).tolist(), "q01": low.tolist(), "q99": high.tolist(), "mask": [True] * states.shape[1]}


def statistics_of(actions: np.ndarray) -> dict:
    """[n, A] demonstrated actions -> {"q01", "q99", "mask"}. A dim that never moves, and the gripper (the last), are passed through (mask False)."""
    moves = np.ptp(actions, axis=0) > 0
    moves[-1] = False
    low, high = np.quantile(actions.astype(np.float64), [0.01, 0.99], axis=0)
    return {"q01": low.tolist(), "q99": high.tolist(), "mask": moves.tolist()}
