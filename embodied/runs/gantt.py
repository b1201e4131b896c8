"""A timeline as a PNG: one row per stage and slot group, one colour per stage; there whole or not at all.

What to draw comes ready (`scheduler.planning.gantt.chart` makes it), so this file knows pixels only. A pixel that a call fills in part
is tinted in part: a row of many short calls looks as busy as it was, to a quarter, but never blank where something ran.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image, ImageDraw, ImageFont

# Okabe and Ito's colours: told apart with any common colour blindness. An eighth stage starts over; its rows still carry its name.
PALETTE = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0), (86, 180, 233), (204, 121, 167), (240, 228, 66))
PAPER, LANE, GRID, INK, FAINT = (255, 255, 255), (244, 245, 247), (222, 225, 230), (34, 38, 46), (105, 111, 122)
REST, HATCH = (216, 218, 222), (150, 154, 162)  # a device taken or given back: no work on data
DEVICE_KINDS = ("load", "unload")
NARROWEST = 600  # pixels
MARGIN, BAR, GAP, STAGE_GAP, EDGE = 28, 22, 4, 12, 2  # pixels
TICK_EVERY = 90  # pixels at the least
FINE = 4  # columns drawn for each column of pixels


class Span(Protocol):
    @property
    def kind(self) -> str: ...  # "turn", "granule", "update", "load", "unload"
    @property
    def start(self) -> float: ...  # seconds
    @property
    def end(self) -> float: ...  # seconds


class Row(Protocol):
    @property
    def stage(self) -> str: ...
    @property
    def part(self) -> str: ...  # what the row is of its stage; "" for all of it
    @property
    def spans(self) -> Sequence[Span]: ...  # by start


class Chart(Protocol):
    @property
    def start(self) -> float: ...  # seconds
    @property
    def end(self) -> float: ...  # seconds, above start where there are rows
    @property
    def rows(self) -> Sequence[Row]: ...  # a stage's rows stand together
    @property
    def idle(self) -> Mapping[str, float]: ...  # stage -> share, 0 to 1
    def ticks(self, most: int) -> Sequence[tuple[float, str]]: ...  # (seconds, label), about `most` of them


def write_png(path: str | Path, chart: Chart, title: str = "", width: int = 1600) -> Path:
    """Draw `chart`, `width` pixels wide and as high as its rows need; makes the parent folder.

    Calls of kind "load" and "unload" are hatched grey, those of kind "update" have an outline. Raises ValueError for a chart without
    rows and for a width below NARROWEST; nothing is left behind then.
    """
    path = Path(path)
    if not chart.rows:
        raise ValueError(f"{path}: found a chart without rows, wanted at least one call that took time; draw it after a round has run")
    if width < NARROWEST:
        raise ValueError(f"{path}: found a width of {width} pixels, wanted at least {NARROWEST} for labels and bars to fit; leave it out for 1600")
    image = _picture(chart, title, width)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.stem}.writing.png")
    try:
        image.save(aside, "PNG")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


@dataclass(frozen=True)
class _Plot:
    left: int  # pixels, where chart.start lies
    right: int  # pixels, where chart.end lies
    top: int
    bottom: int  # below the last row
    tops: list[int]  # of each row's bar

    def x(self, seconds: float, chart: Chart) -> float:
        return self.left + (seconds - chart.start) / (chart.end - chart.start) * (self.right - self.left)


def _picture(chart: Chart, title: str, width: int) -> Image.Image:
    font, large = ImageFont.load_default(size=15), ImageFont.load_default(size=22)
    colours = {stage: PALETTE[number % len(PALETTE)] for number, stage in enumerate(dict.fromkeys(row.stage for row in chart.rows))}
    plot = _layout(chart, MARGIN + (42 if title else 0), width, font)
    legend = _legend(chart, colours, plot.bottom + 52, width, font)
    height = legend[-1][1] + BAR + MARGIN
    image = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((MARGIN, MARGIN), title, INK, large, anchor="lt")
    for top in plot.tops:
        draw.rectangle((plot.left, top, plot.right - 1, top + BAR - 1), LANE)
    _axis(draw, chart, plot, font)
    _labels(draw, chart, plot, font)
    for row, top in zip(chart.rows, plot.tops, strict=True):
        boxes = [(plot.x(span.start, chart) - plot.left, plot.x(span.end, chart) - plot.left, span.kind) for span in row.spans]
        bars = _bars(boxes, colours[row.stage], plot.right - plot.left)
        image.paste(bars, (plot.left, top), bars)
    for x, y, text, colour, kind in legend:
        chip = _bars([(0, BAR, kind)], colour, BAR)
        image.paste(chip, (x, y), chip)
        draw.text((x + BAR + 8, y + BAR // 2), text, INK, font, anchor="lm")
    return image


def _layout(chart: Chart, top: int, width: int, font: ImageFont.FreeTypeFont) -> _Plot:
    heads = max(font.getlength(stage) + 10 + font.getlength(_idle(share)) for stage, share in chart.idle.items())
    parts = max(font.getlength(row.part) for row in chart.rows)
    tops, y = [], top
    for number, row in enumerate(chart.rows):
        if number:
            y += GAP if row.stage == chart.rows[number - 1].stage else STAGE_GAP
        tops.append(y)
        y += BAR
    return _Plot(MARGIN + round(heads + parts) + (30 if parts else 12), width - MARGIN - 12, top, y, tops)


def _idle(share: float) -> str:
    return f"idle {share:.0%}"


def _labels(draw: ImageDraw.ImageDraw, chart: Chart, plot: _Plot, font: ImageFont.FreeTypeFont) -> None:
    named = set()
    for row, top in zip(chart.rows, plot.tops, strict=True):
        if row.stage not in named:
            draw.text((MARGIN, top + BAR // 2), row.stage, INK, font, anchor="lm")
            draw.text((MARGIN + 10 + font.getlength(row.stage), top + BAR // 2), _idle(chart.idle[row.stage]), FAINT, font, anchor="lm")
            named.add(row.stage)
        draw.text((plot.left - 10, top + BAR // 2), row.part, FAINT, font, anchor="rm")


def _axis(draw: ImageDraw.ImageDraw, chart: Chart, plot: _Plot, font: ImageFont.FreeTypeFont) -> None:
    base = plot.bottom + 8
    for seconds, label in chart.ticks((plot.right - plot.left) // TICK_EVERY):
        x = round(plot.x(seconds, chart))
        draw.line((x, plot.top, x, base + 5), GRID)
        draw.text((x, base + 10), label, INK, font, anchor="mt")
    draw.line((plot.left, base, plot.right, base), FAINT)
    draw.text((MARGIN, base + 10), "seconds", FAINT, font, anchor="lt")


def _legend(chart: Chart, colours: Mapping[str, tuple], top: int, width: int, font: ImageFont.FreeTypeFont) -> list[tuple]:
    """(x, y, text, colour, kind) of each entry, from left to right and on as many lines as it takes; kinds that do not occur are left out."""
    kinds = {span.kind for row in chart.rows for span in row.spans}
    entries = [(stage, colour, "") for stage, colour in colours.items()]
    entries += [("load, unload", REST, "load")] * bool(kinds & set(DEVICE_KINDS)) + [("update", LANE, "update")] * ("update" in kinds)
    placed, x, y = [], MARGIN, top
    for text, colour, kind in entries:
        room = BAR + 8 + round(font.getlength(text))
        if x + room > width - MARGIN and x > MARGIN:
            x, y = MARGIN, y + BAR + 8
        placed.append((x, y, text, colour, kind))
        x += room + 28
    return placed


def _bars(boxes: Sequence[tuple[float, float, str]], colour: tuple, width: int) -> Image.Image:
    """The bars of one row on nothing: RGBA, `width` x BAR pixels. boxes, by left: (left, right, kind of call), in pixels and fractions of them."""
    fine = Image.new("RGBA", (width * FINE, BAR))
    draw = ImageDraw.Draw(fine)
    reached = -FINE
    for left, right, kind in boxes:
        first, past = round(left * FINE), round(right * FINE)
        if first == past:  # shorter than a fine column: a trace of it where nothing is near, or many such calls would add up to a full bar
            if first - reached < FINE:
                continue
            first = min(first, width * FINE - 1)
            past = first + 1
        reached = max(reached, past)
        if past - first > 4 * FINE:
            past -= FINE  # calls that touch stay two
        if kind in DEVICE_KINDS:
            fine.paste(_hatching(past - first), (first, 0))
            continue
        draw.rectangle((first, 0, past - 1, BAR - 1), INK if kind == "update" else colour)
        if kind == "update":
            side = EDGE * FINE if past - first > 4 * EDGE * FINE else 0
            draw.rectangle((first + side, EDGE, past - 1 - side, BAR - 1 - EDGE), colour)
    return fine.resize((width, BAR), Image.Resampling.BOX)


def _hatching(columns: int) -> Image.Image:
    """Slanted lines on grey, `columns` fine columns wide."""
    pattern = Image.new("RGBA", (columns, BAR), REST)
    draw = ImageDraw.Draw(pattern)
    for foot in range(-BAR * FINE, columns, 8 * FINE):
        draw.line((foot, BAR, foot + BAR * FINE, 0), HATCH, width=2)
    return pattern
