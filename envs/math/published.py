"""Benchmarks that are published as files: how each is read, how many problems it has, and what such a file is called where it is to be had.

The files themselves do not travel with this package. A multiple-choice question becomes one whose answer is a letter, its options shuffled by a
hash of the question, so that they stand in the same order in every run and on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any, Mapping

from envs.math.base import draw
from envs.math.files import Reading

LETTERS = "ABCD"
OPTIONS = ("Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)))


@dataclass(frozen=True)
class Benchmark:
    title: str
    count: int  # problems that it is published with
    datasets: str  # where a user finds it, by name, and the fields it has there
    reading: Reading

    def about(self, there: int) -> dict[str, str]:
        """For the protocol of a file with so many problems."""
        return {"benchmark": self.title if there == self.count else f"{self.title}, but {there} problems instead of {self.count}"}


def lettered(record: Mapping[str, Any]) -> dict[str, str]:
    """A row of GPQA -> {"prompt": the question and its options from A) to D), "answer": the letter of the right one}. Raises ValueError for a missing column."""
    missing = [name for name in ("Question", *OPTIONS) if not isinstance(record.get(name), str) or not record[name].strip()]
    if missing:
        raise ValueError(f"found the fields {', '.join(map(str, record)) or '(none)'}, wanted a text in each of {', '.join(missing)} too")
    question, options = record["Question"].strip(), [record[name].strip() for name in OPTIONS]
    orders = list(permutations(range(len(options))))
    order = orders[draw("options", question) % len(orders)]
    lines = [f"{letter}) {options[place]}" for letter, place in zip(LETTERS, order)]
    return {"prompt": "\n".join([question, "", *lines]), "answer": LETTERS[order.index(0)]}


BENCHMARKS = {
    "aime24": Benchmark(
        "AIME 2024", 30, "Maxwell-Jia/AIME_2024 (ID, Problem, Solution, Answer) or HuggingFaceH4/aime_2024 (problem, answer)",
        Reading(("Problem", "problem", "question", "prompt"), ("Answer", "answer")),
    ),
    "aime25": Benchmark(
        "AIME 2025", 30, "math-ai/aime25 (problem, answer, id) or opencompass/AIME2025 (question, answer; the folder of both its files)",
        Reading(("problem", "question", "prompt"), ("answer",)),
    ),
    "gpqa_diamond": Benchmark(
        "GPQA diamond", 198, f"gpqa_diamond.csv of Idavidrein/gpqa (Question, {', '.join(OPTIONS)})",
        Reading(("prompt",), ("answer",), lettered, ("Question", *OPTIONS)),
    ),
}  # fmt: skip


def benchmark(name: str, problems: str | None) -> Benchmark:
    """The benchmark of a name. Raises ValueError for a name that is none, and for problems=None with what the file is called where it is to be had."""
    if name not in BENCHMARKS:
        raise ValueError(f"found published={name!r}, wanted one of {', '.join(BENCHMARKS)}, or null")
    found = BENCHMARKS[name]
    if problems is None:
        raise ValueError(
            f"found problems=null, wanted env.problems=FILE: the {found.count} problems of {found.title}, which do not travel with this package; they are "
            f"published as the dataset {found.datasets}; get it and name the JSONL, JSON, CSV or Parquet file, or the dataset's folder"
        )
    return found
