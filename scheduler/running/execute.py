"""The executor: a state machine that says what may run, and the short loop that drives it with a backend.

Guarantees: every item the source emits reaches the sink once; a round's update runs when all its items are in; sampling of a
round starts only when `staleness.may_start` allows; one stage at a time uses a device. It reads no clock and no payload.
A stage takes all devices of its lease at once, when nothing else runs on any of them, and holds them only while its calls run: nobody
holds one device while it waits for another, so leases cannot deadlock. It stays loaded until a stage that may not be loaded beside
it (`Flow.together`) wants one of its devices; a load that is not needed is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterator, Mapping, Sequence

from scheduler.backends.base import Backend, Call, Event, Item, Weights
from scheduler.running.channel import Channel
from scheduler.running.flow import Flow
from scheduler.running.staleness import may_start, version_for
from scheduler.timeline import Span, Timeline


class Stopped(Exception):
    """The caller asked to stop; what was in flight is dropped. `round` is the first round without an update."""

    def __init__(self, round_number: int) -> None:
        super().__init__(f"stopped in round {round_number}")
        self.round = round_number


@dataclass
class RoundResult:
    number: int
    items: list[Item]  # what the source emitted, in ledger order; without the payload where another stage has had it
    report: Any  # what the sink's update returned; None without a sink
    timeline: Timeline
    took: float = 0.0  # seconds of the iteration: of the timeline, or with lag since the update before, as rounds overlap then
    weights: dict[int, Sequence[Any]] = field(default_factory=dict)  # the versions that later rounds may sample with, where they travel


@dataclass
class _Group:
    """One slot group. `turn` is whose move it is; `payload` what the last one answered."""

    round: int
    turn: str
    payload: Any = None
    busy: bool = False
    since: int = 0  # number of the event that made it wait: who waits longest goes first


@dataclass
class _Round:
    channels: dict[str, Channel]
    groups_left: int
    items: list[Item] = field(default_factory=list)
    updating: bool = False


class State:
    """`next_call` proposes, `submitted` and `apply` record. Rounds are numbered from `first` to `last` - 1."""

    def __init__(self, flow: Flow, first: int, last: int, weights: Mapping[int, Sequence[Any]] | None = None) -> None:
        self.flow, self.first, self.last = flow, first, last
        self.weights = dict(weights or {})  # version -> its parts, for as long as a round may sample with it
        self._oldest = min(self.weights, default=first)
        self.groups = [_Group(first, flow.source) for _ in range(flow.groups)]
        self.rounds: dict[int, _Round] = {}
        self.done = first  # rounds completed: the first round that is not
        self.running: dict[int, Call] = {}
        self.loaded: set[str] = set()  # stages that are on their devices
        self._numbers = 0
        self._turns = 0

    @property
    def finished(self) -> bool:
        return self.done >= self.last and not self.running

    def next_call(self) -> Call | None:
        """The next call that may run, by the flow's priority; None while everything waits for an event."""
        for stage in self.flow.priority:
            call = self._call_for(stage)
            if call is None:
                continue
            if stage not in self.flow.devices:
                return call
            if self._taken(stage):
                continue  # whoever works there keeps it until then
            if stage in self.loaded:
                return call
            wanted = set(self.flow.devices[stage])
            others = sorted(other for other in self.loaded if wanted.intersection(self.flow.devices[other]) and not self.flow.beside(stage, other))
            return self._new(others[0], "unload", call.round) if others else self._new(stage, "load", call.round)
        return None

    def submitted(self, call: Call) -> None:
        self.running[call.number] = call
        if call.kind == "turn":
            self.groups[call.group].busy = True
        elif call.kind == "granule":
            self.rounds[call.round].channels[call.stage].take()
        elif call.kind == "update":
            self.rounds[call.round].updating = True
        elif call.kind == "unload":
            self.loaded.discard(call.stage)

    def apply(self, event: Event) -> RoundResult | None:
        """Records an event; a RoundResult (its timeline still empty) when it completed a round."""
        call, outcome = event.call, event.outcome
        for item in outcome.items:
            self._emit(call, item)
        if not outcome.done:
            return None
        del self.running[call.number]
        if call.kind in ("load", "unload"):
            if call.kind == "load":
                self.loaded.add(call.stage)
            return None
        if call.kind == "turn":
            self._turned(call, outcome.reply)
        if call.kind == "update":
            if outcome.weights is not None:
                self.weights[call.round + 1] = outcome.weights
            return self._complete(call.round, outcome.reply)
        self._close_channels(call.round)
        if self.flow.sink is None and call.kind == "turn" and self._round(call.round).groups_left == 0:
            return self._complete(call.round, None)
        return None

    def _call_for(self, stage: str) -> Call | None:
        if stage in (self.flow.source, self.flow.partner):
            return self._turn(stage)
        if any(call.stage == stage for call in self.running.values()) or self.done >= self.last:
            return None
        for number in sorted(self.rounds):
            channel = self.rounds[number].channels[stage]
            if any(link.source == stage and self.rounds[number].channels[link.target].full for link in self.flow.links):
                return None  # full means that the next stage has something to take, so this ends
            if channel.available():
                return self._new(stage, "granule", number, payload=channel.peek())
            if stage == self.flow.sink and channel.drained and number == self.done and not self.rounds[number].updating:
                return self._new(stage, "update", number)
            if not channel.drained:
                return None  # a later round never overtakes an earlier one
        return None

    def _turn(self, stage: str) -> Call | None:
        for number, group in sorted(enumerate(self.groups), key=lambda each: each[1].since):
            if group.busy or group.turn != stage or group.round >= self.last:
                continue
            if group.payload is None and stage == self.flow.source and self.flow.lag is not None:
                if not may_start(group.round - self.first, self.done - self.first, self.flow.lag):
                    continue
            if stage == self.flow.source and self.flow.links and self._round(group.round).channels[self.flow.links[0].target].full:
                continue
            return self._new(stage, "turn", group.round, number, group.payload)
        return None

    def _taken(self, stage: str) -> bool:
        """Whether another stage uses a device of its lease, or it is being loaded or unloaded itself."""
        wanted = set(self.flow.devices[stage])
        return any(
            wanted.intersection(self.flow.devices.get(call.stage, ())) if call.stage != stage else call.kind in ("load", "unload")
            for call in self.running.values()
        )

    def _new(self, stage: str, kind: str, round_number: int, group: int | None = None, payload: Any = None) -> Call:
        self._numbers += 1
        version = self.done if self.flow.lag is None or kind != "turn" else version_for(round_number, self.flow.lag, self._oldest)
        weights = Weights(version, self.weights[version]) if stage == self.flow.taught and kind == "turn" and version in self.weights else None
        return Call(self._numbers, stage, kind, round_number, group, payload, version, weights)

    def _round(self, number: int) -> _Round:
        if number not in self.rounds:
            channels = {link.target: Channel(link.granule, link.capacity, link.ordered) for link in self.flow.links}
            self.rounds[number] = _Round(channels, self.flow.groups)
        return self.rounds[number]

    def _emit(self, call: Call, item: Item) -> None:
        at = self._round(call.round)
        if call.stage == self.flow.source:
            at.items.append(replace(item, payload=None) if self.flow.links else item)
        for link in self.flow.links:
            if link.source == call.stage:
                at.channels[link.target].put(item)

    def _turned(self, call: Call, reply: Any) -> None:
        group = self.groups[call.group]
        self._turns += 1
        group.busy, group.payload, group.since = False, reply, self._turns
        if call.stage == self.flow.source and reply is None:
            group.round, group.turn = call.round + 1, self.flow.source
            self._round(call.round).groups_left -= 1
        elif self.flow.partner is not None:
            group.turn = self.flow.partner if call.stage == self.flow.source else self.flow.source

    def _close_channels(self, number: int) -> None:
        """A channel closes when its source can emit nothing more: the loop's groups are through, or the stage before has drained and rests."""
        at = self._round(number)
        upstream_over = at.groups_left == 0
        for link in self.flow.links:
            channel = at.channels[link.target]
            if upstream_over and not channel.closed:
                channel.close()
            resting = not any(c.stage == link.target and c.round == number for c in self.running.values())
            upstream_over = upstream_over and channel.drained and resting

    def _complete(self, number: int, report: Any) -> RoundResult:
        at = self.rounds.pop(number)
        self.done = number + 1
        for version in [v for v in self.weights if v < version_for(self.done, self.flow.lag or 0, self._oldest)]:
            del self.weights[version]
        return RoundResult(number, sorted(at.items, key=lambda item: item.order), report, Timeline(), 0.0, dict(self.weights))


def _span(event: Event, flow: Flow) -> Span:
    asked = event.call
    device = "+".join(flow.devices.get(asked.stage, ())) or "cores"
    return Span(asked.stage, asked.kind, asked.round, asked.group, event.start, event.end, len(event.outcome.items), device)


def call(backend: Backend, asked: Call) -> Event:
    """One call by itself, while nothing else is in flight: its last event."""
    backend.submit(asked)
    while True:
        for event in backend.wait(block=True):
            if event.outcome.done:
                return event


def publish(backend: Backend, stage: str, version: int) -> Sequence[Any]:
    """The parts of a version of the weights that the stage has."""
    return call(backend, Call(0, stage, "publish", 0, version=version)).outcome.weights


def execute(
    flow: Flow, backend: Backend, first: int, last: int, stop: Callable[[], bool] = lambda: False,
    weights: Mapping[int, Sequence[Any]] | None = None, on_item: Callable[[Item], None] | None = None,
) -> Iterator[RoundResult]:  # fmt: skip
    """Runs rounds `first` to `last` - 1 and yields each one as its update ends. With lag 0 nothing is in flight at a yield.

    weights: the versions that are known at the start, where the stage that works with them does not share the learner's memory.
    on_item: sees each item of the source as it comes.
    Raises Stopped between calls once `stop()` is true and no update runs, and whatever a stage raised.
    """
    state, timeline, before = State(flow, first, last, weights), Timeline(), backend.now()
    while not state.finished:
        stopping = stop()
        if stopping and not any(call.kind == "update" for call in state.running.values()):  # what is half updated belongs to no round
            raise Stopped(state.done)
        call = None if stopping else state.next_call()
        if call is not None:
            state.submitted(call)
            backend.submit(call)
        elif not state.running:
            raise RuntimeError(f"nothing runs and nothing may run in round {state.done}; the flow {flow} is at fault")
        completed = []
        for event in backend.wait(block=call is None):
            timeline.add(_span(event, flow))
            if on_item is not None and event.call.stage == flow.source:
                for item in event.outcome.items:
                    on_item(item)
            result = state.apply(event)
            if result is not None:
                completed.append(result)
        for result in completed:
            result.timeline = timeline.of_round(result.number)
            ended = max((span.end for span in result.timeline.spans), default=before)
            result.took, before = (ended - before if flow.lag else result.timeline.wall), ended
            timeline = Timeline([span for span in timeline.spans if span.round > result.number])
            yield result
