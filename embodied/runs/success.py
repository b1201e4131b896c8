"""Success rates that say how sure they are: every rate is k of n with its Wilson interval, and none is given while an episode errored.

A failed episode ran to its end without success and counts in n. An errored one never ended (a dead worker, an exception): it is
neither a success nor a failure, so a rate over a set that holds one would be a guess, and is refused. Several attempts at one start
are not independent: there the start is the unit of the interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any


class ErroredEpisodes(ValueError):
    """A rate was asked of a set in which some episodes never ended."""


@dataclass(frozen=True)
class Rate:
    """k successes of n episodes. All three numbers are None when n is 0."""

    rate: float | None  # k / n, in [0, 1]
    n: int  # episodes that ended
    low: float | None  # lower bound of the interval, in [0, 1]
    high: float | None  # upper bound of the interval, in [0, 1]

    def as_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        if self.rate is None:
            return "none n=0"
        return f"{self.rate:.2f} [{self.low:.2f}, {self.high:.2f}] n={self.n}"


@dataclass(frozen=True)
class SuiteRate:
    """One suite: a rate per task, the rate over all its episodes (micro) and the mean of its tasks' rates (macro)."""

    suite: str
    tasks: dict[int, Rate]
    micro: Rate
    macro: float

    def as_dict(self) -> dict:
        return {"suite": self.suite, "tasks": {str(task): r.as_dict() for task, r in self.tasks.items()}, "micro": self.micro.as_dict(), "macro": self.macro}

    def __str__(self) -> str:
        lines = [f"{self.suite} task {task:<3d} {r}" for task, r in self.tasks.items()]
        lines.append(f"{self.suite} all      {self.micro}")
        if len({r.n for r in self.tasks.values()}) > 1:  # with equal counts the two means are the same number
            lines.append(f"{self.suite} mean of tasks {self.macro:.2f} (episode counts differ)")
        return "\n".join(lines)


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """(low, high) of the Wilson score interval, both in [0, 1].

    It is the set of true rates p for which |successes / n - p| is within z standard deviations sqrt(p (1 - p) / n),
    so it has a width at 0 and at 100 percent too. Raises ValueError unless 0 <= successes <= n and n > 0.
    """
    if n <= 0 or not 0 <= successes <= n:
        raise ValueError(f"found {successes} successes of {n} episodes, wanted 0 <= successes <= n and n > 0; use rate(), which handles n = 0")
    return _score_interval(successes / n, n, confidence)


def clustered(shares: Sequence[float], count: int, confidence: float = 0.95) -> Rate:
    """The mean of the shares, each of one start's `count` attempts, in [0, 1]; the starts are the sample, and n counts the attempts.

    The Wilson interval of an effective sample size (Kish, Survey Sampling, 1965, 8.2; recommended for clustered shares by Dean and Pagano,
    J. Survey Statistics and Methodology 3, 2015): m p (1 - p) / v for m starts with mean p and variance v of their shares. That is m where
    every share is 0 or 1, so one attempt each is plain Wilson, and at most m times count. Two made-up starts, one that never succeeds and
    one that always does, steady p and v in the size alone (after Agresti and Coull, 1998): few starts that happen to agree are no proof that
    all would. Raises ValueError for no start, and for what is no share.
    """
    m = len(shares)
    if m == 0 or count < 1 or not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"found {m} shares from {min(shares, default=None)} to {max(shares, default=None)} of {count} attempts, wanted one or more in [0, 1]")
    steadied = [*shares, 0.0, 1.0]
    centre = sum(steadied) / len(steadied)
    variance = sum((share - centre) ** 2 for share in steadied) / len(steadied)
    size = min(m * count, m * centre * (1 - centre) / variance)
    mean = sum(shares) / m
    return Rate(mean, m * count, *_score_interval(mean, size, confidence))


def _score_interval(p: float, n: float, confidence: float) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise ValueError(f"found confidence {confidence}, wanted a number between 0 and 1 such as 0.95")
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    low = 0.0 if p == 0 else centre - half  # exact at the ends, where rounding would leave 1e-17
    high = 1.0 if p == 1 else centre + half
    return low, high


def rate(successes: int, n: int, confidence: float = 0.95) -> Rate:
    """The rate with its interval; None in place of each number when n is 0. Raises ValueError for impossible counts."""
    if n == 0 and successes == 0:
        return Rate(None, 0, None, None)
    low, high = wilson(successes, n, confidence)
    return Rate(successes / n, n, low, high)


def rate_of(rows: Iterable[Mapping], confidence: float = 0.95) -> Rate:
    """The rate over episode rows (each with `success` and `errored`), those with the same `group` being attempts at one start.

    Raises ErroredEpisodes when any errored, ValueError as `attempts`.
    """
    found = attempts(rows)
    count = len(found[0]) if found else 1
    if count > 1:
        return clustered([sum(each) / count for each in found], count, confidence)
    return rate(sum(each[0] for each in found), len(found), confidence)


def attempts(rows: Iterable[Mapping]) -> list[list[bool]]:
    """Success of each attempt, by group, in the order of the rows; a row without `group` is a group of its own.

    Raises ErroredEpisodes when any errored, ValueError for groups of different sizes.
    """
    rows = list(rows)
    _refuse_errored(rows)
    groups: dict[Any, list[bool]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.get("group", ("alone", place)), []).append(bool(row["success"]))
    sizes = sorted({len(group) for group in groups.values()})
    if len(sizes) > 1:
        raise ValueError(f"found groups of {sizes[0]} to {sizes[-1]} attempts, wanted as many at each start; evaluate again")
    return list(groups.values())


def table(rows: Iterable[Mapping], confidence: float = 0.95) -> list[SuiteRate]:
    """One SuiteRate per suite, in order of name, from episode rows (`suite`, `task`, `success`, `errored`, `group` as in `rate_of`).

    Raises ErroredEpisodes, naming the episodes, when any errored.
    """
    rows = list(rows)
    _refuse_errored(rows)
    suites = []
    for suite in sorted({str(row["suite"]) for row in rows}):
        mine = [row for row in rows if str(row["suite"]) == suite]
        tasks = {task: rate_of((row for row in mine if row["task"] == task), confidence) for task in sorted({row["task"] for row in mine})}
        macro = sum(r.rate for r in tasks.values()) / len(tasks)
        suites.append(SuiteRate(suite, tasks, rate_of(mine, confidence), macro))
    return suites


def _refuse_errored(rows: list[Mapping]) -> None:
    errored = [row for row in rows if row["errored"]]
    if not errored:
        return
    succeeded = sum(bool(row["success"]) for row in rows if not row["errored"])
    named = ", ".join(f"{row.get('suite')} task {row.get('task')} initial state {row.get('init_state')}" for row in errored[:5])
    more = f" and {len(errored) - 5} more" if len(errored) > 5 else ""
    raise ErroredEpisodes(
        f"found {len(errored)} errored of {len(rows)} episodes ({named}{more}), beside {succeeded} that succeeded and "
        f"{len(rows) - len(errored) - succeeded} that failed; a rate wants every episode to end: mend the error and run those episodes again"
    )
