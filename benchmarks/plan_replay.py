"""Published settings replayed on the virtual clock, how plans scale, and how long planning takes: which mode the planner chooses, beside the best of each mode.

    python benchmarks/plan_replay.py [only=speed] [output=outputs/plan_replay.json]

The profiles are assumptions (docs/m2flow.md states them), shaped after the paper's description: they say which mode wins for such
stages, not how many seconds someone's cluster takes. Takes a minute or two; nothing is waited for.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from embodied import graphs
from plan_known import chain
from scheduler.graph import MacroGraph
from scheduler.planning.plan import plan
from scheduler.planning.schedule import MODES, PlanError
from scheduler.profile import Point, Profile, Round, StageProfile
from scheduler.resources import named

from arguments import given

GB = 10**9
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)
FIXED = 2048  # slots of the curve that keeps the work and adds devices
SPEED_DEVICES, TRIES, WANTED_S = (8, 64, 256, 1024), 3, 0.5  # of the planner itself: the best of so many tries, and what is wanted of it at most


def line(fixed: float, per_item: float, memory: int = 0, per_item_memory: int = 0, **more: object) -> StageProfile:
    """A stage on accelerators whose seconds are fixed + per_item * items on each."""
    points = (Point(1, 1, fixed + per_item, memory + per_item_memory), Point(8192, 1, fixed + 8192 * per_item, memory + 8192 * per_item_memory))
    return StageProfile("accelerators", points, **more)


def learner(per_item: float) -> StageProfile:
    return line(0.5, per_item, memory=15 * GB, resident=45 * GB, load_s=2.0, unload_s=1.5)


def maniskill_like(items: int) -> Profile:
    """256 envs, 80 steps: simulation flat in the number of envs and linear in memory, generation linear in the batch, training a third of generation."""
    act = line(0.02, 0.012, memory=2 * GB, per_item_memory=40 * 10**6, resident=16 * GB, load_s=1.0, unload_s=0.5)
    generation = 80 * 0.012
    return Profile({"sim": line(0.30, 0.0004, memory=4 * GB, per_item_memory=150 * 10**6), "act": act, "learn": learner(generation / 3)}, Round(items, items, (80,)))


def libero_like(items: int) -> Profile:
    """512 envs, 64 chunk-steps: a step takes a core, and every core of the cluster has its share of them."""
    act = line(0.15, 0.012, memory=2 * GB, per_item_memory=40 * 10**6, resident=16 * GB, load_s=1.0, unload_s=0.5)
    sim = StageProfile("cores", (Point(1, 1, 0.35), Point(8, 1, 2.8)), begin_s=1.5)
    return Profile({"sim": sim, "act": act, "learn": learner(0.25)}, Round(items, items, (64,)))


def long_tailed_text(items: int) -> Profile:
    """Answers whose lengths have a long tail: one in twenty is four times as long as the median."""
    turns = tuple(200 + 13 * (i * 7 % 40) + (1600 if i % 20 == 19 else 0) for i in range(items))
    generate = line(0.020, 0.0002, memory=20 * GB, resident=15 * GB, load_s=2.0, unload_s=1.0)
    return Profile({"generate": generate, "ref": line(0.1, 0.05, memory=4 * GB, resident=15 * GB, load_s=1.0, unload_s=0.5), "learn": learner(0.25)}, Round(items, items, turns))


def six_stages(items: int) -> Profile:
    """PPO with models of its own for rewards, reference and values, behind the ManiSkill-like loop. All loaded at once do not fit on one device."""
    found = maniskill_like(items)
    reward = line(0.05, 0.02, memory=2 * GB, resident=8 * GB, load_s=0.5, unload_s=0.5)
    ref = line(0.1, 0.05, memory=4 * GB, resident=15 * GB, load_s=1.0, unload_s=0.5)
    values = line(0.3, 0.1, memory=8 * GB, resident=30 * GB, load_s=1.5, unload_s=1.0)
    return replace(found, stages={**found.stages, "reward": reward, "ref": ref, "values": values})


def six_graph(lag: int = 0) -> MacroGraph:
    graph = chain("sim", "reward", "ref", "values", "learn", weights=False)
    graph.stage("act", None, "item")
    graph.loop("sim", "act")
    graph.edge("learn", "act", carries="weights", lag=lag)
    return graph


SETTINGS = [
    *((f"ManiSkill-like, {n} devices", graphs.reinforcement(), maniskill_like(256 * n // 8), n, "hybrid") for n in (8, 16, 32)),
    *((f"LIBERO-like, {n} devices", graphs.reinforcement(), libero_like(512), n, "collocated") for n in (8, 16, 32)),
    ("long-tailed text, 64 devices", chain("generate", "ref", "learn"), long_tailed_text(512), 64, "depends on length and roles"),
]


def cluster_name(devices: int) -> str:
    return f"{devices // 8}x8xh100"


def replayed(name: str, graph: MacroGraph, profile: Profile, devices: int, published: str) -> dict:
    seconds = {}
    for mode in MODES:
        try:
            seconds[mode] = plan(graph, profile, named(cluster_name(devices)), mode).predicted.iteration_s
        except PlanError as error:
            seconds[mode] = None
            print(f"  {mode}: {error}")
    chosen = plan(graph, profile, named(cluster_name(devices)))
    return {"setting": name, "seconds": seconds, "chosen": chosen.mode, "iteration_s": chosen.predicted.iteration_s, "plan": chosen.reason, "published": published}


def scaled(devices: int, slots: int) -> dict:
    """The ManiSkill-like setting with so many envs, planned and timed."""
    found = maniskill_like(slots)
    begun = time.process_time()
    chosen = plan(graphs.reinforcement(), found, named(cluster_name(devices)))
    return {"devices": devices, "slots": found.round.slots, "iteration_s": chosen.predicted.iteration_s, "steps_per_s": found.round.items * 80 / chosen.predicted.iteration_s,
            "mode": chosen.mode, "plan": chosen.reason, "planned_in_s": time.process_time() - begun}  # fmt: skip


def speed() -> list[dict]:
    """Seconds of CPU time that `plan` takes in one process, all of it: search and rehearsals of every mode."""
    rows = []
    for stages, graph, profile in ((3, graphs.reinforcement(), lambda n: maniskill_like(32 * n)), (6, six_graph(), lambda n: six_stages(8 * n))):
        for devices in SPEED_DEVICES:
            took = []
            for _ in range(TRIES):
                begun = time.process_time()
                chosen = plan(graph, profile(devices), named(cluster_name(devices)))
                took.append(time.process_time() - begun)
            rows.append({"stages": stages, "devices": devices, "seconds": min(took), "plan": chosen.reason})
            print(f"{devices:5} devices, {stages} stages: planned in {min(took):.3f} s (wanted: under {WANTED_S} s), {chosen.predicted.iteration_s:.1f} s an iteration: {chosen.reason}", flush=True)
    return rows


def main(arguments: list[str]) -> int:
    own = given(arguments, __doc__)
    output = Path(own.get("output", "outputs/plan_replay.json"))
    timed = speed()
    if own.get("only") == "speed":
        return 0 if max(row["seconds"] for row in timed) < WANTED_S else 1
    rows = []
    for setting in SETTINGS:
        rows.append(replayed(*setting))
        row = rows[-1]
        times = ", ".join(f"{mode} {'-' if s is None else f'{s:.1f}'}" for mode, s in row["seconds"].items())
        print(f"{row['setting']:32} {times}; chosen {row['chosen']} {row['iteration_s']:.1f} s (published: {row['published']})\n    {row['plan']}", flush=True)
    curve = []
    for devices, slots in [(n, 64 * n) for n in DEVICES] + [(n, FIXED) for n in DEVICES]:
        curve.append(scaled(devices, slots))
        point = curve[-1]
        print(f"{point['devices']:5} devices {point['slots']:6} slots: {point['steps_per_s']:9.0f} steps/s, {point['steps_per_s'] / devices:6.1f} a device, {point['mode']}, planned in {point['planned_in_s']:.2f} s: {point['plan']}", flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"settings": rows, "scaling": curve, "speed": timed}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
