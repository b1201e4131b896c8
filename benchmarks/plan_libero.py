"""The planner on real LIBERO with the small checkpoint: the chosen plan beside every other one, the bound, and how well it was predicted.

    python benchmarks/plan_libero.py [iterations=4] [groups=2] [runs=0,2,3] [together=false] [output=outputs/plan_libero]

`together` are as many one-core runs at once as there are cores, which share nothing: what the cores really give when all of them work
(they may be two threads of one, and share caches and memory), where the bound takes them to be independent.

Every run has the same seed, so iteration by iteration every plan plays the same episodes and learns the same. The first iteration warms
up and is left out. The bound is the work (seconds of everything on one core, one at a time) divided by the cores. About 15 minutes on 2 cores.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from scheduler.resources import this_machine

from arguments import given

ONE_PROCESS = ["sim.slots=1", "sim.workers=0", "scheduler=collocated"]
RUNS = {
    "one core, all in turn": [*ONE_PROCESS, "scheduler.learn_threads=1"],
    "one process, all in turn": ONE_PROCESS,
    "auto": ["scheduler=auto"],
    "collocated": ["scheduler=collocated"],
    "hybrid, a group per slot": ["scheduler=hybrid", "scheduler.groups={cores}"],
    "hybrid, two slots a core": ["scheduler=hybrid", "sim.slots={twice}", "scheduler.groups={twice}"],
    "hybrid, two slots a core, two groups": ["scheduler=hybrid", "sim.slots={twice}", "scheduler.groups=2"],
}


def rows_of(folder: Path) -> list[dict]:
    """The metrics of the newest run below the folder."""
    newest = max(folder.glob("*/*/metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    return [json.loads(line) for line in newest.read_text().splitlines()]


def command(folder: Path, arguments: list[str], iterations: int, groups: int) -> list[str]:
    run = [sys.executable, "-m", "embodied.train", "env=libero", "policy=openvla_oft", f"iterations={iterations}", f"groups={groups}", "checkpoints.every=1000"]
    return [*run, "evaluation.before=false", "evaluation.after=false", f"output={folder}", *arguments]


def train(folder: Path, arguments: list[str], iterations: int, groups: int) -> list[dict]:
    code = subprocess.run(command(folder, arguments, iterations, groups)).returncode
    if code:
        sys.exit(code)
    return rows_of(folder)


def together(folder: Path, cores: int, iterations: int, groups: int) -> list[float]:
    """Seconds an iteration of as many one-core runs at once as there are cores, divided by their number: nothing that shares the work could be quicker."""
    commands = [command(folder / str(number), ["sim.slots=1", "sim.workers=0", "scheduler=collocated", "scheduler.learn_threads=1"], iterations, groups) for number in range(cores)]
    running = [subprocess.Popen(each, stdout=subprocess.DEVNULL) for each in commands]
    if any([each.wait() for each in running]):
        sys.exit(1)
    return [row["time"]["iteration_s"] / cores for number in range(cores) for row in rows_of(folder / str(number))[1:]]


def main(arguments: list[str]) -> int:
    own = given(arguments, __doc__)
    iterations, groups, output = int(own.get("iterations", 4)), int(own.get("groups", 2)), Path(own.get("output", "outputs/plan_libero"))
    cores, table = this_machine().cores, {}
    chosen_runs = list(map(int, own["runs"].split(","))) if "runs" in own else range(len(RUNS))  # 0 (the bound) and 2 (auto) are always needed
    for number in sorted({0, 2, *chosen_runs}):
        name, knobs = list(RUNS.items())[number]
        filled = [knob.format(cores=cores, twice=2 * cores) for knob in knobs]
        rows = train(output / str(number), filled, iterations, groups)[1:]
        errors = [abs(row["plan"]["error"]) for row in rows if "plan" in row]
        table[name] = {"seconds": [row["time"]["iteration_s"] for row in rows], "time": [row["time"] for row in rows], "errors": errors}
        print(f"{name}: {statistics.fmean(table[name]['seconds']):.2f} s an iteration", flush=True)
    if own.get("together", "true") == "true":
        table["together"] = {"seconds": together(output / "together", cores, iterations, groups), "errors": []}
    work = statistics.fmean(table["one core, all in turn"]["seconds"])
    bound, chosen = work / cores, statistics.fmean(table["auto"]["seconds"])
    for name, found in table.items():
        seconds = statistics.fmean(found["seconds"])
        print(f"{name:38} {seconds:7.2f} s   {seconds / bound:5.3f} x the bound   {seconds / chosen:5.3f} x auto" + (f"   prediction off by {100 * statistics.median(found['errors']):.1f} % (median)" if found["errors"] else ""))
    output.mkdir(parents=True, exist_ok=True)
    (output / "plan_libero.json").write_text(json.dumps({"bound": bound, "runs": table}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
