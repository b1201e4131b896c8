"""What a plan is predicted to take: from a rehearsal on the virtual clock, seconds, idle shares and memory of an iteration.

With lag, learning overlaps the sampling of later rounds: an iteration is then the mean time between the ends of updates, once the first
rounds are through and while there is more to sample.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Mapping, Sequence

from scheduler.graph import MacroGraph
from scheduler.planning.rehearse import rehearse
from scheduler.planning.schedule import Plan, Predicted
from scheduler.profile import ACCELERATORS, Profile
from scheduler.resources import Cluster
from scheduler.timeline import Timeline

SEEN = 3  # iterations that the mean is taken of, with lag


def judged(graph: MacroGraph, candidate: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """The plan with what it is predicted to take."""
    lag = candidate.flow(graph).lag or 0
    if lag:
        results = rehearse(graph, candidate, profile, cluster, 2 * lag + 1 + SEEN)
        took, busy = steady([result.timeline for result in results], lag)
    else:  # What is reloaded begins a round with what the one before has left loaded.
        timeline = rehearse(graph, candidate, profile, cluster, 1 if candidate.together is None else 2)[-1].timeline
        took, busy = timeline.wall, timeline.busy()
    return replace(candidate, predicted=predicted(graph, candidate, took, busy, profile, cluster))


def steady(rounds: Sequence[Timeline], lag: int) -> tuple[float, dict[str, float]]:
    """(seconds of an iteration, stage -> seconds in which it is busy) between the ends of updates; the first and the last `lag` rounds are not like the others."""
    ended = [max(span.end for span in timeline.spans) for timeline in rounds]
    start, end, count = ended[lag], ended[-1 - lag], len(rounds) - 1 - 2 * lag
    within = [replace(span, start=max(span.start, start), end=min(span.end, end)) for timeline in rounds for span in timeline.spans if span.start < end and span.end > start]
    return (end - start) / count, {stage: seconds / count for stage, seconds in Timeline(within).busy().items()}


def predicted(graph: MacroGraph, candidate: Plan, took: float, busy: Mapping[str, float], profile: Profile, cluster: Cluster) -> Predicted:
    """took: seconds of an iteration. busy: stage -> seconds of it."""
    flow = candidate.flow(graph)
    slots = min(profile.round.slots, profile.round.items)
    sizes = {flow.source: slots, flow.partner: max(1, slots // candidate.slot_groups)}
    needs: dict[str, tuple[int, int]] = {}  # stage -> (bytes while loaded, bytes at work)
    on: dict[str, tuple[str, ...]] = {}  # device -> stages
    for name, stage in candidate.stages.items():
        measured = profile.stage(name)
        needs[name] = measured.resident, measured.resident + measured.memory(sizes.get(name) or stage.granule or profile.round.items, stage.units)
        for device in stage.devices or ("host",):
            on[device] = (*on.get(device, ()), name)
    peaks = {stages: _peak({name: needs[name] for name in stages}, flow.beside) for stages in set(on.values())}  # thousands of devices, a few kinds of them
    memory = {device: sum(needs[name][1] for name in stages) if device == "host" else peaks[stages] for device, stages in on.items()}
    by_stage = {name: busy.get(name, 0.0) for name in candidate.stages}
    return Predicted(took, by_stage, idle(candidate, took, by_stage, profile, cluster), memory)


def _peak(stages: dict[str, tuple[int, int]], beside: Callable[[str, str], bool]) -> int:
    """Bytes at the worst moment: one stage at work, those that may be loaded beside it loaded."""
    return max(need + sum(resident for other, (resident, _) in stages.items() if other != name and beside(name, other)) for name, (_, need) in stages.items())


def idle(candidate: Plan, took: float, busy: Mapping[str, float], profile: Profile, cluster: Cluster) -> dict[str, float]:
    """Pool -> share of the time in which its units do nothing, as far as the stages' busy seconds tell."""
    shares = {}
    for pool, total in (("cores", cluster.cores), ("accelerators", len(cluster.accelerators))):
        stages = [name for name in candidate.stages if (profile.stage(name).on == ACCELERATORS) == (pool == "accelerators")]
        if total and took and stages:
            used = sum(busy[name] * min(total, candidate.stages[name].units) for name in stages)
            shares[pool] = max(0.0, 1.0 - used / (took * total))
    return shares
