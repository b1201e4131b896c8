"""A bounded edge between two stages, for one round: items come in any order and leave in ledger order (or as they came, if not the whole round leaves at once).

In ledger order an item waits for every earlier one, so what may leave depends on the ledger alone and never on timing.
The bound counts what could leave and has not: an item that waits for an earlier one never blocks the stage that still has
to make the earlier one, so a full channel cannot deadlock.
"""

from __future__ import annotations

import heapq

from scheduler.backends.base import Item


class Channel:
    def __init__(self, granule: int | None, capacity: int | None, ordered: bool = True) -> None:
        """granule: items handed on at a time, None = the whole round at once; capacity: granules that may wait, None = any number."""
        if granule is not None and granule < 1:
            raise ValueError(f"found granule {granule}, wanted at least 1 item, or None for the whole round")
        self._granule, self._capacity, self._ordered = granule, capacity, ordered
        self._held: list[tuple[int, int, Item]] = []  # heap of (place, arrival, item)
        self._free: list[Item] = []  # may leave
        self._next = 0
        self._arrived = 0
        self.closed = False

    def put(self, item: Item) -> None:
        if self.closed:
            raise RuntimeError(f"item {item.order} came after the channel was closed")
        self._arrived += 1
        if not self._ordered:
            self._free.append(item)
            return
        if item.order < self._next or any(item.order == place for place, _, _ in self._held):
            raise RuntimeError(f"item {item.order} came twice")
        heapq.heappush(self._held, (item.order, self._arrived, item))
        while self._held and self._held[0][0] == self._next:
            self._free.append(heapq.heappop(self._held)[2])
            self._next += 1

    def close(self) -> None:
        """No more items come. A gap in the ledger is an error: an item was lost."""
        if self._held:
            raise RuntimeError(f"item {self._next} never came, but item {self._held[0][0]} did")
        if self._granule is None:
            self._free.sort(key=lambda item: item.order)  # nobody waits for it, and it gives the same bits everywhere
        self.closed = True

    @property
    def full(self) -> bool:
        return self._capacity is not None and self._granule is not None and len(self._free) >= self._capacity * self._granule

    def available(self) -> bool:
        """Whether a granule (or, once closed, the rest) may leave."""
        if self.closed:
            return bool(self._free)
        return self._granule is not None and len(self._free) >= self._granule

    def peek(self) -> tuple[Item, ...]:
        """The granule that leaves next; the last one of a round may be smaller."""
        return tuple(self._free[: self._granule])

    def take(self) -> tuple[Item, ...]:
        granule = self.peek()
        del self._free[: len(granule)]
        return granule

    @property
    def drained(self) -> bool:
        return self.closed and not self._free
