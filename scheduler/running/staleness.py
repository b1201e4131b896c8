"""When a round may start sampling, and with which weights, as a function of the updates done.

With lag k, round r may start once r - k updates are done, and samples with the weights as they stood then, also when newer ones come
in meanwhile. Proof that no sample is more than k versions old: round r's data is used by update r + 1 (counted from 1), before which r
updates are done; it was sampled after r - k of them; the difference is k. With lag 0 round r waits for all r updates before it: the
synchronous case. As the version is a function of the round and not of the clock, the same seed gives the same run at every lag.
"""

from __future__ import annotations


def may_start(round_number: int, updates_done: int, lag: int) -> bool:
    """round_number counts from the first round of the execution, as updates_done does."""
    return updates_done >= round_number - lag


def version_for(round_number: int, lag: int, oldest: int) -> int:
    """The number of updates after which the weights stood that the round samples with. oldest: of the versions there are."""
    return max(round_number - lag, oldest)
