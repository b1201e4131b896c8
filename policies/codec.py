"""The only place that knows action bins, normalisation statistics and gripper signs.

A choice is an index 0..255 into the action token ids in RISING id order; the ids run against the value, so choice 0 is the
highest action (+0.99608) and choice 255 the lowest (-0.99608). Encoding and decoding one action costs at most half a bin.
The gripper is the last dim: the model says 1 to open and 0 to close, the env -1 to open and +1 to close.
"""

from __future__ import annotations

import numpy as np
import torch

BINS = 256  # edges, and choices; 255 centres, so choices 0 and 1 mean the same
EDGES = np.linspace(-1.0, 1.0, BINS)
CENTRES = (EDGES[:-1] + EDGES[1:]) / 2
CENTRES[127] = 0.0  # linspace leaves 1e-17, and only an exact zero rotation keeps the controller's stored orientation
RANGE_FLOOR = 1e-8  # added to q99 - q01 by the reference


def resolve_key(statistics: dict, unnorm_key: str | None) -> str:
    """The key of `statistics` to use: `unnorm_key`, else `unnorm_key` + "_no_noops"; None takes the only key there is.

    Raises KeyError listing the keys when there is no such key, or when None is given and there are several (or none).
    """
    keys = sorted(statistics)
    if unnorm_key is None:
        if len(keys) == 1:
            return keys[0]
        raise KeyError(f"found {len(keys)} sets of action statistics {keys}, wanted one: name it with unnorm_key")
    for key in (unnorm_key, f"{unnorm_key}_no_noops"):
        if key in statistics:
            return key
    raise KeyError(f"found no action statistics for unnorm_key={unnorm_key!r} (nor {unnorm_key}_no_noops); this checkpoint has {keys}")


class ActionCodec:
    """Choices <-> actions of one set of statistics. A numpy array in gives a numpy array out, a tensor gives a tensor."""

    def __init__(self, statistics: dict, unnorm_key: str | None = None):
        """statistics: what dataset_statistics.json holds: {key: {"action": {"q01": [A], "q99": [A], "mask": [A]}}}.

        Raises KeyError as `resolve_key`, ValueError when q01, q99 or mask is missing or their lengths differ.
        """
        self.key = resolve_key(statistics, unnorm_key)
        action = statistics[self.key].get("action", {})
        missing = [name for name in ("q01", "q99") if name not in action]
        if missing:
            raise ValueError(f"statistics {self.key!r} have {sorted(action)}, wanted q01 and q99: {missing} missing, and min/max mean something else")
        self.low = np.asarray(action["q01"], np.float64)
        self.high = np.asarray(action["q99"], np.float64)
        self.mask = np.asarray(action.get("mask", [True] * len(self.low)), bool)
        if not len(self.low) == len(self.high) == len(self.mask):
            raise ValueError(f"statistics {self.key!r}: q01, q99 and mask have {len(self.low)}, {len(self.high)} and {len(self.mask)} dims, wanted one length")

    @property
    def dims(self) -> int:
        """A: numbers per primitive action, gripper last."""
        return len(self.low)

    def decode(self, choices):
        """[..., A] integers in 0..255 -> [..., A] float32 actions in the env's convention. Raises ValueError outside 0..255."""
        return _alike(choices, self._decode)

    def encode(self, actions):
        """[..., A] actions in the env's convention -> [..., A] int64 choices; out-of-range values take the end bins."""
        return _alike(actions, self._encode)

    def unnormalise(self, normalised: np.ndarray) -> np.ndarray:
        """[..., A] in [-1, 1] -> [..., A] float64 in the model's convention (gripper 1 open, 0 close); dims with mask False as they are."""
        return np.where(self.mask, 0.5 * (normalised + 1) * (self.high - self.low + RANGE_FLOOR) + self.low, normalised)

    def normalise(self, actions: np.ndarray) -> np.ndarray:
        """The inverse of `unnormalise`."""
        return np.where(self.mask, 2 * (actions - self.low) / (self.high - self.low + RANGE_FLOOR) - 1, actions)

    def _decode(self, choices: np.ndarray) -> np.ndarray:
        actions = self.unnormalise(centres(choices))
        actions[..., -1] = gripper_to_env(actions[..., -1])
        return actions.astype(np.float32)

    def _encode(self, actions: np.ndarray) -> np.ndarray:
        actions = np.array(actions, np.float64)
        actions[..., -1] = gripper_to_model(actions[..., -1])
        return discretise(self.normalise(actions))


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


def _alike(values, function):
    if isinstance(values, torch.Tensor):
        return torch.from_numpy(function(values.detach().cpu().numpy()))
    return function(np.asarray(values))


def statistics_of(actions: np.ndarray) -> dict:
    """[n, A] demonstrated actions -> {"q01", "q99", "mask"}. A dim that never moves, and the gripper (the last), are passed through (mask False)."""
    moves = np.ptp(actions, axis=0) > 0
    moves[-1] = False
    low, high = np.quantile(actions.astype(np.float64), [0.01, 0.99], axis=0)
    return {"q01": low.tolist(), "q99": high.tolist(), "mask": moves.tolist()}
