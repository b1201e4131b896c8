"""Plans against the clock, with stages of known durations: is the chosen plan the fastest, and does it take what was predicted?

    python benchmarks/plan_known.py [settings=0,1,...] [overlap=only] [rounds=3] [output=outputs/plan_known.json]

Sixteen settings: GPU simulators, CPU simulators, long tails, and five stages as PPO on text has them. An accelerator is stood in for by a
thread that sleeps for the known time, a core by a process that does fixed work (`stand_ins.py`). Up to six distinct plans of each, the
chosen one, the best of each mode and the next best by the rules, are really run; medians of `rounds` rounds. Takes about ten minutes on a machine with nothing else to do; two cores are enough.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from embodied import graphs
from scheduler.graph import MacroGraph
from scheduler.planning.modes import candidates, searching
from scheduler.planning.plan import judged, plan
from scheduler.planning.schedule import MODES, Plan, StagePlan
from scheduler.profile import ACCELERATORS, Point, Profile, Round, StageProfile
from scheduler.resources import Accelerator, Cluster, Node
from stand_ins import calibrated_loops, run
from arguments import given

PLANS = 6  # of a setting, the fastest by prediction of each mode first


def gpu(fixed: float, per_item: float, **more: object) -> StageProfile:
    return StageProfile("accelerators", (Point(1, 1, fixed + per_item), Point(1024, 1, fixed + 1024 * per_item)), **more)


def cpu(per_item: float, **more: object) -> StageProfile:
    return StageProfile("cores", (Point(1, 1, per_item), Point(64, 1, 64 * per_item)), **more)


def cluster(accelerators: int) -> Cluster:
    return Cluster((Node("here", 2, 1 << 34, tuple(Accelerator(f"sleeper:{i}", 1 << 34) for i in range(accelerators))),))


def chain(*names: str, weights: bool = True) -> MacroGraph:
    """Stages one behind the other; weights: from the last back to the first."""
    graph = MacroGraph()
    for name in names:
        graph.stage(name, None, "item")
    for one, two in zip(names, names[1:]):
        graph.edge(one, two, carries="item", capacity=4)
    if weights:
        graph.edge(names[-1], names[0], carries="weights", lag=0)
    return graph


def tailed(items: int, turns: int, factor: int) -> tuple[int, ...]:
    """Every tenth item takes `factor` times as many turns."""
    return tuple(turns * (factor if i % 10 == 9 else 1) for i in range(items))


def settings() -> list[tuple[str, MacroGraph, Profile, Cluster]]:
    loop, text, five = graphs.reinforcement(), chain("generate", "ref", "learn"), chain("generate", "reward", "ref", "critic", "learn")
    found = []
    for n, flat, each in ((2, 0.03, 0.004), (4, 0.03, 0.004), (4, 0.01, 0.008), (6, 0.05, 0.002)):
        stages = {"sim": gpu(flat, 0.0002), "act": gpu(0.004, each), "learn": gpu(0.02, 0.05)}
        found.append((f"GPU simulator, {n} devices, flat {flat} s", loop, Profile(stages, Round(24, 24, (20,))), cluster(n)))
    for n, step, each, streams in ((1, 0.03, 0.006, False), (1, 0.02, 0.015, False), (2, 0.03, 0.006, True), (2, 0.015, 0.02, True)):
        stages = {"sim": cpu(step, begin_s=0.02), "act": gpu(0.004, each), "learn": gpu(0.02, 0.08, streams=streams)}
        found.append((f"CPU simulator, {n} devices, step {step} s", loop, Profile(stages, Round(8, 8, (6, 8, 7, 9))), cluster(n)))
    for n, factor in ((2, 4), (4, 4), (4, 8), (6, 6)):
        stages = {"generate": gpu(0.004, 0.0005), "ref": gpu(0.01, 0.02), "learn": gpu(0.02, 0.06)}
        found.append((f"long tail x{factor}, {n} devices", text, Profile(stages, Round(32, 16, tailed(32, 20, factor))), cluster(n)))
    for n, reload in ((2, 0.0), (4, 0.0), (4, 0.1), (6, 0.05)):
        held = 5 << 30 if reload else 0
        stages = {name: gpu(0.01, s, resident=held, load_s=reload, unload_s=reload / 2) for name, s in (("reward", 0.01), ("ref", 0.02), ("critic", 0.03), ("learn", 0.06))}
        stages["generate"] = gpu(0.004, 0.0005, resident=held, load_s=reload, unload_s=reload / 2)
        found.append((f"five stages, {n} devices, reload {reload} s", five, Profile(stages, Round(32, 16, tailed(32, 15, 3))), cluster(n)))
    return found


def listed(graph: MacroGraph, profile: Profile, machine: Cluster) -> list[Plan]:
    """The plans to run: the chosen one, the best of each mode, then the next best, each once."""
    chosen = plan(graph, profile, machine)
    kept, seen = [chosen], {_key(chosen)}
    granules = [n for n in (1, 2, 4, 8) if profile.round.items % n == 0]
    groups = [n for n in (1, 2, 4) if profile.round.slots % n == 0]
    search = searching(graph, profile, machine, granules, groups)
    by_mode = {mode: sorted(candidates(search, graph, profile, machine, mode), key=lambda c: c.seconds) for mode in MODES}
    for candidate in [each for found in by_mode.values() for each in found[:1]] + sorted((c for found in by_mode.values() for c in found), key=lambda c: c.seconds):
        if _key(candidate.plan) not in seen and len(kept) < PLANS:
            seen.add(_key(candidate.plan))
            kept.append(judged(graph, candidate.plan, profile, machine))
    return kept


def _key(found: Plan) -> tuple:
    return found.slot_groups, found.together, tuple(found.stages.items())


def measured(graph: MacroGraph, found: Plan, profile: Profile, machine: Cluster, rounds: int, rate: float) -> float:
    """Median seconds of a round; the first warms up."""
    results = run(graph, found, profile, machine, rounds + 1, rate)
    return statistics.median(result.took for result in results[1:])


def overlap(rounds: int, rate: float) -> None:
    """Two stages item by item against the same two with the whole round in turn: how much of what max(stage) allows is reached."""
    for name, first, second in (("equal", gpu(0, 0.02), gpu(0, 0.02)), ("one to two", gpu(0, 0.01), gpu(0, 0.02)), ("simulator on a core", cpu(0.02), gpu(0, 0.02))):
        profile = Profile({"generate": first, "learn": second}, Round(64, 1, (1,)))
        own = [StagePlan(("sleeper:0",)) if first.on == ACCELERATORS else StagePlan(processes=1), StagePlan(("sleeper:1",), granule=1)]
        plans = [Plan("disaggregated", 1, 1, {"generate": own[0], "learn": replace(own[1], granule=granule)}) for granule in (None, 1)]
        turn, piped = (measured(chain("generate", "learn"), each, profile, cluster(2), rounds, rate) for each in plans)
        allowed = (first.seconds(64, 1) + second.seconds(64, 1)) / max(first.seconds(64, 1), second.seconds(64, 1))
        print(f"overlap, {name}: {turn:.3f} s in turn, {piped:.3f} s item by item: {turn / piped:.2f}x of {allowed:.2f}x, {100 * turn / piped / allowed:.1f} %", flush=True)


def asynchrony(rounds: int, rate: float) -> None:
    """Sampling and learning on devices of their own, with the newest weights and with those of one update ago."""
    one = {"most_units": 1}  # none gains from a second device
    stages = {"sim": gpu(0.01, 0.0005, **one), "act": gpu(0.004, 0.001, **one), "learn": gpu(0.02, 0.03, streams=False, **one)}
    profile, seconds = Profile(stages, Round(24, 24, (20,))), []
    for lag in (0, 1):
        graph = graphs.reinforcement(lag=lag)
        chosen = plan(graph, profile, cluster(2))
        seconds.append(measured(graph, chosen, profile, cluster(2), rounds + 2 * lag, rate))
        print(f"lag {lag}: {seconds[-1]:.3f} s an iteration, predicted {100 * (chosen.predicted.iteration_s / seconds[-1] - 1):+.1f} %: {chosen.reason}", flush=True)
    print(f"lag 1 is {seconds[0] / seconds[1]:.2f}x as quick")


def main(arguments: list[str]) -> int:
    own = given(arguments, __doc__)
    if own.get("overlap") == "only":
        overlap(int(own.get("rounds", 3)), calibrated_loops())
        asynchrony(int(own.get("rounds", 3)), calibrated_loops())
        return 0
    every, rounds, rate = settings(), int(own.get("rounds", 3)), calibrated_loops()
    rows = []
    for index in map(int, own["settings"].split(",")) if "settings" in own else range(len(every)):
        name, graph, profile, machine = every[index]
        plans = listed(graph, profile, machine)
        took = [measured(graph, each, profile, machine, rounds, rate) for each in plans]
        errors = [each.predicted.iteration_s / seconds - 1 for each, seconds in zip(plans, took)]
        rows.append({"setting": name, "mode": plans[0].mode, "plan": plans[0].reason, "seconds": took[0], "predicted": plans[0].predicted.iteration_s,
                     "over_best": took[0] / min(took) - 1, "error": errors[0], "plans": [{"mode": p.mode, "plan": p.reason, "seconds": s, "predicted": p.predicted.iteration_s} for p, s in zip(plans, took)]})  # fmt: skip
        row = rows[-1]
        print(f"{index:2} {name:38} {row['mode']:13} {row['seconds']:6.3f} s, {100 * row['over_best']:+5.1f} % over the best of {len(plans)}, predicted {100 * row['error']:+5.1f} %: {row['plan']}", flush=True)
    for what, values in (("over the best", [row["over_best"] for row in rows]), ("prediction error", [abs(row["error"]) for row in rows])):
        print(f"{what}: median {100 * statistics.median(values):.1f} %, largest {100 * max(values):.1f} %")
    overlap(rounds, rate)
    asynchrony(rounds, rate)
    output = Path(own.get("output", "outputs/plan_known.json"))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
