"""What one hand-over costs: the executor's own time per granule in one process, per turn with a simulator in a worker process, and through Ray.

    python benchmarks/overhead.py [items=20000] [ray=true]

In process: a source that emits items and a stage that takes them one by one and does nothing, beside the same two functions called in a
plain loop. Shared memory: turns of the toy env in a worker process, answered at once, beside the same env stepped in this process. Ray: turns of
a source and a partner in an actor each that hand an array to and fro, beside two calls of two bare actors that do the same. ray=false leaves
that out.
"""

from __future__ import annotations

import functools
import sys
import time

import numpy as np
import torch

from embodied import graphs
from embodied.episodes import EvaluationLedger
from embodied.stages.sim import SimStage
from envs.toy import ToyEnv
from envs.vector import VectorEnv
from scheduler.backends.base import Call, Item, Outcome
from scheduler.backends.local_backend import LocalBackend
from scheduler.running.execute import execute
from scheduler.running.flow import Flow, Link, flow_of

from arguments import given


class Emit:
    def __init__(self, items: int) -> None:
        self.items = items

    def start(self, call: Call) -> Outcome:
        return Outcome(None, tuple(Item(i, i) for i in range(self.items)))


class Take:
    def start(self, call: Call) -> Outcome:
        return Outcome()


class Answer:
    """A policy that is no work: the same chunk for every slot."""

    def start(self, call: Call) -> Outcome:
        return Outcome(Chunk(len(call.payload.episodes)))


class Chunk:
    def __init__(self, rows: int) -> None:
        self.actions = np.zeros((rows, 1, 1), np.int64)
        self.choices, self.logprobs, self.mask = torch.zeros(rows, 1), torch.zeros(rows, 1), torch.ones(rows, 1, dtype=torch.bool)
        self.inputs, self.values, self.labels = {}, None, None


def in_process(items: int) -> tuple[float, float]:
    """Seconds per granule of one item: (executor, plain loop)."""
    flow = Flow("emit", None, 1, (Link("emit", "take", 1),), None)
    begun = time.perf_counter()
    list(execute(flow, LocalBackend({"emit": Emit(items), "take": Take()}), 0, 1))
    executed = (time.perf_counter() - begun) / items
    call, take = Call(0, "take", "granule", 0), Take()
    begun = time.perf_counter()
    for _ in range(items):
        take.start(call)
    return executed, (time.perf_counter() - begun) / items


def turns(workers: int, count: int = 40, horizon: int = 100) -> float:
    """Seconds per turn of one slot."""
    with VectorEnv(functools.partial(ToyEnv, horizon=horizon, goal=horizon), 1, workers) as env:
        played = EvaluationLedger(0, [0], range(50), count).round(0)
        results = []
        for _ in range(2):  # the first time is to warm up
            sim = SimStage(env, lambda number: played, 1, 1, whole=False)
            begun = time.perf_counter()
            list(execute(flow_of(graphs.evaluation(), 1, {}, {}), LocalBackend({"sim": sim, "act": Answer()}), 0, 1))
            results.append((time.perf_counter() - begun) / (count * horizon))
    return results[-1]


class Throw:
    """A source of `turns` turns; each hands over an array of so many bytes."""

    def __init__(self, turns: int, size: int) -> None:
        self.turns, self.array, self.left = turns, np.zeros(size, np.uint8), 0

    def start(self, call: Call) -> Outcome:
        self.left = self.turns if call.payload is None else self.left - 1
        return Outcome(self.array if self.left else None)

    def close(self) -> None:
        pass


class Return(Throw):
    def start(self, call: Call) -> Outcome:
        return Outcome(call.payload)


def stages(name: str, kind: type, turns: int, size: int) -> dict[str, Throw]:
    return {name: kind(turns, size)}


def through_ray(size: int, turns: int = 500) -> tuple[float, float]:
    """Seconds per turn: (executor and Ray backend, bare actor calls). Ray is connected."""
    import ray

    from scheduler.backends.ray_backend import Host, RayBackend

    hosts = [Host((name,), functools.partial(stages, name, kind, turns, size), cores=0) for name, kind in (("sim", Throw), ("act", Return))]
    with RayBackend(hosts) as backend:
        executed = []
        for number in range(2):  # the first time is to warm up
            begun = time.perf_counter()
            list(execute(Flow("sim", "act", 1, (), None), backend, number, number + 1))
            executed.append((time.perf_counter() - begun) / turns)
    two = [ray.remote(num_cpus=0)(Bare).remote() for _ in range(2)]
    bare = []
    for _ in range(2):
        array, begun = ray.put(np.zeros(size, np.uint8)), time.perf_counter()
        for call in range(2 * turns):
            array = two[call % 2].answer.remote(array)
            ray.wait([array])
        bare.append((time.perf_counter() - begun) / turns)
    for actor in two:
        ray.kill(actor)
    return executed[-1], bare[-1]


class Bare:
    def answer(self, payload: np.ndarray) -> np.ndarray:
        return payload


def main(arguments: list[str]) -> int:
    options = given(arguments, __doc__)
    items = int(options.get("items", 20000))
    executed, plain = in_process(items)
    print(f"in process:    {1e6 * executed:6.1f} us a granule; the same calls in a plain loop {1e6 * plain:.2f} us")
    apart, here = turns(1), turns(0)
    print(f"shared memory: {1e6 * apart:6.1f} us a turn of the toy env in a worker; {1e6 * here:.1f} us in this process; the hand-over {1e6 * (apart - here):.1f} us")
    if options.get("ray", "true") != "false":
        from scheduler.backends.ray_backend import connect, disconnect

        connect()
        for size, called in ((8, "8 bytes"), (2**20, "1 MB")):
            executed, bare = through_ray(size)
            print(f"Ray, {called + ':':9} {1e6 * executed:6.0f} us a turn there and back; two calls of bare actors {1e6 * bare:.0f} us")
        disconnect()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
