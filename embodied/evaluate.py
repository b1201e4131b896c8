"""`python -m embodied.evaluate env=... policy=... checkpoint=RUN_DIR`: every (task, initial state) once, with intervals and the protocol.

`record=DIR` keeps the episodes as demonstrations (successes only); `videos=N` writes the first N as mp4.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the libraries below are still imported ends the program without a traceback

import sys
import time
from contextlib import ExitStack, closing
from typing import Any, Callable, Sequence

from omegaconf import DictConfig, OmegaConf

from embodied.config import ConfigError, compose, refuse_unused
from embodied.runs.demonstrations import frames, recorder
from embodied.runs.folder import RunFolder, write_json
from embodied.runs.metrics import EpisodeLog
from embodied.runs.progress import Progress
from embodied.runs.protocol import block, remarks
from embodied.runs.success import table
from embodied.runs.video import write_mp4
from embodied.wiring import build, fit, programs
from embodied.wiring.deployment import joined


def main(arguments: Sequence[str] | None = None) -> int:
    return programs.guarded(evaluate, arguments, __doc__)


def evaluate(arguments: Sequence[str]) -> None:
    begun = time.perf_counter()
    config = compose(arguments)
    refuse_unused(config, "evaluate", {"resume": "name the run's weights with checkpoint=RUN_DIR", "data": "demonstrations are for train algorithm=bc"})
    told = fit.settle_evaluated(config, arguments)
    if told:
        print(told)
    weights = programs.weights(config)
    with ExitStack() as stack:
        parts = programs.Parts(config, stack.enter_context(joined(config)), with_algorithm=False, weights=weights)
        watch = watcher(config, parts)  # refuses what cannot be recorded before simulators start
        run = stack.enter_context(closing(RunFolder.create(config.output, config.choices["env"], config.choices["policy"], kind="evaluate")))
        OmegaConf.save(config, run.config_yaml)
        stack.enter_context(parts)
        episodes = stack.enter_context(closing(EpisodeLog(run.path)))
        progress = stack.enter_context(Progress(1))
        deployed = parts.deployment(["sim", "act"])
        deployed.place(parts.evaluation_plan)
        found = programs.evaluation(config, parts, deployed, episodes, progress, "evaluate", 0, on_episode=watch and watch(run))
        suites = table(episodes.rows())
        summary = {"success": found.rate.as_dict(), "success_at_end": found.at_end.as_dict(), "suites": [suite.as_dict() for suite in suites], "protocol": parts.protocol, "checkpoint": str(weights or build.start_of(config) or "") or None}
        summary |= {"answers": found.answers.as_dict()} if found.answers else {}
        remarked = remarks(episodes.rows())
        write_json(run.timeline_json, found.timeline.perfetto())
        time_by_stage = {"env_steps_per_s": found.steps / found.timeline.wall, "time_by_stage": found.timeline.busy()}
        write_json(run.summary_json, summary | {"wall_s": time.perf_counter() - begun} | time_by_stage)
    for suite in suites:
        print(suite)
    for line in [*([found.answers] if found.answers else []), *remarked, block(parts.protocol)]:
        print(line)
    print(f"run: {run}")


def watcher(config: DictConfig, parts: programs.Parts) -> Callable[[RunFolder], Callable[[Any], None]] | None:
    """What looks at finished episodes: a recorder, a camera, both or none."""
    if config.record is None and config.videos == 0:
        return None
    if config.cluster.kind != "local":
        raise ConfigError(f"cluster={config.cluster.kind}: episodes are recorded and filmed in the program's own process; leave cluster= out")
    if config.videos and not parts.spec.images:
        raise ConfigError(f"videos={config.videos}: found no camera on env={config.choices['env']}, wanted one to film with; name it (env.cameras=[base_camera] or alike), or leave videos= out")
    chunk = parts.policy.spec.chunk
    if config.record is not None and chunk != 1:
        raise ConfigError(f"record={config.record}: this policy acts {chunk} steps at a time and sees a picture only in between; record a policy with chunk 1, as policy=expert")
    record = None if config.record is None else recorder(config.record, parts.spec, parts.policy.spec.name)

    def watching(run: RunFolder) -> Callable[[Any], None]:
        def watch(attempt: Any) -> None:
            if record is not None:
                record(attempt)
            if attempt.episode.order < config.videos:
                outcome = "success" if attempt.success else "failure"
                write_mp4(run.videos / f"episode_{attempt.episode.order:03d}_{outcome}.mp4", frames(attempt))

        return watch

    return watching


if __name__ == "__main__":
    sys.exit(main())
