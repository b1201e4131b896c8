"""What happened: one span per call, from any backend's clock. Seconds, from the start of the execution."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Span:
    stage: str
    kind: str  # the call's kind: "turn", "granule", "update", "load", "unload"
    round: int
    group: int | None  # slot group; None outside a loop
    start: float
    end: float
    items: int  # items the call emitted
    device: str = "cores"  # the accelerators it holds, joined by +, or cores


@dataclass
class Timeline:
    spans: list[Span] = field(default_factory=list)

    def add(self, span: Span) -> None:
        self.spans.append(span)

    def of_round(self, number: int) -> Timeline:
        return Timeline([span for span in self.spans if span.round == number])

    @property
    def wall(self) -> float:
        """Seconds from the first start to the last end; 0 for an empty timeline."""
        if not self.spans:
            return 0.0
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)

    def busy(self) -> dict[str, float]:
        """Stage -> seconds in which at least one of its calls ran (overlapping calls count once)."""
        by_stage: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            by_stage[span.stage].append(span)
        return {stage: _union(spans) for stage, spans in by_stage.items()}

    def bottleneck(self) -> str | None:
        """The stage that was busy longest."""
        busy = self.busy()
        return max(busy, key=busy.__getitem__) if busy else None

    def perfetto(self) -> dict:
        """Trace Event Format, microseconds: one track per stage and slot group; opens in ui.perfetto.dev."""
        tracks = {track: number for number, track in enumerate(sorted({_track(span) for span in self.spans}))}
        names = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": track}} for track, number in tracks.items()
        ]
        events = [
            {
                "ph": "X", "pid": 0, "tid": tracks[_track(span)], "name": f"{span.stage} {span.kind}",
                "ts": round(span.start * 1e6), "dur": round((span.end - span.start) * 1e6),
                "args": {"round": span.round, "group": span.group, "items": span.items, "device": span.device},
            }
            for span in self.spans
        ]
        return {"traceEvents": names + events, "displayTimeUnit": "ms"}


def _track(span: Span) -> str:
    return span.stage if span.group is None else f"{span.stage} {span.group}"


def _union(spans: list[Span]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted((span.start, span.end) for span in spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
