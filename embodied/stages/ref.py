"""The ref stage: log-probabilities of the frozen start for a KL term, group by group as the groups end, while others still play.

A group that has nothing to teach costs nothing here. Items leave with all that came in with them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

import torch

from embodied.learning.algorithms.base import Algorithm
from embodied.learning.batching import Gather
from embodied.learning.data import Trajectory
from embodied.learning.memory.residence import Lease, Peak, Residence, footprint
from embodied.stages.inline import Inline
from scheduler.backends.base import Call, Outcome


class RefStage(Inline):
    def __init__(self, policy: Any, algorithm: Algorithm, threads: int | None = None, residence: Residence | None = None) -> None:
        """policy: the run's start; it is not changed. residence: of the policy, where a lease brings it to its device."""
        self._policy, self._algorithm, self._threads, self.lease = policy, algorithm, threads, Lease([residence])
        self._gather = Gather(algorithm.group_size)

    def start(self, call: Call) -> Outcome:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        if call.kind == "trial":
            with Peak(next(self._policy.parameters()).device) as peak:
                items = tuple(replace(item, payload=payload) for item, payload in zip(call.payload, self._referenced([item.payload for item in call.payload])))
            return Outcome({"rows": sum(item.payload.length for item in items), "peak": peak.bytes}, items)
        items = []
        for group in self._gather.add(call.payload, lambda item: item.payload.group):
            if self._algorithm.teaches([item.payload for item in group]):
                group = [replace(item, payload=payload) for item, payload in zip(group, self._referenced([item.payload for item in group]))]
            items += group
        return Outcome(items=tuple(items))

    def abandon(self) -> None:
        """Forgets the round: it is begun again."""
        self._gather.clear()

    def resident(self) -> int:
        """Bytes it holds while loaded."""
        return footprint(self._policy)

    @torch.no_grad()
    def _referenced(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """One by one where the whole distribution is kept, which is large; else all together."""
        exact = self._algorithm.needs_distribution
        if exact:
            return [replace(each, reference=self._evaluated([each], True).distribution.cpu()) for each in group]
        logprobs = self._evaluated(group, False).logprobs.cpu().split([each.length for each in group])
        return [replace(each, reference=part) for each, part in zip(group, logprobs)]

    def _evaluated(self, group: Sequence[Trajectory], distribution: bool) -> Any:
        device = next(self._policy.parameters()).device
        inputs = {name: torch.cat([each.inputs[name] for each in group]).to(device) for name in group[0].inputs}
        return self._policy.evaluate(inputs, torch.cat([each.choices for each in group]).to(device), distribution=distribution)
