"""The flow and the stages of a training run, and how a plan lays them out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any, Callable

from omegaconf import DictConfig

from embodied import graphs, loop
from embodied.config import ConfigError
from embodied.episodes import TrainingLedger
from embodied.learning.optimizers import build_optimizer, learning_rate
from embodied.runs import checkpoint
from embodied.runs.folder import RunFolder
from embodied.runs.progress import Progress
from embodied.stages.act import ActStage
from embodied.stages.learn import LearnerSettings, LearnStage
from embodied.stages.read import ReadStage, demonstration_rows
from embodied.stages.sim import SimStage
from embodied.wiring import build, scheduling
from embodied.wiring.programs import Parts
from scheduler.backends.local_backend import LocalBackend
from scheduler.planning.schedule import Plan
from scheduler.profile import Profile


class Training:
    """Built first, then laid out by a plan (`lay_out`), then taken up where its last checkpoint left it (`resume`)."""

    def __init__(self, config: DictConfig, parts: Parts, progress: Progress) -> None:
        algorithm, settings = parts.algorithm, dict(parts.learner)
        per_round = settings.pop("rows_per_iteration", None)
        self.stages: dict[str, Any] = {}
        if algorithm.imitates:
            rows = demonstration_rows(parts.policy, build.demonstrations(config, parts.spec), parts.policy.spec.chunk)
            print(f"{rows.rows} demonstration steps", flush=True)
            self.stages["read"] = ReadStage(rows, per_round, config.seed)
            graph = graphs.imitation()
        else:
            graph = graphs.reinforcement()
            self._ledger = TrainingLedger(config.seed, parts.tasks, parts.states, config.groups, algorithm.group_size)
            self._horizon = None if parts.spec.horizon is None else max(1, round(parts.spec.horizon * config.horizon_share))
            self.stages |= self._rollout(config, parts, progress)
        self.learn = self.stages["learn"] = _learner(parts, settings, config)
        self.backend = LocalBackend(self.stages)
        self.planner = scheduling.Planner(config, graph, parts.cluster, progress.note)

    def lay_out(self, config: DictConfig, parts: Parts, progress: Progress) -> Plan:
        """The plan that the config fixes, or else the best one for the profile that is known or measured here."""
        chosen = scheduling.fixed(config, self.planner.graph, parts.cluster)
        if chosen is None:
            known = scheduling.known_profile(config) or self.measured(config, parts, progress)
            items = config.groups * parts.algorithm.group_size
            self.planner.profile = replace(known, round=replace(known.round, items=items, slots=config.sim.slots))
            chosen = self.planner.choose()
        self.use(chosen)
        return chosen

    def use(self, chosen: Plan) -> None:
        """Lays the stages out as the plan says. Between rounds."""
        self.planner.plan = chosen
        self.flow = chosen.flow(self.planner.graph)
        if "sim" in self.stages:
            self.stages["sim"].regroup(chosen.slot_groups)

    def measured(self, config: DictConfig, parts: Parts, progress: Progress) -> Profile:
        """This machine's profile, kept for the next run of the config."""
        print("measuring the stages", flush=True)
        self.planner.profile = scheduling.measure(config, parts, self._ledger, self.learn, self._horizon, progress.note)
        self.keep_profile(config)
        return self.planner.profile

    def keep_profile(self, config: DictConfig) -> None:
        """Saves the profile for the next run of this config on this machine, unless one was given."""
        if self.planner.profile is not None and config.scheduler.profile is None:
            path = scheduling.saved_profile(config)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.planner.profile.save(path)

    def resume(self, run: RunFolder) -> int:
        """Iterations done by the newest whole checkpoint of the run, put in place; 0 when none was written. Raises ConfigError when all are damaged."""
        newest = checkpoint.latest(run.checkpoints) if run.checkpoints.exists() else None
        if newest is None:
            if any(run.checkpoints.glob("step_*")):
                raise ConfigError(f"{run}: found only damaged checkpoints, wanted a whole one; the run is left as it is, start another without resume=")
            return 0
        done = loop.restore(newest, self.learn)
        print(f"resuming {run} after {done} iterations", flush=True)
        return done

    def _rollout(self, config: DictConfig, parts: Parts, progress: Progress) -> dict[str, Any]:
        spec = parts.policy.spec
        prepare = parts.policy.prepare if parts.algorithm.needs_values else None
        sim = SimStage(parts.env, self._ledger.round, 1, spec.chunk, prepare, horizon=self._horizon, finish=_counting(progress, config.groups * parts.algorithm.group_size))
        act = ActStage(parts.policy, spec.chunk * spec.action_dims, config.seed, "train", False, config.scheduler.act_rows, 1)
        return {"sim": sim, "act": act}


def _counting(progress: Progress, per_round: int) -> Callable[[Any], Any]:
    """Shows how many of a round's episodes are played as each one ends."""
    ended = itertools.count(1)

    def finish(trajectory: Any) -> Any:
        progress.within("playing:", (next(ended) - 1) % per_round + 1, per_round)
        return trajectory

    return finish


def _learner(parts: Parts, settings: dict[str, Any], config: DictConfig) -> LearnStage:
    threads = scheduling.learn_threads(config, parts.cluster)
    rate = partial(learning_rate, lr=settings["lr"], warmup_updates=settings.pop("warmup_updates"), schedule=settings.pop("schedule"))
    limits = {name: settings.pop(name) for name in ("epochs", "minibatch", "microbatch", "grad_clip")}
    optimizer = build_optimizer(parts.policy, **settings)
    return LearnStage(parts.policy, parts.algorithm, optimizer, LearnerSettings(**limits, rate=rate, rounds=max(1, config.iterations)), config.seed, threads, tell=print)
