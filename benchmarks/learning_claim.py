"""The README's learning claim: the main job with several seeds, success before and after on every initial state, with intervals.

    python benchmarks/learning_claim.py [seeds=0,1,2] [episodes=200] [output=outputs/claim] [key=value of embodied.train ...]

Each seed is one run of `python -m embodied.train env=libero policy=openvla_oft`; a seed whose run is there already is not run again.
Prints one row per seed and writes learning_claim.json; a seed counts when its two Wilson intervals do not overlap.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from arguments import given


def finished(folder: Path) -> dict | None:
    """The summary of the run below `folder`, when it has one."""
    found = sorted(folder.glob("*/*/summary.json"))
    return json.loads(found[-1].read_text()) if found else None


def train(seed: int, episodes: int, output: Path, arguments: list[str]) -> dict:
    folder = output / f"seed_{seed}"
    if finished(folder) is None:
        command = [sys.executable, "-m", "embodied.train", "env=libero", "policy=openvla_oft", f"seed={seed}", f"evaluation.episodes={episodes}"]
        code = subprocess.run([*command, f"output={folder}", "resume=auto", *arguments]).returncode
        if code:
            sys.exit(code)
    return finished(folder)


def row(seed: int, summary: dict) -> dict:
    before, after = summary["success_before"], summary["success_after"]
    return {
        "seed": seed, "before": before, "after": after, "separate": after["low"] > before["high"],
        "train_minutes": summary["train_wall_s"] / 60, "env_steps_per_s": summary["env_steps_per_s"],
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    own = {key: value for key, value in given(arguments, __doc__).items() if key in ("seeds", "episodes", "output")}
    passed = [argument for argument in arguments if argument.split("=")[0] not in own]
    output = Path(own.get("output", "outputs/claim"))
    rows = []
    for seed in map(int, own.get("seeds", "0,1,2").split(",")):
        rows.append(row(seed, train(seed, int(own.get("episodes", 200)), output, passed)))
        before, after = (f"{r['rate']:.3f} [{r['low']:.3f}, {r['high']:.3f}] n={r['n']}" for r in (rows[-1]["before"], rows[-1]["after"]))
        print(f"seed {seed}: {before} -> {after}  {'separate' if rows[-1]['separate'] else 'overlapping'}  {rows[-1]['train_minutes']:.1f} min", flush=True)
        (output / "learning_claim.json").write_text(json.dumps(rows, indent=2) + "\n")
    separate = sum(r["separate"] for r in rows)
    print(f"{separate} of {len(rows)} seeds: intervals do not overlap")
    return 0 if separate * 3 >= len(rows) * 2 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
