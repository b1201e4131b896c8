"""ManiSkill on the CPU: env steps per second, and seconds from construction to the first step with pictures, beside ManiSkill's own way of doing it.

    python benchmarks/maniskill_steps.py [id=PushCube-v1,PickCube-v1] [rounds=6] [workers=2] [slots=8]

Ours is `envs.vector.VectorEnv` over `ManiSkillEnv`; theirs is `CPUGymWrapper` in gymnasium's `AsyncVectorEnv`, as ManiSkill documents it. Both have the same
task, robot, reward, seeds and actions, the same number of processes and one thread in each. The two take turns in blocks of 48 steps, so that what else
the machine does disturbs both alike, and the median of the blocks' ratios is told, by wall time and by CPU time of all processes; states are compared
after every block. Pictures are 128 px: theirs has one after every step, ours, in chunks of 8, one after every chunk. Resets are not timed.
Starts (slots=0: none) are: ours with `slots` slots on `workers` processes; theirs with a process for each of as many envs; theirs with `workers` processes.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Callable

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", LP_NUM_THREADS="1")  # read as the libraries are loaded, here and in workers

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from arguments import given

ROOT = Path(__file__).resolve().parents[1]
MODE, STEPS, CHUNK, RESOLUTION, SEED = "pd_ee_delta_pose", 48, 8, 128, 7  # 48 steps are within the tasks' budgets


def their_env(id: str, pictures: bool) -> gymnasium.Env:
    warnings.simplefilter("ignore")
    import mani_skill.envs  # noqa: F401  registers the tasks
    from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

    seen = {"obs_mode": "rgb", "sensor_configs": {"width": RESOLUTION, "height": RESOLUTION}} if pictures else {"obs_mode": "state", "render_backend": "none"}
    env = gymnasium.make(id, num_envs=1, sim_backend="cpu", robot_uids="panda", control_mode=MODE, reward_mode="sparse", **seen)
    return CPUGymWrapper(env, ignore_terminations=True, record_metrics=True)


class Theirs:
    def __init__(self, id: str, pictures: bool, processes: int):
        self._env = AsyncVectorEnv([partial(their_env, id, pictures)] * processes, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
        self._count = processes

    def reset(self) -> None:
        self._env.reset(seed=[SEED + index for index in range(self._count)])

    def run(self, actions: np.ndarray, chunk: int) -> np.ndarray:
        """actions: [steps, count, 7] -> [count, S], the states after the last one (of pictures: the joints' positions)."""
        for action in actions:
            observation, *_ = self._env.step(action)
        return observation["agent"]["qpos"] if isinstance(observation, dict) else observation

    def close(self) -> None:
        self._env.close()


class Ours:
    def __init__(self, id: str, pictures: bool, slots: int, workers: int):
        from envs.maniskill import ManiSkillEnv
        from envs.vector import VectorEnv

        cameras = ("base_camera",) if pictures else ()
        self._env = VectorEnv(partial(ManiSkillEnv, id, MODE, robot="panda", cameras=cameras, resolution=RESOLUTION, fixed_horizon=True), slots, workers)
        self._pictures = pictures

    def reset(self) -> None:
        for slot in range(self._env.slots):
            self._env.reset(slot, SEED + slot)
        self._all()

    def run(self, actions: np.ndarray, chunk: int) -> np.ndarray:
        actions = actions * np.float32([1, 1, 1, 1, 1, 1, -1])  # closes with +1
        for first in range(0, len(actions), chunk):
            for slot in range(self._env.slots):
                self._env.step(slot, actions[first : first + chunk, slot])
            states = self._all()
        return states[:, :9] if self._pictures else states

    def close(self) -> None:
        self._env.close()

    def _all(self) -> np.ndarray:
        states: dict[int, np.ndarray] = {}
        while len(states) < self._env.slots:
            states |= {result.slot: result.observation["state"] for result in self._env.wait()}
        return np.stack([states[slot] for slot in range(self._env.slots)])


def cpu_seconds() -> float:
    """Of this process and all that live below it, to the nanosecond (Linux)."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # ended meanwhile
    mine, grown = {os.getpid()}, 0
    while len(mine) > grown:
        grown = len(mine)
        mine |= {process for process, parent in parents.items() if parent in mine}
    tasks = (path for process in mine for path in Path(f"/proc/{process}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9


def timed(call: Callable[[], Any]) -> tuple[Any, np.ndarray]:
    """(what it returns, [wall, CPU] seconds)."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    result = call()
    wall = time.perf_counter() - wall
    return result, np.array([wall, cpu_seconds() - cpu])


def compare(id: str, pictures: bool, chunks: tuple[int, ...], rounds: int, workers: int) -> None:
    sides = {"theirs": (Theirs(id, pictures, workers), 1), **{f"ours, chunks of {chunk}": (None, chunk) for chunk in chunks}}
    ours = Ours(id, pictures, workers, workers)
    seconds: dict[str, list[np.ndarray]] = {name: [] for name in sides}
    same = True
    for number in range(-1, rounds):  # the first one warms up
        actions = np.random.default_rng(number + 1).uniform(-1, 1, (STEPS, workers, 7)).astype(np.float32)
        states = []
        for name in list(sides)[:: -1 if number % 2 else 1]:
            side, chunk = sides[name][0] or ours, sides[name][1]
            side.reset()
            state, spent = timed(lambda: side.run(actions, chunk))
            states.append(state)
            if number >= 0:
                seconds[name].append(spent)
        same = same and all(np.array_equal(state, states[0]) for state in states)
    sides["theirs"][0].close()
    ours.close()
    print(f"{id}, {'pictures' if pictures else 'state'}, {workers} processes; same states to the bit: {same}")
    for name, spent in seconds.items():
        wall, cpu = STEPS * workers / np.median(spent, axis=0)
        ratios = np.median(np.array(seconds["theirs"]) / np.array(spent), axis=0)
        print(f"  {name:18} {wall:7.1f} steps/s, {cpu:7.1f} per CPU second; over theirs {ratios[0]:5.2f}x by wall time, {ratios[1]:5.2f}x by CPU time")


def start(make: Callable[[], Any], count: int) -> np.ndarray:
    """[wall, CPU] seconds until each of the `count` envs has made its first step."""

    def first() -> Any:
        side = make()
        side.reset()
        side.run(np.zeros((1, count, 7), np.float32), 1)
        return side

    side, spent = timed(first)
    side.close()
    return spent


def main(arguments: list[str]) -> int:
    asked = given(arguments, __doc__)
    rounds, workers, slots = int(asked.get("rounds", 6)), int(asked.get("workers", 2)), int(asked.get("slots", 8))
    ids = asked.get("id", "PushCube-v1,PickCube-v1").split(",")
    for id in ids:
        compare(id, False, (1, CHUNK), rounds, workers)
        compare(id, True, (CHUNK,), rounds, workers)
    if slots:
        print(f"{ids[0]}, seconds from construction to the first step with pictures of every env")
        for name, make, count in (
            (f"ours, {slots} slots on {workers} processes", partial(Ours, ids[0], True, slots, workers), slots),
            (f"theirs, {slots} envs in {slots} processes", partial(Theirs, ids[0], True, slots), slots),
            (f"theirs, {workers} envs in {workers} processes", partial(Theirs, ids[0], True, workers), workers),
        ):
            wall, cpu = start(make, count)
            print(f"  {name:34} {wall:6.1f} s of wall time, {cpu:6.1f} s of CPU time")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
