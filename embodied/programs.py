"""What the entry points share: the parts of a run put together, its folder, its evaluation, and how a program ends.

Exit codes: 0 done, 1 refused or failed with a message, 130 stopped by the user.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from embodied import build, config as configuration, graphs, loop
from embodied.config import ConfigError
from embodied.episodes import EvaluationLedger, TrainingLedger
from embodied.learning.optimizers import build_optimizer, learning_rate
from embodied.runs import checkpoint, folder
from embodied.runs.folder import RunFolder, RunFolderInUse
from embodied.runs.metrics import EpisodeLog, MetricsLog, read_episodes
from embodied.runs.progress import Progress
from embodied.runs.success import Rate, rate_of
from embodied.stages.act import ActStage
from embodied.stages.learn import LearnerSettings, LearnStage
from embodied.stages.read import ReadStage, demonstration_rows
from embodied.stages.sim import SimStage
from envs.process import EnvError
from scheduler.backends.local_backend import LocalBackend
from scheduler.planning.plan import Plan, PlanError, plan
from scheduler.resources import this_machine
from scheduler.running.execute import Stopped
from scheduler.running.flow import flow_of


def guarded(program: Callable[[], None]) -> int:
    """Runs a program; what a user can mend ends in its message, not a traceback (M2FLOW_DEBUG=1 shows both)."""
    try:
        program()
        return 0
    except (KeyboardInterrupt, Stopped):
        print("stopped; resume=auto goes on", file=sys.stderr)
        return 130
    except (ConfigError, PlanError, EnvError, RunFolderInUse, OmegaConfBaseException, OSError, ValueError) as error:
        if os.environ.get("M2FLOW_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1


def run_folder(config: DictConfig, arguments: Sequence[str]) -> tuple[DictConfig, RunFolder]:
    """A new run, or the one that `resume` names with its own saved config (what the command line says on top holds)."""
    names = config.choices["env"], config.choices["policy"]
    if config.resume is not None:
        path = folder.newest(config.output, *names) if config.resume == "auto" else Path(config.resume)
        if path is not None:
            run = RunFolder.open(path, writing=True)
            saved = configuration.reopened(run.config_yaml, arguments)
            OmegaConf.save(saved, run.config_yaml)
            return saved, run
        print(f"resume=auto: found no run of env={names[0]} policy={names[1]} in {config.output}; starting one")
    run = RunFolder.create(config.output, *names)
    OmegaConf.save(config, run.config_yaml)
    return config, run


class Parts:
    """Algorithm, policy and env of a config, checked against each other before the simulators start. A context manager: it ends the workers."""

    def __init__(self, config: DictConfig, run: RunFolder | None = None, with_algorithm: bool = True, weights: Path | None = None) -> None:
        torch.set_num_threads(1)  # some initialisers (QR) give other last bits on more threads
        self.algorithm, self.learner = build.algorithm(config) if with_algorithm else (None, {})
        build.prepare_fresh(config, run)
        self.policy = build.policy(config, bool(self.algorithm and self.algorithm.needs_values), weights)
        self.keep_cameras = config.record is not None or config.videos > 0
        self.spec = build.env_spec(config, self.policy.spec, self.keep_cameras)
        build.check_fit(self.spec, self.policy.spec)
        if self.algorithm is not None:
            self.algorithm.action_dims = self.policy.spec.action_dims
        self.tasks, self.states = build.tasks_and_states(config, self.spec)
        sim, scheduler = config.sim, config.scheduler
        self.plan: Plan = plan(scheduler.mode, sim.slots, scheduler.groups, sim.workers, this_machine())
        learning = self.algorithm is not None
        self.needs_env = not (learning and self.algorithm.imitates and not config.evaluation.before and not config.evaluation.after)
        self._config = config
        self.env: Any = None

    @property
    def protocol(self) -> dict[str, Any]:
        """What a score must be read with."""
        evaluation = self._config.evaluation
        temperature = getattr(self.policy, "temperature", None)
        return {"env": self.spec.name, **self.spec.protocol, "horizon": self.spec.horizon, "greedy": evaluation.greedy, "temperature": temperature, "seed": self._config.seed}

    def __enter__(self) -> Parts:
        if self.needs_env:
            print(f"starting {self._config.sim.slots} x {self.spec.name} in {self._config.sim.workers or 'no'} worker processes", flush=True)
            self.env = build.started_env(self._config, build.env_thunk(self._config, self.policy.spec, self.keep_cameras))
        return self

    def __exit__(self, *exception: object) -> None:
        if self.env is not None:
            self.env.close()


class Training:
    """The flow and the stages of a training run."""

    def __init__(self, config: DictConfig, parts: Parts) -> None:
        algorithm, settings, threads = parts.algorithm, dict(parts.learner), config.scheduler.learn_threads or parts.plan.threads["learn"]
        per_round = settings.pop("rows_per_iteration", None)
        self.stages: dict[str, Any] = {}
        if algorithm.imitates:
            rows = demonstration_rows(parts.policy, build.demonstrations(config, parts.spec), parts.policy.spec.chunk)
            print(f"{rows.rows} demonstration steps", flush=True)
            self.stages["read"] = ReadStage(rows, per_round, config.seed)
            graph, groups = graphs.imitation(), 1
        else:
            self.stages |= self._rollout(config, parts)
            graph, groups = graphs.reinforcement(), parts.plan.groups
        self.flow = flow_of(graph, groups, parts.plan.granules, parts.plan.devices)
        self.learn = self.stages["learn"] = _learner(parts, settings, config, threads)
        self.backend = LocalBackend(self.stages)

    def resume(self, run: RunFolder) -> int:
        """Iterations done by the newest whole checkpoint of the run, put in place; 0 when there is none."""
        newest = checkpoint.latest(run.checkpoints) if run.checkpoints.exists() else None
        if newest is None:
            return 0
        done = loop.restore(newest, self.learn)
        print(f"resuming {run} after {done} iterations", flush=True)
        return done

    @staticmethod
    def _rollout(config: DictConfig, parts: Parts) -> dict[str, Any]:
        spec = parts.policy.spec
        ledger = TrainingLedger(config.seed, parts.tasks, parts.states, config.groups, parts.algorithm.group_size)
        prepare = parts.policy.prepare if parts.algorithm.needs_values else None
        horizon = None if parts.spec.horizon is None else max(1, round(parts.spec.horizon * config.horizon_share))
        sim = SimStage(parts.env, ledger.round, parts.plan.groups, spec.chunk, prepare, horizon=horizon)
        act = ActStage(parts.policy, spec.chunk * spec.action_dims, config.seed, "train", False, config.scheduler.act_rows, parts.plan.threads["act"])
        return {"sim": sim, "act": act}


def _learner(parts: Parts, settings: dict[str, Any], config: DictConfig, threads: int) -> LearnStage:
    rate = partial(learning_rate, lr=settings["lr"], warmup_updates=settings.pop("warmup_updates"), schedule=settings.pop("schedule"))
    limits = {name: settings.pop(name) for name in ("epochs", "minibatch", "microbatch", "grad_clip")}
    optimizer = build_optimizer(parts.policy, **settings)
    return LearnStage(parts.policy, parts.algorithm, optimizer, LearnerSettings(**limits, rate=rate, rounds=max(1, config.iterations)), config.seed, threads, tell=print)


@contextmanager
def logs(config: DictConfig, run: RunFolder, parts: Parts, first: int) -> Iterator[loop.Logs]:
    """The run's logs, cut back to iteration `first` when it is resumed."""
    at = first if run.metrics_jsonl.exists() else None
    metrics, episodes = MetricsLog(run.path, resume_at=at), EpisodeLog(run.path, resume_at=at if run.episodes_jsonl.exists() else None)
    parts.plan.save(run.plan_json)
    print(f"plan: {parts.plan.mode}: {parts.plan.reason}\nrun: {run}", flush=True)
    with Progress(config.iterations, first) as progress:
        try:
            yield loop.Logs(run, metrics, episodes, parts.spec.name, progress)
        finally:
            metrics.close()
            episodes.close()


def evaluation(config: DictConfig, parts: Parts, log: Callable[[dict], Any], progress: Progress, phase: str, iteration: int, on_episode: Any = None) -> tuple[Rate, float, int]:
    """(rate, wall seconds, env steps) over config.evaluation.episodes."""
    states = None if parts.spec.init_states is None else range(parts.spec.init_states)
    ledger = EvaluationLedger(config.seed, parts.tasks, states, config.evaluation.episodes)
    found = loop.evaluate(
        parts.env, parts.policy, parts.plan, ledger, seed=config.seed, greedy=config.evaluation.greedy, rows=config.scheduler.act_rows,
        log=log, progress=progress, phase=phase, suite=parts.spec.name, iteration=iteration, on_episode=on_episode,
    )
    progress.note(f"success {phase}: {found[0]}  ({found[1]:.0f} s)")
    return found


def weights(config: DictConfig) -> Path | None:
    """The policy folder that `checkpoint` means: of a run's newest whole checkpoint, of a step_N folder, or itself. Raises ConfigError."""
    if config.checkpoint is None:
        return None
    path = Path(config.checkpoint)
    if (path / "config.json").is_file():
        return path
    try:
        return checkpoint.find(path) / checkpoint.POLICY
    except FileNotFoundError as error:
        raise ConfigError(f"checkpoint={path}: {error}") from error


def earlier_success(run: RunFolder) -> dict[str, Rate]:
    """success_before of a resumed run, from the episodes it wrote before it was cut."""
    rows = read_episodes(run.episodes_jsonl, "before")
    return {"success_before": rate_of(rows)} if rows else {}


def totals(found: dict[str, float]) -> dict[str, Any]:
    """Training's own sums as summary.json has them: env_steps_per_s over the iterations' wall time, seconds by stage."""
    stages = {name.removeprefix("seconds/"): spent for name, spent in found.items() if name.startswith("seconds/")}
    rates = {"env_steps_per_s": found["env_steps"] / found["wall_s"]} if found["wall_s"] else {}
    return rates | {"env_steps": found["env_steps"], "train_wall_s": found["wall_s"], "time_by_stage": stages}
