"""ManiSkill on CUDA as one batched simulator: does it keep its promises, and how fast is it beside ManiSkill's own vector env? Prints one JSON object.

    python benchmarks/maniskill_gpu.py [envs=16,64,256] [id=PickCube-v1] [resolution=128] [chunk=8] [seconds=10] [only=checks|speed]

Wants mani_skill and a CUDA device, and says so and ends with 0 where there is none. The checks, on 64 slots: tensors stay on the device; episodes of one seed
begin alike, whichever slots they are in and whatever is reset with them; a reset leaves every other slot's state and pictures as they are. Alike means
states within 1e-5 and pictures within half a grey level on average: the copies stand metres apart in one world of float32 positions. How far the others drift within the next chunk from a run without that reset is told, not judged: PhysX on the GPU does not promise the same motion.
Speed: env steps per second with random actions, ours through `ManiSkillEnv(backend="cuda").vector(n)` in chunks with one render each, and
`ManiSkillVectorEnv` stepping with a render per step, without resets, each in a process of its own. Exit code 1 where a check failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks.arguments import given

KEYS = {"envs": "16,64,256", "id": "PickCube-v1", "resolution": "128", "chunk": "8", "seconds": "10", "only": "", "part": ""}
CAMERA, CHECKED, MEMBERS = "base_camera", 64, 8
STATE, GREY = 1e-5, 0.5  # metres, radians and their rates; mean grey levels: what counts as alike
LIMIT = 900  # seconds for one part


def batch(id: str, resolution: int, slots: int) -> Any:
    from envs.maniskill import ManiSkillEnv

    return ManiSkillEnv(id, cameras=(CAMERA,), resolution=resolution, state="full", backend="cuda", fixed_horizon=True, horizon=10**6).vector(slots)


def checks(env: Any, chunk: int) -> dict[str, Any]:
    """What holds (bools, judged), and what is measured (numbers). env: a ManiSkillBatch of whole groups of MEMBERS slots."""
    first = begun(env, {slot: slot // MEMBERS for slot in range(env.slots)})
    alone = begun(env, {env.slots - 1: 0})[env.slots - 1]
    seen = [value for key, value in first[0].items() if key.startswith("images/") or key == "state"]
    found: dict[str, Any] = {
        "largest_distance_of_states_within_a_group": max(float(apart(first[slot], first[slot // MEMBERS * MEMBERS], "state").max()) for slot in range(env.slots)),
        "tensors_stay_on_the_device": all(isinstance(value, torch.Tensor) and value.device.type == env.device.type for value in seen),
        "members_of_a_group_begin_alike": all(alike(first[slot], first[slot // MEMBERS * MEMBERS]) for slot in range(env.slots)),
        "groups_begin_unlike": env.slots <= MEMBERS or not alike(first[0], first[MEMBERS]),
        "a_seed_begins_alike_in_another_slot_and_alone": alike(alone, first[0]),
    }
    others = range(0, env.slots, 2)
    after = {}
    for reset_between in (False, True):
        begun(env, {slot: slot // MEMBERS for slot in range(env.slots)})
        stepped(env, chunk, np.random.default_rng(0))
        before = env.look()
        if reset_between:
            begun(env, {slot: 7 for slot in range(1, env.slots, 2)})
            now = env.look()
            found["a_reset_leaves_the_other_slots_alone"] = all(alike(row(before, slot), row(now, slot)) for slot in others)
        after[reset_between] = stepped(env, chunk, np.random.default_rng(1))
    found["largest_drift_of_the_others_state_in_the_next_chunk"] = max(float(apart(after[False][slot], after[True][slot], "state").max()) for slot in others)
    return found


def begun(env: Any, seeds: dict[int, int]) -> dict[int, dict]:
    """slot -> its first observation."""
    for slot, seed in seeds.items():
        env.reset(slot, seed)
    return {result.slot: result.observation for result in env.wait()}


def stepped(env: Any, chunk: int, random: np.random.Generator) -> dict[int, dict]:
    """slot -> its observation after a chunk of random actions."""
    for slot in range(env.slots):
        env.step(slot, random.uniform(-1, 1, (chunk, env.env_spec.action.dims)))
    return {result.slot: result.observation for result in env.wait()}


def row(look: dict, slot: int) -> dict:
    return {key: value[slot] for key, value in look.items()}


def alike(one: dict, other: dict) -> bool:
    return bool(apart(one, other, "state").max() <= STATE) and all(bool(apart(one, other, key).mean() <= GREY) for key in one if key.startswith("images/"))


def apart(one: dict, other: dict, key: str) -> torch.Tensor:
    return (one[key].float() - other[key].float()).abs()


def ours(id: str, resolution: int, slots: int, chunk: int, seconds: float) -> dict[str, float]:
    with batch(id, resolution, slots) as env:
        begin = time.perf_counter()
        begun(env, {slot: slot for slot in range(slots)})
        torch.cuda.synchronize()
        resets = time.perf_counter() - begin
        random, calls = np.random.default_rng(0), 0
        stepped(env, chunk, random)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            stepped(env, chunk, random)
            torch.cuda.synchronize()
            calls += 1
        return {"env_steps_per_s": calls * chunk * slots / (time.perf_counter() - begin), "reset_s_per_slot": resets / slots}


def stock(id: str, resolution: int, slots: int, chunk: int, seconds: float) -> dict[str, float]:
    import gymnasium
    import mani_skill.envs  # noqa: F401  registers the tasks
    from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

    made = gymnasium.make(id, num_envs=slots, obs_mode="rgb+state", control_mode="pd_ee_delta_pose", reward_mode="sparse", sim_backend="physx_cuda",
                          sensor_configs={"width": resolution, "height": resolution}, robot_uids="panda")  # fmt: skip
    env = ManiSkillVectorEnv(made, auto_reset=False, ignore_terminations=True)
    env.reset(seed=list(range(slots)))
    random, steps = torch.Generator("cuda").manual_seed(0), 0
    env.step(torch.zeros(slots, 7, device="cuda"))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(chunk):
            env.step(torch.rand(slots, 7, device="cuda", generator=random) * 2 - 1)
        torch.cuda.synchronize()
        steps += chunk
    found = {"env_steps_per_s": steps * slots / (time.perf_counter() - begin)}
    env.close()
    return found


def part(settings: dict[str, str], name: str, slots: int) -> dict[str, Any]:
    """In a process of its own: one in which two simulators have been on the device measures neither."""
    command = [sys.executable, __file__, *(f"{key}={value}" for key, value in {**settings, "part": name, "envs": str(slots)}.items())]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"error": f"{name} with {slots} envs took more than {LIMIT} s"}
    if done.returncode:
        return {"error": f"{name} with {slots} envs ended with exit code {done.returncode}; its own words are above"}
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str]) -> int:
    asked = given(arguments, __doc__)
    unknown = sorted(asked.keys() - KEYS.keys())
    if unknown:
        sys.exit(f"found {', '.join(unknown)}, wanted some of {', '.join(key for key in KEYS if key != 'part')}")
    if not torch.cuda.is_available():
        print("found no CUDA device, wanted one: nothing to check here (the same interface is checked on the CPU by tests/contract/test_maniskill_batched.py)")
        return 0
    settings = {**KEYS, **asked}
    id, resolution, chunk, seconds, counts = settings["id"], int(settings["resolution"]), int(settings["chunk"]), float(settings["seconds"]), [int(n) for n in settings["envs"].split(",")]
    if settings["part"] == "checks":
        with batch(id, resolution, counts[0]) as env:
            print(json.dumps(checks(env, chunk)))
        return 0
    if settings["part"]:
        print(json.dumps({"ours": ours, "stock": stock}[settings["part"]](id, resolution, counts[0], chunk, seconds)))
        return 0
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "id": id, "resolution": resolution, "chunk": chunk}
    if settings["only"] in ("", "checks"):
        report["checks"] = part(settings, "checks", CHECKED)
    if settings["only"] in ("", "speed"):
        report["speed"] = {}
        for slots in counts:
            sides = {name: part(settings, name, slots) for name in ("ours", "stock")}
            both = all("error" not in side for side in sides.values())
            report["speed"][slots] = {**sides, "ratio": sides["ours"]["env_steps_per_s"] / sides["stock"]["env_steps_per_s"] if both else None}
    print(json.dumps(report, indent=2))
    held = report.get("checks", {})
    return int("error" in held or any(value is False for value in held.values()) or any(each["ratio"] is None for each in report.get("speed", {}).values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
