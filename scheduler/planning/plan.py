"""The plan: which processes and threads each stage gets, how many slot groups are in flight, how many items an edge hands on.

A plan is plain values: it is written to plan.json, may be edited there and given back.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scheduler.resources import Cluster

MODES = ("collocated", "pipelined")


class PlanError(ValueError):
    """The plan cannot run here; the message says what was found, what was wanted and the way out."""


@dataclass(frozen=True)
class Plan:
    mode: str
    slots: int  # env instances
    groups: int  # slot groups in flight; divides slots
    processes: int  # of the sim stage; 0 = in this process
    threads: dict[str, int]  # stage -> CPU threads while it holds its lease
    granules: dict[str, int | None] = field(default_factory=dict)  # receiving stage -> items; None = the whole round
    devices: dict[str, str] = field(default_factory=dict)  # stage -> device
    reason: str = ""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def load(path: Path) -> Plan:
    """Raises PlanError for a file that is not a plan, naming the keys at fault."""
    try:
        found = json.loads(path.read_text())
        return Plan(**found)
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise PlanError(f"{path} is not a plan: {error}; wanted the keys of a plan.json that a run wrote") from error


def plan(mode: str, slots: int, groups: int | None, processes: int, cluster: Cluster) -> Plan:
    """collocated: one slot group, sim and act take turns. pipelined: while one group simulates, another is inferred.

    groups: None = one slot per group for pipelined. Raises PlanError for numbers that do not divide.
    """
    if mode not in MODES:
        raise PlanError(f"found scheduler mode {mode!r}, wanted one of {', '.join(MODES)}")
    chosen = 1 if mode == "collocated" else (groups or slots)
    if slots < 1 or slots % chosen:
        fitting = [n for n in range(1, max(slots, 1) + 1) if slots % n == 0]
        raise PlanError(f"{slots} slots do not divide into {chosen} slot groups; groups of {fitting} would do")
    if processes > slots:
        raise PlanError(f"{processes} sim processes for {slots} slots: some would have nothing to do; use at most {slots}")
    reason = {
        "collocated": "one slot group: sim, then act, then learn, each with the whole machine",
        "pipelined": f"{chosen} slot groups: act serves one while the others simulate",
    }[mode]
    return Plan(mode, slots, chosen, processes, {"act": 1, "learn": cluster.cores}, {"learn": None}, {}, reason)
