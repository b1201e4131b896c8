"""The processes of a Ray backend: begun, asked for signs of life, built anew, ended.

Guarantees: an answer that is owed comes, or its process is found lost: at once when Ray knows it as dead, after `timeout` seconds without a
sign of life else. Of what is lost it is said which stage, process and node, and why. `close` leaves no process behind.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Sequence

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.placement_group import remove_placement_group

from scheduler.backends.base import StageLost
from scheduler.backends.host import Told
from scheduler.backends.ray_cluster import nodes, one_line, place
from scheduler.backends.ray_host import Host, HostActor, is_gone
from scheduler.resources import ClusterError

SLICE = 1.0  # seconds without an answer after which the processes are asked for a sign of life
LAST_WORDS = 5.0  # seconds that a stage has to close
LEAST_THREADS = 64  # of an actor: each call that waits in it takes one
SEE_GPUS = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}  # of a joined Ray, which may not have been started with it


@dataclass
class Member:
    """One actor. ping: what was asked last and has not answered; asked: when."""

    number: int
    host: Host
    actor: Any = None
    pid: int | None = None
    ping: Any = None
    asked: float = 0.0
    owes: dict[int, str] = field(default_factory=dict)  # number of what was sent -> stage that has not answered
    lost: str | None = None  # why


class Members:
    def __init__(self, hosts: Sequence[Host], groups: int, timeout: float, starting: float) -> None:
        """Raises ClusterError where there is no room, and what a stage raises as it is built."""
        self.epoch = 0  # counts the restarts: what belongs to another one is dropped
        self._all = [Member(number, host) for number, host in enumerate(hosts)]
        self._timeout, self._starting, self._threads = timeout, max(timeout, starting), max(LEAST_THREADS, 2 * groups)
        self._hurt: dict[int, str] = {}  # number of a member -> its stage that said it lost something
        self._place, self._strategies = place(hosts)
        try:
            self._gather(self._begin(self._all))
        except BaseException:  # also Ctrl-C: what was begun must not stay
            self._end()
            raise

    def of(self, stage: str) -> list[Member]:
        found = [member for member in self._all if stage in member.host.stages]
        if not found:
            raise ValueError(f"stage {stage!r} has no host; found hosts for {sorted({name for member in self._all for name in member.host.stages})}")
        return found

    def ask(self, stage: str, method: str, arguments: tuple) -> list[Any]:
        for member in self.of(stage):
            if member.lost is not None:
                raise self.loss(member, stage)
        return self._gather([(member, stage, member.actor.ask.remote(stage, method, arguments)) for member in self.of(stage)])

    def restart(self) -> set[str]:
        """Builds anew the processes that have died; the others end or abandon what they run. Returns the stages of new processes."""
        hurt, self._hurt, self.epoch = self._hurt, {}, self.epoch + 1
        for member in self._all:
            member.owes.clear()
        self._find_dead()
        alive = [member for member in self._all if member.lost is None]
        cleaned = [(member, member.host.stages[0], member.actor.abandon.remote(self.epoch, hurt.get(member.number))) for member in alive]
        dead = [member for member in self._all if member.lost is not None]
        asked = self._begin(dead)
        unable = [member for member, able in zip(alive, self._gather(cleaned)) if not able]
        self._gather(asked + self._begin(unable))
        return {name for member in dead + unable for name in member.host.stages}

    def close(self) -> None:
        """Closes the stages, ends their processes; the first error that a stage raised as it closed is raised at the end."""
        closing = [(member, member.actor.close.remote()) for member in self._all if member.actor is not None and member.lost is None]
        failure: Exception | None = None
        if closing:
            done, _ = ray.wait([told for _, told in closing], num_returns=len(closing), timeout=LAST_WORDS)
            for told in done:
                try:
                    failed = ray.get(told).failure
                except RayError:  # it died by itself
                    continue
                failure = failure or (failed.error() if failed is not None else None)
        self._end()
        if failure is not None:
            raise failure

    def _begin(self, members: Sequence[Member]) -> list[tuple[Member, str, Any]]:
        """New processes for these; the answers that say when their stages are built."""
        there, asked = nodes(), []
        for member in members:
            host = member.host
            if host.node is not None and host.node not in there:
                raise ClusterError(f"node {host.node} of stage {host.stages[0]!r} is gone; bring it back, or start again with the nodes there are: {', '.join(there)}")
            if member.actor is not None:
                ray.kill(member.actor)
            actor = ray.remote(concurrency_groups={"health": 1, "aside": 2})(HostActor).options(
                num_cpus=0, num_gpus=0, max_restarts=0, max_concurrency=self._threads, scheduling_strategy=self._strategies[member.number],
                **({"runtime_env": SEE_GPUS} if host.accelerators else {}),
            )  # fmt: skip
            member.actor, member.ping, member.lost, member.pid = actor.remote(member.number, host.make, self.epoch), None, None, None
            asked.append((member, host.stages[0], member.actor.build.remote()))
        return asked

    def _find_dead(self) -> None:
        """Notes who has died or does not answer."""
        pings = [(member, member.actor.ping.remote()) for member in self._all if member.lost is None]
        if pings:
            ray.wait([ping for _, ping in pings], num_returns=len(pings), timeout=self._timeout)
        for member, ping in pings:
            self._hear(member, ping)

    def _end(self) -> None:
        for member in self._all:
            if member.actor is not None:
                ray.kill(member.actor)
                member.actor, member.lost = None, "the backend is closed"
        if self._place is not None:
            remove_placement_group(self._place)
            self._place = None

    def look_for_life(self) -> None:
        """Raises StageLost for a process that has died, or has not answered for too long."""
        for member in self._all:
            if member.lost is not None:
                continue
            if member.ping is None:
                member.ping, member.asked = member.actor.ping.remote(), time.monotonic()
            elif ray.wait([member.ping], timeout=0)[0] or time.monotonic() - member.asked > (self._timeout if member.pid else self._starting):
                self._hear(member, member.ping)
                member.ping = None
            if member.lost is not None:
                raise self.loss(member, self._stage_of(member))

    def _hear(self, member: Member, ping: Any) -> None:
        """Notes the member as lost when its ping failed or has no answer."""
        try:
            member.pid = ray.get(ping, timeout=0)
        except RayError as error:  # a GetTimeoutError too
            member.lost = _why(error) if isinstance(error, RayActorError) else f"gave no sign of life for {self._timeout:.0f} s"

    def _stage_of(self, member: Member) -> str:
        return next(iter(member.owes.values()), member.host.stages[0])

    def loss(self, member: Member, stage: str) -> StageLost:
        where = f"process {member.pid or 'that was to be'}, node {member.host.node or 'any'}"
        return StageLost(stage, f"stage {stage!r} is lost ({where}): {member.lost}")

    def failed(self, member: Member, stage: str, told: Told) -> Exception:
        """What to raise for a call that failed. A stage that says it is lost is the first to be asked at the `restart`."""
        if told.gone is not None:
            return self._data_lost(stage, told.gone)
        error = told.failure.error()
        if isinstance(error, StageLost):
            self._hurt[member.number] = error.stage
        return error

    def meaning(self, member: Member, stage: str, error: BaseException) -> Exception:
        """What Ray's error about a call says in our words."""
        if isinstance(error, RayActorError):
            member.lost = _why(error)
            return self.loss(member, stage)
        return self._data_lost(stage, one_line(error)) if is_gone(error) else RuntimeError(f"stage {stage!r}: {one_line(error)}")

    def _data_lost(self, stage: str, what: str) -> StageLost:
        """Data that a call needs went with the process that made it: that one is lost, where it can be found."""
        pings = [(member, member.actor.ping.remote()) for member in self._all if member.lost is None]
        ray.wait([ping for _, ping in pings], num_returns=len(pings), timeout=LAST_WORDS) if pings else None
        for member, ping in pings:
            try:
                ray.get(ping, timeout=0)
            except RayActorError as error:
                member.lost = _why(error)
                return self.loss(member, self._stage_of(member))
            except RayError:  # no answer yet: it may be busy
                continue
        return StageLost(stage, f"stage {stage!r} misses data that another process made: {one_line(what)}")

    def _gather(self, asked: Sequence[tuple[Member, str, Any]]) -> list[Any]:
        """The answers, in order; sees to it that who owes one lives."""
        for member, stage, answer in asked:
            while not ray.wait([answer], timeout=SLICE)[0]:
                self.look_for_life()
        answers = []
        for member, stage, answer in asked:
            try:
                told = ray.get(answer)
            except RayError as error:
                raise self.meaning(member, stage, error) from None
            if isinstance(told, tuple):
                member.pid, told = told
            if told.failure is not None:
                raise self.failed(member, stage, told)
            answers.append(told.value)
        return answers


def _why(error: BaseException) -> str:
    """What Ray says of an actor's end, without the numbers it gives it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("The actor is dead because", "The actor died because"))]
    if isinstance(error, ActorUnavailableError):
        told = ["its process or its node can no longer be reached"]
    return one_line((told or lines or [type(error).__name__])[0].split(" Some common causes")[0], 200)
