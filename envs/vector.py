"""B env slots behind one ask-and-wait interface, in worker processes or (workers=0, the oracle for the others) in this one.

Nothing resets itself: a slot does what it is asked, so the last observation of an episode is always there, and what a slot
returns depends only on what it was asked, never on the number of workers. A worker that raises, dies or hangs becomes an
EnvError that names it, its episode and its phase; no process outlives the VectorEnv or its parent.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import time
import weakref
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from typing import Any, Callable, Sequence

import gymnasium
import numpy as np

from envs.process import Asked, EnvError, Job, Local, Process, WorkerLost
from envs.spec import EnvSpec
from envs.worker import Reply, slot_arrays

__all__ = ["EnvError", "SlotResult", "VectorEnv"]

POLL = 0.5  # seconds between looks at the clock and at workers that died without closing their pipe
GRACE = 5.0  # seconds that workers get to close their envs


@dataclass(frozen=True)
class SlotResult:
    """One finished operation of one slot; the arrays are the caller's own."""

    slot: int
    kind: str  # "reset" | "step"
    observation: dict[str, Any]  # arrays as env_spec says; `instruction` or `prompt` str
    rewards: np.ndarray  # float32 [n], n primitive steps run; [0] for a reset
    terminated: bool
    truncated: bool
    info: dict[str, Any]  # plain values; `success` bool after a step
    seconds: float  # inside the env


class VectorEnv:
    """`slots` envs from the picklable zero-argument `make_env`, shared out over `workers` spawned processes (0: none).

    timeout, start_timeout: seconds one operation, or building a worker's envs, may take (not enforced with workers=0).
    threads: what the workers' numeric libraries may use; None leaves the environment variables as they are.
    Raises ValueError for counts that cannot be, TypeError for a make_env that cannot travel, EnvError where an env cannot be built.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        slots: int,
        workers: int,
        timeout: float = 120.0,
        start_timeout: float = 300.0,
        threads: int | None = 1,
    ):
        if slots < 1 or workers < 0 or workers > slots:
            raise ValueError(f"found {slots} slots on {workers} workers; wanted at least one slot, and 0 to {max(slots, 1)} workers")
        self.slots = slots
        self._timeout, self._start_timeout = timeout, start_timeout
        self._finished: list[SlotResult] = []
        self._failed: deque[EnvError] = deque()
        self._episodes = [""] * slots
        self._busy: set[int] = set()
        self._workers: list[Process | Local] = []
        memory = None if workers == 0 else _shared_file()
        self._release = weakref.finalize(self, _release, self._workers, memory)
        shares = [range(slots)] if workers == 0 else [range(slots * i // workers, slots * (i + 1) // workers) for i in range(workers)]
        self._owner = {slot: index for index, share in enumerate(shares) for slot in share}
        try:
            if workers == 0:
                self._workers.append(Local(make_env, list(shares[0])))
            else:
                job = Job(_portable(make_env), slots, threads, memory)
                self._workers.extend(Process(index, list(share), job) for index, share in enumerate(shares))
            self.env_spec: EnvSpec = self._await_start()
        except BaseException:
            self._release()
            raise

    def reset(self, slot: int, seed: int | None, options: dict | None = None, label: str = "") -> None:
        """Asks for the start of the episode (options' task and init_state, seed); returns at once. `label` names it in errors."""
        parts = {**{key: value for key, value in (options or {}).items() if key in ("task", "init_state")}, "seed": seed}
        self._episodes[slot] = label or ", ".join(f"{key}={value}" for key, value in parts.items())
        self._ask("reset", slot, seed, options)

    def step(self, slot: int, actions: np.ndarray) -> None:
        """Asks for a chunk, [n, A] float32 or int64 [n, 1]; returns at once."""
        self._ask("step", slot, np.asarray(actions))

    def wait(self, timeout: float | None = None) -> list[SlotResult]:
        """What has finished since the last call, at least one; [] when nothing is outstanding, or after `timeout` seconds.

        Raises EnvError for an operation that failed; results of other slots stay for the next call. After a death or a hang
        the worker's slots refuse to be asked until `restart`.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        patience = 0.0
        while True:
            self._collect(patience)
            if self._failed:
                raise self._failed.popleft()
            if self._finished:
                results, self._finished = self._finished, []
                return results
            left = POLL if limit is None else limit - time.monotonic()
            if not self._busy or left <= 0:
                return []
            patience = min(POLL, left, self._timeout)

    def connections(self) -> list[Any]:
        """What turns readable when `wait` may have something; none where the envs live in this process."""
        return [worker.connection for worker in self._workers if worker.connection is not None]

    def restart(self, worker: int) -> list[int]:
        """Ends the worker and builds its envs anew; returns its slots, whose episodes are lost (reset them). Raises EnvError."""
        self._renew([worker])
        return list(self._workers[worker].slots)

    def settle(self) -> None:
        """Waits until no slot is at work, and drops what the slots did, failures too. A worker that was lost stays so until `mend`."""
        while self._busy:
            self._collect(POLL)
        self._finished, self._failed = [], deque()

    def mend(self) -> None:
        """Builds anew every worker that was lost; what the other slots do is not touched. Raises EnvError."""
        lost = {error.worker for error in self._failed if isinstance(error, WorkerLost)} | {worker.index for worker in self._workers if worker.lost}
        self._renew(sorted(lost))

    def close(self) -> None:
        """Closes the envs and ends every worker, by force after a few seconds. Raises EnvError if an env's close did. Idempotent."""
        for worker in self._workers:
            worker.ask_to_end()
        deadline = time.monotonic() + GRACE
        raised = [(worker.index, slot, trace) for worker in self._workers for slot, trace in worker.end(deadline)]
        self._busy.clear()
        self._release()
        if raised:
            index, slot, trace = raised[0]
            raise EnvError("closing the env raised", index, slot, self._episodes[slot], "close", trace)

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self.close()
        except EnvError:
            if kind is None:  # else the error on its way says more
                raise

    def _await_start(self) -> EnvSpec:
        deadline = time.monotonic() + self._start_timeout
        specs = [worker.await_ready(deadline, self._start_timeout) for worker in self._workers]
        for index, spec in enumerate(specs):
            if spec != specs[0]:
                raise EnvError(f"its envs differ from worker 0's: {spec} and {specs[0]}", index, None, "", "start")
        return specs[0]

    def _renew(self, workers: Sequence[int]) -> None:
        """Ends these workers, begins them anew all at once, and waits until their envs are built. Others that were lost stay so."""
        for index in workers:
            slots = self._workers[index].slots
            self._busy.difference_update(slots)
            self._finished = [result for result in self._finished if result.slot not in slots]
            self._failed = deque(error for error in self._failed if error.worker != index)
            self._workers[index].restart()
        deadline = time.monotonic() + self._start_timeout
        for index in workers:
            self._workers[index].await_ready(deadline, self._start_timeout)

    def _ask(self, kind: str, slot: int, *arguments: Any) -> None:
        if not self._workers:
            raise RuntimeError("this VectorEnv is closed; make another")
        if slot not in self._owner:
            raise IndexError(f"found slot {slot}, wanted 0 to {self.slots - 1}")
        if slot in self._busy:
            raise RuntimeError(f"slot {slot} has an operation outstanding; wait for its result before asking for a {kind}")
        self._workers[self._owner[slot]].ask(Asked(slot, kind, self._episodes[slot]), arguments)
        self._busy.add(slot)

    def _collect(self, patience: float) -> None:
        busy = [worker for worker in self._workers if worker.waiting]
        connections = [worker.connection for worker in busy if worker.connection is not None]
        ready = wait_for(connections, patience) if connections else []
        for worker in busy:
            try:
                for asked, reply in worker.receive(worker.connection in ready, self._timeout):
                    self._busy.discard(asked.slot)
                    if reply.trace is None:
                        self._finished.append(_result(reply, self.env_spec, worker.buffer))
                    else:
                        error = EnvError("the env raised", worker.index, asked.slot, asked.episode, asked.kind, reply.trace)
                        self._failed.append(error)
            except EnvError as error:
                self._busy.difference_update(worker.slots)
                self._failed.append(error)


def _release(workers: list[Process | Local], memory: int | None) -> None:
    while workers:
        workers.pop().kill()
    if memory is not None:
        os.close(memory)


def _result(reply: Reply, spec: EnvSpec, buffer: Any) -> SlotResult:
    observation = {key: array.copy() for key, array in slot_arrays(spec, buffer, reply.slot).items()}
    ends = (reply.terminated, reply.truncated)
    return SlotResult(reply.slot, reply.kind, {**observation, **reply.texts}, reply.rewards, *ends, reply.info, reply.seconds)


def _portable(make_env: Callable[[], gymnasium.Env]) -> bytes:
    """`make_env` as bytes that a fresh interpreter can read. Raises TypeError, saying what would do."""
    wanted = "wanted an importable function or class, or functools.partial over one, so that a worker process can build it"
    try:
        job = pickle.dumps(make_env)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"found make_env {make_env!r}, which cannot be pickled ({error}); {wanted}, or use workers=0") from error
    if b"__main__" in job:
        raise TypeError(f"found make_env {make_env!r} of the script that is being run; {wanted}, or use workers=0")
    return job


def _shared_file() -> int:
    """A descriptor of an empty file in memory (on disk where the system has no such thing) that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("m2flow-envs")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
