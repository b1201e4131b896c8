"""How often a problem is solved in several attempts: avg@k, the share of the k attempts that succeed, and pass@k, the chance that one of k does.

Both are means over problems, with intervals that take the problems for the sample (`success.clustered`); attempts at one problem are not
independent. No estimate is given while an episode errored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb

from embodied.runs.success import Rate, attempts, clustered


@dataclass(frozen=True)
class Answers:
    problems: int
    samples: int  # attempts at each
    average: Rate  # avg@samples
    passes: dict[int, Rate]  # pass@k for k = 1, 2, 4... up to samples

    def as_dict(self) -> dict:
        numbers = {f"avg@{self.samples}": self.average} | {f"pass@{k}": found for k, found in self.passes.items()}
        return {"problems": self.problems, "samples": self.samples} | {name: {"rate": found.rate, "low": found.low, "high": found.high} for name, found in numbers.items()}

    def __str__(self) -> str:
        parts = [f"avg@{self.samples} {_brief(self.average)}", *(f"pass@{k} {_brief(found)}" for k, found in self.passes.items())]
        return f"{', '.join(parts)} ({self.problems} problems x {self.samples} samples)"


def answers(rows: Iterable[Mapping], confidence: float = 0.95) -> Answers | None:
    """Of episode rows (`success`, `errored`, `group`: attempts at one problem have the same); None where each has one attempt.

    Raises ErroredEpisodes when any errored, ValueError for groups of different sizes.
    """
    found = attempts(rows)
    if not found or len(found[0]) == 1:
        return None
    samples, counts = len(found[0]), [sum(each) for each in found]
    passes, k = {}, 1
    while k <= samples:
        passes[k] = clustered([pass_at(k, samples, count) for count in counts], samples // k, confidence)
        k *= 2
    return Answers(len(counts), samples, clustered([count / samples for count in counts], samples, confidence), passes)


def pass_at(k: int, n: int, successes: int) -> float:
    """The unbiased estimate, from n attempts with so many successes, of the chance that one of k succeeds: 1 - C(n - successes, k) / C(n, k).

    Chen et al., Evaluating Large Language Models Trained on Code, 2021, eq. 1; in whole numbers, so exact for every n. Raises ValueError
    unless 1 <= k <= n and 0 <= successes <= n.
    """
    if not 1 <= k <= n or not 0 <= successes <= n:
        raise ValueError(f"found pass@{k} of {n} attempts with {successes} successes, wanted 1 <= k <= n and 0 <= successes <= n")
    return float(1 - Fraction(comb(n - successes, k), comb(n, k)))


def _brief(found: Rate) -> str:
    return f"{found.rate:.2f} [{found.low:.2f}, {found.high:.2f}]"
