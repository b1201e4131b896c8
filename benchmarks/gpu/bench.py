"""What every section of the GPU check shares: where it runs, how long there is, and how time is taken."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable

import torch

# Dense bfloat16 peaks in flop/s by a part of the device's name, the longer names first.
PEAKS = (("H100 PCIe", 756e12), ("H100", 989e12), ("H200", 989e12), ("A100", 312e12), ("L40S", 362e12), ("RTX 4090", 165e12))


@dataclass(frozen=True)
class Bench:
    device: str  # "cuda" | "cpu"
    tiny: bool
    whole: float  # seconds there are in all
    end: float  # of time.monotonic, by which all must be done
    peak: float | None  # flop/s of the device; None = not known

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether what is left is for writing the report."""
        return self.left < 0.05 * self.whole

    def synchronise(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], Any], spend: float = 3.0, most: int = 20) -> float:
        """Median seconds of a call, after one that is not counted; for about `spend` seconds (or what is left), at most `most` times."""
        run()
        self.synchronise()
        found: list[float] = []
        until = min(time.monotonic() + (0.2 if self.tiny else spend), self.end)
        while not found or (time.monotonic() < until and len(found) < most):
            begun = time.perf_counter()
            run()
            self.synchronise()
            found.append(time.perf_counter() - begun)
        return statistics.median(found)

    def share_of_peak(self, flops_per_s: float) -> float | None:
        return None if self.peak is None else round(flops_per_s / self.peak, 4)


def peak_of(name: str) -> float | None:
    return next((peak for part, peak in PEAKS if part in name), None)


def memory() -> dict[str, int] | None:
    """The most bytes of the device at once since the section, or its measurement, began; None on the CPU."""
    return {"peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()} if torch.cuda.is_available() else None


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
