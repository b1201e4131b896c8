"""`python -m embodied.train env=... policy=... algorithm=...`: evaluate, train, evaluate again, say where the run lies."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, closing
from typing import Sequence

from embodied import loop, programs
from embodied.config import compose
from embodied.runs.folder import write_json


def main(arguments: Sequence[str] | None = None) -> int:
    return programs.guarded(lambda: train(sys.argv[1:] if arguments is None else arguments))


def train(arguments: Sequence[str]) -> None:
    begun = time.perf_counter()
    config, run = programs.run_folder(compose(arguments), arguments)
    with ExitStack() as stack:
        stack.enter_context(closing(run))
        parts = stack.enter_context(programs.Parts(config, run))
        training = programs.Training(config, parts)
        first = training.resume(run)
        logs = stack.enter_context(programs.logs(config, run, parts, first))
        success = {}
        if config.evaluation.before and first == 0:
            success["success_before"] = programs.evaluation(config, parts, logs.episodes.write, logs.progress, "before", 0)[0]
        totals = loop.train(
            training.flow, training.backend, training.learn, logs, first, config.iterations, config.checkpoints.every, config.checkpoints.keep
        )
        if config.evaluation.after:
            success["success_after"] = programs.evaluation(config, parts, logs.episodes.write, logs.progress, "after", config.iterations)[0]
        if "success_before" not in success:
            success |= programs.earlier_success(run)
        summary = {name: rate.as_dict() for name, rate in success.items()} | programs.totals(totals)
        summary |= {"wall_s": time.perf_counter() - begun, "iterations": config.iterations, "protocol": parts.protocol}
        write_json(run.summary_json, summary)
    for name, rate in success.items():
        print(f"{name.replace('_', ' ')}: {rate}")
    print(f"run: {run}")


if __name__ == "__main__":
    sys.exit(main())
