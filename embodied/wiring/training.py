"""A training run: its graph, its stages where they live, and how a plan lays them out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

from omegaconf import DictConfig

from embodied import loop
from embodied.config import ConfigError
from embodied.runs import checkpoint
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import EpisodeLog
from embodied.runs.progress import Progress
from embodied.wiring import measuring, programs, scheduling
from embodied.wiring.programs import Parts, graph_of
from scheduler.backends.base import Backend, StageLost
from scheduler.planning.schedule import Plan
from scheduler.profile import Profile
from scheduler.running.execute import publish
from scheduler.running.flow import Flow


class Training:
    """Built first, then laid out by a plan (`lay_out`), then taken up where its last checkpoint left it (`resume`)."""

    flow: Flow
    weights: dict[int, Sequence[Any]]

    def __init__(self, config: DictConfig, parts: Parts, run: RunFolder | None, progress: Progress) -> None:
        self._config, self._parts, self._run = config, parts, run
        graph = graph_of(config, parts.algorithm, parts.facts.policy.streams)
        self._imitates = parts.algorithm.imitates
        self.deployment = parts.deployment([*graph.stages, *(name for name in ("sim", "act") if name not in graph.stages and parts.needs_env)])
        self.planner = scheduling.Planner(config, graph, parts.cluster, progress.note, self.deployment.members)
        self.weights = {}

    @property
    def backend(self) -> Backend:
        return self.deployment.backend

    def lay_out(self, progress: Progress) -> Plan:
        """The plan that the config fixes, or else the best one for the profile that is known or measured here."""
        config = self._config
        chosen = scheduling.fixed(config, self.planner.graph, self._parts.cluster, self.deployment.members)
        if chosen is None:
            known = measuring.covering(measuring.known_profile(config, self._parts.cluster) or self.measured(progress), self.planner.graph, config)
            size = self._parts.algorithm.group_size
            self.planner.profile = replace(known, round=replace(known.round, items=config.groups * size, slots=config.sim.slots, group=size))
            chosen = self.planner.choose()
        self.deployment.place(chosen)
        self.use(chosen)
        return chosen

    def use(self, chosen: Plan) -> None:
        """Lays the stages out as the plan says. Between rounds."""
        self.planner.plan = chosen
        self.flow = chosen.flow(self.planner.graph)
        self.backend.arrange(chosen.slot_groups)
        for stage in self.flow.devices:
            self.backend.ask(stage, "unload")  # who may be loaded beside whom has changed; whoever is needed is loaded again
        if not self._imitates:
            ledger = self._parts.facts.ledger(self._config, self._parts.algorithm.group_size)
            self.backend.ask("sim", "assign", ledger.round, chosen.slot_groups, self._parts.facts.horizon(self._config))
            self.backend.ask("act", "assign", "train")

    def measured(self, progress: Progress) -> Profile:
        """This machine's profile, kept for the next run of the config."""
        print(f"measuring the stages: there is no profile of this config and machine in {measuring.saved_profile(self._config, self._parts.cluster).parent}", flush=True)
        self.deployment.place(scheduling.to_measure(self._config, self.planner.graph, self._parts.cluster, self.deployment.members))
        self.planner.profile = measuring.measure(self._config, self._parts, self.planner.graph, self.backend, progress.note)
        self.keep_profile()
        return self.planner.profile

    def keep_profile(self) -> None:
        """Saves the profile for the next run of this config on this machine, unless one was given."""
        if self.planner.profile is not None and self._config.scheduler.profile is None:
            path = measuring.saved_profile(self._config, self._parts.cluster)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.planner.profile.save(path)

    def resume(self) -> int:
        """Iterations done by the newest whole checkpoint of the run, put in place; 0 when none was written. Raises ConfigError when all are damaged."""
        folder = self._run.checkpoints
        newest = checkpoint.latest(folder) if folder.exists() else None
        done = 0
        if newest is None:
            if any(folder.glob("step_*")):
                raise ConfigError(f"{self._run}: found only damaged checkpoints, wanted a whole one; the run is left as it is, start another without resume=")
        else:
            (done,) = self.backend.ask("learn", "restore", newest.resolve())
            print(f"resuming {self._run} after {done} iterations", flush=True)
        if self.deployment.travels:
            (older,) = self.backend.ask("learn", "older")
            self.weights = {version: publish(self.backend, "learn", version) for version in [*older, done]}
        return done

    def recover(self, lost: StageLost, done: int) -> int:
        """Builds anew what was lost. A learner goes back to the last checkpoint; any other stage only to the round's begin."""
        if "learn" in self.backend.restart(lost.stage):
            done = self.resume()
        self.use(self.planner.plan)
        return done

    def train(self, logs: loop.Logs, first: int) -> None:
        """Iterations from `first` to the config's last."""
        config = self._config
        self.use(self.planner.plan)  # an evaluation may have had the stages meanwhile
        per_round = config.groups * self._parts.algorithm.group_size
        loop.train(self, logs, first, config.iterations, config.checkpoints.every, config.checkpoints.keep, config.scheduler.restarts, per_round)

    def evaluation(self, episodes: EpisodeLog, progress: Progress, phase: str, iteration: int) -> loop.Evaluated:
        """The weights as they are, judged."""

        def recover(lost: StageLost) -> Sequence[Any] | None:
            done = self.recover(lost, iteration)
            if done != iteration:
                raise ConfigError(f"{lost}: with it the weights after {iteration} iterations, and the last checkpoint is of {done}; the same command with resume=auto goes on from there")
            return self.weights.get(iteration)

        return programs.evaluation(self._config, self._parts, self.deployment, episodes, progress, phase, iteration, self.weights.get(iteration), recover)
