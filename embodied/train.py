"""`python -m embodied.train env=... policy=... algorithm=...`: evaluate, train, evaluate again, say where the run lies."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the libraries below are still imported ends the program without a traceback

import sys
import time
from contextlib import ExitStack
from typing import Sequence

from embodied.config import refuse_unused
from embodied.runs.folder import write_json
from embodied.runs.progress import Progress
from embodied.wiring import programs
from embodied.wiring.deployment import joined
from embodied.wiring.training import Training

UNUSED = {
    "checkpoint": "to start from other weights set policy.checkpoint=FOLDER, to go on with a run resume=RUN_DIR",
    "record": "demonstrations are recorded by `python -m embodied.evaluate policy=expert record=DIR`",
    "videos": "videos are made by `python -m embodied.evaluate ... videos=N`",
}


def main(arguments: Sequence[str] | None = None) -> int:
    return programs.guarded(train, arguments, __doc__, "; the same command with resume=auto goes on, or begins where nothing was recorded yet")


def train(arguments: Sequence[str]) -> None:
    begun = time.perf_counter()
    config, path = programs.run_config(arguments)
    refuse_unused(config, "train", UNUSED)
    with ExitStack() as stack:
        run = stack.enter_context(programs.run_folder(config, path))
        if programs.finished(run, config):
            print(f"{run} is finished after {config.iterations} iterations, and left as it is; a larger iterations= goes further")
            return
        parts = stack.enter_context(programs.Parts(config, stack.enter_context(joined(config)), run))
        progress = stack.enter_context(Progress(config.iterations))
        training = Training(config, parts, run, progress)
        chosen = training.lay_out(progress)
        first = training.resume()
        logs = stack.enter_context(programs.logs(config, run, parts, first, progress, chosen))
        success = {}
        if config.evaluation.before and first == 0:
            success |= programs.judged(training.evaluation(logs.episodes, progress, "before", 0), parts, "before")
        training.train(logs, first)
        training.keep_profile()
        if config.evaluation.after:
            done = max(first, config.iterations)
            success |= programs.judged(training.evaluation(logs.episodes, progress, "after", done), parts, "after")
        if "success_before" not in success:
            success |= programs.earlier_success(run, parts)
        summary = {name: rate.as_dict() for name, rate in success.items()} | programs.totals(run)
        write_json(run.summary_json, summary | {"wall_s": time.perf_counter() - begun, "protocol": parts.protocol})
    for name, rate in sorted(success.items(), reverse=True):
        print(f"{name.replace('_', ' ')}: {rate}")
    print(f"run: {run}")


if __name__ == "__main__":
    sys.exit(main())
