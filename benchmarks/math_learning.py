"""The README's math figure: from the packaged start to a model that works its sums out, on held-out problems, timed from nothing to the last evaluation.

    python benchmarks/math_learning.py [seeds=0,1,2] [episodes=500] [output=outputs/math_learning] [key=value of embodied.train ...]

Each seed is one run of `python -m embodied.train env=math policy=causal_lm`, judged before and after by `episodes` problems that training never meets, an
answer each at temperature 1. Prints a row per seed, with 95 % Wilson intervals, and writes math_learning.json. The seconds are those of the whole command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from arguments import given

LEARN = (
    "env=math", "policy=causal_lm", "algorithm=grpo", "policy.prompt_length=32", "policy.max_tokens=64", "policy.slots=128", "groups=16", "algorithm.group_size=8",
    "iterations=20", "algorithm.learner.lr=1e-4", "algorithm.learner.warmup_updates=5",
)  # fmt: skip
WANTED = 0.7


def learn(seed: int, episodes: int, output: Path, arguments: list[str]) -> dict:
    """The row of one seed. Ends the program where its run failed."""
    begun = time.perf_counter()
    code = subprocess.run([sys.executable, "-m", "embodied.train", *LEARN, f"seed={seed}", f"evaluation.episodes={episodes}", f"output={output}", *arguments]).returncode
    if code:
        sys.exit(code)
    wall = time.perf_counter() - begun
    summary = json.loads(next(output.glob("*/*/summary.json")).read_text())
    return {"seed": seed, "before": summary["success_before"], "after": summary["success_after"], "iterations": summary["iterations"], "train_wall_s": summary["train_wall_s"], "time_by_stage": summary["time_by_stage"], "wall_s": wall}


def told(row: dict) -> str:
    before, after = (f"{r['rate']:.3f} [{r['low']:.3f}, {r['high']:.3f}] n={r['n']}" for r in (row["before"], row["after"]))
    stages = ", ".join(f"{name} {seconds / row['iterations']:.2f} s" for name, seconds in row["time_by_stage"].items())
    return f"seed {row['seed']}: {before} -> {after}; {row['wall_s']:.0f} s in all, {row['train_wall_s']:.0f} s of them {row['iterations']} iterations ({stages} each)"


def main(arguments: list[str]) -> int:
    own = {key: value for key, value in given(arguments, __doc__).items() if key in ("seeds", "episodes", "output")}
    passed = [argument for argument in arguments if argument.split("=")[0] not in own]
    output = Path(own.get("output", "outputs/math_learning"))
    if output.exists():
        sys.exit(f"{output} is there already; name another folder: output=FOLDER")
    rows = []
    for seed in map(int, own.get("seeds", "0,1,2").split(",")):
        rows.append(learn(seed, int(own.get("episodes", 500)), output / f"seed_{seed}", passed))
        (output / "math_learning.json").write_text(json.dumps(rows, indent=2) + "\n")
        print(told(rows[-1]), flush=True)
    return 0 if all(row["after"]["rate"] >= WANTED for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
