"""A folder in the layout of RL4VLA's assets, made by hand: boxes for objects and plates, one-coloured pictures for tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

SIDES = ((-1, -1, -1), (1, -1, -1), (1, 1, -1), (-1, 1, -1), (-1, -1, 1), (1, -1, 1), (1, 1, 1), (-1, 1, 1))
FACES = ((1, 3, 2), (1, 4, 3), (5, 6, 7), (5, 7, 8), (1, 2, 6), (1, 6, 5), (2, 3, 7), (2, 7, 6), (3, 4, 8), (3, 8, 7), (4, 1, 5), (4, 5, 8))


def box_mesh(half: tuple[float, float, float]) -> str:
    """A Wavefront .obj."""
    corners = [" ".join(str(sign * side) for sign, side in zip(signs, half)) for signs in SIDES]
    return "\n".join([*(f"v {corner}" for corner in corners), *(f"f {a} {b} {c}" for a, b, c in FACES)]) + "\n"


def plate_folder(folder: Path) -> Path:
    """25 objects of 4 x 4 x 4 cm, 17 plates of 14 x 14 x 1 cm (in files twice as large, with a scale of a half), and 21 tables of one grey each."""
    for kind, count, half in (("more_carrot", 25, (0.02, 0.02, 0.02)), ("more_plate", 17, (0.07, 0.07, 0.005))):
        entries = {}
        for number in range(count):
            model = folder / kind / f"{kind}_{number:02d}"
            model.mkdir(parents=True)
            for name in ("collision.obj", "textured.obj"):
                (model / name).write_text(box_mesh(tuple(2 * side for side in half)))
            corners = {"min": [-2 * side for side in half], "max": [2 * side for side in half]}
            entries[model.name] = {"name": f"{kind} number {number}", "bbox": corners, "scale": [0.5], "density": 500}
        (folder / kind / "model_db.json").write_text(json.dumps(entries))
    tables = folder / "more_table"
    for kind in ("imgs", "textures"):
        (tables / kind).mkdir(parents=True)
    for number in range(21):
        Image.fromarray(np.full((6, 8, 3), 10 * number, np.uint8)).save(tables / "imgs" / f"{number:02d}.png")
        Image.fromarray(np.full((6, 8, 3), 255 - number, np.uint8)).save(tables / "textures" / f"t{number:02d}.png")
    (tables / "model_db.json").write_text(json.dumps({f"{number:02d}.png": {"texture": f"t{number:02d}.png", "mix": 0.5} for number in range(21)}))
    return folder
