"""graph + profile + cluster -> the plan: every way that the rules of `cost` know, the best few rehearsed on the virtual clock, the fastest kept.

A pure function: nothing is measured, started or read. What was passed over is in the plan, each with its reason.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Sequence

from scheduler.graph import MacroGraph
from scheduler.planning.judge import judged
from scheduler.planning.modes import JOINS_OF, Candidate, candidates, searching, standing_apart
from scheduler.planning.schedule import MODES, Plan, PlanError, Rejected
from scheduler.planning.search import Search
from scheduler.profile import ACCELERATORS, Profile
from scheduler.resources import Cluster

GRANULES = (1, 2, 4, 8, 16, 32)  # of a round, those that divide its items into whole groups
FEW_GRANULES = (1, 4, 16)  # above MANY units
MANY = 64
GROUPS = (1, 2, 3, 4, 6, 8)  # slot groups, those that divide the slots
REHEARSED = 4  # candidates of each mode
CLOSE = 1.15  # ... unless the rules put them further behind the best
WIDER = (1.0, 1.5, 3.0, math.inf)  # bounds within which the best of a mode is looked for, one after the other


def plan(graph: MacroGraph, profile: Profile, cluster: Cluster, mode: str = "auto", slot_groups: Sequence[int] | None = None, processes: int | None = None, apart: bool = False) -> Plan:
    """The plan with the least predicted seconds per iteration. mode: "auto" or one of MODES.

    slot_groups: the numbers to choose from; None = every usual one that divides. processes: of a source on cores, where they are given.
    apart: any stage may have processes of its own. Then, with lag, the last one is also tried where it does not hold up sampling.

    Raises PlanError where none fits, saying what would do, and ProfileError where the profile lacks a stage.
    """
    if mode not in ("auto", *MODES):
        raise PlanError(f"found scheduler mode {mode!r}, wanted auto or one of {', '.join(MODES)}")
    granules, groups = _granules(profile, cluster), _groups(profile, slot_groups)
    search = searching(graph, profile, cluster, granules, groups, processes)
    in_turn = min((options[0].total(count) for count, options in search.best(JOINS_OF["collocated"]).items() if options), default=math.inf)
    lag = max((edge.lag for edge in graph.edges if edge.lag is not None), default=0)
    found = {name: _found(search, graph, profile, cluster, name, CLOSE * in_turn, lag > 0) for name in (MODES if mode == "auto" else (mode,))}
    everything = _distinct(candidate for each in found.values() for candidate in each)
    if not everything:
        raise PlanError(_nothing_fits(graph, profile, cluster, mode))
    best = everything[0].seconds
    chosen = [candidate for each in found.values() for i, candidate in enumerate(each[:REHEARSED]) if i == 0 or candidate.seconds <= CLOSE * best]
    laid_out = [candidate.plan for candidate in _distinct(chosen)]
    if apart and lag:
        laid_out += [other for other in (standing_apart(each, graph) for each in laid_out) if other is not None]
    plans = sorted((judged(graph, each, profile, cluster) for each in laid_out), key=lambda p: p.predicted.iteration_s)
    fitting = [p for p in plans if p.predicted.memory.get("host", 0) <= cluster.memory]
    if not fitting:
        held = ", ".join(f"{name} {(stage.resident + max(point.memory for point in stage.points)) / 2**30:.1f} GiB" for name, stage in profile.stages.items() if stage.on != ACCELERATORS)
        raise PlanError(f"found {cluster.memory / 2**30:.1f} GiB of host memory, wanted {min(p.predicted.memory['host'] for p in plans) / 2**30:.1f} GiB: {held} and more with more items; fewer slots or smaller micro-batches would do")
    plans = fitting
    rejected = [Rejected(p.mode, p.reason, p.predicted.iteration_s, _slower(p, plans[0])) for p in plans[1:]]
    for name in MODES if mode == "auto" else ():
        if not found[name]:
            rejected.append(Rejected(name, "no plan of this mode", None, _nothing_fits(graph, profile, cluster, name)))
    return replace(plans[0], rejected=tuple(rejected))


def _found(search: Search, graph: MacroGraph, profile: Profile, cluster: Cluster, mode: str, bound: float, ahead: bool) -> list[Candidate]:
    """The candidates of a mode, fastest first: those that take no more than `bound` seconds, and where there are none, the best of those that do.

    The bound is what every stage in turn on all units takes, which is found at once, and as much more as may still be close to the best.
    """
    for wider in WIDER:
        found = _distinct(candidates(search, graph, profile, cluster, mode, bound * wider, ahead=ahead))
        if found or bound == math.inf:
            return found
    return []


def _granules(profile: Profile, cluster: Cluster) -> list[int]:
    wanted = GRANULES if max(len(cluster.accelerators), cluster.cores) <= MANY else FEW_GRANULES
    round_ = profile.round
    return [count for count in wanted if round_.items % count == 0 and (count == 1 or round_.items // count % round_.group == 0)]


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
