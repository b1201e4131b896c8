"""Whether SAPIEN finds something to draw with, and how to get it; and how a scene is built where it finds nothing.

SAPIEN needs a Vulkan driver with external semaphores: a GPU's own, or Mesa's software renderer from 24.3 on. Physics needs none, but SAPIEN
makes a material for every visual shape it reads; without a driver a blank stands in for it, which nothing ever draws.
"""

from __future__ import annotations

import os
import warnings
from functools import lru_cache

MEND = (
    "as root in the checkout: make vulkan; without one, on Debian 12 with bookworm-backports among its sources: apt-get install -y -t bookworm-backports "
    "mesa-vulkan-drivers libvulkan1 (elsewhere Mesa >= 24.3, or a GPU driver with Vulkan)"
)


class Blank:
    """Stands in for a material or a texture that is never drawn."""

    def __init__(self, *arguments, **settings):
        """Whatever a material is made of."""

    def __getattr__(self, name: str):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda *arguments: None


@lru_cache(maxsize=1)
def found() -> bool:
    """Whether SAPIEN finds a Vulkan device that it can use."""
    sapien = import_sapien()
    try:
        sapien.render.RenderMaterial()
    except RuntimeError:
        return False
    return True


def require() -> None:
    """Raises RuntimeError, with the command that mends it, where no picture can be drawn."""
    if not found():
        raise RuntimeError(f"found no Vulkan device that SAPIEN can draw with, wanted one for the cameras; {MEND}; or do without pictures: env.cameras=[]")


@lru_cache(maxsize=1)
def do_without() -> None:
    """Has SAPIEN build scenes without materials, for the rest of this process; it cannot draw anyway. Before mani_skill is imported, which copies the name."""
    sapien = import_sapien()
    from sapien.wrapper import urdf_loader

    for module in (sapien.render, sapien.pysapien.render, urdf_loader):
        module.RenderMaterial = module.RenderTexture2D = Blank


def import_sapien():
    """The module, imported without its advice; its software renderer is held to one thread, so that worker processes do not fight."""
    os.environ.setdefault("LP_NUM_THREADS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sapien
        import sapien.render
    return sapien
