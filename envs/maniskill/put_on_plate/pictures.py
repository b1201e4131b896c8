"""What the splits do to pictures: a photograph behind the things, and a strange texture over them or over everything.

A texture follows the robot and the things: it is stretched to the box around them, or cut out of a twice as large one where they are. So it
moves in the picture as they do, as in the literature.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch


def pattern(number: int, size: int) -> np.ndarray:
    """[size, size, 3] uint8: a texture that stands in for a photographed one, squares and stripes of its number's own."""
    stream = np.random.default_rng((number, 25))
    squares = stream.integers(0, 256, (4 + number % 5, 4 + number % 5, 3))
    rows = np.arange(size) * len(squares) // size
    stripes = 60 * np.sign(np.sin(np.arange(size)[:, None] * stream.uniform(0.1, 0.6) + np.arange(size) * stream.uniform(0.1, 0.6)))
    return np.clip(squares[rows][:, rows] + stripes[..., None], 0, 255).astype(np.uint8)


def picture(path: Path, height: int, width: int) -> np.ndarray:
    """[height, width, 3] uint8. Raises ValueError for a file that is no picture."""
    import cv2

    found = cv2.imread(str(path))
    if found is None:
        raise ValueError(f"env.assets: {path} is no picture, wanted a PNG or a JPEG")
    return cv2.cvtColor(cv2.resize(found, (width, height)), cv2.COLOR_BGR2RGB)


def over(seen: torch.Tensor, things: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
    """seen, behind [H, W, 3] uint8, things [H, W] bool -> [H, W, 3] uint8: what is seen of the things, before the picture behind."""
    return torch.where(things[..., None], seen, behind)


def textured(seen: torch.Tensor, things: torch.Tensor, texture: torch.Tensor, share: float, whole: bool) -> torch.Tensor:
    """seen [H, W, 3] uint8, things [H, W] bool, texture [2H, 2W, 3] uint8 -> [H, W, 3] uint8, (1 - share) of what is seen and share of the texture.

    whole: everywhere, else on the things alone.
    """
    height, width = things.shape
    top, bottom = _ends(things.any(1))
    left, right = _ends(things.any(0))
    if whole:
        y, x = (top + bottom) // 2, (left + right) // 2
        laid = texture[y : y + height, x : x + width]
    else:
        rows = _stretched(top, bottom, height, texture)
        laid = texture[rows][:, _stretched(left, right, width, texture.transpose(0, 1))]
    mixed = (seen * (1.0 - share) + laid * share).to(torch.uint8)
    return mixed if whole else torch.where(things[..., None], mixed, seen)


def _ends(filled: torch.Tensor) -> tuple[int, int]:
    """[n] bool -> first and last that is filled; all of it where none is."""
    found = filled.nonzero().flatten()
    return (int(found[0]), int(found[-1])) if len(found) else (0, len(filled) - 1)


def _stretched(first: int, last: int, length: int, texture: torch.Tensor) -> torch.Tensor:
    """[length] int64: the row of the texture at each pixel, the whole texture between first and last."""
    place = (torch.arange(length, device=texture.device) - first).clamp(0, last - first)
    return place * len(texture) // (last - first + 1)
