"""The image path of OpenVLA-OFT, one pure function per step, over a batch: uint8 [b, H, W, 3] in and out, until `normalise`.

The order is jpeg -> lanczos3 -> center_crop -> bicubic -> normalise; `ImagePath` runs the steps that a checkpoint asks for.
An image's result does not depend on the other images of the batch: each is resized by itself, as two banded matrix products.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable

import numpy as np
import torch

STEPS = ("jpeg", "lanczos3", "center_crop")
STEPS_KEY = "image_path"  # ours, in preprocessor_config.json: the steps to run before the processor; a published folder lacks it: all
JPEG_QUALITY = 95  # tf.image.encode_jpeg's default
CROP_AREA = 0.9
TRAINING_SIDE = 224  # the side the training pictures were stored at
CHANNELS = 3
DOWN, ACROSS = 0, 2  # axes of [H, 3, W]: the one that a resize weighs
BAND = 16  # target pixels per matrix product: fewer are more calls, more are more multiplications by zero
PRODUCT = 2**18  # multiplications of one: so few, OpenBLAS does on one thread, and how many it has changes no sum

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
    passes = (DOWN, kernel_bands(lanczos3_kernel, 3.0, height, side)), (ACROSS, kernel_bands(lanczos3_kernel, 3.0, width, side))
    return _resized(images, passes, lambda values: np.rint(values, out=values))


def center_crop(images: np.ndarray, area: float = CROP_AREA) -> np.ndarray:
    """Cut out the middle `area` of the picture and stretch it back, as tf.image.crop_and_resize (bilinear, corners aligned)."""
    height, width = images.shape[1:3]
    side = float(np.sqrt(area))

    def round_(values: np.ndarray) -> None:
        values *= np.float32(1 / 255)
        values *= np.float32(255.5)
        np.floor(values, out=values)  # how TensorFlow turns [0, 1] into uint8

    return _resized(images, ((DOWN, crop_bands(height, side)), (ACROSS, crop_bands(width, side))), round_)


def bicubic(images: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize to [b, *size, 3] as Pillow's antialiased bicubic: across, rounded to uint8, then down, rounded."""
    height, width = images.shape[1:3]
    round_ = lambda values: np.floor(np.add(values, np.float32(0.5), out=values), out=values)
    if width != size[1]:
        images = _resized(images, ((ACROSS, kernel_bands(cubic_kernel, 2.0, width, size[1])),), round_)
    if height != size[0]:
        images = _resized(images, ((DOWN, kernel_bands(cubic_kernel, 2.0, height, size[0])),), round_)
    return images


def normalise(pixels: torch.Tensor, means: tuple, stds: tuple) -> torch.Tensor:
    """[b, n, H, W, 3] uint8 of n cameras -> [b, n * 3 * towers, H, W] float32, camera by camera, tower by tower within it."""
    batch, cameras, height, width, _ = pixels.shape
    spread = torch.tensor(stds, device=pixels.device)[..., None, None]  # [towers, 3, 1, 1]
    shift = -torch.tensor(means, device=pixels.device)[..., None, None] / spread
    values = pixels.permute(0, 1, 4, 2, 3).contiguous().unsqueeze(2).float()  # [b, n, 1, 3, H, W]; turned while a value is one byte
    return torch.addcmul(shift, values, 1 / (255 * spread)).reshape(batch, cameras * len(means) * 3, height, width)


def _resized(images: np.ndarray, passes: tuple[tuple[int, Bands], ...], round_: Callable[[np.ndarray], Any]) -> np.ndarray:
    """[b, H, W, 3] uint8 -> [b, h, w, 3] uint8: each image through (axis, bands) after (axis, bands), then rounded in place and clipped.

    An image is held as [H, 3, W], so that both H lines of 3 * W numbers and 3 * H lines of W lie in memory as they are; all use the same memory in turn.
    """
    buffers = [np.empty((images.shape[1], CHANNELS, images.shape[2]), np.float32)]
    for axis, bands in passes:
        shape = list(buffers[-1].shape)
        shape[axis] = bands[-1][1]
        buffers.append(np.empty(shape, np.float32))
    first, last = buffers[0], buffers[-1]
    found = np.empty((len(images), len(last), last.shape[ACROSS], CHANNELS), np.uint8)
    for target, image in zip(found, images):
        first[:] = image.transpose(0, 2, 1)
        for (axis, bands), source, result in zip(passes, buffers, buffers[1:]):
            _weigh(axis, bands, source, result)
        round_(last)
        np.clip(last, 0, 255, out=last)
        for channel in range(CHANNELS):
            target[..., channel] = last[:, channel]
    return found


def _weigh(axis: int, bands: Bands, source: np.ndarray, result: np.ndarray) -> None:
    """[H, 3, W] -> [h, 3, W] or [H, 3, w]."""
    if axis == DOWN:
        source, result = source.reshape(len(source), -1), result.reshape(len(result), -1)
    else:
        source, result = source.reshape(-1, source.shape[axis]), result.reshape(-1, result.shape[axis])
    for start, end, first, last, weights in bands:
        step = PRODUCT // weights.size
        if axis == DOWN:
            for at in range(0, source.shape[1], step):
                np.matmul(weights, source[first:last, at : at + step], out=result[start:end, at : at + step])
        else:
            for at in range(0, len(source), step):
                np.matmul(source[at : at + step, first:last], weights.T, out=result[at : at + step, start:end])


def _bands(weights: np.ndarray) -> Bands:
    """Of [target, source] weights, each row of which is 0 but for a few neighbours."""
    found = []
    for start in range(0, len(weights), BAND):
        part = weights[start : start + BAND]
        used = np.flatnonzero(part.any(0))
        first, last = int(used[0]), int(used[-1]) + 1
        found.append((start, start + len(part), first, last, np.ascontiguousarray(part[:, first:last])))
    return tuple(found)


@lru_cache(maxsize=32)
def kernel_bands(kernel: Callable[[np.ndarray], np.ndarray], radius: float, source: int, target: int) -> Bands:
    """Of each target pixel the normalised kernel, widened when shrinking, around its centre."""
    scale = source / target
    stretch = max(scale, 1.0)
    distance = (np.arange(source) + 0.5 - (np.arange(target)[:, None] + 0.5) * scale) / stretch
    weights = np.where(np.abs(distance) < radius, kernel(distance), 0.0)
    return _bands((weights / weights.sum(1, keepdims=True)).astype(np.float32))


def lanczos3_kernel(x: np.ndarray) -> np.ndarray:
    return np.sinc(x) * np.sinc(x / 3)


def cubic_kernel(x: np.ndarray) -> np.ndarray:
    """Catmull-Rom (a = -0.5), Pillow's choice."""
    x = np.abs(x)
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2)


@lru_cache(maxsize=8)
def crop_bands(length: int, side: float) -> Bands:
    """Bilinear weights that stretch the middle `side` share of an axis over the whole of it."""
    position = (1 - side) / 2 * (length - 1) + np.arange(length) * side
    lower = np.floor(position).astype(int)
    upper = np.minimum(lower + 1, length - 1)
    weights = np.zeros((length, length), np.float32)
    weights[np.arange(length), lower] += 1 - (position - lower)
    weights[np.arange(length), upper] += position - lower
    return _bands(weights)
