"""Which OpenGL draws the pictures, and on which device; decided before any simulator is imported.

`MUJOCO_GL` is respected when set; else EGL where it has a device, then OSMesa. The EGL device is found by position among
the visible accelerators, because EGL counts devices its own way and not as CUDA does.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import os
from typing import Iterator, Mapping

PACKAGES = "apt-get install -y libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri"
_OFF = ("disable", "disabled", "off", "false", "0")
_EGL_EXTENSIONS = 0x3055


def choose_backend(environ: Mapping[str, str] = os.environ) -> str | None:
    """"egl", "osmesa" or "glfw"; None where nothing can draw (or MUJOCO_GL is off)."""
    asked = environ.get("MUJOCO_GL", "").lower().strip()
    if asked in _OFF:
        return None
    if asked in ("glfw", "osmesa"):
        return asked
    if asked not in ("", "egl"):
        raise ValueError(f"found MUJOCO_GL={asked}, wanted egl, osmesa, glfw or disable")
    if egl_devices():
        return "egl"
    return "osmesa" if not asked and ctypes.util.find_library("OSMesa") else None


def require_backend() -> str:
    """The backend, put into MUJOCO_GL for what is imported later; raises RuntimeError naming the packages where there is none."""
    backend = choose_backend()
    if backend is None:
        raise RuntimeError(
            f"found nothing that can draw without a screen (MUJOCO_GL={os.environ.get('MUJOCO_GL', 'unset')}, no EGL device, "
            f"no OSMesa library), wanted EGL or OSMesa; on Debian: {PACKAGES} -- or choose cameras=() to render nothing"
        )
    os.environ["MUJOCO_GL"] = backend
    # Vertex work in Mesa's rasteriser has one thread anyway; more only disturb the neighbours.
    os.environ.setdefault("LP_NUM_THREADS", "1")
    if backend == "egl" and "MUJOCO_EGL_DEVICE_ID" not in os.environ:
        os.environ["MUJOCO_EGL_DEVICE_ID"] = str(egl_device_id(os.environ, egl_devices()))
    return backend


def egl_device_id(environ: Mapping[str, str], devices: list[bool], rank: int | None = None) -> int | None:
    """The EGL index to draw on; None for a backend that has no devices.

    devices: one entry per EGL device in EGL's order, True where it is a CUDA accelerator. rank: this process among those
    of the machine, LOCAL_RANK when None. An explicit MUJOCO_EGL_DEVICE_ID wins. CUDA's numbers are used only where EGL
    shows every accelerator; where a container hides some, the position among the visible ones counts.
    """
    if environ.get("MUJOCO_GL", "egl").lower() not in ("", "egl"):
        return None
    explicit = environ.get("MUJOCO_EGL_DEVICE_ID", "")
    if explicit:
        if not explicit.isdigit():
            raise ValueError(f"found MUJOCO_EGL_DEVICE_ID={explicit}, wanted a whole number from 0 to {max(len(devices) - 1, 0)}")
        return int(explicit)
    accelerators = [i for i, cuda in enumerate(devices) if cuda] or list(range(len(devices)))
    if not accelerators:
        return 0
    rank = int(environ.get("LOCAL_RANK", "0")) if rank is None else rank
    visible = [int(word) for word in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip().isdigit()]
    position = rank % len(visible) if visible else rank
    if visible and len(accelerators) > max(visible) and len(accelerators) > len(visible):
        return accelerators[visible[position]]
    return accelerators[position % len(accelerators)]


def egl_devices() -> list[bool]:
    """One entry per EGL device, True where CUDA knows it too; empty where EGL is missing."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return []
    address = egl.eglGetProcAddress
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    query, describe = address(b"eglQueryDevicesEXT"), address(b"eglQueryDeviceStringEXT")
    if not query or not describe:
        return []
    handles, count = (ctypes.c_void_p * 32)(), ctypes.c_int(0)
    ask = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int))(query)
    if not ask(len(handles), handles, ctypes.byref(count)):
        return []
    text = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)(describe)
    return [b"EGL_NV_device_cuda" in (text(handles[i], _EGL_EXTENSIONS) or b"") for i in range(count.value)]


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """os.environ lacks `name` inside, and has it back outside."""
    kept = os.environ.pop(name, None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ[name] = kept
