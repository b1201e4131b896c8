"""What lies on the table: the 25 objects, 17 plates and 21 tables that stand in for the literature's, and what a set of them is in general.

The stand-ins are primitives. Seen and unseen objects share neither a colour nor a shape; the one seen plate is round with a rim.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from pathlib import Path

Colour = tuple[float, float, float]  # red, green, blue in [0, 1]
STAND_INS = "stand-ins (primitives)"


@dataclass(frozen=True)
class Mesh:
    collision: Path
    visual: Path
    scale: float
    density: float  # kg per cubic metre


@dataclass(frozen=True)
class Thing:
    """An object or a plate, in a frame whose z axis points up as it lies."""

    name: str  # what texts call it
    half: tuple[float, float, float]  # metres: half the sides of its bounding box
    rest: float  # metres from the ground to its origin, as it lies
    floor: float  # metres from its origin to where something comes to rest on it
    shape: str = "mesh"  # "box", "ball", "can" (upright cylinder), "dish" and "tray" (with a rim)
    colour: Colour = (1.0, 1.0, 1.0)
    mesh: Mesh | None = None


@dataclass(frozen=True)
class Table:
    colour: Colour | None = None  # of its top
    picture: Path | None = None  # seen wherever neither the robot nor a thing is
    texture: Path | None = None  # what this table's number lends to the splits with textures; None: a pattern
    mix: float = 1.0  # factor of the split's share of the texture


@dataclass(frozen=True)
class Catalogue:
    source: str
    objects: tuple[Thing, ...]
    plates: tuple[Thing, ...]
    tables: tuple[Table, ...]


RIM = 0.004  # metres: half the width and half the height of a rim above the floor of a dish or a tray
BASE = 0.004  # metres: half the thickness of a plate
# Half sides in metres; both that lie on the table fit between the fingers (0.08) whichever way they go down.
SEEN_SHAPES = {"cube": ("box", (0.02, 0.02, 0.02)), "ball": ("ball", (0.021, 0.021, 0.021)), "can": ("can", (0.019, 0.019, 0.028)), "brick": ("box", (0.0235, 0.018, 0.018))}
UNSEEN_SHAPES = {"slab": ("box", (0.022, 0.022, 0.017)), "post": ("box", (0.018, 0.018, 0.032)), "puck": ("can", (0.023, 0.023, 0.018))}
SEEN_COLOURS = {"red": ((0.85, 0.1, 0.1), 1.0), "green": ((0.1, 0.65, 0.15), 0.95), "blue": ((0.1, 0.2, 0.85), 1.05), "yellow": ((0.95, 0.85, 0.1), 0.9)}
UNSEEN_COLOURS = {"purple": ((0.5, 0.1, 0.65), 1.0), "orange": ((1.0, 0.5, 0.05), 0.95), "white": ((0.95, 0.95, 0.95), 1.05)}
PLATE_SHAPES = {"tray": ("tray", 0.058), "bowl": ("dish", 0.056), "board": ("box", 0.06), "coaster": ("can", 0.058)}
PLATE_COLOURS = {"black": (0.08, 0.08, 0.08), "brown": (0.4, 0.25, 0.12), "pink": (0.95, 0.55, 0.7), "grey": (0.5, 0.5, 0.5)}


def stand_ins() -> Catalogue:
    objects = [*_objects(SEEN_SHAPES, SEEN_COLOURS), *_objects(UNSEEN_SHAPES, UNSEEN_COLOURS)]
    plates = [_plate("plate", "dish", 0.066, (0.9, 0.9, 0.88))]
    plates += [_plate(f"{colour} {name}", shape, half, rgb) for name, (shape, half) in PLATE_SHAPES.items() for colour, rgb in PLATE_COLOURS.items()]
    seen = [Table(colorsys.hsv_to_rgb(number / 16, 0.25, (0.45, 0.65)[number % 2])) for number in range(16)]
    unseen = [Table(colorsys.hsv_to_rgb(number / 5 + 0.03, 0.8, 0.8)) for number in range(5)]
    return Catalogue(STAND_INS, tuple(objects), tuple(plates), tuple(seen + unseen))


def _objects(shapes: dict, colours: dict) -> list[Thing]:
    found = []
    for name, (shape, half) in shapes.items():
        for colour, (rgb, scale) in colours.items():
            sides = tuple(round(side * scale, 5) for side in half)
            found.append(Thing(f"{colour} {name}", sides, sides[2], sides[2], shape, rgb))
    return found


def _plate(name: str, shape: str, half: float, colour: Colour) -> Thing:
    height = BASE + (RIM if shape in ("dish", "tray") else 0.0)
    return Thing(name, (half, half, height), BASE, BASE, shape, colour)
