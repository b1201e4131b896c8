"""Stages in the processes of a Ray, on one node or many, under the wall clock.

Guarantees: the caller holds references, never data. A stage's own error is raised as itself; a process that is gone, or gives no sign of
life for `timeout` seconds, is StageLost. After `restart` nothing of what was in flight runs or is told. `close` leaves no process behind.
A turn of slot group g goes to member g * members // groups of the processes that run its stage, a load or unload to all, the rest to the first.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Sequence

from scheduler.backends.base import Call, Event, Outcome
from scheduler.backends.host import Told
from scheduler.backends.ray_cluster import cluster, connect, disconnect
from scheduler.backends.ray_host import STORED, Host, Kept, WeightsBoxes, unpacked
from scheduler.backends.ray_members import SLICE, Member, Members

__all__ = ["Host", "RayBackend", "cluster", "connect", "disconnect"]


@dataclass
class _Sent:
    call: Call
    member: Member
    reply: Any


@dataclass
class _Shared:
    """A call that went to several members."""

    left: int
    seconds: float = 0.0


class RayBackend:
    def __init__(self, hosts: Sequence[Host], groups: int = 1, timeout: float = 60.0, starting: float = 120.0) -> None:
        """`connect` comes first. timeout: seconds without a sign of life; a stage that keeps the interpreter to itself for longer counts as lost. starting: the same for a process that begins."""
        self._origin, self._numbers = time.perf_counter(), 0
        self._boxes = WeightsBoxes()
        self.arrange(groups)
        self._forget()
        self._members = Members(hosts, groups, timeout, starting)

    def __enter__(self) -> RayBackend:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def arrange(self, groups: int) -> None:
        """Deals the slot groups out to the members anew. Between rounds, with nothing in flight."""
        if groups < 1:
            raise ValueError(f"found {groups} slot groups, wanted at least 1")
        self._groups = groups

    def now(self) -> float:
        return time.perf_counter() - self._origin

    def submit(self, call: Call) -> None:
        members = self._members_for(call)
        if len(members) > 1:
            self._shared[call.number] = _Shared(len(members))
        keep = call.kind == "turn" and self._stays(call, members[0])
        weights = None if call.weights is None else self._boxes.of(call)
        bare = replace(call, payload=None, weights=None)
        for member in members:
            self._numbers += 1
            what = pickle.dumps((self._numbers, self._members.epoch, bare, keep))  # holds no reference, so pickle will do: Ray's way of it takes several times as long
            self._send(self._numbers, call, member, "run", what, call.payload, weights)

    def wait(self, block: bool) -> list[Event]:
        """Every event known; with `block`, at least one while a call is outstanding. Raises what a stage raised, and StageLost."""
        self._receive(None)
        while block and not self._events and self._sent:
            if not self._receive(SLICE):
                self._members.look_for_life()
        events = list(self._events)
        self._events.clear()
        return events

    def ask(self, stage: str, method: str, *arguments: Any) -> list[Any]:
        """One answer for each member, in order, by value; of items that are the answer, what they carry stays where it is."""
        return self._members.ask(stage, method, arguments)

    def processes(self, stage: str) -> list[int]:
        """The process of each member, as its node numbers it."""
        return [member.pid for member in self._members.of(stage)]

    def restart(self, stage: str) -> set[str]:
        """Builds anew the processes that have died, and lets the others end or abandon what they run; `stage` is what was found lost.

        A stage that lost something of its own in a process that lives builds that anew itself. Returns the stages of new processes.
        """
        self._forget()
        self._boxes.clear()
        return self._members.restart()

    def close(self) -> None:
        """Closes the stages, ends their processes; the first error that a stage raised as it closed is raised at the end."""
        self._members.close()

    # What is sent

    def _members_for(self, call: Call) -> list[Member]:
        members = self._members.of(call.stage)
        if call.kind in ("load", "unload"):
            return members
        if call.kind != "turn":
            return members[:1]
        if call.group is not None and not 0 <= call.group < self._groups:
            raise ValueError(f"found a turn of slot group {call.group}, wanted one of {self._groups}; arrange(groups) says how many there are")
        return [members[(call.group or 0) * len(members) // self._groups]]

    def _stays(self, call: Call, member: Member) -> bool:
        """Whether the turn's reply is taken in the process that makes it. Who takes whose is seen from the turns before."""
        if call.payload is not None and call.group in self._turned:
            self._follows[self._turned[call.group]] = call.stage
        self._turned[call.group] = call.stage
        if isinstance(call.payload, Kept) and call.payload.host != member.number:
            raise RuntimeError(f"a reply of stage {call.payload.stage!r} waits in another process than that of {call.stage!r}; arrange(groups) only between rounds")
        following = self._follows.get(call.stage)
        return following is not None and self._members_for(replace(call, stage=following, payload=None))[0] is member

    def _send(self, number: int, call: Call, member: Member, method: str, *arguments: Any) -> None:
        if member.lost is not None:
            raise self._members.loss(member, call.stage)
        told, reply = getattr(member.actor, method).remote(*arguments)
        self._sent[number] = _Sent(call, member, reply)
        member.owes[number] = call.stage
        inbox = self._inbox  # of now: what comes after a restart must not be taken for something new
        told.future().add_done_callback(lambda future: inbox.put((number, future)))

    def _forget(self) -> None:
        self._inbox: SimpleQueue[tuple[int, Future]] = SimpleQueue()
        self._sent: dict[int, _Sent] = {}
        self._shared: dict[int, _Shared] = {}
        self._events: deque[Event] = deque()
        self._turned: dict[int | None, str] = {}  # slot group -> whose turn was the last
        self._follows: dict[str, str] = {}  # stage -> who takes its replies

    # What comes back

    def _receive(self, timeout: float | None) -> bool:
        """Takes what has come, waiting up to `timeout` for the first; whether anything had."""
        came = False
        while True:
            try:
                number, future = self._inbox.get(timeout is not None and not came, timeout)
            except Empty:
                return came
            came = True
            sent = self._sent.pop(number)
            del sent.member.owes[number]
            error = future.exception()
            if error is not None:
                raise self._members.meaning(sent.member, sent.call.stage, error)
            self._record(number, sent, unpacked(future.result()))

    def _record(self, number: int, sent: _Sent, told: list[Told]) -> None:
        received, last = self.now(), told[-1]
        if not last.over:
            self._send(number, sent.call, sent.member, "more", number)
        for one in told:
            if one.failure is not None:
                raise self._members.failed(sent.member, sent.call.stage, one)
            outcome: Outcome = one.value
            if outcome.reply == STORED and sent.call.kind == "turn":
                outcome = replace(outcome, reply=sent.reply)
            seconds = last.seconds
            if sent.call.number in self._shared:
                shared = self._shared[sent.call.number]
                shared.left, shared.seconds = shared.left - 1, max(shared.seconds, seconds)
                if shared.left:
                    continue
                seconds = self._shared.pop(sent.call.number).seconds
            start = received - seconds  # on the clock here; the other machine's may say anything
            self._events.append(Event(sent.call, outcome, start, received - last.seconds + one.seconds))

