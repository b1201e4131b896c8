"""graph + profile + cluster -> the plan: every way that the rules of `cost` know, the best few rehearsed on the virtual clock, the fastest kept.

A pure function: nothing is measured, started or read. What was passed over is in the plan, each with its reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Sequence

from scheduler.graph import MacroGraph
from scheduler.planning.modes import Candidate, candidates
from scheduler.planning.rehearse import rehearse
from scheduler.planning.schedule import MODES, Plan, PlanError, Predicted, Rejected
from scheduler.profile import ACCELERATORS, Profile
from scheduler.resources import Cluster
from scheduler.timeline import Timeline

GRANULES = (1, 2, 4, 8, 16, 32)  # of a round, those that divide its items
FEW_GRANULES = (1, 4, 16)  # above MANY units
MANY = 64
GROUPS = (1, 2, 3, 4, 6, 8)  # slot groups, those that divide the slots
REHEARSED = 4  # candidates of each mode
CLOSE = 1.15  # ... unless the rules put them further behind the best


def plan(graph: MacroGraph, profile: Profile, cluster: Cluster, mode: str = "auto", slot_groups: Sequence[int] | None = None, processes: int | None = None, overhead: float = 0.0) -> Plan:
    """The plan with the least predicted seconds per iteration. mode: "auto" or one of MODES. overhead: seconds of the caller per call.

    slot_groups: the numbers to choose from; None = every usual one that divides. processes: of a source on cores, where they are given.

    Raises PlanError where none fits, saying what would do, and ProfileError where the profile lacks a stage.
    """
    if mode not in ("auto", *MODES):
        raise PlanError(f"found scheduler mode {mode!r}, wanted auto or one of {', '.join(MODES)}")
    granules, groups = _granules(profile, cluster), _groups(profile, slot_groups)
    found = {name: _distinct(candidates(graph, profile, cluster, name, granules, groups, processes)) for name in (MODES if mode == "auto" else (mode,))}
    everything = _distinct(candidate for each in found.values() for candidate in each)
    if not everything:
        raise PlanError(_nothing_fits(graph, profile, cluster, mode))
    best = everything[0].seconds
    chosen = [candidate for each in found.values() for i, candidate in enumerate(each[:REHEARSED]) if i == 0 or candidate.seconds <= CLOSE * best]
    plans = sorted((judged(graph, candidate.plan, profile, cluster, overhead) for candidate in _distinct(chosen)), key=lambda p: p.predicted.iteration_s)
    rejected = [Rejected(p.mode, p.reason, p.predicted.iteration_s, _slower(p, plans[0])) for p in plans[1:]]
    for name in MODES if mode == "auto" else ():
        if not found[name]:
            rejected.append(Rejected(name, "no plan of this mode", None, _nothing_fits(graph, profile, cluster, name)))
    return replace(plans[0], rejected=tuple(rejected))


def judged(graph: MacroGraph, candidate: Plan, profile: Profile, cluster: Cluster, overhead: float = 0.0) -> Plan:
    """The plan with what it is predicted to take, from a rehearsal of a round."""
    # What is reloaded begins a round with what the one before has left loaded.
    result = rehearse(graph, candidate, profile, cluster, 1 if candidate.together is None else 2, overhead=overhead)[-1]
    return replace(candidate, predicted=predicted(graph, candidate, result.timeline, profile, cluster))


def predicted(graph: MacroGraph, candidate: Plan, timeline: Timeline, profile: Profile, cluster: Cluster) -> Predicted:
    wall, busy = timeline.wall, timeline.busy()
    held: dict[str, dict[str, tuple[int, int]]] = {}  # device -> stage -> (bytes while loaded, bytes at work)
    flow = candidate.flow(graph)
    slots = min(profile.round.slots, profile.round.items)
    sizes = {flow.source: slots, flow.partner: max(1, slots // candidate.slot_groups)}
    for name, stage in candidate.stages.items():
        measured = profile.stage(name)
        items = sizes.get(name) or stage.granule or profile.round.items
        for device in stage.devices or ("host",):
            need = measured.resident + measured.memory(items, stage.units)
            held.setdefault(device, {})[name] = (measured.resident, need)
    memory = {device: sum(need for _, need in stages.values()) if device == "host" else _peak(stages, flow.beside) for device, stages in held.items()}
    return Predicted(wall, {name: busy.get(name, 0.0) for name in candidate.stages}, idle(candidate, timeline, profile, cluster), memory)


def _peak(stages: dict[str, tuple[int, int]], beside: Callable[[str, str], bool]) -> int:
    """Bytes at the worst moment: one stage at work, those that may be loaded beside it loaded."""
    return max(need + sum(resident for other, (resident, _) in stages.items() if other != name and beside(name, other)) for name, (_, need) in stages.items())


def idle(candidate: Plan, timeline: Timeline, profile: Profile, cluster: Cluster) -> dict[str, float]:
    """Pool -> share of the time in which its units do nothing, as far as the stages' busy seconds tell."""
    wall, busy = timeline.wall, timeline.busy()
    shares = {}
    for pool, total in (("cores", cluster.cores), ("accelerators", len(cluster.accelerators))):
        stages = [name for name in candidate.stages if (profile.stage(name).on == ACCELERATORS) == (pool == "accelerators")]
        if total and wall and stages:
            used = sum(busy.get(name, 0.0) * min(total, candidate.stages[name].units) for name in stages)
            shares[pool] = max(0.0, 1.0 - used / (wall * total))
    return shares


def _granules(profile: Profile, cluster: Cluster) -> list[int]:
    wanted = GRANULES if max(len(cluster.accelerators), cluster.cores) <= MANY else FEW_GRANULES
    return [count for count in wanted if profile.round.items % count == 0]


def _granule_sizes(profile: Profile, cluster: Cluster) -> list[int]:
    return [profile.round.items // count for count in _granules(profile, cluster)]


def _groups(profile: Profile, wanted: Sequence[int] | None) -> list[int]:
    slots = profile.round.slots
    fitting = [n for n in (GROUPS if wanted is None else wanted) if n <= slots and slots % n == 0]
    if not fitting:
        raise PlanError(f"{slots} slots do not divide into {', '.join(map(str, wanted))} slot groups; groups of {[n for n in range(1, slots + 1) if slots % n == 0]} would do")
    return fitting


def _distinct(found: object) -> list[Candidate]:
    """Fastest first, each placement once."""
    kept: dict[object, Candidate] = {}
    for candidate in sorted(found, key=lambda each: each.seconds):
        laid_out = candidate.plan
        kept.setdefault((laid_out.mode, laid_out.slot_groups, laid_out.together, tuple(laid_out.stages.items())), candidate)
    return list(kept.values())


def _slower(candidate: Plan, best: Plan) -> str:
    took, least = candidate.predicted, best.predicted.iteration_s
    longest = max(took.by_stage, key=took.by_stage.__getitem__)
    more = 100 * (took.iteration_s / least - 1) if least else 0.0
    pools = ", ".join(f"{pool} idle {100 * share:.0f} %" for pool, share in took.idle.items())
    return f"{more:.1f} % slower: {longest} is busy {took.by_stage[longest]:.3g} s of {took.iteration_s:.3g} s{', ' + pools if pools else ''}"


def _nothing_fits(graph: MacroGraph, profile: Profile, cluster: Cluster, mode: str) -> str:
    """Why no plan of the mode fits, and what would do."""
    on = {name: profile.stage(name) for name in graph.stages}
    held = {name: stage for name, stage in on.items() if stage.on == ACCELERATORS}
    if held and not cluster.accelerators:
        return f"found stages on accelerators ({', '.join(held)}) and a cluster without one; wanted at least one accelerator, or a profile measured on cores"
    memory = cluster.accelerator_memory
    least = min(_granule_sizes(profile, cluster))
    source = graph.order()[0]
    share = {name: min(profile.round.slots, profile.round.items) if name == source else least if on[name].streams else profile.round.items for name in held}
    working = {name: stage.memory(share[name], len(cluster.accelerators)) for name, stage in held.items()}
    too_big = {name: stage.resident + working[name] for name, stage in held.items() if stage.resident + working[name] > memory}
    if too_big:
        parts = "; ".join(f"{name} holds {on[name].resident / 2**30:.1f} GiB and needs {working[name] / 2**30:.1f} GiB for its share of {share[name]} items" for name in too_big)
        return f"found {memory / 2**30:.1f} GiB an accelerator, wanted {max(too_big.values()) / 2**30:.1f} GiB: {parts}; fewer slots or smaller micro-batches free the second part, LoRA or a smaller optimizer state the first"
    units = max(len(cluster.accelerators), cluster.cores)
    if mode == "disaggregated":
        return f"found {len(cluster.accelerators)} accelerators and {cluster.cores} cores for {len(graph.stages)} stages that each want units of their own, in numbers that divide their items; hybrid shares some"
    return f"found no placement of {len(graph.stages)} stages on {units} units in which the {profile.round.slots} slots and {profile.round.items} items divide and memory is enough; other numbers of slots or accelerators would do"
