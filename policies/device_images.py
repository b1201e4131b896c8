"""The image path of OpenVLA-OFT on tensors, where they are: the steps of `images`, with the same weights and the same rounding, a batch at a time.

Against `images` a value may be another by one grey level, where a sum in another order falls on the other side of a half. A picture's result does not
depend on the others of the batch but for that. JPEG has no version here: a checkpoint that asks for it sends its pictures through the host for this step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Sequence

import numpy as np
import torch

from policies.parts import images

DOWN, ACROSS = (2, 1), (3, 2)  # of a pass: the dim of [b, 3, H, W], the axis of [b, H, W, 3]


def pixels(path: images.ImagePath, pictures: torch.Tensor) -> torch.Tensor:
    """[b, H, W, 3] uint8 -> [b, h, w, 3] uint8 of the towers' size, on the same device: `path.pixels` of a tensor."""
    if "jpeg" in path.steps:
        pictures = torch.from_numpy(images.jpeg(pictures.cpu().numpy())).to(pictures.device)
    if "lanczos3" in path.steps:
        pictures = lanczos3(pictures)
    if "center_crop" in path.steps:
        pictures = center_crop(pictures)
    return bicubic(pictures, path.size)


def lanczos3(pictures: torch.Tensor, side: int = images.TRAINING_SIDE) -> torch.Tensor:
    """[b, H, W, 3] uint8 -> [b, side, side, 3] uint8, as `images.lanczos3`."""
    return _resized(pictures, [(dim, (images.kernel_bands, images.lanczos3_kernel, 3.0, pictures.shape[axis], side)) for dim, axis in (DOWN, ACROSS)], torch.round)


def center_crop(pictures: torch.Tensor, area: float = images.CROP_AREA) -> torch.Tensor:
    """[b, H, W, 3] uint8 -> the same, as `images.center_crop`."""
    passes = [(dim, (images.crop_bands, pictures.shape[axis], float(np.sqrt(area)))) for dim, axis in (DOWN, ACROSS)]
    return _resized(pictures, passes, lambda values: torch.floor(values * (1 / 255) * 255.5))


def bicubic(pictures: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """[b, H, W, 3] uint8 -> [b, *size, 3] uint8, as `images.bicubic`."""
    for (dim, axis), target in ((ACROSS, size[1]), (DOWN, size[0])):
        source = pictures.shape[axis]
        if source != target:
            pictures = _resized(pictures, [(dim, (images.kernel_bands, images.cubic_kernel, 2.0, source, target))], lambda values: torch.floor(values + 0.5))
    return pictures


def _resized(pictures: torch.Tensor, passes: Sequence[tuple[int, tuple]], round_: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """passes: (dim of [b, 3, H, W], which weights)."""
    values = pictures.permute(0, 3, 1, 2).float()
    for dim, which in passes:
        weights = _dense(pictures.device, values.shape[dim], *which)
        values = weights @ values if dim == DOWN[0] else values @ weights.T
    return round_(values).clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


@lru_cache(maxsize=32)
def _dense(device: torch.device, source: int, make: Callable[..., images.Bands], *arguments: Any) -> torch.Tensor:
    """[targets, source] float32 on the device: the bands that `make` gives, zeros outside them."""
    bands = make(*arguments)
    weights = np.zeros((bands[-1][1], source), np.float32)
    for start, end, first, last, part in bands:
        weights[start:end, first:last] = part
    return torch.from_numpy(weights).to(device)
