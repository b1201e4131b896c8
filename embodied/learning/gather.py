"""Groups put together from items that come one by one: whole ones come out, in the order in which they became whole."""

from __future__ import annotations

from typing import Any, Callable, Iterable


class Gather:
    def __init__(self, size: int) -> None:
        """size: members of a group."""
        self._size = size
        self._begun: dict[Any, list[Any]] = {}

    def add(self, items: Iterable[Any], group_of: Callable[[Any], Any]) -> list[list[Any]]:
        """The groups that these items complete, the members of each as they came."""
        whole = []
        for item in items:
            members = self._begun.setdefault(group_of(item), [])
            members.append(item)
            if len(members) == self._size:
                whole.append(self._begun.pop(group_of(item)))
        return whole

    def rest(self) -> list[list[Any]]:
        """What has begun and is not whole; it is forgotten then."""
        begun, self._begun = list(self._begun.values()), {}
        return begun

    def clear(self) -> None:
        self._begun = {}
