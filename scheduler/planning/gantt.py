"""A timeline drawn for a terminal, and what every drawing of a timeline needs: its rows, its idle shares and its ticks.

A row is a stage, or a stage and one slot group; a stage's rows stand together, and stages stand in the order in which they first start.
A stage never takes more than MOST_ROWS rows: the slot groups beyond share the last one. All times are the timeline's own seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from scheduler.timeline import Span, Timeline

MOST_ROWS = 16
SHADES = " ░▒▓█"
CELLS_PER_TICK = 10
NARROWEST = 10
HAIR = 1e-6  # of a cell or step: what rounding may add or take, also late in a long run
NOTHING = "Nothing to draw: no call took any time."


@dataclass(frozen=True)
class Row:
    stage: str
    part: str  # of the stage: "" all of it, "3" its slot group 3, "+49 groups" the slot groups that share this row
    spans: list[Span]  # by start; overlapping where slot groups share the row

    @property
    def label(self) -> str:
        return f"{self.stage} {self.part}".rstrip()


@dataclass(frozen=True)
class Chart:
    start: float  # seconds, the first start
    end: float  # seconds, the last end
    rows: list[Row]  # none where no call took any time
    idle: dict[str, float]  # stage -> share of start..end in which none of its calls ran, 0 to 1; in the order of the rows

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """(seconds, label) at the multiples in start..end of the smallest step of 1, 2 or 5 x 10^k seconds that fits at most `most` times into it."""
        digit, power = _step(self.end - self.start, most)
        step, decimals = digit * 10.0**power, max(0, -power)
        first, last = math.ceil(self.start / step - HAIR), math.floor(self.end / step + HAIR)
        return [(round(number * step, decimals), f"{number * step:.{decimals}f}") for number in range(first, last + 1)]


def chart(timeline: Timeline) -> Chart:
    """What to draw of `timeline`; a timeline in which no time passed has no rows."""
    wall = timeline.wall
    if not wall:
        return Chart(0.0, 0.0, [], {})
    rows, busy = tracks(timeline), timeline.busy()
    idle = {row.stage: 1 - busy[row.stage] / wall for row in rows}
    return Chart(min(span.start for span in timeline.spans), max(span.end for span in timeline.spans), rows, idle)


def tracks(timeline: Timeline) -> list[Row]:
    """The rows of `timeline`: of each stage one row per slot group, then the row that groups share; calls outside groups are in the first row."""
    stages: dict[str, dict[int | None, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for span in sorted(timeline.spans, key=lambda span: span.start):
        stages[span.stage][span.group].append(span)
    return [row for stage, groups in stages.items() for row in _rows(stage, groups)]


def text_gantt(timeline: Timeline, width: int = 100) -> str:
    """One line per row and an axis in seconds below; no newline at the end.

    Each of the `width` cells of a row is an equal slice of the timeline. Its shade is the share of the slice in which one of the row's
    calls ran, to the nearest quarter, but never blank where something ran. At the right end: the row's busy share of the whole timeline.
    A row that groups share is busy while any of them is. Raises ValueError for a width below NARROWEST.
    """
    if width < NARROWEST:
        raise ValueError(f"found a width of {width} cells, wanted at least {NARROWEST}; leave it out for 100")
    drawn = chart(timeline)
    if not drawn.rows:
        return NOTHING
    left = max(len(row.label) for row in drawn.rows)
    lines = []
    for row in drawn.rows:
        shares = _shares(row.spans, drawn.start, drawn.end, width)
        lines.append(f"{row.label:<{left}} │{''.join(map(_shade, shares))}│{sum(shares) / width:5.0%}")
    return "\n".join(lines + _axis(drawn, left, width))


def _rows(stage: str, groups: dict[int | None, list[Span]]) -> list[Row]:
    outside = groups.pop(None, [])  # loads and unloads of a stage that works in groups, everything of one that does not
    if not groups:
        return [Row(stage, "", outside)]
    order = sorted(groups)
    groups[order[0]] = sorted(outside + groups[order[0]], key=lambda span: span.start)
    alone = order if len(order) <= MOST_ROWS else order[: MOST_ROWS - 1]
    rows = [Row(stage, f"group {group}" if len(groups) > 1 else "", groups[group]) for group in alone]
    shared = order[len(alone) :]
    if shared:
        spans = sorted((span for group in shared for span in groups[group]), key=lambda span: span.start)
        rows.append(Row(stage, f"{len(shared)} more groups", spans))
    return rows


def _shares(spans: list[Span], start: float, end: float, cells: int) -> list[float]:
    """The share, 0 to 1, of each of `cells` equal slices of start..end in which at least one of `spans` (by start) ran."""
    shares, per_second, reached = [0.0] * cells, cells / (end - start), 0.0
    for span in spans:  # in units of cells from here: cell 3 is 3.0..4.0
        begin, stop = max((span.start - start) * per_second, reached), (span.end - start) * per_second
        for cell in range(int(begin), min(int(stop), cells - 1) + 1):
            shares[cell] += max(0.0, min(stop, cell + 1) - max(begin, cell))
        reached = max(reached, stop)
    return shares


def _shade(share: float) -> str:
    if share <= HAIR:
        return SHADES[0]
    return SHADES[max(1, int(share * 4 + 0.5 + HAIR))]


def _axis(drawn: Chart, left: int, width: int) -> list[str]:
    """Two lines: marks below the cells in which the ticks lie (the right frame stands for the end), and their seconds."""
    marks, seconds = ["─"] * width + ["┘"], [" "] * (left + width + 20)
    for at, label in drawn.ticks(width // CELLS_PER_TICK):
        column = min(width, int((at - drawn.start) / (drawn.end - drawn.start) * width + HAIR))
        marks[column] = "┤" if column == width else "┬"
        first = max(0, left + 2 + column - len(label) // 2)
        seconds[first : first + len(label)] = label
    return [f"{'':<{left}} └{''.join(marks)} busy", "".join(seconds).rstrip() + " s"]


def _step(length: float, most: int) -> tuple[int, int]:
    """(1, 2 or 5, k): the smallest such step of digit x 10^k that fits at most `most` times into `length`."""
    power = math.floor(math.log10(length / most))
    for digit in (1, 2, 5):
        if digit * 10.0**power * most >= length * (1 - HAIR):
            return digit, power
    return 1, power + 1
