"""An mp4 of an episode, readable by every browser (H.264, yuv420p), there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def write_mp4(path: str | Path, frames: np.ndarray | Iterable[np.ndarray], fps: float = 20.0) -> Path:
    """Write `frames`, [T, H, W, 3] uint8 or any iterable of [H, W, 3] uint8; odd sizes get one more row or column at the edge.

    `fps` in frames per second. Raises ValueError for no frames, another dtype, or frames of different sizes; nothing is left behind then.
    """
    import imageio_ffmpeg

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.stem}.writing.mp4")
    writer = first = None
    try:
        for index, frame in enumerate(frames):
            frame = _checked(frame, first, index, path)
            if writer is None:
                first = frame.shape
                height, width = first[0] + first[0] % 2, first[1] + first[1] % 2
                writer = imageio_ffmpeg.write_frames(str(aside), (width, height), fps=fps, codec="libx264", pix_fmt_out="yuv420p", macro_block_size=2, quality=7, ffmpeg_log_level="error")
                writer.send(None)
            pad = ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0))
            writer.send(np.ascontiguousarray(np.pad(frame, pad, mode="edge")))
        if writer is None:
            raise ValueError(f"{path}: found no frames, wanted at least one [H, W, 3] uint8 image")
        writer.close()
        os.replace(aside, path)
    finally:
        if writer is not None:
            writer.close()
        aside.unlink(missing_ok=True)
    return path


def _checked(frame: np.ndarray, first: tuple | None, index: int, path: Path) -> np.ndarray:
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or (first is not None and frame.shape != first):
        wanted = f"{list(first)} uint8 like the first" if first is not None else "[H, W, 3] uint8"
        raise ValueError(f"{path}: found frame {index} of {list(frame.shape)} {frame.dtype}, wanted {wanted}")
    return frame
