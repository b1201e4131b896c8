"""Between the executor and a clock: calls go out, events come back. The executor sees nothing else of the world.

A backend guarantees: events of one call come in order, exactly one of them has `done`; `wait(block=True)` returns at
least one event while a call is outstanding; a failed call raises from `wait` or `submit` with the stage's own error, a lost
process StageLost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Protocol, Sequence


@dataclass(frozen=True)
class Weights:
    """One version of what the learner gave. `parts` may be gone through once per call, each part as the learner made it; opaque here."""

    version: int
    parts: Iterable[Any]


@dataclass(frozen=True)
class Call:
    """One piece of work for one stage.

    kind "turn": one turn of a loop or one pull from a source: `payload` is the partner's reply, None at a round's start.
    kind "granule": `payload` is a tuple of items from the channel. kind "update": the round's items are all in.
    kind "load" / "unload": take or give back the stage's device. kind "trial": answer as to a granule and leave no trace, to be timed.
    kind "publish": give the weights of `version`.
    """

    number: int
    stage: str
    kind: str
    round: int
    group: int | None = None
    payload: Any = None
    version: int = 0  # updates after which the weights it works with stood
    weights: Weights | None = None  # of that version, for the stage that the weights edge leads to; None where it shares the learner's memory


@dataclass(frozen=True)
class Item:
    """Something that travels an edge. `order` is its place in the round's ledger, from 0 without gaps.

    payload: what the next stage gets; the caller never looks at it, so a backend may leave it where it was made and hand on a reference.
    about: a few plain values for the caller's log.
    """

    order: int
    payload: Any
    about: Any = None


@dataclass(frozen=True)
class Outcome:
    """What a call gave (so far). `reply` goes to the loop's partner (None: this group has finished the round), or is an update's report.

    weights: of an update, the parts of the new version for the stage that works with them; None where both share one memory.
    """

    reply: Any = None
    items: tuple[Item, ...] = ()
    done: bool = True
    weights: Sequence[Any] | None = None


class StageLost(RuntimeError):
    """A stage's process died or no longer answers, and what it held is gone; the message names it. `stage` can be built anew."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage

    def __reduce__(self) -> tuple:
        return type(self), (self.stage, str(self))


@dataclass(frozen=True)
class Event:
    call: Call
    outcome: Outcome
    start: float  # seconds on the backend's clock
    end: float


class StageWorker(Protocol):
    """A stage as a backend runs it. An inline stage answers from `start`; one whose work runs elsewhere returns None there and answers from `ready`.

    It may also have `abandon()`: forget the round, which is begun again; and `restart()`: build anew what it has lost, after it raised StageLost.
    Or `renew()` in its place: everything was lost, and the stage is as it was first built.
    """

    def start(self, call: Call) -> Outcome | None: ...

    def ready(self, timeout: float | None) -> list[tuple[Call, Outcome]]:
        """Outcomes that have come in; waits, or works, up to `timeout` seconds (None: until one has)."""

    def connections(self) -> list[Any]:
        """What turns readable when an outcome may have come in; none where the work is done in `ready`. Not asked of an inline stage."""

    def load(self) -> None: ...

    def unload(self) -> None: ...

    def close(self) -> None: ...


def close_all(stages: Iterable[StageWorker]) -> None:
    """Closes every stage, also when one of them fails to; the first failure is raised at the end."""
    failure: Exception | None = None
    for stage in stages:
        try:
            stage.close()
        except Exception as error:  # the others must still be closed
            failure = failure or error
    if failure is not None:
        raise failure


class Backend(Protocol):
    def submit(self, call: Call) -> None: ...

    def wait(self, block: bool) -> list[Event]: ...

    def now(self) -> float: ...

    def ask(self, stage: str, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of the stage's worker while nothing is in flight; the answers, one per process that runs the stage."""

    def arrange(self, groups: int) -> None:
        """How many slot groups there are from now on. Between rounds."""

    def restart(self, stage: str) -> set[str]:
        """After StageLost: builds anew what was lost, drops what is in flight; the round can then be begun again. The stages that are as new."""

    def close(self) -> None: ...
