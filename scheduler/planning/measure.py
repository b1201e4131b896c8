"""Measuring by doing: some turns of the real loop through a backend, and one call of a stage, with the times that the backend's clock gives.

And afterwards: a profile brought into line with what an iteration really took.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Mapping, Sequence

from scheduler.backends.base import Backend, Call, Item, Outcome
from scheduler.profile import Profile, StageProfile
from scheduler.running.execute import State, call
from scheduler.running.flow import Flow

MOST, LEAST = 5.0, 0.2  # a single iteration changes a profile by no more than these factors


@dataclass(frozen=True)
class Sampled:
    """begin: seconds of the source's first turn. step, answer: of each further turn of the source and each of its partner."""

    begin: float
    step: list[float]
    answer: list[float]
    items: list[Item]  # of episodes that ended meanwhile
    call_s: float  # seconds for each call that were none of a stage's, with one slot group in flight


def sample(flow: Flow, backend: Backend, turns: int) -> Sampled:
    """Runs the loop's first turn and `turns` more, then lets what is in flight end. The round stays unfinished."""
    state, begun, within, calls = State(replace(flow, links=(), lag=None), 0, 1), backend.now(), 0.0, 0
    begin, step, answer, items, asked = 0.0, [], [], [], 0
    while True:
        call = state.next_call() if asked <= turns or state.running else None
        if call is not None and call.stage == flow.source:
            if asked > turns:
                call = None
            else:
                asked += 1
        if call is None and not state.running:
            between = (backend.now() - begun - within) / max(1, calls)
            return Sampled(begin, step, answer, items, max(0.0, between))
        if call is not None:
            state.submitted(call)
            backend.submit(call)
        for event in backend.wait(block=call is None):
            seconds = event.end - event.start
            items += event.outcome.items
            within, calls = within + seconds, calls + event.outcome.done
            if event.call.stage == flow.partner:
                answer.append(seconds)
            elif event.call.payload is None:
                begin = seconds
            else:
                step.append(seconds)
            state.apply(event)


def trial(backend: Backend, stage: str, payload: tuple[Item, ...]) -> tuple[float, Outcome]:
    """Seconds and outcome of one call of kind "trial": a stage answers it as it would a real one, and leaves no trace."""
    event = call(backend, Call(0, stage, "trial", 0, payload=payload))
    return event.end - event.start, event.outcome


def typical(seconds: Sequence[float]) -> float:
    """The mean without the tenth that took longest and the tenth that took least: a pause of the machine is no property of the stage."""
    ordered = sorted(seconds)
    cut = len(ordered) // 10
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def calibrated(profile: Profile, predicted: Mapping[str, float], measured: Mapping[str, float]) -> Profile:
    """The profile with each stage's seconds scaled by what an iteration took over what it was predicted to take (busy seconds by stage)."""
    stages = dict(profile.stages)
    for name, stage in profile.stages.items():
        if predicted.get(name, 0.0) > 0 and measured.get(name, 0.0) > 0:
            stages[name] = scaled(stage, min(MOST, max(LEAST, measured[name] / predicted[name])))
    return replace(profile, stages=stages)


def scaled(stage: StageProfile, factor: float) -> StageProfile:
    points = tuple(replace(point, seconds=point.seconds * factor) for point in stage.points)
    return replace(stage, points=points, begin_s=stage.begin_s * factor, update_s=stage.update_s * factor)
