"""When a round may start sampling, as a function of the updates done.

With lag k, round r may start once r - k updates are done. Proof that no sample is more than k versions old: round r's data is
used by update r + 1 (counted from 1), sampling saw at least r - k updates, and r updates are done when update r + 1 begins;
the difference is at most k. With lag 0 round r waits for all r updates before it: the synchronous case.
"""

from __future__ import annotations


def may_start(round_number: int, updates_done: int, lag: int) -> bool:
    """round_number counts from the first round of the execution, as updates_done does."""
    return updates_done >= round_number - lag
