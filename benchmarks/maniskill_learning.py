"""PushCube-v1 from its state on two cores: demonstrations, imitation and PPO, timed from nothing to the last evaluation.

    python benchmarks/maniskill_learning.py [seeds=0,1,2] [episodes=200] [demonstrations=200] [output=outputs/pushcube]

Each seed records its own demonstrations of the scripted expert, imitates them with a small network whose state is normalised as they have it,
goes on with PPO on the sparse reward, and is judged before and after by `episodes` episodes at temperature 1 that last their whole budget.
Prints one row per seed and writes maniskill_learning.json. The seconds of a step are those of its whole command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from arguments import given

TASK = ("env=maniskill", "env.id=PushCube-v1")
IMITATE = ("policy=mlp", "policy.checkpoint=fresh", "policy.hidden=[256,256]", "algorithm=bc", "iterations=60", "algorithm.learner.minibatch=128", "evaluation.after=false")
PPO = (
    "policy=mlp", "algorithm=ppo", "groups=64", "iterations=20", "algorithm.learner.lr=3e-4", "algorithm.learner.value_lr=1e-3",
    "algorithm.learner.critic_warmup=20",
)  # fmt: skip
WANTED = 0.9


def step(program: str, *arguments: str) -> float:
    """Runs one command and returns its seconds. Ends the program where it failed."""
    begun = time.perf_counter()
    code = subprocess.run([sys.executable, "-m", f"embodied.{program}", *TASK, *arguments]).returncode
    if code:
        sys.exit(code)
    return time.perf_counter() - begun


def newest(folder: Path) -> Path:
    return max(folder.glob("*/*"), key=lambda run: run.stat().st_mtime)


def learn(seed: int, episodes: int, demonstrations: int, output: Path) -> dict:
    """The row of one seed."""
    said = (f"seed={seed}",)
    recorded = f"data={output}/demonstrations"
    seconds = {"record": step("evaluate", "policy=expert", "policy.disturbance=0.4", f"record={output}/demonstrations", f"evaluation.episodes={demonstrations}", f"output={output}/expert", *said)}
    seconds["imitate"] = step("train", *IMITATE, recorded, f"output={output}/bc", *said)
    start = max(newest(output / "bc").glob("checkpoints/step_*"), key=lambda path: path.stat().st_mtime) / "policy"
    seconds["ppo"] = step("train", *PPO, f"policy.checkpoint={start}", f"evaluation.episodes={episodes}", f"output={output}/ppo", *said)
    summary = json.loads((newest(output / "ppo") / "summary.json").read_text())
    rates = {name: summary[name] for name in ("success_before", "success_after", "success_at_end_before", "success_at_end_after")}
    return {"seed": seed, **rates, "train_wall_s": summary["train_wall_s"], "seconds": seconds, "all_s": sum(seconds.values())}


def main(arguments: list[str]) -> int:
    own = given(arguments, __doc__)
    output = Path(own.get("output", "outputs/pushcube"))
    if output.exists():
        sys.exit(f"{output} is there already; name another folder: output=FOLDER")
    rows = []
    for seed in map(int, own.get("seeds", "0,1,2").split(",")):
        rows.append(learn(seed, int(own.get("episodes", 200)), int(own.get("demonstrations", 200)), output / f"seed_{seed}"))
        (output / "maniskill_learning.json").write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        told = {name: f"{found['rate']:.3f} [{found['low']:.3f}, {found['high']:.3f}] n={found['n']}" for name, found in row.items() if name.startswith("success")}
        spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in row["seconds"].items())
        print(f"seed {row['seed']}: imitation {told['success_before']} -> PPO {told['success_after']}, at the last step {told['success_at_end_before']} -> {told['success_at_end_after']}; {spent}, {row['all_s'] / 60:.1f} min in all")
    return 0 if all(row["success_after"]["rate"] >= WANTED for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
