"""One line that says where a run stands: redrawn in place on a terminal, one line per update elsewhere.

    3/40  success 0.53 [0.45, 0.60] n=150  412 env steps/s  sim 3.1s act 1.0s learn 2.2s  bottleneck sim  6m 10s left
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from .success import Rate


def line(iteration: int, total: int, success: Rate | None, env_steps_per_s: float | None, seconds: Mapping[str, float], bottleneck: str | None, seconds_left: float | None, off: float | None = None, mean_return: float | None = None) -> str:
    """The text of one update; parts that are None or empty are left out. `seconds`: stage -> busy seconds of this iteration. off: predicted over measured time, less 1."""
    parts = [f"{iteration}/{total}"]
    if success is not None and success.n:
        parts.append(f"success {success}")
    if mean_return is not None:
        parts.append(f"return {mean_return:.3g}")
    if env_steps_per_s is not None:
        parts.append(f"{env_steps_per_s:.0f} env steps/s")
    if seconds:
        parts.append(" ".join(f"{stage} {spent:.1f}s" for stage, spent in seconds.items()))
    if bottleneck:
        parts.append(f"bottleneck {bottleneck}")
    if off is not None:
        parts.append(f"predicted {100 * abs(off):.0f} % {'more' if off > 0 else 'less'} than it took")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """"45s", "6m 10s", "2h 05m"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


TENTHS = 10


class Progress:
    """Counts to `total` iterations; time left is the mean of this process's iterations. pause: seconds between two lines of `within` where lines stay."""

    def __init__(self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, pause: float = 10.0):
        self._total, self._done, self._pause = total, 0, pause
        self._stream = stream or sys.stdout
        self._clock = clock
        self._started = self._said = clock()
        self._live = None
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), auto_refresh=False)

    def update(self, iteration: int, success: Rate | None = None, env_steps_per_s: float | None = None, seconds: Mapping[str, float] | None = None, bottleneck: str | None = None, off: float | None = None, mean_return: float | None = None) -> None:
        """Show the state after `iteration` iterations. The bottleneck is the stage with most seconds unless it is given."""
        seconds = seconds or {}
        if bottleneck is None and seconds:
            bottleneck = max(seconds, key=seconds.__getitem__)
        ran = iteration - self._done
        left = (self._clock() - self._started) / ran * (self._total - iteration) if ran > 0 else None
        text = line(iteration, self._total, success, env_steps_per_s, seconds, bottleneck, left, off, mean_return)
        if self._live is None:
            self._print(text)
        else:
            self._show(text)

    def _print(self, text: str) -> None:
        self._said = self._clock()
        print(text, file=self._stream, flush=True)

    def _show(self, text: str) -> None:
        from rich.text import Text

        if not self._live.is_started:
            self._live.start()
        self._live.update(Text(text), refresh=True)

    def begin(self, done: int = 0) -> None:
        """Iterations start here, after `done` that an earlier process did: time left counts from now."""
        self._done, self._started = done, self._clock()

    def within(self, what: str, done: int, total: int) -> None:
        """How far a longer part is (`what` 20/64 episodes): every step on a terminal; elsewhere every tenth of the way, when the last line is long enough ago."""
        text = f"{what} {done}/{total} episodes"
        if self._live is not None:
            self._show(text)
        elif done * TENTHS // total > (done - 1) * TENTHS // total and done < total and self._clock() - self._said >= self._pause:
            self._print(text)

    def note(self, text: str) -> None:
        """A line of its own that stays, above the progress line."""
        if self._live is not None and self._live.is_started:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            self._print(text)

    def close(self) -> None:
        if self._live is not None and self._live.is_started:
            self._live.stop()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception) -> None:
        self.close()
