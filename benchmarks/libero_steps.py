"""LIBERO env steps per second and core, beside a plain loop over the stock env; prints one JSON object.

    python benchmarks/libero_steps.py [steps=64] [repeats=3] [task=0]

Stock is `OffScreenRenderEnv` as shipped, two 128 px cameras, one `step` after another. Ours is `LiberoEnv` with one 128 px
camera in chunks of 8. Both replay the same grasp from the same initial state, each side in a process of its own. Time is
CPU time of that process, all its threads together, so that what else the machine does counts for neither; resets are
timed apart. The best repeat of each side is compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from arguments import given

ROOT = Path(__file__).resolve().parents[1]
SUITE, INIT_STATE, RESOLUTION, CHUNK = "libero_spatial", 0, 128, 8


def grasp(task: int, steps: int) -> np.ndarray:
    """[steps, 7] float32: what the scripted expert does first in this episode."""
    from envs.libero import LiberoEnv
    from policies.experts.libero import LiberoExpert

    env, expert = LiberoEnv(suite=SUITE, tasks=(task,), cameras=(), render="exact", privileged=True), LiberoExpert()
    observation, _ = env.reset(options={"task": task, "init_state": INIT_STATE})
    actions = []
    for step in range(steps):
        seen = {"privileged": observation["privileged"][None], "episode": np.array([0]), "step": np.array([step])}
        actions.append(expert.act(seen).actions[0, 0])
        observation, _, terminated, _, _ = env.step(actions[-1])
        if terminated:
            raise SystemExit(f"the episode was solved after {step + 1} steps; ask for fewer than {steps}")
    env.close()
    return np.array(actions)


def stock(task: int, actions: np.ndarray, repeats: int) -> dict:
    from envs.libero import suites
    from envs.libero.stock import robosuite  # noqa: F401  prepares robosuite before its first import
    from libero.libero.envs import OffScreenRenderEnv

    scene = suites.load_task(SUITE, task)
    env = OffScreenRenderEnv(bddl_file_name=scene.scene_file, camera_heights=RESOLUTION, camera_widths=RESOLUTION)
    env.seed(0)
    resets, runs = [], []
    for _ in range(repeats):
        begun = time.process_time()
        env.reset()
        env.set_init_state(scene.init_states[INIT_STATE])
        for _ in range(10):
            env.step([0, 0, 0, 0, 0, 0, -1])
        resets.append(time.process_time() - begun)
        begun = time.process_time()
        for action in actions.astype(np.float64):
            env.step(action)
        runs.append((time.process_time() - begun) / len(actions))
    return {"step_ms": min(runs) * 1e3, "reset_ms": min(resets) * 1e3, **_memory()}


def ours(task: int, actions: np.ndarray, repeats: int, render: str) -> dict:
    from envs.libero import LiberoEnv

    env = LiberoEnv(suite=SUITE, tasks=(task,), resolution=RESOLUTION, render=render)
    start = {"task": task, "init_state": INIT_STATE}
    begun = time.process_time()
    env.reset(options=start)
    first = time.process_time() - begun
    resets, runs = [], []
    for _ in range(repeats):
        begun = time.process_time()
        env.reset(options=start)
        resets.append(time.process_time() - begun)
        begun = time.process_time()
        for chunk in actions.reshape(-1, CHUNK, 7):
            env.step_chunk(chunk)
        runs.append((time.process_time() - begun) / len(actions))
    begun = time.process_time()
    for _ in range(5):
        env.render()
    picture = (time.process_time() - begun) / 5
    found = {"step_ms": min(runs) * 1e3, "reset_ms": min(resets) * 1e3, "first_reset_ms": first * 1e3, "render_ms": picture * 1e3, **_memory()}
    env.close()
    return found


def _memory() -> dict:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {"rss_mb": next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))}


def side(name: str, task: int, actions: str, repeats: int) -> dict:
    command = [sys.executable, __file__, f"side={name}", f"task={task}", f"actions={actions}", f"repeats={repeats}"]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "1", "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str]) -> None:
    asked = given(arguments, __doc__)
    task, repeats = int(asked.get("task", 0)), int(asked.get("repeats", 3))
    if "side" in asked:
        actions = np.load(asked["actions"])
        measure = {"stock": lambda: stock(task, actions, repeats)}.get(asked["side"], lambda: ours(task, actions, repeats, asked["side"]))
        print(json.dumps(measure()))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "actions.npy")
        np.save(path, grasp(task, int(asked.get("steps", 64))))
        sides = {name: side(name, task, path, repeats) for name in ("stock", "exact", "fast")}
    ratios = {name: round(sides["stock"]["step_ms"] / sides[name]["step_ms"], 1) for name in ("exact", "fast")}
    rounded = {name: {key: round(value, 2) for key, value in found.items()} for name, found in sides.items()}
    print(json.dumps({"steps_per_s": {name: round(1e3 / found["step_ms"], 1) for name, found in sides.items()}, "ratio": ratios, **rounded}, indent=2))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
