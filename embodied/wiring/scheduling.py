"""From the config to the plan that runs: fixed by what the user says, or measured and planned; compared with what happened, and made anew on drift."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from omegaconf import DictConfig

from embodied import graphs
from embodied.config import ConfigError
from scheduler.graph import MacroGraph
from scheduler.planning.measure import calibrated
from scheduler.planning.plan import judged, plan
from scheduler.planning.schedule import MODES, Plan, PlanError, Predicted, StagePlan, check, load, with_threads
from scheduler.profile import Profile
from scheduler.resources import Cluster
from scheduler.running.execute import RoundResult

CALL_S = 60e-6  # seconds the virtual clock itself takes per call, roughly
COST = 0.02  # share of an iteration that predicting the next one may take


def fixed(config: DictConfig, graph: MacroGraph, cluster: Cluster, members: int) -> Plan | None:
    """The plan where nothing is left to decide; None where it is to be measured. Raises PlanError for numbers that do not fit.

    members: processes that the simulators are spread over (nodes); a slot group lives in one of them.
    """
    scheduler, sim = config.scheduler, config.sim
    if scheduler.mode == "from_file":
        found = check(load(Path(scheduler.file)), graph, cluster)
        if found.slots != sim.slots and "sim" in found.stages:
            raise PlanError(f"{scheduler.file}: found {found.slots} slots, this run has {sim.slots}; set sim.slots={found.slots}")
        # The learner's threads can change the last bit of a matrix product, so they are the config's to say; the workers are running by now.
        several = [f"{name} with {stage.processes}" for name, stage in found.stages.items() if stage.processes > 1 and name not in ("sim", "act")]
        _check_groups(found.slot_groups, members)
        if several or any(stage.processes for name, stage in found.stages.items() if name != "sim") and config.cluster.kind != "ray":
            raise PlanError(f"{scheduler.file}: found processes of their own for {', '.join(several) or 'stages other than sim'}; wanted cluster=ray for that, and one process for each of ref and learn")
        threads = learn_threads(config, cluster)
        for stage, what, has, key in (("sim", "processes", sim.workers, "sim.workers"), ("learn", "threads", threads, "scheduler.learn_threads"), ("ref", "threads", threads, "scheduler.learn_threads"), ("act", "threads", 1, None)):
            placed = found.stages.get(stage)
            planned = has if placed is None or what == "threads" and placed.devices else getattr(placed, what)
            if planned != has:
                raise PlanError(f"{scheduler.file}: found {stage} with {what}={planned}, this run has {has}; {f'set {key}={planned}' if key else f'write {has}'}")
        return found
    if scheduler.profile is not None and (scheduler.mode == "collocated" or sim.workers == 0 or scheduler.groups):
        raise ConfigError(f"scheduler.profile={scheduler.profile}: nothing is planned by it with scheduler={scheduler.mode}, sim.workers={sim.workers} and scheduler.groups={scheduler.groups}; leave it out, or let scheduler=auto plan for simulator workers")
    if scheduler.mode not in ("auto", *MODES):
        raise PlanError(f"found scheduler mode {scheduler.mode!r}, wanted one of auto, {', '.join(MODES)}, from_file")
    source = graph.order()[0]
    if source != "sim":  # imitation: reading is nothing, learning has the machine
        return check(Plan("collocated", 1, 1, {name: stage_plan(name, config, cluster) for name in graph.stages}, reason="read, then learn"), graph, cluster)
    if scheduler.mode == "collocated" and (scheduler.groups or 1) > 1:
        raise PlanError(f"scheduler=collocated: found scheduler.groups={scheduler.groups}, wanted 1 or null: every stage has the whole machine in turn; scheduler=hybrid has several")
    groups = scheduler.groups or (members if scheduler.mode == "collocated" or sim.workers == 0 else None)
    answers_stream = not all(edge.ordered for edge in graph.edges)
    if groups is None or scheduler.mode == "disaggregated" or answers_stream and config.cluster.kind == "ray" and scheduler.mode != "collocated":
        return None
    _check_groups(groups, members)
    mode = "collocated" if groups == members else "hybrid"
    stages = {name: stage_plan(name, config, cluster) for name in graph.stages}
    reason = "one slot group: every stage has the whole machine, in turn" if groups == 1 else f"{groups} slot groups: " + ("each answer goes on as it ends" if answers_stream else "while some simulate, another is answered")
    return check(Plan(mode, sim.slots, groups, stages, reason=reason), graph, cluster)


def to_measure(config: DictConfig, graph: MacroGraph, cluster: Cluster, members: int) -> Plan:
    """Where the stages are while they are measured."""
    return Plan("collocated", config.sim.slots, members, {name: stage_plan(name, config, cluster) for name in graph.stages})


def for_evaluation(config: DictConfig, cluster: Cluster, members: int) -> Plan:
    """One slot group per slot, or a single one where that gains nothing or is asked for."""
    alone = config.scheduler.mode == "collocated" or config.sim.workers == 0 and not config.scheduler.groups
    groups = members if alone else config.scheduler.groups or config.sim.slots
    _check_groups(groups, members)
    stages = {name: stage_plan(name, config, cluster) for name in ("sim", "act")}
    return check(Plan("collocated" if groups == members else "hybrid", config.sim.slots, groups, stages), graphs.evaluation(), cluster)


def stage_plan(name: str, config: DictConfig, cluster: Cluster) -> StagePlan:
    """Processes and threads of a stage where nothing is planned. On a cluster a learner whose weights may lag has a process of its own: it would hold up sampling else."""
    learns, ray = name in ("learn", "ref"), config.cluster.kind == "ray"
    own = config.sim.workers if name == "sim" else int(name == "learn" and config.staleness > 0 and ray)
    devices = tuple(device.name for device in cluster.accelerators[:1]) if ray and name in ("act", "ref", "learn") and config.device != "cpu" else ()
    return StagePlan(devices, own, learn_threads(config, cluster) if learns and not devices else 1)


def _check_groups(groups: int, members: int) -> None:
    if groups % members:
        raise PlanError(f"found {groups} slot groups (scheduler.groups): the simulators are spread over {members} nodes, and a slot group lives on one; wanted a multiple of {members}")


def learn_threads(config: DictConfig, cluster: Cluster) -> int:
    """CPU threads of the learner, which lives on one node."""
    return config.scheduler.learn_threads or cluster.nodes[0].cores


@dataclass
class Planner:
    """Plans, compares what happened with it, plans again. `profile` is brought into line after every iteration."""

    config: DictConfig
    graph: MacroGraph
    cluster: Cluster
    tell: Callable[[str], None]
    members: int = 1  # processes that the simulators are spread over
    profile: Profile | None = None
    plan: Plan | None = None
    _predicted: Plan | None = None  # the plan with what the next iteration is predicted to take
    _off: int = 0  # iterations in a row that left the prediction by more than the set share

    def choose(self) -> Plan:
        """The plan of least predicted time for the profile, in the mode that the config asks for."""
        config, slots, threads = self.config, self.profile.round.slots, learn_threads(self.config, self.cluster)
        groups = [config.scheduler.groups] if config.scheduler.groups else None if self.members == 1 else [n * self.members for n in (1, 2, 4) if slots % (n * self.members) == 0]
        found = plan(self.graph, self.profile, self.cluster, config.scheduler.mode, groups, config.sim.workers, apart=config.cluster.kind == "ray")
        wanted = {name: threads for name, stage in found.stages.items() if name in ("ref", "learn") and stage.threads != threads and not stage.devices}
        if wanted:  # the same number in every plan, for the same bits
            found = judged(self.graph, with_threads(found, wanted), self.profile, self.cluster)
        self.plan = self._predicted = found
        return found

    def compare(self, result: RoundResult, turns: Sequence[int]) -> dict[str, Any]:
        """Rows for the metrics: measured beside predicted. Afterwards the profile is as the iteration was. turns: of each episode, in ledger order."""
        busy, wall = result.timeline.busy(), result.took
        row: dict[str, Any] = {"time": {"iteration_s": wall, **{f"{name}_s": seconds for name, seconds in busy.items()}}}
        if self._predicted is not None and self._predicted.predicted is not None and wall > 0:
            predicted = self._predicted.predicted.iteration_s
            error = predicted / wall - 1
            row["time"]["predicted_s"], row["plan"] = predicted, {"error": error}
            self._off = self._off + 1 if abs(error) > self.config.scheduler.drift else 0
        self._learn_from(turns, busy, wall)
        return row

    @property
    def drifted(self) -> bool:
        return self._off >= self.config.scheduler.patience

    def replan(self) -> Plan:
        """The plan for the profile as it has become; says what changed."""
        before, self._off = self.plan, 0
        after = self.choose()
        same = (before.slot_groups, before.stages) == (after.slot_groups, after.stages)
        self.tell(f"measured time left the prediction {self.config.scheduler.patience} times by more than {100 * self.config.scheduler.drift:.0f} %: " + ("planned again, the same plan" if same else f"planned again: {after.reason}"))
        return after

    def _learn_from(self, turns: Sequence[int], busy: Mapping[str, float], wall: float) -> None:
        """Scales the profile by what was busy how long, with the turns the episodes took; predicts the next iteration by it."""
        expected, self._predicted = self._predicted, None
        if self.profile is None or not turns:
            return
        calls = 2 * sum(turns) / max(1, self.plan.slots // self.plan.slot_groups)
        if 3 * calls * CALL_S > COST * wall:  # too short to be rehearsed: it will take what it took
            if expected is not None and expected.predicted.iteration_s > 0:
                self.profile = calibrated(self.profile, dict.fromkeys(busy, expected.predicted.iteration_s), dict.fromkeys(busy, wall))
            self._predicted = replace(self.plan, predicted=Predicted(wall, dict(busy), {}, {}))
            return
        round_ = replace(self.profile.round, items=len(turns), turns=tuple(turns))
        with_turns = replace(self.profile, round=round_)
        self.profile = calibrated(with_turns, judged(self.graph, self.plan, with_turns, self.cluster).predicted.by_stage, busy)
        self._predicted = judged(self.graph, self.plan, self.profile, self.cluster)
