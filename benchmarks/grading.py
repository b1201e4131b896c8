"""What grading answers costs: easy ones by the exact rules, answers that want algebra, and nasty ones among others.

    python benchmarks/grading.py [answers=1000]

Prints seconds. Aims: 1,000 easy answers in less than a second; with 8 nasty answers among 128, no single one takes more than about a second.
Algebra is left out where math-verify is not installed.
"""

from __future__ import annotations

import importlib.util
import sys
import time

from envs.answers import grade, symbolic

from arguments import given

FORMS = (
    ("After some work we find {n} apples.\n#### {n}", "{n}"),
    ("The total is therefore \\boxed{{{n}}}.", "{n}"),
    ("Half of it: $\\boxed{{\\frac{{{n}}}{{7}}}}$", "{n}/7"),
    ("The answer is ${n}.00 in all.", "{n}"),
    ("so the pair is \\boxed{{({n}, -{n})}}", "(-{n}, {n})"),
    ("I take it to be (B), since {n} is odd. Answer: B", "B"),
)
NASTY = ("9^{9^{9}}", "9^{9^{9^{9}}}", "100000000!", r"\sum_{n=1}^{10^9} n^9", "((((((x^2+1)^7+y)^7+z)^7+w)^7+v)^7+u)^7", "(x+y+z+w+1)^{999}", r"\int_0^{1} x^{x^{x^{x}}} dx", r"\prod_{n=1}^{9999} (n^n+x)")


def timed(cases: list[tuple[str, str]]) -> list[float]:
    """Seconds of each case."""
    seconds = []
    for case in cases:
        start = time.perf_counter()
        grade(*case)
        seconds.append(time.perf_counter() - start)
    return seconds


def report(what: str, seconds: list[float]) -> None:
    print(f"{what}: {len(seconds)} answers in {sum(seconds):.3f} s, {1e3 * sum(seconds) / len(seconds):.3f} ms each, longest {max(seconds):.3f} s", flush=True)


def main() -> None:
    options = given(sys.argv[1:], __doc__)
    count = int(options.get("answers", 1000))
    easy = [tuple(text.format(n=i) for text in FORMS[i % len(FORMS)]) for i in range(count)]
    report("easy", timed(easy))  # type: ignore[arg-type]
    if importlib.util.find_spec("math_verify") is None:
        return print("math-verify is not installed: no algebra is measured")
    report("beginning algebra", timed([("(x+1)^2", "x^2+2x+1")]))
    report("algebra", timed([(f"(x+{i})^2", f"x^2+{2 * i}x+{i * i}") for i in range(2, 102)]))
    batch = [tuple(text.format(n=i) for text in FORMS[i % len(FORMS)]) for i in range(120)]
    for i, nasty in enumerate(NASTY):
        batch.insert(16 * i, (rf"\boxed{{{nasty}}}", rf"{i}+\sqrt{{x}}"))
    report("8 nasty among 128", timed(batch))  # type: ignore[arg-type]
    for nasty in NASTY:
        screened = "screened" if not symbolic.worth_asking(nasty) else "asked"
        print(f"  {symbolic.seconds_of(nasty, 'x'):.2f} s unscreened ({screened}): {nasty}")


if __name__ == "__main__":
    main()
