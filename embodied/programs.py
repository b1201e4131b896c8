"""What the entry points share: the parts of a run put together, its folder, its evaluation, and how a program ends.

Exit codes: 0 done, 1 refused or failed with a message, 130 stopped by the user.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
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


def guarded(program: Callable[[], None], hint: str = "") -> int:
    """Runs a program; what a user can mend ends in its message, not a traceback (M2FLOW_DEBUG=1 shows both). hint: said after a stop."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        program()
        return 0
    except (KeyboardInterrupt, Stopped):
        print(f"stopped{hint}", file=sys.stderr)
        return 130
    except (ConfigError, PlanError, EnvError, RunFolderInUse, OmegaConfBaseException, OSError, ValueError) as error:
        if os.environ.get("M2FLOW_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1


def run_config(arguments: Sequence[str]) -> tuple[DictConfig, Path | None]:
    """(config, the run to go on with or None). resume=PATH takes that run's own config; resume=auto the newest run that this command line would make."""
    asked = configuration.value_of(arguments, "resume")
    if asked not in (None, "auto"):
        RunFolder.open(asked)
        return _reopened(Path(asked), arguments), Path(asked)
    config = configuration.compose(arguments)
    if asked is None:
        return config, None
    names = config.choices["env"], config.choices["policy"]
    for path in folder.runs(config.output, *names):
        saved = path / "config.yaml"
        if saved.is_file() and not configuration.differences(OmegaConf.load(saved), config):
            return _reopened(path, arguments), path
    print(f"resume=auto: found no run like this one in {config.output}; starting one")
    return config, None


def _reopened(path: Path, arguments: Sequence[str]) -> DictConfig:
    """The run's config; says so where another number of iterations changes what the rest of it does."""
    config = configuration.reopened(path / "config.yaml", arguments)
    planned, schedule = OmegaConf.load(path / "config.yaml").iterations, OmegaConf.select(config, "algorithm.learner.schedule")
    if planned != config.iterations and schedule not in (None, "constant"):
        print(f"iterations={config.iterations}: the run was begun for {planned}, and its {schedule} learning rate now spans {config.iterations}; "
              "the result is not that of an unbroken run of either length")  # fmt: skip
    return config


@contextmanager
def run_folder(config: DictConfig, path: Path | None) -> Iterator[RunFolder]:
    """The run's folder, locked. A new one that fails before its first record is taken away again: it would only be in resume's way."""
    if path is not None:
        with RunFolder.open(path, writing=True) as run:
            yield run
        return
    run = RunFolder.create(config.output, config.choices["env"], config.choices["policy"])
    try:
        yield run
    finally:
        begun = run.plan_json.exists()
        run.close()
        if not begun:
            shutil.rmtree(run.path)


class Parts:
    """Algorithm, policy and env of a config, checked against each other before the simulators start. A context manager: it ends the workers."""

    def __init__(self, config: DictConfig, run: RunFolder | None = None, with_algorithm: bool = True, weights: Path | None = None) -> None:
        torch.set_num_threads(1)  # some initialisers (QR) give other last bits on more threads
        self.algorithm, self.learner = build.algorithm(config) if with_algorithm else (None, {})
        if self.algorithm is not None and config.data and not self.algorithm.imitates:
            raise ConfigError(f"data={config.data}: algorithm={config.choices['algorithm']} does not read demonstrations; use algorithm=bc, or leave data= out")
        build.prepare_fresh(config, run)
        self.policy = build.policy(config, bool(self.algorithm and self.algorithm.needs_values), weights)
        self.keep_cameras = config.record is not None or config.videos > 0
        self.spec = build.env_spec(config, self.policy.spec, self.keep_cameras)
        build.check_fit(self.spec, self.policy.spec)
        if self.algorithm is not None:
            self.algorithm.action_dims = self.policy.spec.action_dims
            if self.algorithm.needs_reference and not self.policy.spec.distribution:
                raise ConfigError(f"algorithm.kl_coef={self.algorithm.kl_coef}: policy={self.policy.spec.name} here gives densities, not a distribution over tokens; set algorithm.kl_coef=0")
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

    def __init__(self, config: DictConfig, parts: Parts, progress: Progress) -> None:
        algorithm, settings, threads = parts.algorithm, dict(parts.learner), config.scheduler.learn_threads or parts.plan.threads["learn"]
        per_round = settings.pop("rows_per_iteration", None)
        self.stages: dict[str, Any] = {}
        if algorithm.imitates:
            rows = demonstration_rows(parts.policy, build.demonstrations(config, parts.spec), parts.policy.spec.chunk)
            print(f"{rows.rows} demonstration steps", flush=True)
            self.stages["read"] = ReadStage(rows, per_round, config.seed)
            graph, groups = graphs.imitation(), 1
        else:
            self.stages |= self._rollout(config, parts, progress)
            graph, groups = graphs.reinforcement(), parts.plan.groups
        self.flow = flow_of(graph, groups, parts.plan.granules, parts.plan.devices)
        self.learn = self.stages["learn"] = _learner(parts, settings, config, threads)
        self.backend = LocalBackend(self.stages)

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

    @staticmethod
    def _rollout(config: DictConfig, parts: Parts, progress: Progress) -> dict[str, Any]:
        spec = parts.policy.spec
        ledger = TrainingLedger(config.seed, parts.tasks, parts.states, config.groups, parts.algorithm.group_size)
        prepare = parts.policy.prepare if parts.algorithm.needs_values else None
        horizon = None if parts.spec.horizon is None else max(1, round(parts.spec.horizon * config.horizon_share))
        sim = SimStage(parts.env, ledger.round, parts.plan.groups, spec.chunk, prepare, horizon=horizon, finish=_counting(progress, config.groups * parts.algorithm.group_size))
        act = ActStage(parts.policy, spec.chunk * spec.action_dims, config.seed, "train", False, config.scheduler.act_rows, parts.plan.threads["act"])
        return {"sim": sim, "act": act}


def _counting(progress: Progress, per_round: int) -> Callable[[Any], Any]:
    """Shows how many of a round's episodes are played as each one ends."""
    ended = itertools.count(1)

    def finish(trajectory: Any) -> Any:
        progress.within("playing:", (next(ended) - 1) % per_round + 1, per_round)
        return trajectory

    return finish


def _learner(parts: Parts, settings: dict[str, Any], config: DictConfig, threads: int) -> LearnStage:
    rate = partial(learning_rate, lr=settings["lr"], warmup_updates=settings.pop("warmup_updates"), schedule=settings.pop("schedule"))
    limits = {name: settings.pop(name) for name in ("epochs", "minibatch", "microbatch", "grad_clip")}
    optimizer = build_optimizer(parts.policy, **settings)
    return LearnStage(parts.policy, parts.algorithm, optimizer, LearnerSettings(**limits, rate=rate, rounds=max(1, config.iterations)), config.seed, threads, tell=print)


@contextmanager
def logs(config: DictConfig, run: RunFolder, parts: Parts, first: int, progress: Progress) -> Iterator[loop.Logs]:
    """The run's logs, cut back to iteration `first` when it is resumed."""
    at = first if run.metrics_jsonl.exists() else None
    metrics, episodes = MetricsLog(run.path, resume_at=at), EpisodeLog(run.path, resume_at=at if run.episodes_jsonl.exists() else None)
    OmegaConf.save(config, run.config_yaml)
    parts.plan.save(run.plan_json)
    print(f"plan: {parts.plan.mode}: {parts.plan.reason}\nrun: {run}", flush=True)
    try:
        yield loop.Logs(run, metrics, episodes, parts.spec.name, progress)
    finally:
        metrics.close()
        episodes.close()


def evaluation(config: DictConfig, parts: Parts, episodes: EpisodeLog, progress: Progress, phase: str, iteration: int, on_episode: Any = None) -> loop.Evaluated:
    """config.evaluation.episodes of them; rows of an earlier try at the same phase are replaced."""
    episodes.forget(phase)
    states = None if parts.spec.init_states is None else range(parts.spec.init_states)
    ledger = EvaluationLedger(config.seed, parts.tasks, states, config.evaluation.episodes)
    found = loop.evaluate(
        parts.env, parts.policy, parts.plan, ledger, seed=config.seed, greedy=config.evaluation.greedy, rows=config.scheduler.act_rows,
        log=episodes.write, progress=progress, phase=phase, suite=parts.spec.name, iteration=iteration, on_episode=on_episode,
    )
    progress.note(f"success {phase}: {found.rate}  ({found.timeline.wall:.0f} s)")
    return found


def weights(config: DictConfig) -> Path | None:
    """The policy folder that `checkpoint` means: of a run's newest whole checkpoint, of a step_N folder, or itself. Raises ConfigError."""
    if config.checkpoint is None:
        return None
    path = Path(config.checkpoint)
    if (path / "config.json").is_file():
        return path
    try:
        found = checkpoint.find(path)
        checkpoint.verify(found)
        return found / checkpoint.POLICY
    except FileNotFoundError as error:
        raise ConfigError(f"checkpoint={path}: {error}") from error


def earlier_success(run: RunFolder) -> dict[str, Rate]:
    """success_before of a resumed run, from the episodes it wrote before it was cut."""
    rows = read_episodes(run.episodes_jsonl, "before")
    return {"success_before": rate_of(rows)} if rows else {}


def totals(run: RunFolder) -> dict[str, Any]:
    """Sums over every iteration of the run, whatever process ran it: env steps, seconds, seconds by stage, env steps per second."""
    rows = [json.loads(line) for line in run.metrics_jsonl.read_text().splitlines()]
    wall, steps = sum(row["seconds"]["iteration"] for row in rows), sum(row.get("env_steps", 0) for row in rows)
    stages: dict[str, float] = {}
    for row in rows:
        for stage, spent in row["seconds"].items():
            stages[stage] = stages.get(stage, 0.0) + spent
    stages.pop("iteration", None)
    return {"env_steps": steps, "env_steps_per_s": steps / wall if wall else None, "train_wall_s": wall, "time_by_stage": stages, "iterations": len(rows)}
