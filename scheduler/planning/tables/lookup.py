"""A profile asked for many sizes at once: arrays of what `StageProfile.seconds` and `StageProfile.memory` say one by one, to the bit."""

from __future__ import annotations

import functools

import numpy as np

from scheduler.profile import StageProfile


def seconds(stage: StageProfile, items: np.ndarray, units: np.ndarray) -> np.ndarray:
    """One call with so many items on so many units."""
    items, units = np.broadcast_arrays(items, units)
    return np.where(items > 0, _looked_up(stage, "seconds", items, units), 0.0)


def memory(stage: StageProfile, items: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Bytes on each unit beyond what is resident."""
    return np.floor(_looked_up(stage, "memory", *np.broadcast_arrays(items, units)))


def filled(stage: StageProfile, units: np.ndarray) -> np.ndarray:
    """The units that it gains from."""
    return units if stage.most_units is None else np.minimum(units, stage.most_units)


def _looked_up(stage: StageProfile, what: str, items: np.ndarray, units: np.ndarray) -> np.ndarray:
    curves = _curves(stage, what)
    units = np.maximum(1, filled(stage, units))
    sizes = np.array(list(curves))
    nearest = np.maximum(0, np.searchsorted(sizes, units, "right") - 1)  # the largest that was measured and is not larger, else the smallest
    share = np.where(units != sizes[nearest], np.ceil(items / units * sizes[nearest] - 1e-9), items)
    found = np.empty(share.shape)
    for i, curve in enumerate(curves.values()):
        here = nearest == i
        found[here] = _along(share[here], *curve)
    return found


@functools.lru_cache(maxsize=256)
def _curves(stage: StageProfile, what: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Measured units -> (items, nondecreasing values), by units."""
    curves = {}
    for units in sorted({point.units for point in stage.points}):
        points = sorted((point.items, getattr(point, what)) for point in stage.points if point.units == units)
        curves[units] = np.array([at for at, _ in points], float), np.maximum.accumulate(np.array([value for _, value in points], float))
    return curves


def _along(x: np.ndarray, at: np.ndarray, value: np.ndarray) -> np.ndarray:
    """As the profile's own: along straight lines, beyond the last point continued, below the first at least in proportion."""
    if len(at) == 1:
        return value[0] * np.maximum(1.0, x / at[0])
    i = np.minimum(np.searchsorted(at[1:], x, "left"), len(at) - 2)
    width = at[i + 1] - at[i]
    line = value[i] + (value[i + 1] - value[i]) * (x - at[i]) / np.where(width > 0, width, 1.0)
    line = np.where((x < at[0]) & (width > 0), np.maximum(line, value[0] * x / at[0]), line)
    return np.where(width > 0, line, value[i + 1])
