"""One's own assets in the place of the stand-ins, read from a folder in the layout of RL4VLA and RLinf.

FOLDER/more_carrot/model_db.json   {"<model>": {"name": text, "bbox": {"min": [3], "max": [3]}, "scale": [1.0], "density": 1000}, ...}, 25 of them
FOLDER/more_carrot/<model>/        collision.obj, and textured.obj, .dae or .glb
FOLDER/more_plate/                 the same, 17 of them
FOLDER/more_table/model_db.json    {"<picture>": {"texture": "<picture>", "mix": 1.0}, ...}, 21 of them; in imgs/ and in textures/
The order in a model_db.json is that of the catalogue: seen ones first. Of several scales the first is taken.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from envs.maniskill.put_on_plate.catalogue import Catalogue, Mesh, Table, Thing

OBJECTS, PLATES, TABLES = 25, 17, 21
LAYOUT = "more_carrot, more_plate and more_table, each with its model_db.json, as in rlinf/envs/maniskill/assets/carrot of RLinf"


def from_folder(folder: str | Path) -> Catalogue:
    """Raises ValueError naming the file or the entry that is missing, or the count that is wrong."""
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise ValueError(f"env.assets: found no folder {folder}, wanted one with {LAYOUT}; or env.assets=null for the stand-ins")
    objects, plates = (_things(folder / name, count) for name, count in (("more_carrot", OBJECTS), ("more_plate", PLATES)))
    return Catalogue(str(folder), objects, plates, _tables(folder / "more_table"))


def _things(folder: Path, count: int) -> tuple[Thing, ...]:
    return tuple(_thing(folder / model, entry, folder / "model_db.json") for model, entry in _entries(folder, count).items())


def _thing(folder: Path, entry: dict, where: Path) -> Thing:
    missing = [key for key in ("name", "bbox") if key not in entry]
    if missing:
        raise ValueError(f"env.assets: found no {missing[0]!r} of {folder.name!r} in {where}, wanted a text and the corners of its bounding box")
    try:
        scale = float(np.ravel(entry.get("scale", 1.0))[0])
        low, high = (np.array(entry["bbox"][end], np.float64).reshape(3) * scale for end in ("min", "max"))
        density = float(entry.get("density", 1000))
        if not (np.isfinite([*low, *high]).all() and (low < high).all() and scale > 0 and 0 < density < np.inf):
            raise ValueError(f"found bbox {low.tolist()} to {high.tolist()}, scale {scale}, density {density}")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"env.assets: cannot read {folder.name!r} in {where} ({error}), wanted bbox min and max of three numbers, the second larger, and a scale and a density above 0") from error
    visuals = [folder / f"textured.{ending}" for ending in ("obj", "dae", "glb")]
    mesh = Mesh(_solid(folder / "collision.obj"), next((path for path in visuals if path.is_file()), visuals[0]), scale, density)
    _file(mesh.visual)
    return Thing(str(entry["name"]), tuple(((high - low) / 2).tolist()), float(-low[2]), float(high[2]), mesh=mesh)


def _tables(folder: Path) -> tuple[Table, ...]:
    found = []
    for picture, entry in _entries(folder, TABLES).items():
        texture, mix = entry.get("texture"), entry.get("mix", 1.0)
        if not isinstance(texture, str):
            raise ValueError(f"env.assets: found 'texture' {texture!r} of {picture!r} in {folder / 'model_db.json'}, wanted the name of a picture in {folder / 'textures'}")
        if not isinstance(mix, (int, float)) or not 0 <= mix <= 1:
            raise ValueError(f"env.assets: found 'mix' {mix!r} of {picture!r} in {folder / 'model_db.json'}, wanted a number from 0 to 1")
        found.append(Table(None, _file(folder / "imgs" / picture), _file(folder / "textures" / texture), float(mix)))
    return tuple(found)


def _entries(folder: Path, count: int) -> dict:
    path = _file(folder / "model_db.json")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"env.assets: {path} is not JSON ({error})") from error
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()) or len(entries) != count:
        raise ValueError(f"env.assets: found {len(entries) if isinstance(entries, (dict, list)) else 'no'} entries in {path}, wanted {count}, each a name with its settings")
    return entries


def _solid(path: Path) -> Path:
    """An OBJ file that something can collide with: SAPIEN would build a body of nothing from another, and every episode would fail."""
    try:
        lines = [line.split() for line in _file(path).read_text(encoding="utf-8").splitlines()]
        corners = np.array([line[1:4] for line in lines if line[:1] == ["v"]], np.float64)
        faces = [int(corner.split("/")[0]) for line in lines if line[:1] == ["f"] for corner in line[1:]]
    except ValueError as error:  # another encoding, or what is no number
        raise ValueError(f"env.assets: cannot read {path} ({error}), wanted the corners and faces of an OBJ file") from error
    if len(corners) < 4 or not np.isfinite(corners).all() or not faces or max(map(abs, faces)) > len(corners):
        raise ValueError(f"env.assets: found {len(corners)} corners and faces up to number {max(map(abs, faces), default=0)} in {path}, wanted an OBJ file with a solid: four corners or more, and faces between them")
    return path


def _file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"env.assets: found no file {path}, wanted the folder to hold {LAYOUT}")
    return path
