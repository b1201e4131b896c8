"""Images per second and core through OpenVLA-OFT's image path, 256 -> 224 pixels, beside the reference algorithm written plainly.

    python benchmarks/image_path.py [images=64] [repeats=7] [batch=8]

Both do JPEG, Lanczos-3, the 0.9 centre crop, the processor's resize and the normalisation for two towers, on one thread. Plain is one image
after another, as an evaluation script does it: Pillow for JPEG and the processor's resize, numpy for TensorFlow's resize and crop, by the taps
of each pixel. Time is CPU time of this process, so that what else the machine does counts for neither; the two take turns, and the best repeat of
each is compared.
"""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")  # read as numpy is loaded

import numpy as np
import torch
from PIL import Image

from arguments import given

ROOT = Path(__file__).resolve().parents[1]
SOURCE, SIDE = 256, 224
MEANS, STDS = ((0.484375, 0.455078125, 0.40625), (0.5, 0.5, 0.5)), ((0.228515625, 0.2236328125, 0.224609375), (0.5, 0.5, 0.5))


def pictures(count: int) -> np.ndarray:
    """[count, 256, 256, 3] uint8: smooth shapes with some noise, as a renderer's are, so that JPEG has its usual work."""
    generator = np.random.default_rng(0)
    across, down = np.meshgrid(np.linspace(0, 1, SOURCE), np.linspace(0, 1, SOURCE))
    waves = generator.uniform(1, 12, (count, 3, 2))
    shapes = np.sin(waves[:, :, :1, None] * across + waves[:, :, 1:, None] * down * 3).transpose(0, 2, 3, 1)
    return np.clip(127.5 + 110 * shapes + generator.normal(0, 4, shapes.shape), 0, 255).astype(np.uint8)


def plain(image: np.ndarray) -> np.ndarray:
    """[256, 256, 3] uint8 -> [6, 224, 224] float32."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=95, subsampling="4:2:0")
    values = np.asarray(Image.open(buffer)).astype(np.float32)
    values = lanczos3_down(lanczos3_down(values).transpose(1, 0, 2)).transpose(1, 0, 2)
    picture = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    picture = np.asarray(Image.fromarray(center_crop(picture)).resize((SIDE, SIDE), Image.BICUBIC))
    scaled = picture.transpose(2, 0, 1).astype(np.float32) / 255
    return np.concatenate([(scaled - np.float32(mean)[:, None, None]) / np.float32(std)[:, None, None] for mean, std in zip(np.array(MEANS), np.array(STDS))])


def lanczos3_down(values: np.ndarray) -> np.ndarray:
    """[n, m, 3] float32 -> [224, m, 3]: each target row the weighted sum of the source rows within three (stretched) pixels of it."""
    scale = len(values) / SIDE
    centres = (np.arange(SIDE) + 0.5) * scale
    first = np.ceil(centres - 3 * scale - 0.5).astype(int)
    taps = first[:, None] + np.arange(int(np.ceil(6 * scale)) + 1)
    distance = (taps + 0.5 - centres[:, None]) / scale
    weights = np.where((np.abs(distance) < 3) & (taps >= 0) & (taps < len(values)), np.sinc(distance) * np.sinc(distance / 3), 0)
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return np.einsum("itmc,it->imc", values[taps.clip(0, len(values) - 1)], weights)


def center_crop(picture: np.ndarray) -> np.ndarray:
    """[224, 224, 3] uint8 -> its middle 0.9 of the area, stretched back bilinearly."""
    side = np.sqrt(0.9)
    position = (1 - side) / 2 * (SIDE - 1) + np.arange(SIDE) * side
    low = np.floor(position).astype(int)
    high, share = np.minimum(low + 1, SIDE - 1), (position - low).astype(np.float32)
    values = picture.astype(np.float32) / 255
    across = values[:, low] + (values[:, high] - values[:, low]) * share[None, :, None]
    both = across[low] + (across[high] - across[low]) * share[:, None, None]
    return np.floor(np.clip(both, 0, 1) * 255.5).astype(np.uint8)


def main(arguments: list[str]) -> int:
    from policies.parts.images import ImagePath, normalise

    asked = given(arguments, __doc__)
    count, repeats, batch = int(asked.get("images", 64)), int(asked.get("repeats", 7)), int(asked.get("batch", 8))
    torch.set_num_threads(1)
    path = ImagePath.from_config({"input_sizes": [[3, SIDE, SIDE]] * 2, "means": MEANS, "stds": STDS})
    raw = pictures(count)

    batches = [raw[i : i + batch] for i in range(0, count, batch)]
    sides = {
        "ours": lambda images: normalise(torch.from_numpy(path.pixels(images))[:, None], MEANS, STDS).numpy(),
        "plain": lambda images: np.stack([plain(image) for image in images]),
    }
    apart = np.abs(sides["ours"](raw) - sides["plain"](raw)) * (255 * np.array(STDS).reshape(1, 6, 1, 1))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            begun = time.process_time()
            for images in batches:
                run(images)
            seconds[name].append((time.process_time() - begun) / count)
    rates = {name: 1 / min(found) for name, found in seconds.items()}
    print(f"ours (batches of {batch}): {rates['ours']:.0f} images/s on one core; plain: {rates['plain']:.0f}; {rates['ours'] / rates['plain']:.1f}x")
    print(f"their pixels differ by {apart.max():.2f} grey levels at most, {apart.mean():.4f} on average")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
