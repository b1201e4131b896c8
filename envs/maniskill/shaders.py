"""SAPIEN's shader packs less a table of reflections that only scenes with an environment map need.

SAPIEN fills that table by a compute shader, in every process before its first picture: nothing for a GPU, ten seconds and more for a software
renderer. Without a map the surroundings are black and what the table says is multiplied by zero, so pictures are the same to the bit.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from envs.maniskill import vulkan

sapien = vulkan.import_sapien()

FOLDER = Path(sapien.__file__).parent / "vulkan_shader"
COMMON = "common"  # what the packs include
TABLE = "BRDFLUT"
LINES = (  # what they are, and what they become
    (re.compile(rf"layout\([^)]*\) uniform sampler2D sampler{TABLE};"), ""),
    (re.compile(rf"texture\(sampler{TABLE},[^;]*\)\.xy;"), "vec2(0);"),
)
_own = sapien.render.set_camera_shader_dir


def use_lean() -> None:
    """From now on cameras get the packs without the table."""
    sapien.render.set_camera_shader_dir = lambda pack: _own(lean(pack))


def use_whole() -> None:
    """From now on cameras get SAPIEN's own packs."""
    sapien.render.set_camera_shader_dir = _own


def has_map(env: Any) -> bool:
    """Whether the scene of a ManiSkill env has an environment map."""
    return any(scene.render_system.cubemap is not None for scene in env.scene.sub_scenes)


def lean(pack: str) -> str:
    """The folder of a pack without the table; `pack` itself where it is not SAPIEN's, has no such table, or nothing can be written."""
    texts = _texts(pack)
    if not any(TABLE in text for text in texts.values()):
        return pack
    for line, instead in LINES:
        texts = {name: line.sub(instead, text) for name, text in texts.items()}
    if any(TABLE in text for text in texts.values()):
        return pack  # another SAPIEN, which uses it in another way
    packs = cache() / f"sapien-{sapien.__version__}"
    try:
        _write(packs / COMMON, _texts(COMMON))
        _write(packs / pack, texts)
    except OSError:
        return pack
    return str(packs / pack)


def cache() -> Path:
    """Where programs keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "m2flow" / "shaders"


def _texts(pack: str) -> dict[str, str]:
    folder = FOLDER / pack
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} if pack and folder.is_dir() else {}


def _write(folder: Path, texts: dict[str, str]) -> None:
    """Each file at once or not at all: workers that start together read each other's."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        if path.exists() and path.read_text() == text:
            continue
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
