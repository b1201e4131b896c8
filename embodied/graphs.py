"""The macro graphs, declared: what flows where. How it runs is the plan's."""

from __future__ import annotations

from embodied.stages.act import ActStage
from embodied.stages.learn import LearnStage
from embodied.stages.read import ReadStage
from embodied.stages.ref import RefStage
from embodied.stages.sim import SimStage
from scheduler.graph import MacroGraph


def reinforcement(horizon: int | None = None, lag: int = 0, reference: bool = False, ordered: bool = True) -> MacroGraph:
    """Simulate and act in a loop, learn from the trajectories, hand the weights back. horizon: turns per episode at the most.

    lag: updates that the sampling weights may lie behind. reference: trajectories pass by the frozen start, for a KL term.
    ordered: they travel in ledger order, or as they come, where lengths differ so much that nobody should wait for the longest.
    """
    graph = evaluation(horizon)
    before = "sim"
    if reference:
        graph.stage("ref", RefStage, unit="trajectory")
        graph.edge("sim", "ref", carries="trajectory", capacity=2, ordered=ordered)
        before = "ref"
    graph.stage("learn", LearnStage, unit="trajectory")
    graph.edge(before, "learn", carries="trajectory", capacity=2, ordered=ordered)
    graph.edge("learn", "act", carries="weights", lag=lag)
    return graph


def evaluation(horizon: int | None = None) -> MacroGraph:
    """Simulate and act; the trajectories are the result."""
    graph = MacroGraph()
    graph.stage("sim", SimStage, unit="chunk")
    graph.stage("act", ActStage, unit="chunk")
    graph.loop("sim", "act", times=horizon)
    return graph


def imitation() -> MacroGraph:
    """Read demonstrations, learn from them."""
    graph = MacroGraph()
    graph.stage("read", ReadStage, unit="batch")
    graph.stage("learn", LearnStage, unit="batch")
    graph.edge("read", "learn", carries="batch", capacity=2)
    graph.edge("learn", "read", carries="weights", lag=0)  # nothing to hand back: it only keeps reading one round ahead at most
    return graph
