"""The conventions of an observation, as pure functions: image orientation, axis-angle, the privileged vector's layout."""

from __future__ import annotations

import math

import numpy as np

# name -> length, in the order in which the `privileged` vector holds them
PRIVILEGED = {
    "suite": 1,  # position in suites.suite_names()
    "task": 1,
    "eef": 3,  # metres, world frame, as all positions
    "fingers": 3,  # unit vector along which the fingers open
    "opening": 1,  # metres between the fingers
    "object": 3,
    "object_quat": 4,  # w, x, y, z
    "target": 3,
    "target_quat": 4,
}


def privileged_layout() -> dict[str, tuple[int, int]]:
    """name -> (start, stop) in the privileged vector."""
    stops = np.cumsum(list(PRIVILEGED.values())).tolist()
    return {name: (stop - length, stop) for (name, length), stop in zip(PRIVILEGED.items(), stops)}


def upright(pixels: np.ndarray) -> np.ndarray:
    """[H, W, 3] as a stock env returns it -> the same turned by 180 degrees (rows and columns reversed, no mirroring)."""
    return np.ascontiguousarray(pixels[::-1, ::-1])


def axis_angle(quat: np.ndarray) -> np.ndarray:
    """[4] quaternion x, y, z, w -> [3] axis times angle, angle in [0, 2 pi].

    The quaternion is not replaced by its antipode: policies were trained on angles beyond pi. A w outside [-1, 1] counts
    as the bound, and no rotation gives zeros. The argument is left as it is.
    """
    w = min(max(float(quat[3]), -1.0), 1.0)
    sine = math.sqrt(1.0 - w * w)
    if sine == 0.0:
        return np.zeros(3)
    return np.asarray(quat[:3], dtype=np.float64) * 2.0 * math.acos(w) / sine
