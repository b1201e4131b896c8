"""The three ways to lay a flow out, as generators of plans: what each may join how, and how a placement becomes devices, processes and threads.

collocated (temporal): every stage has the whole machine, in turn. disaggregated (spatial): every stage has units of its own.
hybrid: anything between, with cores shared at once. A stage on accelerators and one on cores share nothing in any mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Iterator, Sequence

from scheduler.graph import MacroGraph
from scheduler.planning.cost import Join, Leaf, LoopLeaf, Option, Tree, Units, tree_of
from scheduler.planning.schedule import Plan, StagePlan
from scheduler.planning.search import Search
from scheduler.profile import Profile
from scheduler.resources import Cluster

JOINS_OF = {
    "collocated": frozenset({"turns", "reloaded", "interleaved"}),
    "disaggregated": frozenset({"split"}),
    "hybrid": frozenset({"turns", "reloaded", "interleaved", "split", "mixed"}),
}


@dataclass(frozen=True)
class Candidate:
    plan: Plan
    option: Option
    granules: int
    seconds: float  # of an iteration, by the rules of `cost`


def searching(graph: MacroGraph, profile: Profile, cluster: Cluster, granules: Sequence[int], slot_groups: Sequence[int], processes: int | None = None) -> Search:
    """What all modes of a graph on a cluster are searched with. processes: of the source, where given."""
    return Search(graph, profile, granules, Units(len(cluster.accelerators), cluster.cores), cluster.accelerator_memory, slot_groups, processes)


def candidates(search: Search, graph: MacroGraph, profile: Profile, cluster: Cluster, mode: str, bound: float = math.inf, each: int = 2, ahead: bool = False) -> Iterator[Candidate]:
    """The fastest `each` placements of the mode for every number of granules in a round, of those that take no more than `bound` seconds.

    ahead: also the fastest where sampling runs ahead of learning.
    """
    found = [(count, option.total(count), option) for count, options in search.best(JOINS_OF[mode], bound).items() for option in options[:each]]
    if ahead:
        found += [(count, seconds, option) for count, options in search.ahead(JOINS_OF[mode], bound).items() for seconds, option in options[:each]]
    for count, seconds, option in found:
        yield Candidate(plan_of(tree_of(option), graph, profile, cluster, count, search.processes), option, count, seconds)


def standing_apart(found: Plan, graph: MacroGraph) -> Plan | None:
    """The same plan with the last stage in processes of its own, where it does not hold up the caller; None where it has them."""
    sink = graph.order()[-1]
    stage = found.stages[sink]
    if stage.processes:
        return None
    stages = {**found.stages, sink: replace(stage, processes=max(1, len(stage.devices)))}
    return replace(found, stages=stages, reason=f"{found.reason}, {sink} in a process of its own")


def mode_of(tree: Tree) -> str:
    """What the joins of a placement amount to."""
    joins = set(_joins(tree))
    return next(mode for mode in ("collocated", "disaggregated", "hybrid") if joins <= JOINS_OF[mode])


def plan_of(tree: Tree, graph: MacroGraph, profile: Profile, cluster: Cluster, granules: int, processes: int | None = None) -> Plan:
    """Devices, processes and threads of a placement."""
    devices = [device.name for device in cluster.accelerators]
    many = len(devices) > 1
    placed = {leaf.stage: (leaf, taken) for leaf, taken in _placed(tree, devices)}
    source = graph.order()[0]
    granule = profile.round.items // granules
    stages = {}
    for name in graph.order():
        leaf, taken = placed[name]
        streams = profile.stage(name).streams and granules > 1 and not _in_loop(name, tree)
        cores = leaf.units.cores if profile.stage(name).most_units is None else min(leaf.units.cores, profile.stage(name).most_units)
        if cores:  # the source has a process per core, the others the program's own with as many threads
            own, threads = (cores if processes is None else processes, 1) if name == source else (0, cores)
        else:  # one accelerator is driven from the program's own process, several have one each
            own, threads = (len(taken) if many else 0), 1
        stages[name] = StagePlan(taken, own, threads, granule if streams else None)
    groups = next((loop.groups for loop in _loops(tree)), 1)
    together = tuple(tuple(sorted(group)) for group in _together(tree)) if "reloaded" in set(_joins(tree)) else None
    return Plan(mode_of(tree), profile.round.slots, groups, stages, together, describe(tree, groups, granules))


def describe(tree: Tree, groups: int, granules: int) -> str:
    """One line: who is where, and what is in flight."""
    text = _text(tree)
    return f"{text}; {groups} slot group{'s' * (groups != 1)}, {granules} granule{'s' * (granules != 1)} a round"


WORDS = {"turns": "then", "reloaded": "then, reloaded,", "interleaved": "alternating with", "split": "|", "mixed": "beside"}


def _text(tree: Tree) -> str:
    if isinstance(tree, Leaf):
        return f"{tree.stage} on {_count(tree.units)}"
    if isinstance(tree, LoopLeaf):
        return f"({_text(tree.first)} {WORDS[tree.join]} {_text(tree.second)})"
    return f"({_text(tree.first)} {WORDS[tree.kind]} {_text(tree.second)})"


def _count(units: Units) -> str:
    parts = [f"{n} {word}{'s' * (n != 1)}" for n, word in ((units.accelerators, "accelerator"), (units.cores, "core")) if n]
    return " + ".join(parts) or "nothing"


def _joins(tree: Tree) -> Iterator[str]:
    if isinstance(tree, LoopLeaf):
        pools = {bool(leaf.units.accelerators) for leaf in (tree.first, tree.second)}
        if len(pools) == 1:
            yield tree.join
    elif isinstance(tree, Join):
        if tree.kind != "split" or _pools(tree.first) & _pools(tree.second):
            yield tree.kind
        yield from _joins(tree.first)
        yield from _joins(tree.second)


def _pools(tree: Tree) -> set[str]:
    return {"accelerators" if leaf.units.accelerators else "cores" for leaf, _ in _placed(tree, [])}


def _loops(tree: Tree) -> Iterator[LoopLeaf]:
    if isinstance(tree, LoopLeaf):
        yield tree
    elif isinstance(tree, Join):
        yield from _loops(tree.first)
        yield from _loops(tree.second)


def _together(tree: Tree) -> list[frozenset[str]]:
    """Sets of stages that are loaded at once."""
    if isinstance(tree, Leaf):
        return [frozenset({tree.stage})]
    one, two = _together(tree.first), _together(tree.second)
    return one + two if isinstance(tree, Join) and tree.kind == "reloaded" else [a | b for a in one for b in two]


def _in_loop(name: str, tree: Tree) -> bool:
    return any(name in (loop.first.stage, loop.second.stage) for loop in _loops(tree))


def _placed(tree: Tree, devices: Sequence[str]) -> Iterator[tuple[Leaf, tuple[str, ...]]]:
    """Every leaf with the names of its accelerators: the two sides of a split take theirs from the two ends."""
    if isinstance(tree, Leaf):
        yield tree, tuple(devices[: tree.units.accelerators])
        return
    first, second = tree.first, tree.second
    apart = (tree.kind if isinstance(tree, Join) else tree.join) in ("split", "mixed")
    if apart and _most(first) and _most(second):
        cut = len(devices) - _most(second)
        yield from _placed(first, devices[:cut])
        yield from _placed(second, devices[cut:])
    else:
        yield from _placed(first, devices)
        yield from _placed(second, devices)


def _most(tree: Tree) -> int:
    """Accelerators a placement takes."""
    if isinstance(tree, Leaf):
        return tree.units.accelerators
    sizes = _most(tree.first), _most(tree.second)
    return sum(sizes) if (tree.kind if isinstance(tree, Join) else tree.join) in ("split", "mixed") else max(sizes)
