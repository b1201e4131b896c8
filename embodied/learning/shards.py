"""Forward and backward of a block of rows on several CPU threads at once, each with a part of the rows and a copy of the policy that shares its weights.

One thread that works through its own rows pays less for each operation than several that share it: on two cores 1.85 times one core's speed
instead of 1.6 (the packaged policy, 64 rows). How rows are cut follows from their number and the threads', and gradients are added in the
order of the parts, so the same threads give the same bits.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, TypeVar

import torch

from embodied.learning import batching
from embodied.learning.data import Batch

LEAST_ROWS = 16  # of a part: below, sharing an operation is quicker
Result = TypeVar("Result")


class Shards:
    def __init__(self, policy: Any, threads: int = 1) -> None:
        """threads: CPU threads of all parts together; the caller's own is set to so many by who calls."""
        self._policies, self._threads = [policy], max(1, threads)
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[Any, Batch], Result], batch: Batch, dealt: bool = False) -> list[Result]:
        """work(policy, part) of every part. Gradients stay with the copies until `collect`. dealt: rows go to the threads in turn, so that each has as
        much to do where rows stand by length; else each has its stretch of them."""
        on_cpu = batch.choices.device.type == "cpu"  # an accelerator has its own way of sharing, and memory for one gradient
        count = max(1, min(self._threads, batch.rows // LEAST_ROWS)) if on_cpu else 1
        if count == 1:
            return [work(self._policies[0], batch)]
        policies = self._copies(count)
        places = torch.arange(batch.rows)
        parts = [batching.select(batch, index) for index in ([places[first::count] for first in range(count)] if dealt else places.tensor_split(count))]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        each = self._threads // count

        def one(policy: Any, part: Batch) -> Result:
            torch.set_num_threads(each)  # of this thread
            return work(policy, part)

        running = [self._pool.submit(one, policy, part) for policy, part in zip(policies, parts)]
        return [future.result() for future in running]

    def collect(self) -> None:
        """Adds the copies' gradients to the policy's, in order, and takes them from the copies."""
        for other in self._policies[1:]:
            for parameter, its in zip(self._policies[0].parameters(), other.parameters()):
                if its.grad is not None:
                    parameter.grad = its.grad if parameter.grad is None else parameter.grad.add_(its.grad)
                    its.grad = None

    def drop(self) -> None:
        """Forgets the copies' gradients."""
        for other in self._policies[1:]:
            for parameter in other.parameters():
                parameter.grad = None

    def _copies(self, count: int) -> list[Any]:
        """The policy and copies of it, all with the policy's own memory for their weights as they are now."""
        while len(self._policies) < count:
            self._policies.append(_without_gradients(self._policies[0]))
        first = [*self._policies[0].parameters(), *self._policies[0].buffers()]
        for other in self._policies[1:count]:
            for mine, its in zip(first, (*other.parameters(), *other.buffers()), strict=True):
                its.data = mine.data
        return self._policies[:count]


def _without_gradients(policy: Any) -> Any:
    held = [(parameter, parameter.grad) for parameter in policy.parameters()]
    for parameter, _ in held:
        parameter.grad = None
    other = copy.deepcopy(policy)
    for parameter, gradient in held:
        parameter.grad = gradient
    return other
