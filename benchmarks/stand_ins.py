"""Stages with known durations under the wall clock: an accelerator is a thread that sleeps for a known time, a core is a process that does fixed work.

They do what a rehearsal says they do (`scheduler.planning.rehearse`), so the schedule is the real executor's and the time is real:
what is measured is how well a plan's prediction holds, with hand-over, queues and a busy operating system in it.
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Any, Callable

from scheduler.backends.base import Call, Outcome
from scheduler.backends.local_backend import LocalBackend
from scheduler.graph import MacroGraph
from scheduler.planning.rehearse import stages_of
from scheduler.planning.schedule import Plan
from scheduler.profile import Profile
from scheduler.resources import Cluster
from scheduler.running.execute import RoundResult, execute

STEP = 20_000  # iterations of the loop that is fixed work, between two looks at what is left


def work(loops: int) -> None:
    """Fixed work: the same number of instructions however long it takes."""
    while loops > 0:
        total = 0
        for i in range(min(loops, STEP)):
            total += i
        loops -= STEP


def calibrated_loops(seconds: float = 0.5) -> float:
    """Loops per second of CPU time of this process."""
    loops, begun = 0, time.process_time()
    while time.process_time() - begun < seconds:
        work(STEP)
        loops += STEP
    return loops / (time.process_time() - begun)


def _process(pipe: Connection) -> None:
    while True:
        loops = pipe.recv()
        if loops is None:
            return
        work(loops)
        pipe.send(True)


class Lanes:
    """One thread for each lane, made when it is first used; a lane on cores has a process behind it."""

    def __init__(self, loops_per_second: float) -> None:
        self._rate = loops_per_second
        self._queues: dict[str, queue.SimpleQueue] = {}
        self._ends: list[Callable[[], None]] = []

    def prepare(self, lane: str) -> None:
        """A process takes a while to start: before the clock runs."""
        self._queue(lane, True)

    def submit(self, lane: str, seconds: float, cores: float, done: Callable[[], None]) -> None:
        self._queue(lane, cores > 0).put((seconds, done))

    def close(self) -> None:
        for end in self._ends:
            end()

    def _queue(self, lane: str, on_cores: bool) -> queue.SimpleQueue:
        if lane not in self._queues:
            jobs: queue.SimpleQueue = queue.SimpleQueue()
            run = self._worker() if on_cores else time.sleep
            thread = threading.Thread(target=self._serve, args=(jobs, run), daemon=True)
            thread.start()
            self._queues[lane] = jobs
            self._ends.append(lambda: (jobs.put(None), thread.join()))
        return self._queues[lane]

    @staticmethod
    def _serve(jobs: queue.SimpleQueue, run: Callable[[float], None]) -> None:
        while (job := jobs.get()) is not None:
            seconds, done = job
            if seconds > 0:
                run(seconds)
            done()

    def _worker(self) -> Callable[[float], None]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_process, args=(theirs,), daemon=True)
        process.start()
        self._ends.append(lambda: (ours.send(None), process.join()))

        def run(seconds: float) -> None:
            ours.send(int(seconds * self._rate))
            ours.recv()

        return run


class StandIn:
    """A virtual stage whose parts are really waited for."""

    def __init__(self, virtual: Any, lanes: Lanes, loops_per_second: float) -> None:
        self._virtual, self._lanes, self._rate = virtual, lanes, loops_per_second
        self._come_in: deque[tuple[Call, Outcome]] = deque()
        self._reader, self._writer = multiprocessing.Pipe(duplex=False)
        self._lock = threading.Lock()

    def start(self, call: Call) -> Outcome | None:
        return self._begin(call, self._virtual.parts(call))

    def ready(self, timeout: float | None) -> list[tuple[Call, Outcome]]:
        if self._reader.poll(timeout):
            while self._reader.poll(0):
                self._reader.recv_bytes()
        found = []
        while self._come_in:
            found.append(self._come_in.popleft())
        return found

    def connections(self) -> list[Any]:
        return [self._reader]

    def load(self) -> None:
        """Timed as a call, as the executor's load and unload are: see `LoadedBackend`."""

    def unload(self) -> None:
        """As `load`."""

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _begin(self, call: Call, parts: list) -> Outcome | None:
        if self._virtual.inline and all(task.cores for part in parts for task in part.tasks):
            for part in parts:
                for task in part.tasks:
                    work(int(task.seconds * self._rate))
            return parts[-1].outcome
        self._next(call, deque(parts))
        return None

    def _next(self, call: Call, parts: deque) -> None:
        part = parts.popleft()
        left = [len(part.tasks)]

        def done() -> None:
            with self._lock:
                left[0] -= 1
                if left[0] > 0:
                    return
                self._come_in.append((call, part.outcome))
                self._writer.send_bytes(b"x")
            if parts:
                self._next(call, parts)

        if not part.tasks:
            left[0] = 1
            done()
        for task in part.tasks:
            self._lanes.submit(task.lane, task.seconds, task.cores, done)


class LoadedBackend(LocalBackend):
    """The local backend, with load and unload as calls of the stand-ins: they take time too."""

    def submit(self, call: Call) -> None:
        stage = self._stages[call.stage]
        self._started[call.number] = (call, self.now())
        outcome = stage.start(call)
        if outcome is not None:
            self._record(call, outcome)


def run(graph: MacroGraph, plan: Plan, profile: Profile, cluster: Cluster, rounds: int, rate: float) -> list[RoundResult]:
    """Rounds of the plan in real time."""
    flow = plan.flow(graph)
    lanes = Lanes(rate)
    virtual = stages_of(graph, plan, profile, cluster)
    source = plan.stages[flow.source]
    for i in range(source.processes if profile.stage(flow.source).on == "cores" else 0):
        lanes.prepare(f"{flow.source} {i}")
    backend = LoadedBackend({name: StandIn(stage, lanes, rate) for name, stage in virtual.items()})
    try:
        return list(execute(flow, backend, 0, rounds))
    finally:
        lanes.close()
        backend.close()
