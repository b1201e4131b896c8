"""The image path of OpenVLA-OFT, one pure function per step, over a batch: uint8 [b, H, W, 3] in and out, until `normalise`.

The order is jpeg -> lanczos3 -> center_crop -> bicubic -> normalise; `ImagePath` runs the steps that a checkpoint asks for.
An image's result does not depend on the other images of the batch: each is resized by itself, as two banded matrix products.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable

import numpy as np
import torch

STEPS = ("jpeg", "lanczos3", "center_crop")
STEPS_KEY = "image_path"  # ours, in preprocessor_config.json: the steps to run before the processor; a published folder lacks it: all
JPEG_QUALITY = 95  # tf.image.encode_jpeg's default
CROP_AREA = 0.9
TRAINING_SIDE = 224  # the side the training pictures were stored at
CHANNELS = 3
BAND = 16  # target pixels per matrix product: fewer are more calls, more are more multiplications by zero

# Of one axis: (first target, end, first source, end, [targets, sources] float32 weights) per BAND targets.
Bands = tuple[tuple[int, int, int, int, np.ndarray], ...]


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
    from PIL import Image  # here alone, so that a checkpoint without this step does without the library

    decoded = np.empty_like(images)
    for row, image in enumerate(images):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
        decoded[row] = np.asarray(Image.open(buffer))
    return decoded


def lanczos3(images: np.ndarray, side: int = TRAINING_SIDE) -> np.ndarray:
    """Resize to [b, side, side, 3] as tf.image.resize(method="lanczos3", antialias=True), rounded half to even."""
    height, width = images.shape[1:3]
    rows, columns = _kernel_bands(_lanczos3, 3.0, height, side, 1), _kernel_bands(_lanczos3, 3.0, width, side, CHANNELS)
    return _resized(images, rows, columns, lambda values: np.rint(values, out=values))


def center_crop(images: np.ndarray, area: float = CROP_AREA) -> np.ndarray:
    """Cut out the middle `area` of the picture and stretch it back, as tf.image.crop_and_resize (bilinear, corners aligned)."""
    height, width = images.shape[1:3]
    side = float(np.sqrt(area))

    def rounded(values: np.ndarray) -> np.ndarray:
        values *= np.float32(1 / 255)
        values *= np.float32(255.5)
        return np.floor(values, out=values)  # how TensorFlow turns [0, 1] into uint8

    return _resized(images, _crop_bands(height, side, 1), _crop_bands(width, side, CHANNELS), rounded)


def bicubic(images: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize to [b, *size, 3] as Pillow's antialiased bicubic: across, rounded to uint8, then down, rounded."""
    height, width = images.shape[1:3]
    rounded = lambda values: np.floor(values + np.float32(0.5))
    if width != size[1]:
        images = _resized(images, None, _kernel_bands(_cubic, 2.0, width, size[1], CHANNELS), rounded)
    if height != size[0]:
        images = _resized(images, _kernel_bands(_cubic, 2.0, height, size[0], 1), None, rounded)
    return images


def normalise(pixels: torch.Tensor, means: tuple, stds: tuple) -> torch.Tensor:
    """[b, n, H, W, 3] uint8 of n cameras -> [b, n * 3 * towers, H, W] float32, camera by camera, tower by tower within it."""
    batch, cameras, height, width, _ = pixels.shape
    spread = torch.tensor(stds, device=pixels.device)[..., None, None]  # [towers, 3, 1, 1]
    shift = -torch.tensor(means, device=pixels.device)[..., None, None] / spread
    values = pixels.permute(0, 1, 4, 2, 3).contiguous().unsqueeze(2).float()  # [b, n, 1, 3, H, W]; turned while a value is one byte
    return torch.addcmul(shift, values, 1 / (255 * spread)).reshape(batch, cameras * len(means) * 3, height, width)


def _resized(images: np.ndarray, rows: Bands | None, columns: Bands | None, rounded: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """[b, H, W, 3] uint8 -> [b, h, w, 3] uint8: down by `rows`, across by `columns` (None: that axis stays), then `rounded` and clipped.

    Pixels stay interleaved, as lines of W * 3 numbers, so nothing is transposed.
    """
    height, width = (length if bands is None else bands[-1][1] for length, bands in zip((images.shape[1], images.shape[2] * CHANNELS), (rows, columns)))
    found = np.empty((len(images), height, width), np.uint8)
    for target, image in zip(found, images):
        lines = image.reshape(len(image), -1).astype(np.float32)
        if rows is not None:
            lines = _down(lines, rows)
        if columns is not None:
            lines = _across(lines, columns)
        lines = rounded(lines)
        target[:] = np.clip(lines, 0, 255, out=lines)
    return found.reshape(len(images), height, width // CHANNELS, CHANNELS)


def _down(lines: np.ndarray, bands: Bands) -> np.ndarray:
    found = np.empty((bands[-1][1], lines.shape[1]), np.float32)
    for start, end, first, last, weights in bands:
        np.matmul(weights, lines[first:last], out=found[start:end])
    return found


def _across(lines: np.ndarray, bands: Bands) -> np.ndarray:
    found = np.empty((len(lines), bands[-1][1]), np.float32)
    for start, end, first, last, weights in bands:
        found[:, start:end] = lines[:, first:last] @ weights.T
    return found


def _bands(weights: np.ndarray, channels: int) -> Bands:
    """[target, source] weights, of which each row is 0 but for a few neighbours. channels: interleaved ones, each weighed for itself."""
    found = []
    for start in range(0, len(weights), BAND):
        part = weights[start : start + BAND]
        used = np.flatnonzero(part.any(0))
        first, last = int(used[0]), int(used[-1]) + 1
        dense = np.kron(part[:, first:last], np.eye(channels, dtype=np.float32))
        found.append((start * channels, (start + len(part)) * channels, first * channels, last * channels, dense))
    return tuple(found)


@lru_cache(maxsize=32)
def _kernel_bands(kernel: Callable[[np.ndarray], np.ndarray], radius: float, source: int, target: int, channels: int) -> Bands:
    """Of each target pixel the normalised kernel, widened when shrinking, around its centre."""
    scale = source / target
    stretch = max(scale, 1.0)
    distance = (np.arange(source) + 0.5 - (np.arange(target)[:, None] + 0.5) * scale) / stretch
    weights = np.where(np.abs(distance) < radius, kernel(distance), 0.0)
    return _bands((weights / weights.sum(1, keepdims=True)).astype(np.float32), channels)


def _lanczos3(x: np.ndarray) -> np.ndarray:
    return np.sinc(x) * np.sinc(x / 3)


def _cubic(x: np.ndarray) -> np.ndarray:
    """Catmull-Rom (a = -0.5), Pillow's choice."""
    x = np.abs(x)
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2)


@lru_cache(maxsize=8)
def _crop_bands(length: int, side: float, channels: int) -> Bands:
    """Bilinear weights that stretch the middle `side` share of an axis over the whole of it."""
    position = (1 - side) / 2 * (length - 1) + np.arange(length) * side
    lower = np.floor(position).astype(int)
    upper = np.minimum(lower + 1, length - 1)
    weights = np.zeros((length, length), np.float32)
    weights[np.arange(length), lower] += 1 - (position - lower)
    weights[np.arange(length), upper] += position - lower
    return _bands(weights, channels)
