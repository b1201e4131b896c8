"""An actor that runs stages, and how their data travels: the caller gets references only.

Guarantees: what a turn answers, what items carry and the parts of weights stay where they were made; the caller sees a reference (a Ray
object, or a `Kept` for what the next stage in this same process takes). A reference is fetched in the actor of the stage that uses it,
weights one part at a time and only when the stage goes through them. Reports, answers and `Item.about` travel as they are.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Callable, Iterator, Mapping, Sequence

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayTaskError

from scheduler.backends.base import Call, Item, Outcome, StageWorker, Weights
from scheduler.backends.host import StageThread, Told

STORED = "stored"  # stands for a turn's reply in its Outcome: it is the second thing the actor's method returns


@dataclass(frozen=True)
class Host:
    """One actor process and the stages that run in it."""

    stages: tuple[str, ...]
    make: Callable[[], Mapping[str, StageWorker]]  # picklable; builds exactly these stages, in the actor
    node: str | None = None  # a node's name as in the Cluster of `connect`; None = anywhere
    cores: int = 1  # what it keeps busy, for its place
    accelerators: int = 0


@dataclass(frozen=True)
class Kept:
    """A reply that waits in the process of the stage that takes it."""

    host: int
    stage: str
    group: int


@dataclass(frozen=True)
class Parts:
    """The parts of weights behind one reference; each is fetched as it is come to, each time they are gone through."""

    references: Any  # of the list of the parts' references

    def __iter__(self) -> Iterator[Any]:
        for part in ray.get(self.references):
            yield ray.get(part)


def stored(values: Sequence[Any]) -> list[Any]:
    return [value if isinstance(value, ray.ObjectRef) else ray.put(value) for value in values]


def fetched(items: Sequence[Item]) -> tuple[Item, ...]:
    references = [item.payload for item in items if isinstance(item.payload, ray.ObjectRef)]
    payloads = iter(ray.get(references) if references else ())
    return tuple(replace(item, payload=next(payloads)) if isinstance(item.payload, ray.ObjectRef) else item for item in items)


def before(call: Call) -> Call:
    """The call with its data here. A turn's payload came along with it."""
    items = call.kind != "turn" and isinstance(call.payload, tuple) and all(isinstance(item, Item) for item in call.payload)
    return replace(call, payload=fetched(call.payload)) if items else call


def after(call: Call, outcome: Outcome) -> Outcome:
    """The outcome with references in place of its data, save for the reply."""
    if not outcome.items and outcome.weights is None and outcome.done:
        return outcome
    weights = None if outcome.weights is None else stored(outcome.weights)
    return replace(outcome, reply=outcome.reply if outcome.done else None, items=tuple(map(left, outcome.items)), weights=weights)


def answered(value: Any) -> Any:
    """What a question was answered with; what items carry is not for the one who asks."""
    return [left(item) for item in value] if isinstance(value, (list, tuple)) and all(isinstance(item, Item) for item in value) and value else value


def left(item: Item) -> Item:
    """The item with what it carries left here."""
    return item if item.payload is None else replace(item, payload=ray.put(item.payload))


def is_gone(error: BaseException) -> bool:
    if isinstance(error, RayTaskError):
        error = error.cause
    return isinstance(error, (ObjectLostError, GetTimeoutError))


def packed(told: list[Told]) -> Any:
    """As `unpacked` takes it: bytes where there is nothing in it but words of ours, which is quicker than Ray's own way."""
    plain = all(one.value is None or one.value.reply is None or one.value.reply is STORED for one in told)
    plain = plain and all(one.value is None or (not one.value.items and one.value.weights is None) for one in told)
    return pickle.dumps(told) if plain else told


def unpacked(told: Any) -> list[Told]:
    return pickle.loads(told) if isinstance(told, bytes) else told


class HostActor:
    """The methods of a host's actor. `run`, `more` and `ask` block a thread of the actor's each; `ping` and what ends calls have their own."""

    def __init__(self, number: int, make: Callable[[], Mapping[str, StageWorker]], epoch: int) -> None:
        self._number = number
        self._thread = StageThread(make, before, after, is_gone)
        self._thread.epoch = epoch
        self._boxes: dict[int, tuple[Call, SimpleQueue, bool]] = {}  # by the caller's number of what it sent
        self._kept: dict[tuple[str, int], Any] = {}  # at most one reply for each stage and slot group

    @ray.method(concurrency_group="aside")
    def build(self) -> tuple[int, Told]:
        return os.getpid(), self._thread.build().get()

    @ray.method(num_returns=2)
    def run(self, what: bytes, payload: Any, weights: Weights | None) -> tuple[Any, Any]:
        """what: the caller's number, the epoch, the call without its data, and whether the reply is taken in this process.

        payload: the call's, by itself so that Ray has fetched it.
        """
        sent, epoch, call, keep = pickle.loads(what)
        if isinstance(payload, Kept):
            payload = self._kept.pop((payload.stage, payload.group), None)
        self._boxes[sent] = (call, self._thread.run(epoch, replace(call, payload=payload, weights=weights)), keep)
        del payload  # else it would live as long as this thread waits
        return self._answer(sent)

    @ray.method(num_returns=2)
    def more(self, sent: int) -> tuple[Any, Any]:
        return self._answer(sent)

    def ask(self, stage: str, method: str, arguments: tuple) -> Told:
        return self._thread.ask(stage, method, arguments, answered).get()

    @ray.method(concurrency_group="health")
    def ping(self) -> int:
        return os.getpid()

    @ray.method(concurrency_group="aside")
    def abandon(self, epoch: int, hurt: str | None) -> Told:
        told = self._thread.abandon(epoch, hurt).get()
        self._boxes.clear()
        self._kept.clear()
        return told

    @ray.method(concurrency_group="aside")
    def close(self) -> Told:
        return self._thread.close().get()

    def _answer(self, sent: int) -> tuple[Any, Any]:
        """All that is known by now of what was sent, at least one thing, and the reply of a turn that is over."""
        call, box, keep = self._boxes[sent]
        told = [box.get()]
        while not told[-1].over:
            try:
                told.append(box.get_nowait())
            except Empty:
                return packed(told), None
        self._boxes.pop(sent, None)
        outcome, reply = told[-1].value, None
        if call.kind == "turn" and outcome is not None and outcome.reply is not None:
            reply = outcome.reply
            told[-1] = replace(told[-1], value=replace(outcome, reply=Kept(self._number, call.stage, call.group) if keep else STORED))
        if keep:
            self._kept[call.stage, call.group], reply = reply, None
        return packed(told), reply


class WeightsBoxes:
    """The caller's side: each version's parts behind one reference, made once, so that a call carries that one alone."""

    def __init__(self) -> None:
        self._boxes: dict[int, tuple[Any, Any]] = {}  # version -> (parts, reference)

    def of(self, call: Call) -> Weights:
        version, parts = call.weights.version, call.weights.parts
        oldest = 2 * version - call.round  # rounds in flight lie no further apart than a round lies behind its weights
        for known in [known for known in self._boxes if known < oldest]:
            del self._boxes[known]
        if version not in self._boxes or self._boxes[version][0] is not parts:
            self._boxes[version] = (parts, ray.put(stored(parts)))
        return Weights(version, Parts(self._boxes[version][1]))

    def clear(self) -> None:
        self._boxes.clear()
