"""Graph x plan -> what the executor follows: who starts, who answers, what is handed on, who shares a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from scheduler.graph import GraphError, MacroGraph


@dataclass(frozen=True)
class Link:
    """The edge into `target`: items from `source` in granules."""

    source: str
    target: str
    granule: int | None  # items handed on at a time; None = the whole round
    capacity: int | None = None  # granules that may wait
    ordered: bool = True  # ledger order, or order of arrival


@dataclass(frozen=True)
class Flow:
    source: str
    partner: str | None  # the other half of the source's loop
    groups: int  # slot groups in flight
    links: tuple[Link, ...]  # from the source to the sink, a chain
    lag: int | None  # of the weights edge; None when nothing is learned
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # stage -> the devices it leases; a stage that needs none is absent
    elsewhere: frozenset[str] = frozenset()  # stages whose calls do not hold up the caller
    taught: str | None = None  # where the weights edge leads
    together: tuple[frozenset[str], ...] = ()  # sets of stages that may be loaded at once on devices they share

    @property
    def sink(self) -> str | None:
        return self.links[-1].target if self.links else None

    def beside(self, one: str, other: str) -> bool:
        """Whether both may be loaded at once on devices they share."""
        return one == other or any({one, other} <= group for group in self.together)

    @property
    def priority(self) -> tuple[str, ...]:
        """Who goes first when several may: stages that run elsewhere, then those that hold up the caller; of each the source, its partner, then downstream."""
        stages = [self.source, *([self.partner] if self.partner else []), *(link.target for link in self.links)]
        return tuple(sorted(stages, key=lambda stage: stage not in self.elsewhere))


def flow_of(graph: MacroGraph, groups: int, granules: Mapping[str, int | None], devices: Mapping[str, tuple[str, ...]], elsewhere: frozenset[str] = frozenset()) -> Flow:
    """granules: by receiving stage. Raises GraphError naming the stage where the graph is not a source (or loop) followed by a chain."""
    order = graph.order()
    loops = graph.loops
    if len(loops) > 1:
        raise GraphError(f"found loops at {[loop.first for loop in loops]}; the executor runs one loop, at the source")
    source = loops[0].first if loops else order[0]
    partner = loops[0].second if loops else None
    links, at = [], source
    forward = {edge.source: edge for edge in graph.edges if edge.lag is None}
    if len(forward) != sum(edge.lag is None for edge in graph.edges):
        raise GraphError("a stage hands its items to two stages; the executor follows a chain")
    while at in forward:
        edge = forward[at]
        links.append(Link(at, edge.target, granules.get(edge.target), edge.capacity, edge.ordered))
        at = edge.target
    covered = {source, partner} | {link.target for link in links}
    for name in graph.stages:
        if name not in covered:
            raise GraphError(f"stage {name!r} is not on the way from {source!r} to {at!r}")
    back = [edge for edge in graph.edges if edge.lag is not None]
    lag, taught = (back[0].lag, back[0].target) if back else (None, None)
    return Flow(source, partner, groups, tuple(links), lag, {stage: held for stage, held in devices.items() if held}, elsewhere, taught)
