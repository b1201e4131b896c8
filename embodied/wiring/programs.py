"""What the entry points share: the parts of a run put together, its folder, its evaluation, and how a program ends.

Exit codes: 0 done, 1 refused or failed with a message, 130 stopped by the user.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from embodied import config as configuration, graphs, loop
from embodied.config import ConfigError
from embodied.runs import folder, start
from embodied.runs.answers import Answers, answers
from embodied.runs.folder import RunFolder, RunFolderInUse
from embodied.runs.metrics import EpisodeLog, MetricsLog, read_episodes
from embodied.runs.progress import Progress
from embodied.runs.protocol import protocol
from embodied.runs.success import Rate, rate_of
from embodied.wiring import build, deployment, fit, memory, room, scheduling
from embodied.wiring.deployment import Here, OnRay
from embodied.wiring.workers import Facts
from envs.process import EnvError
from scheduler.backends.base import StageLost
from scheduler.graph import GraphError, MacroGraph
from scheduler.planning.explain import explained
from scheduler.planning.schedule import Plan, PlanError
from scheduler.profile import ProfileError
from scheduler.resources import Cluster, ClusterError
from scheduler.running.execute import Stopped


KNOBS = """
Every knob is key=value. Of a run: embodied/knobs.py; of each choice: the yaml files below configs/.
  env={env}  policy={policy}  algorithm={algorithm}  scheduler=auto|collocated|disaggregated|hybrid|from_file"""


def guarded(program: Callable[[Sequence[str]], None], arguments: Sequence[str] | None, about: str | None, hint: str = "") -> int:
    """Runs a program; what a user can mend ends in its message, not a traceback (M2FLOW_DEBUG=1 shows both).

    arguments: None = the process's. about: what --help says first. hint: said after a stop.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help"}.intersection(given):
        print((about or "") + KNOBS.format(**{group: "|".join(configuration.choices_of(group)) for group in configuration.CHOICES}))
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        program(given)
        return 0
    except (KeyboardInterrupt, Stopped):
        print(f"stopped{hint}", file=sys.stderr)
        return 130
    except (ConfigError, PlanError, ProfileError, ClusterError, GraphError, EnvError, StageLost, RunFolderInUse, OmegaConfBaseException, OSError, ValueError) as error:
        if os.environ.get("M2FLOW_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # nothing of ours should end here; a user gets where it did, not twenty lines
        if os.environ.get("M2FLOW_DEBUG"):
            raise
        at = traceback.extract_tb(error.__traceback__)[-1]
        print(f"error: {type(error).__name__}: {error} ({at.filename}:{at.lineno}); M2FLOW_DEBUG=1 shows how it came to that", file=sys.stderr)
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
        if _same_run(path / "config.yaml", config):
            found = _reopened(path, arguments)
            kept = configuration.kept(found, config, arguments)
            print(f"resume=auto: going on with {path}{', which keeps ' + ', '.join(kept) if kept else ''}")
            return found, path
    print(f"resume=auto: found no run like this one in {config.output}; starting one")
    return config, None


def _same_run(saved: Path, config: DictConfig) -> bool:
    """Whether the saved config is that of a run this one would be; a file that is no config is none."""
    try:
        found = OmegaConf.load(saved)
        return isinstance(found, DictConfig) and not configuration.differences(found, config)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException):
        return False


def _reopened(path: Path, arguments: Sequence[str]) -> DictConfig:
    """The run's config; says so where another number of iterations changes what the rest of it does."""
    movable = start.kept(path) and configuration.value_of(arguments, "policy.checkpoint") not in (None, "fresh")
    config = configuration.reopened(path / "config.yaml", arguments, ("policy.checkpoint",) if movable else ())
    if str(config.policy.get("checkpoint", "")).endswith("/start") and (path / "start").is_dir():
        config.policy.checkpoint = str(path / "start")  # the run may have been moved
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

    def __init__(self, config: DictConfig, cluster: Cluster, run: RunFolder | None = None, with_algorithm: bool = True, weights: Path | None = None) -> None:
        torch.set_num_threads(1)  # some initialisers (QR) give other last bits on more threads
        self.algorithm, self.learner = build.algorithm(config) if with_algorithm else (None, {})
        if self.algorithm is not None and config.data and not self.algorithm.imitates:
            raise ConfigError(f"data={config.data}: algorithm={config.choices['algorithm']} does not read demonstrations; use algorithm=bc, or leave data= out")
        if self.algorithm is not None and config.staleness and self.algorithm.imitates:
            raise ConfigError(f"staleness={config.staleness}: algorithm={config.choices['algorithm']} samples nothing that could be stale; leave it 0")
        build.prepare_fresh(config, run)
        self.device = deployment.device_of(config, cluster)
        begin = weights or build.start_of(config)
        room.check_unread(config, begin, room.there(config, cluster, self.device))
        if run is not None:
            start.keep(run.path, begin, config.policy.get("base"))
        self.policy = build.policy(config, bool(self.algorithm and self.algorithm.needs_values), begin)
        self.keep_cameras = config.record is not None or config.videos > 0
        self.spec = build.env_spec(config, self.policy.spec, self.keep_cameras)
        fit.check_fit(self.spec, self.policy.spec)
        fit.settle_batched(config, self.spec)
        fit.settle_texts(config, self.policy)
        self.plays_on = fit.plays_on(config, self.spec)
        self.ledger = fit.judged(config, self.spec, self.plays_on)
        if self.algorithm is not None:
            fit.check_trained(config, self.spec)
            self.algorithm.action_dims = self.policy.spec.action_dims
            if self.algorithm.needs_distribution and not self.policy.spec.distribution:
                raise ConfigError(f"algorithm.kl_estimator=exact: policy={self.policy.spec.name} here gives densities, not a distribution over tokens; set algorithm.kl_estimator=k3, or algorithm.kl_coef=0")
            if self.algorithm.recompute_logprobs and config.staleness:
                raise ConfigError(f"algorithm.recompute_logprobs=true: found staleness={config.staleness}, wanted 0: the weights that sampled are not those that would recompute; set one of them to its default")
        tasks, states = fit.tasks_and_states(config, self.spec)
        self.cluster = cluster
        threads = scheduling.learn_threads(config, self.cluster)
        memory.check(memory.Case(config, self.policy, self.spec, self.algorithm, self.learner, threads, room.there(config, cluster, self.device, self.policy)))
        self.facts = Facts(self.spec, self.policy.spec, tuple(tasks), None if states is None else tuple(states), threads, weights and str(weights), with_algorithm)
        count = deployment.members(config, self.cluster)
        self.evaluation_plan = scheduling.for_evaluation(config, self.cluster, count)
        learning = self.algorithm is not None
        if learning:
            scheduling.fixed(config, graph_of(config, self.algorithm, self.policy.spec.streams), self.cluster, count)  # a plan file that does not fit is refused here
        self.needs_env = not (learning and self.algorithm.imitates and not config.evaluation.before and not config.evaluation.after)
        self._config = config
        self.env: Any = None
        self._deployed: Here | OnRay | None = None

    @property
    def protocol(self) -> dict[str, Any]:
        """What a score must be read with."""
        evaluation, ledger = self._config.evaluation, self.ledger
        lasts = {"fixed_horizon": self.plays_on or self.spec.protocol.get("fixed_horizon", False)} if self.spec.plays_on else {}
        kept = {"split": "evaluate"} if ledger.held_out and "split" in self.spec.protocol else {}
        policy = {"temperature": getattr(self.policy, "temperature", None)} | getattr(self.policy, "protocol", {})
        run = {"horizon": self.spec.horizon, "starts": ledger.starts, "samples": ledger.samples, "greedy": evaluation.greedy, "seed": self._config.seed}
        return protocol({"env": self.spec.name, **self.spec.protocol, **kept, **lasts}, policy, run)

    def __enter__(self) -> Parts:
        sim = self._config.sim
        if self.needs_env:
            where = "as one simulator" if self.spec.batched else f"in {sim.workers or 'no'} worker processes"
            print(f"starting {sim.slots} x {self.spec.name} {where}", flush=True)
        if self.needs_env and self._config.cluster.kind == "local":
            self.env = build.started_env(self._config, build.env_thunk(self._config, self.policy.spec, self.keep_cameras), self.spec, sim.slots, sim.workers)
        return self

    def deployment(self, names: Sequence[str]) -> Here | OnRay:
        """The stages of these names; closed with the parts."""
        if self._config.cluster.kind == "ray":
            self._deployed = OnRay(self._config, names, self.facts, self.cluster)
        else:
            self._deployed = Here(self._config, names, self.facts, self.algorithm, self.learner, self.policy, self.env)
        return self._deployed

    def __exit__(self, *exception: object) -> None:
        try:
            if self._deployed is not None:
                self._deployed.close()
        finally:
            if self.env is not None:
                self.env.close()


def graph_of(config: DictConfig, algorithm: Any, streams: bool = False) -> MacroGraph:
    """What the config's run is made of. streams: the policy answers row by row, each when it ends."""
    return graphs.imitation() if algorithm.imitates else graphs.reinforcement(lag=config.staleness, reference=algorithm.needs_reference, ordered=not streams)


@contextmanager
def logs(config: DictConfig, run: RunFolder, parts: Parts, first: int, progress: Progress, chosen: Plan) -> Iterator[loop.Logs]:
    """The run's logs, cut back to iteration `first` when it is resumed."""
    at = first if run.metrics_jsonl.exists() else None
    metrics, episodes = MetricsLog(run.path, resume_at=at), EpisodeLog(run.path, resume_at=at if run.episodes_jsonl.exists() else None)
    folder.write_text(run.config_yaml, OmegaConf.to_yaml(config))
    chosen.save(run.plan_json)
    print(f"{explained(chosen)}\nrun: {run}", flush=True)
    try:
        yield loop.Logs(run, metrics, episodes, parts.spec.name, progress)
    finally:
        metrics.close()
        episodes.close()


def evaluation(config: DictConfig, parts: Parts, deployed: Here | OnRay, episodes: EpisodeLog, progress: Progress, phase: str, iteration: int, weights: Any = None, recover: Any = None, on_episode: Any = None) -> loop.Evaluated:
    """Every episode of `parts.ledger`; rows of an earlier try at the same phase are replaced.

    weights: the version to be judged, where the deployment has sampling work with weights of its own. recover: see loop.Exam; None where the
    policy is as its checkpoint made it.
    """

    def begun_anew(lost: StageLost) -> None:
        deployed.backend.restart(lost.stage)

    exam = loop.Exam(
        deployed.backend, parts.evaluation_plan, weights, recover or begun_anew, phase, iteration, parts.spec.name, config.evaluation.greedy, config.scheduler.restarts,
    )  # fmt: skip
    found = loop.evaluate(exam, parts.ledger, episodes, progress, on_episode)
    at_end = f", at the last step {found.at_end}" if parts.plays_on else ""
    progress.note(f"success {phase}: {found.answers or found.rate}{at_end}  ({found.timeline.wall:.0f} s)")
    return found


def weights(config: DictConfig) -> Path | None:
    """The policy folder that `checkpoint` means (build.policy_folder). Raises ConfigError."""
    if config.checkpoint is None:
        return None
    return build.policy_folder(Path(config.checkpoint), "checkpoint")


def finished(run: RunFolder, config: DictConfig) -> bool:
    """Whether a run has done everything that the config asks for."""
    if not run.summary_json.is_file():
        return False
    summary = json.loads(run.summary_json.read_text())
    return summary.get("iterations", 0) >= config.iterations and ("success_after" in summary or not config.evaluation.after)


def judged(found: loop.Evaluated, parts: Parts, phase: str) -> dict[str, Rate | Answers]:
    """The success of a phase by name; also that at the last step, where episodes go on past success, and the answers, where there are several to each problem."""
    at_end = {f"success_at_end_{phase}": found.at_end} if parts.plays_on else {}
    return {f"success_{phase}": found.rate} | at_end | ({f"answers_{phase}": found.answers} if found.answers else {})


def earlier_success(run: RunFolder, parts: Parts) -> dict[str, Rate | Answers]:
    """What `judged` said of the phase before, for a resumed run, from the episodes it wrote before it was cut."""
    rows = read_episodes(run.episodes_jsonl, "before")
    at_end = [row | {"success": row["success_at_end"]} for row in rows if "success_at_end" in row]
    repeated = answers(rows)
    found = {"success_before": rate_of(rows)} if rows else {}
    return found | ({"success_at_end_before": rate_of(at_end)} if at_end and parts.plays_on else {}) | ({"answers_before": repeated} if repeated else {})


def totals(run: RunFolder) -> dict[str, Any]:
    """Sums over every iteration of the run, whatever process ran it: env steps, seconds, seconds by stage, env steps per second."""
    rows = [json.loads(line) for line in run.metrics_jsonl.read_text().splitlines()]
    wall, steps = sum(row["time"]["iteration_s"] for row in rows), sum(row.get("env_steps", 0) for row in rows)
    stages: dict[str, float] = {}
    for row in rows:
        for name, spent in row["time"].items():
            if name not in ("iteration_s", "predicted_s"):
                stages[name.removesuffix("_s")] = stages.get(name.removesuffix("_s"), 0.0) + spent
    return {"env_steps": steps, "env_steps_per_s": steps / wall if wall else None, "train_wall_s": wall, "time_by_stage": stages, "iterations": len(rows)}
