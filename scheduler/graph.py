"""The macro flow a person declares: stages, the loop between two of them, and what the edges carry.

A graph says what data goes where, never on which device or how many items at a time: that is the plan's.
Every check names the stage at fault.
"""

from __future__ import annotations

from dataclasses import dataclass


class GraphError(ValueError):
    """The declared graph cannot be run; the message names the stage and the way out."""


@dataclass(frozen=True)
class Stage:
    name: str
    worker: object  # the class that runs it; opaque here
    unit: str  # what one item of it is: "chunk", "trajectory"


@dataclass(frozen=True)
class Loop:
    first: str  # starts each turn and emits items downstream
    second: str
    times: int | None  # turns per episode at the most; None where the stages decide


@dataclass(frozen=True)
class Edge:
    source: str
    target: str
    carries: str
    capacity: int | None = None  # granules that may wait; None = unbounded
    lag: int | None = None  # weights edges only: versions that sampling may lie behind
    ordered: bool = True  # items leave in ledger order: the same bits everywhere | as they came: nobody waits for a straggler, and a sum is the same to rounding


class MacroGraph:
    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}
        self.loops: list[Loop] = []
        self.edges: list[Edge] = []

    def stage(self, name: str, worker: object, unit: str) -> None:
        if name in self.stages:
            raise GraphError(f"stage {name!r} is declared twice; give the second one another name")
        self.stages[name] = Stage(name, worker, unit)

    def loop(self, first: str, second: str, times: int | None = None) -> None:
        self._known(first, second)
        if first == second:
            raise GraphError(f"stage {first!r} loops with itself; a loop needs two stages")
        if times is not None and times < 1:
            raise GraphError(f"the loop of {first!r} and {second!r} runs {times} times; wanted at least 1")
        self.loops.append(Loop(first, second, times))

    def edge(self, source: str, target: str, carries: str, capacity: int | None = None, lag: int | None = None, ordered: bool = True) -> None:
        self._known(source, target)
        if capacity is not None and capacity < 1:
            raise GraphError(f"the edge {source!r} -> {target!r} has capacity {capacity}; wanted at least 1")
        if lag is not None and lag < 0:
            raise GraphError(f"the edge {source!r} -> {target!r} has lag {lag}; wanted 0 or more")
        self.edges.append(Edge(source, target, carries, capacity, lag, ordered))

    def order(self) -> list[str]:
        """Stage names from source to sink, each loop's two stages side by side; weights edges (lag given) run backwards and do not count.

        Raises GraphError for a cycle that is neither a loop nor a weights edge, and for a stage that nothing connects.
        """
        partner = {a: b for loop in self.loops for a, b in ((loop.first, loop.second), (loop.second, loop.first))}
        forward = [edge for edge in self.edges if edge.lag is None]
        touched = {name for edge in self.edges for name in (edge.source, edge.target)} | set(partner)
        for name in self.stages:
            if name not in touched and len(self.stages) > 1:
                raise GraphError(f"stage {name!r} is connected to nothing; add an edge or a loop, or leave it out")
        done: list[str] = []
        while len(done) < len(self.stages):
            free = [
                name for name in self.stages
                if name not in done and all(
                    edge.source in done or partner.get(name) == edge.source
                    for edge in forward if edge.target in (name, partner.get(name)) and edge.source != name
                )
            ]
            if not free:
                stuck = sorted(set(self.stages) - set(done))
                raise GraphError(f"stages {stuck} wait for each other; a cycle must be a loop or a weights edge (lag=...)")
            first = free[0]
            done += [first] + ([partner[first]] if first in partner else [])
        return done

    def _known(self, *names: str) -> None:
        for name in names:
            if name not in self.stages:
                raise GraphError(f"stage {name!r} is not declared; found {sorted(self.stages)}")
