"""Pictures of a simulator's state, turned by 180 degrees as LIBERO's policies expect them.

`exact` gives a stock env's pixels. `fast` draws decimated visual meshes without mirror images and multisampling: about
ten times quicker on a software rasteriser, near in look, not in pixels. Neither touches the physics.
"""

from __future__ import annotations

import atexit
import importlib
import weakref

import mujoco
import numpy as np

from envs.libero.observation import upright

CELL = 0.006  # metres; vertices of a visual mesh that share a cell of this size become one
TEXELS = 512  # a texture's shorter side stays at least this long
SMALLEST = 500  # faces; meshes at or below this are left alone
PROFILES = ("exact", "fast")


class Renderer:
    """Owns one OpenGL context; must be used by the process that made it. Close it before another takes its place."""

    def __init__(self, model: mujoco.MjModel, height: int, width: int, profile: str, backend: str):
        self.model, self.height, self.width = model, height, width
        model.vis.global_.offheight, model.vis.global_.offwidth = height, width
        if profile == "fast":
            model.vis.quality.offsamples = 0
            decimate(model)
            shrink_textures(model)
        self._gl = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = profile == "exact"
        self._options, self._nudge, self._camera = mujoco.MjvOption(), mujoco.MjvPerturb(), mujoco.MjvCamera()
        self._options.geomgroup[0] = 0  # collision shapes
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        # An EGL display is closed at exit; what lives on it must go first.
        atexit.register(_close_if_alive, weakref.ref(self))

    def render(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """[H, W, 3] uint8 from the camera with this id; `data` needs poses of bodies, geoms, cameras and lights."""
        self._gl.make_current()
        self._camera.fixedcamid = camera
        mujoco.mjv_updateScene(
            self.model, data, self._options, self._nudge, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        pixels = np.empty((self.height, self.width, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, self._viewport, self._context)
        return upright(pixels)

    def close(self) -> None:
        if self._gl is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._gl = None


def decimate(model: mujoco.MjModel, cell: float = CELL) -> None:
    """Merges nearby vertices of meshes that only serve the eye, in place; to be done before a context uploads them."""
    solid = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    of_mesh = model.geom_type == mujoco.mjtGeom.mjGEOM_MESH
    physical = set(model.geom_dataid[solid & of_mesh].tolist())
    for mesh in range(model.nmesh):
        if mesh in physical or model.mesh_facenum[mesh] <= SMALLEST:
            continue
        start, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
        vertices = model.mesh_vert[model.mesh_vertadr[mesh] :][: model.mesh_vertnum[mesh]]
        cells = np.floor(vertices / cell).astype(np.int64)
        _, first, member = np.unique(cells, axis=0, return_index=True, return_inverse=True)
        faces = first[member.reshape(-1)][model.mesh_face[start : start + count]]
        whole = (faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 2] != faces[:, 0])
        rows = np.flatnonzero(whole)
        _, single = np.unique(np.sort(faces[rows], axis=1), axis=0, return_index=True)
        rows = rows[np.sort(single)]
        model.mesh_face[start : start + len(rows)] = faces[rows]
        for per_face in (model.mesh_facenormal, model.mesh_facetexcoord):
            per_face[start : start + len(rows)] = per_face[start + rows]
        model.mesh_facenum[mesh] = len(rows)


def shrink_textures(model: mujoco.MjModel, texels: int = TEXELS) -> None:
    """Averages large textures over square blocks, in place: what a small picture shows of them is a mipmap of that size anyway."""
    for texture in range(model.ntex):
        height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
        channels, start = int(model.tex_nchannel[texture]), int(model.tex_adr[texture])
        block = max(b for b in (1, 2, 4, 8, 16) if b == 1 or (width % b == height % b == 0 and min(width, height) // b >= texels))
        if block == 1:
            continue
        whole = model.tex_data[start : start + height * width * channels].reshape(height // block, block, width // block, block, channels)
        small = whole.mean(axis=(1, 3)).round().astype(np.uint8)
        model.tex_data[start : start + small.size] = small.reshape(-1)
        model.tex_height[texture], model.tex_width[texture] = height // block, width // block


def _close_if_alive(reference: weakref.ref) -> None:
    renderer = reference()
    if renderer is not None:
        renderer.close()
