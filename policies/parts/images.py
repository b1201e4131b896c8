"""The image path of OpenVLA-OFT, one pure function per step, over a batch: uint8 [b, H, W, 3] in and out, until `normalise`.

The order is jpeg -> lanczos3 -> center_crop -> bicubic -> normalise; `ImagePath` runs the steps that a checkpoint asks for.
An image's result does not depend on the other images of the batch.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable

import numpy as np
import torch
from PIL import Image

STEPS = ("jpeg", "lanczos3", "center_crop")
STEPS_KEY = "image_path"  # ours, in preprocessor_config.json: the steps to run before the processor; a published folder lacks it: all
JPEG_QUALITY = 95  # tf.image.encode_jpeg's default
CROP_AREA = 0.9
TRAINING_SIDE = 224  # the side the training pictures were stored at


@dataclass(frozen=True)
class ImagePath:
    """The steps of one checkpoint and the pixels its towers take."""

    steps: tuple[str, ...]
    size: tuple[int, int]  # height, width in pixels
    means: tuple[tuple[float, ...], ...]  # one RGB triple per tower
    stds: tuple[tuple[float, ...], ...]

    @classmethod
    def from_config(cls, preprocessor: dict) -> "ImagePath":
        """From preprocessor_config.json. Raises ValueError on an unknown step or on towers of different sizes."""
        steps = tuple(preprocessor.get(STEPS_KEY, STEPS))
        unknown = [step for step in steps if step not in STEPS]
        sizes = {tuple(size[-2:]) for size in preprocessor["input_sizes"]}
        if unknown or len(sizes) != 1:
            raise ValueError(f"preprocessor_config.json: found {STEPS_KEY}={list(steps)} and input sizes {sorted(sizes)}, wanted steps out of {STEPS} and one size")
        as_tuples = lambda rows: tuple(tuple(row) for row in rows)
        return cls(steps, sizes.pop(), as_tuples(preprocessor["means"]), as_tuples(preprocessor["stds"]))

    def pixels(self, images: np.ndarray) -> np.ndarray:
        """[b, H, W, 3] uint8 as the env gives them -> [b, h, w, 3] uint8 of the towers' size."""
        if "jpeg" in self.steps:
            images = jpeg(images)
        if "lanczos3" in self.steps:
            images = lanczos3(images)
        if "center_crop" in self.steps:
            images = center_crop(images)
        return bicubic(images, self.size)


def jpeg(images: np.ndarray, quality: int = JPEG_QUALITY) -> np.ndarray:
    """Encode and decode, 4:2:0. Another JPEG library may differ by a few grey levels."""
    decoded = np.empty_like(images)
    for row, image in enumerate(images):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
        decoded[row] = np.asarray(Image.open(buffer))
    return decoded


def lanczos3(images: np.ndarray, side: int = TRAINING_SIDE) -> np.ndarray:
    """Resize to [b, side, side, 3] as tf.image.resize(method="lanczos3", antialias=True), rounded half to even."""
    rows, columns = (_weights(_lanczos3, 3.0, length, side) for length in images.shape[1:3])
    return _to_uint8(np.rint(_separable(images, rows, columns)))


def center_crop(images: np.ndarray, area: float = CROP_AREA) -> np.ndarray:
    """Cut out the middle `area` of the picture and stretch it back, as tf.image.crop_and_resize (bilinear, corners aligned)."""
    rows, columns = (_crop_weights(length, float(np.sqrt(area))) for length in images.shape[1:3])
    cropped = _separable(images, rows, columns) * np.float32(1 / 255)
    return _to_uint8(np.floor(cropped * np.float32(255.5)))  # how TensorFlow turns [0, 1] into uint8


def bicubic(images: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize to [b, *size, 3] as Pillow's antialiased bicubic: across, rounded to uint8, then down, rounded."""
    height, width = images.shape[1:3]
    if width != size[1]:
        images = _to_uint8(np.floor(_separable(images, None, _weights(_cubic, 2.0, width, size[1])) + 0.5))
    if height != size[0]:
        images = _to_uint8(np.floor(_separable(images, _weights(_cubic, 2.0, height, size[0]), None) + 0.5))
    return images


def normalise(pixels: torch.Tensor, means: tuple, stds: tuple) -> torch.Tensor:
    """[b, n, H, W, 3] uint8 of n cameras -> [b, n * 3 * towers, H, W] float32, camera by camera, tower by tower within it."""
    batch, cameras, height, width, _ = pixels.shape
    spread = torch.tensor(stds, device=pixels.device)[..., None, None]  # [towers, 3, 1, 1]
    shift = -torch.tensor(means, device=pixels.device)[..., None, None] / spread
    values = pixels.permute(0, 1, 4, 2, 3).unsqueeze(2).float()  # [b, n, 1, 3, H, W]
    return torch.addcmul(shift, values, 1 / (255 * spread)).reshape(batch, cameras * len(means) * 3, height, width)


def _separable(images: np.ndarray, rows: np.ndarray | None, columns: np.ndarray | None) -> np.ndarray:
    planes = images.astype(np.float32).transpose(0, 3, 1, 2)
    if rows is not None:
        planes = rows @ planes
    if columns is not None:
        planes = planes @ columns.T
    return planes.transpose(0, 2, 3, 1)


def _to_uint8(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.clip(values, 0, 255).astype(np.uint8))


@lru_cache(maxsize=32)
def _weights(kernel: Callable[[np.ndarray], np.ndarray], radius: float, source: int, target: int) -> np.ndarray:
    """[target, source] float32: each row the normalised kernel, widened when shrinking, around the target pixel's centre."""
    scale = source / target
    stretch = max(scale, 1.0)
    distance = (np.arange(source) + 0.5 - (np.arange(target)[:, None] + 0.5) * scale) / stretch
    weights = np.where(np.abs(distance) < radius, kernel(distance), 0.0)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def _lanczos3(x: np.ndarray) -> np.ndarray:
    return np.sinc(x) * np.sinc(x / 3)


def _cubic(x: np.ndarray) -> np.ndarray:
    """Catmull-Rom (a = -0.5), Pillow's choice."""
    x = np.abs(x)
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2)


@lru_cache(maxsize=8)
def _crop_weights(length: int, side: float) -> np.ndarray:
    """[length, length] float32 bilinear weights that stretch the middle `side` share of an axis over the whole of it."""
    position = (1 - side) / 2 * (length - 1) + np.arange(length) * side
    lower = np.floor(position).astype(int)
    upper = np.minimum(lower + 1, length - 1)
    weights = np.zeros((length, length), np.float32)
    weights[np.arange(length), lower] += 1 - (position - lower)
    weights[np.arange(length), upper] += position - lower
    return weights
