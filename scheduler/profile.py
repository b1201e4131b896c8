"""What was measured: how long each stage takes for how many items on how many units, what it holds, and what a round consists of.

A profile is a json file that a person may write or edit; docs/profile.md is its format. Between measured sizes it is interpolated
along straight lines, beyond them continued, and never falls with more items. Seconds, bytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Mapping

CORES, ACCELERATORS = "cores", "accelerators"


MOST_ITEMS, MOST_SECONDS, MOST_BYTES = 10**7, 1e9, 10**16  # beyond these a number is a slip of the pen


class ProfileError(ValueError):
    """The profile cannot be used; the message says what was found, what was wanted and the way out."""


@dataclass(frozen=True)
class Point:
    """One measured call. units: the CPU cores (processes or threads) or accelerators it ran on."""

    items: int
    units: int
    seconds: float
    memory: int = 0  # bytes on each accelerator (host bytes for a stage on cores) while it runs, beyond what is resident

    def __post_init__(self) -> None:
        sizes = all(whole(size, 1) for size in (self.items, self.units)) and whole(self.memory, 0, MOST_BYTES)
        if not sizes or not _number(self.seconds, MOST_SECONDS):
            raise ProfileError(f"found a point with items={self.items!r}, units={self.units!r}, seconds={self.seconds!r}, memory={self.memory!r}; wanted whole items and units of at least 1, seconds from 0 to {MOST_SECONDS:.0e} and whole bytes of at least 0")


@dataclass(frozen=True)
class StageProfile:
    """on: "cores" or "accelerators", the units it runs on. spread: standard deviation of one call's seconds, as a share of them."""

    on: str
    points: tuple[Point, ...]
    resident: int = 0  # bytes on each accelerator while loaded: parameters, gradients, optimizer state
    begin_s: float = 0.0  # to begin one item on one unit (an env's reset)
    update_s: float = 0.0  # once a round, after its last item (the optimizer's step)
    load_s: float = 0.0
    unload_s: float = 0.0
    spread: float = 0.0
    streams: bool = True  # False: nothing can be done before the round's last item is in
    most_units: int | None = None  # it gains nothing from more; None = any number

    def __post_init__(self) -> None:
        if self.on not in (CORES, ACCELERATORS):
            raise ProfileError(f"found on={self.on!r}, wanted {CORES!r} or {ACCELERATORS!r}")
        for name, most in (("resident", MOST_BYTES), ("begin_s", MOST_SECONDS), ("update_s", MOST_SECONDS), ("load_s", MOST_SECONDS), ("unload_s", MOST_SECONDS), ("spread", 10.0)):
            if not _number(getattr(self, name), most):
                raise ProfileError(f"found {name}={getattr(self, name)!r}, wanted a number from 0 to {most:.0e}")
        if not isinstance(self.streams, bool):
            raise ProfileError(f"found streams={self.streams!r}, wanted true or false")
        if self.most_units is not None and not whole(self.most_units, 1):
            raise ProfileError(f"found most_units={self.most_units!r}, wanted a whole number of at least 1, or null")
        if not self.points:
            raise ProfileError("found no measured point, wanted at least one {items, units, seconds}")

    def seconds(self, items: int, units: int) -> float:
        """One call with `items` on `units`. Beyond the most units that were measured every unit takes its share of the items (data parallel)."""
        if items <= 0:
            return 0.0
        measured, share = self._share(items, units)
        return _along(share, [(p.items, p.seconds) for p in self.points if p.units == measured])

    def memory(self, items: int, units: int) -> int:
        """Bytes on each unit beyond `resident` while `items` run on `units`."""
        measured, share = self._share(items, units)
        return int(_along(share, [(p.items, p.memory) for p in self.points if p.units == measured]))

    def extrapolated(self, items: int, units: int) -> bool:
        """Whether `seconds` goes beyond what was measured."""
        measured, share = self._share(items, units)
        sizes = [p.items for p in self.points if p.units == measured]
        return not min(sizes) <= share <= max(sizes)

    def _share(self, items: int, units: int) -> tuple[int, float]:
        """(the measured number of units that stands for `units`, the items they would have had)."""
        units = units if self.most_units is None else min(units, self.most_units)
        at_most = [p.units for p in self.points if p.units <= units]
        measured = max(at_most) if at_most else min(p.units for p in self.points)
        return measured, math.ceil(items / units * measured - 1e-9) if units != measured else items


@dataclass(frozen=True)
class Round:
    """What one round consists of."""

    items: int  # episodes (or other items of the source)
    slots: int = 1  # running env instances of a loop
    turns: tuple[int, ...] = (1,)  # turns of the loop an item takes; when there are fewer than items they are gone through again
    group: int = 1  # items that are only worth something together: a granule holds whole groups

    def __post_init__(self) -> None:
        if not (whole(self.items, 1) and whole(self.slots, 1) and whole(self.group, 1)) or self.items % self.group or not self.turns or not all(whole(each, 1) for each in self.turns):
            raise ProfileError(f"found a round of items={self.items}, slots={self.slots}, turns={list(self.turns)[:5]}, group={self.group}; wanted whole numbers from 1 to {MOST_ITEMS}, and whole groups")

    def turns_of(self, item: int) -> int:
        return self.turns[item % len(self.turns)]


@dataclass(frozen=True)
class Profile:
    stages: Mapping[str, StageProfile]
    round: Round
    edges: Mapping[str, int] = field(default_factory=dict)  # "sim->learn": bytes of one item
    machine: str = ""  # where it was measured, in words
    call_s: float = 0.0  # seconds of the caller for each call, beyond the stage's own

    def __post_init__(self) -> None:
        if not _number(self.call_s, MOST_SECONDS):
            raise ProfileError(f"found call_s={self.call_s!r}, wanted seconds from 0 to {MOST_SECONDS:.0e}")

    def stage(self, name: str) -> StageProfile:
        if name not in self.stages:
            raise ProfileError(f"the profile has no stage {name!r}, wanted it beside {', '.join(sorted(self.stages)) or 'nothing'}; measure again, or add it by hand")
        return self.stages[name]

    def save(self, path: Path) -> None:
        aside = path.with_name(f".{path.name}")
        aside.write_text(json.dumps(asdict(self), indent=2) + "\n")
        aside.replace(path)  # whole or not there


def load(path: Path) -> Profile:
    """Raises ProfileError for a file that is not a profile, saying where in it."""
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path} is not a profile: {error}; wanted a json file as docs/profile.md describes it") from error
    try:
        return of_json(found)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from error


def of_json(found: Any) -> Profile:
    top = _checked("the profile", found, Profile)
    stages = {}
    for name, value in _checked_map("stages", top["stages"]).items():
        stage = _checked(f"stages.{name}", value, StageProfile)
        if not isinstance(stage["points"], list):
            raise ProfileError(f"stages.{name}.points: found {type(stage['points']).__name__}, wanted a list of points")
        points = tuple(_made(f"stages.{name}.points[{i}]", point, Point) for i, point in enumerate(stage["points"]))
        stages[name] = _made(f"stages.{name}", {**stage, "points": points}, StageProfile)
    round_ = _checked("round", top["round"], Round)
    turns = round_.get("turns", [1])
    return Profile(stages, _made("round", {**round_, "turns": tuple(turns) if isinstance(turns, list) else (turns,)}, Round), _checked_map("edges", top.get("edges", {})), str(top.get("machine", "")), top.get("call_s", 0.0))


def whole(value: Any, least: int, most: int = MOST_ITEMS) -> bool:
    """Whether it is a whole number from `least` to `most`; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(value: Any, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most


def _checked_map(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProfileError(f"{where}: found {type(value).__name__}, wanted an object")
    return value


def _checked(where: str, value: Any, cls: type) -> dict[str, Any]:
    """The object, its keys those of the dataclass."""
    value = _checked_map(where, value)
    known = {f.name: f for f in fields(cls)}
    wrong = sorted(set(value) - set(known))
    lacking = [name for name in ("stages", "round", "on", "points", "items", "units", "seconds") if name in known and name not in value]
    if wrong or lacking:
        raise ProfileError(f"{where}: found {'unknown ' + ', '.join(wrong) if wrong else 'no ' + ', '.join(lacking)}; its keys are {', '.join(known)}")
    return value


def _made(where: str, value: Any, cls: type) -> Any:
    try:
        return cls(**_checked(where, value, cls))
    except (ProfileError, TypeError) as error:
        raise ProfileError(f"{where}: {error}") from error


def _along(x: float, points: list[tuple[int, float]]) -> float:
    """Piecewise linear through the points made nondecreasing; continued with the last slope; below the first point on the line through the first two, or in proportion where that is more."""
    points = sorted(points)
    rising, highest = [], 0.0
    for at, value in points:
        highest = max(highest, value)
        rising.append((at, highest))
    if len(rising) == 1:
        return rising[0][1] * max(1.0, x / rising[0][0])
    for (x0, y0), (x1, y1) in zip(rising, rising[1:]):
        if x <= x1:
            break
    if x1 == x0:
        return y1
    line = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return max(line, rising[0][1] * x / rising[0][0]) if x < rising[0][0] else line
