"""The plan as plain values: what plan.json holds, may be edited there and given back.

It says who runs where with how many processes and threads, how many items an edge hands on, how many slot groups are in flight,
what that is predicted to take, and which other plans were passed over and why.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Mapping

from scheduler.graph import MacroGraph
from scheduler.profile import whole
from scheduler.resources import Cluster
from scheduler.running.flow import Flow, flow_of

MODES = ("collocated", "disaggregated", "hybrid")


class PlanError(ValueError):
    """The plan cannot run here; the message says what was found, what was wanted and the way out."""


@dataclass(frozen=True)
class StagePlan:
    devices: tuple[str, ...] = ()  # accelerators it leases, all at once; () = it runs on cores
    processes: int = 0  # worker processes; 0 = the program's own
    threads: int = 1  # CPU threads of each process
    granule: int | None = None  # items it is handed at a time; None = a whole round

    @property
    def units(self) -> int:
        """What it counts as in a profile: its accelerators, or the cores its processes and threads fill."""
        return len(self.devices) or max(1, self.processes) * self.threads


@dataclass(frozen=True)
class Predicted:
    iteration_s: float
    by_stage: dict[str, float]  # seconds in which the stage is busy
    idle: dict[str, float]  # "cores" and "accelerators": share of the iteration in which they do nothing
    memory: dict[str, int]  # accelerator -> peak bytes; "host" -> bytes


@dataclass(frozen=True)
class Rejected:
    mode: str
    summary: str
    iteration_s: float | None  # None: it cannot run
    reason: str


@dataclass(frozen=True)
class Plan:
    mode: str
    slots: int  # env instances
    slot_groups: int  # in flight; divides slots
    stages: dict[str, StagePlan]
    together: tuple[tuple[str, ...], ...] | None = None  # sets of stages that stay loaded at once on devices they share; null = all of them
    reason: str = ""
    predicted: Predicted | None = None
    rejected: tuple[Rejected, ...] = field(default=())

    @property
    def threads(self) -> dict[str, int]:
        return {name: stage.threads for name, stage in self.stages.items()}

    def flow(self, graph: MacroGraph) -> Flow:
        """What the executor follows."""
        granules = {name: stage.granule for name, stage in self.stages.items()}
        elsewhere = frozenset(name for name, stage in self.stages.items() if stage.processes)
        flow = flow_of(graph, self.slot_groups, granules, {name: stage.devices for name, stage in self.stages.items()}, elsewhere)
        return replace(flow, together=(frozenset(self.stages),) if self.together is None else tuple(map(frozenset, self.together)))

    def save(self, path: Path) -> None:
        aside = path.with_name(f".{path.name}")
        aside.write_text(json.dumps(asdict(self), indent=2) + "\n")
        aside.replace(path)  # whole or not there


def load(path: Path) -> Plan:
    """Raises PlanError for a file that is not a plan, naming the keys at fault."""
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not a plan: {error}; wanted a plan.json that a run wrote") from error
    try:
        known = {f.name for f in fields(StagePlan)}
        for name, stage in found["stages"].items():
            if set(stage) - known:
                raise TypeError(f"stages.{name} has {', '.join(sorted(set(stage) - known))}")
        stages = {name: StagePlan(**{**stage, "devices": tuple(stage.get("devices", ()))}) for name, stage in found["stages"].items()}
        predicted = Predicted(**found["predicted"]) if found.get("predicted") else None
        rejected = tuple(Rejected(**each) for each in found.get("rejected", ()))
        for name, stage in stages.items():
            if not isinstance(found["stages"][name].get("devices", []), list) or not all(isinstance(device, str) for device in stage.devices):
                raise TypeError(f"stages.{name}.devices is {found['stages'][name]['devices']!r}, not a list of names")
        if predicted is not None and not all(isinstance(value, (int, float)) for value in (predicted.iteration_s, *predicted.by_stage.values(), *predicted.idle.values(), *predicted.memory.values())):
            raise TypeError("predicted holds something that is no number")
        together = None if found.get("together") is None else tuple(map(tuple, found["together"]))
        if not isinstance(found.get("together") or [], list) or not all(isinstance(name, str) for group in together or () for name in group):
            raise TypeError(f"together is {found['together']!r}, not a list of lists of stages")
        return Plan(**{**found, "stages": stages, "predicted": predicted, "rejected": rejected, "together": together})
    except (TypeError, KeyError, AttributeError) as error:
        raise PlanError(f"{path} is not a plan: {error}; wanted the keys {', '.join(f.name for f in fields(Plan))}, and of each stage {', '.join(f.name for f in fields(StagePlan))}") from error


def check(plan: Plan, graph: MacroGraph, cluster: Cluster, items: int | None = None) -> Plan:
    """The plan itself when it fits graph and cluster. Raises PlanError with everything that does not. items: of a round, where known."""
    wrong = []
    if plan.mode not in MODES:
        wrong.append(f"mode {plan.mode!r}, wanted one of {', '.join(MODES)}")
    missing, extra = sorted(set(graph.stages) - set(plan.stages)), sorted(set(plan.stages) - set(graph.stages))
    if missing or extra:
        wrong.append(f"stages {sorted(plan.stages)}, wanted exactly {sorted(graph.stages)}")
    if not (whole(plan.slots, 1) and whole(plan.slot_groups, 1)) or plan.slots % plan.slot_groups:
        fitting = [n for n in range(1, plan.slots + 1) if plan.slots % n == 0] if whole(plan.slots, 1) and plan.slots <= 10**6 else "a number that divides"
        wrong.append(f"{plan.slots} slots in {plan.slot_groups} slot groups; groups of {fitting} would do")
    known = {device.name for device in cluster.accelerators}
    for name, stage in plan.stages.items():
        unknown = sorted(set(stage.devices) - known)
        if unknown:
            wrong.append(f"stage {name!r} on {', '.join(unknown)}; this machine has {', '.join(sorted(known)) or 'no accelerator'}")
        if not (whole(stage.processes, 0) and whole(stage.threads, 1)) or not (stage.granule is None or whole(stage.granule, 1)):
            wrong.append(f"stage {name!r} with processes={stage.processes}, threads={stage.threads}, granule={stage.granule}; wanted at least 0, 1 and 1 (or null)")
        elif stage.threads > cluster.cores:
            wrong.append(f"stage {name!r} with {stage.threads} threads on {cluster.cores} cores")
    source = graph.order()[0]
    if source in plan.stages and whole(plan.stages[source].processes, 0) and whole(plan.slots, 1) and plan.stages[source].processes > plan.slots:
        wrong.append(f"{plan.stages[source].processes} {source} processes for {plan.slots} slots: some would have nothing to do; use at most {plan.slots}")
    strangers = sorted({str(name) for group in plan.together or () for name in group if name not in plan.stages})
    if strangers:
        wrong.append(f"{', '.join(strangers)} in together, where only stages may stand, as in [[\"act\", \"learn\"]]")
    if wrong:
        raise PlanError("the plan does not fit: found " + "; ".join(wrong))
    return plan


def with_threads(plan: Plan, threads: Mapping[str, int]) -> Plan:
    """The same plan with other numbers of threads."""
    return replace(plan, stages={name: replace(stage, threads=threads.get(name, stage.threads)) for name, stage in plan.stages.items()})
