"""Between the executor and a clock: calls go out, events come back. The executor sees nothing else of the world.

A backend guarantees: events of one call come in order, exactly one of them has `done`; `wait(block=True)` returns at
least one event while a call is outstanding; a failed call raises from `wait` or `submit` with the stage's own error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Call:
    """One piece of work for one stage.

    kind "turn": one turn of a loop or one pull from a source: `payload` is the partner's reply, None at a round's start.
    kind "granule": `payload` is a tuple of items from the channel. kind "update": the round's items are all in.
    kind "load" / "unload": take or give back the stage's device.
    """

    number: int
    stage: str
    kind: str
    round: int
    group: int | None = None
    payload: Any = None
    version: int = 0  # updates done when the call was made: the weights version it works with


@dataclass(frozen=True)
class Item:
    """Something that travels an edge. `order` is its place in the round's ledger, from 0 without gaps."""

    order: int
    payload: Any


@dataclass(frozen=True)
class Outcome:
    """What a call gave (so far). `reply` goes to the loop's partner (None: this group has finished the round), or is an update's report."""

    reply: Any = None
    items: tuple[Item, ...] = ()
    done: bool = True


@dataclass(frozen=True)
class Event:
    call: Call
    outcome: Outcome
    start: float  # seconds on the backend's clock
    end: float


class StageWorker(Protocol):
    """A stage as a backend runs it. An inline stage answers from `start`; one whose work runs elsewhere returns None there and answers from `ready`."""

    def start(self, call: Call) -> Outcome | None: ...

    def ready(self, timeout: float | None) -> list[tuple[Call, Outcome]]:
        """Outcomes that have come in; waits up to `timeout` seconds (None: until one has)."""

    def connections(self) -> list[Any]:
        """What turns readable when an outcome may have come in; asked only of a stage whose work runs elsewhere."""

    def load(self) -> None: ...

    def unload(self) -> None: ...

    def close(self) -> None: ...


class Backend(Protocol):
    def submit(self, call: Call) -> None: ...

    def wait(self, block: bool) -> list[Event]: ...

    def now(self) -> float: ...

    def close(self) -> None: ...
