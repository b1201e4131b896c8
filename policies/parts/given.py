"""What a policy is given, checked by name before anything is computed with it: settings, observations, states, noise.

Whatever is wrong ends here in a ValueError that says what was found, what was wanted and whose it is; what comes back is fit to compute with.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np
import torch

DTYPES = ("float32", "bfloat16", "float64")  # the exponents of float16 are too few: logits and gradients overflow
TEMPERATURES, LOG_STDS = (1e-3, 1e3), (-20.0, 5.0)  # from, to: beyond, every choice is the greedy one, or none has a meaning


def dtype(found: Any) -> str:
    """The name of a dtype that weights can be held and trained in."""
    if found not in DTYPES:
        overflows = ": float16 overflows to NaN in learning" if found in ("float16", "half") else ""
        raise ValueError(f"policy.dtype: found {found!r}, wanted one of {', '.join(DTYPES)}{overflows}")
    return found


def number(key: str, found: Any, ends: tuple[float, float], why: str) -> float:
    """A number from the one end to the other. why: what it is there for, or what else to do."""
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not ends[0] <= found <= ends[1]:
        raise ValueError(f"{key}: found {found!r}, wanted a number from {ends[0]:g} to {ends[1]:g}; {why}")
    return found


def whole(key: str, found: Any, way: str) -> int:
    """A whole number above 0. way: what to do instead."""
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ValueError(f"{key}: found {found!r}, wanted a whole number above 0; {way}")
    return found


def cameras(key: str, found: Any) -> tuple[str, ...]:
    """Names, each of them once."""
    fits = isinstance(found, (list, tuple)) and found and all(isinstance(name, str) and name for name in found)
    if not fits or len(set(found)) < len(found):
        raise ValueError(f"{key}: found {found!r}, wanted a list of at least one name, each of them once, in the order of training, as in policy.cameras=[agentview,wrist]")
    return tuple(found)


def pictures(observation: Mapping[str, Any], cameras: Sequence[str]) -> list[np.ndarray] | list[torch.Tensor]:
    """Of each camera [b, H, W, 3] uint8, of one b above 0; tensors where the env gives such, on the device that they are on."""
    found = [_picture(observation, camera) for camera in cameras]
    rows = {f"images/{camera}": len(picture) for camera, picture in zip(cameras, found)}
    if len(set(rows.values())) > 1:
        raise ValueError(f"observation: found {', '.join(f'{count} rows of {name!r}' for name, count in rows.items())}, wanted as many of each: one picture per camera and env")
    return found


def _picture(observation: Mapping[str, Any], camera: str) -> np.ndarray | torch.Tensor:
    name = f"images/{camera}"
    if name not in observation:
        raise ValueError(f"observation: found {', '.join(sorted(observation))}, wanted {name!r}; policy.cameras names the cameras of the env")
    picture = observation[name] if isinstance(observation[name], torch.Tensor) else np.asarray(observation[name])
    if picture.dtype not in (np.uint8, torch.uint8) or picture.ndim != 4 or picture.shape[-1] != 3 or 0 in picture.shape:
        raise ValueError(f"observation {name!r}: found {picture.dtype} {list(picture.shape)}, wanted uint8 [b, H, W, 3] of at least one row and one pixel, as the camera gives them (0 to 255, channels last)")
    return picture


def instructions(observation: Mapping[str, Any], rows: int) -> list[str]:
    """One text per row."""
    if "instruction" not in observation:
        raise ValueError(f"observation: found {', '.join(sorted(observation))}, wanted 'instruction', a list of b texts; use an env that gives one")
    found = observation["instruction"]
    if not isinstance(found, (list, tuple)) or len(found) != rows or not all(isinstance(text, str) for text in found):
        raise ValueError(f"observation 'instruction': found {found!r:.80}, wanted a list of {rows} texts, one per row of the pictures")
    return list(found)


def state(observation: Mapping[str, Any], rows: int, dims: int) -> np.ndarray | torch.Tensor:
    """One row per row of the pictures; what stands in them is codec.StateCodec's to check."""
    if "state" not in observation:
        raise ValueError(f"observation: found {', '.join(sorted(observation))}, wanted 'state' [b, {dims}]: the checkpoint has a proprio projector; use an env that gives it")
    found = observation["state"] if isinstance(observation["state"], torch.Tensor) else np.asarray(observation["state"])
    if found.ndim and len(found) != rows:
        raise ValueError(f"observation 'state': found {len(found)} rows, wanted {rows}, as many as the pictures have")
    return found


def noise(found: np.ndarray | None, rows: int, tokens: int) -> np.ndarray | None:
    """[b, L] float64 inside (0, 1), or None."""
    if found is None:
        return None
    found = np.asarray(found)
    if found.dtype.kind != "f" or found.shape != (rows, tokens):
        raise ValueError(f"noise: found {found.dtype} {list(found.shape)}, wanted [{rows}, {tokens}] uniforms, one per row and token, or None for the greedy choice")
    inside = (found > 0) & (found < 1)
    if not inside.all():
        row, token = np.argwhere(~inside)[0]
        raise ValueError(f"noise: found {found[row, token]} in row {row}, token {token}, wanted uniforms inside (0, 1): an end has no inverse")
    return found.astype(np.float64)


def finite(name: str, found: np.ndarray | torch.Tensor, way: str) -> None:
    """way: whose it is, or what to do instead. Raises ValueError naming the first entry that is not a finite number."""
    fits = torch.isfinite(found) if isinstance(found, torch.Tensor) else np.isfinite(found)
    if not fits.all():
        at = [int(place) for place in np.argwhere(~np.asarray(fits.cpu() if isinstance(fits, torch.Tensor) else fits))[0]]
        raise ValueError(f"{name}: found {float(found[tuple(at)])} at {at} of {list(found.shape)}, wanted finite numbers; {way}")
