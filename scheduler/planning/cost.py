"""What a placement costs, before anything runs: the rules by which plans are compared.

A round of M items passes the stages in k = M / m granules of m items. Whatever a set of stages is placed on, it is described by
`lead` (seconds until its first granule is through, with everything that must wait for the last one), `each` (seconds per further
granule), `work` (core-seconds per granule) and memory. A round takes lead + (k - 1) * each: warm-up and cool-down, then the bottleneck.

Two sets, the first upstream (s) and the second downstream (t), are joined in five ways:
  turns        the same units, one after the other by round, all loaded      lead = round(s) + lead(t)           each = each(t)
  reloaded     the same, but only one is loaded at a time                    as turns, and all load and unload seconds of both once
  interleaved  the same units, one after the other by granule, all loaded    lead = lead(s) + lead(t)            each = each(s) + each(t)
  split        units of their own                                            lead = lead(s) + lead(t)            each = max
  mixed        the same cores at once; at most one of them on accelerators   lead = lead(s) + lead(t)            each = max, at least work / cores
Where t can do nothing before the last item (it does not stream), it begins when s is through: lead = round(s) + lead(t), each = each(t),
and interleaved and mixed say nothing new. Where no edge leads from s to t they begin together: lead = max for split, and for mixed too,
but at least work / cores. (Where first items end early, mixed may promise a little less than the core-seconds allow; rehearsing tells.)
After RLinf (OSDI 2026), whose recursion has turns and split; memory, reloading, interleaving, cores and barriers are added.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Union

from scheduler.planning.rehearse import finishes
from scheduler.profile import ACCELERATORS, CORES, Profile, Round, StageProfile

JOINS = ("turns", "reloaded", "interleaved", "split", "mixed")


class Units(NamedTuple):
    accelerators: int
    cores: int


class Leaf(NamedTuple):
    stage: str
    units: Units


class LoopLeaf(NamedTuple):
    first: Leaf
    second: Leaf
    join: str  # turns | split | mixed
    groups: int


class Join(NamedTuple):
    kind: str
    first: "Tree"
    second: "Tree"


Tree = Union[Leaf, LoopLeaf, Join]


class Option(NamedTuple):
    lead: float
    each: float
    work: float  # core-seconds per granule
    resident: int  # bytes on its fullest accelerator while loaded
    peak: int  # bytes on its fullest accelerator at the worst moment
    how: "Leaf | LoopLeaf | tuple[str, Option, Option]"  # what it is, or (join, upstream, downstream)

    def total(self, granules: int) -> float:
        """Seconds of a round."""
        return self.lead + (granules - 1) * self.each


def leaf(profile: Profile, stage: str, units: Units, granule: int, granules: int) -> Option | None:
    """A stage by itself; None where the granule does not divide over its accelerators or there is nothing to run on."""
    found = profile.stage(stage)
    count = units.accelerators if found.on == ACCELERATORS else units.cores
    if count < 1 or (found.on == ACCELERATORS and granule % count):
        return None
    working = found.memory(granule if found.streams else granule * granules, count) if found.on == ACCELERATORS else 0
    resident = found.resident if found.on == ACCELERATORS else 0
    placed = Leaf(stage, Units(count, 0) if found.on == ACCELERATORS else Units(0, count))
    if found.streams:
        lead, each = found.seconds(granule, count) + found.update_s, found.seconds(granule, count)
    else:
        lead, each = found.seconds(granule * granules, count) + found.update_s, 0.0
    work = 0.0 if found.on == ACCELERATORS else (lead + (granules - 1) * each) * _filled(found, count) / granules
    return Option(lead, each, work, resident, resident + working, placed)


def alone(profile: Profile, stage: str, units: Units, granules: int) -> Option | None:
    """A source without a partner whose items take several turns: continuous batching in the round's slots."""
    found, round_ = profile.stage(stage), profile.round
    count = units.accelerators if found.on == ACCELERATORS else units.cores
    if count < 1:
        return None
    total, turn, ends = 0.0, 0, []
    for at, active, items in finishes(round_.turns, round_.items, round_.slots):
        total += (at - turn) * found.seconds(active, count)
        ends += [total] * len(items)
        turn = at
    on_cores = found.on == CORES
    resident, working = (0, 0) if on_cores else (found.resident, found.memory(round_.slots, count))
    lead = ends[max(0, len(ends) // granules - 1)]
    each = (total - lead) / (granules - 1) if granules > 1 else 0.0
    work = total * _filled(found, count) / granules if on_cores else 0.0
    return Option(lead, each, work, resident, resident + working, Leaf(stage, Units(0, count) if on_cores else Units(count, 0)))


def loop(profile: Profile, first: str, second: str, one: Units, two: Units, join: str, groups: int, granules: int) -> Option | None:
    """Two stages that answer each other turn by turn, with `groups` slot groups in flight. join "mixed": both on the same cores at once.

    Slots need not divide over the units: the largest share decides.
    """
    a, b = profile.stage(first), profile.stage(second)
    round_ = profile.round
    units_a, units_b = (u.accelerators if p.on == ACCELERATORS else u.cores for u, p in ((one, a), (two, b)))
    members = round_.slots // groups
    if min(units_a, units_b) < 1 or round_.slots % groups or (a.on == ACCELERATORS and members < units_a) or (b.on == ACCELERATORS and members < units_b):
        return None
    units_a, units_b = _filled(a, units_a), _filled(b, units_b)
    answer = b.seconds(members, units_b)
    if a.on == CORES:  # a group has its own processes, and all of them together the cores
        step, whole = a.seconds(members, max(1, units_a // groups)), a.seconds(round_.slots, units_a)
    else:
        step, whole = a.seconds(members, units_a), groups * a.seconds(members, units_a)
    if groups == 1:
        cycle = step + answer
    elif join == "turns":
        cycle = whole + groups * answer
    else:
        cycle = max(step + answer, whole, groups * answer)
    turns, shares = _ends(round_, granules)
    cores = (whole * units_a if a.on == CORES else 0.0) + (groups * answer * units_b if b.on == CORES else 0.0)
    if join == "mixed":
        cycle = max(cycle, cores / one.cores)
    begin = round_.items * a.begin_s / units_a
    total = turns * cycle + begin
    lead = total * shares
    each = (total - lead) / (granules - 1) if granules > 1 else 0.0
    work = (turns * cores + (begin * units_a if a.on == CORES else 0.0)) / granules
    # The first holds every slot at all times, the second works on a group's at a time.
    held = [(p.resident, p.memory(n, u)) if p.on == ACCELERATORS else (0, 0) for p, n, u in ((a, round_.slots, units_a), (b, members, units_b))]
    together = join == "turns" and a.on == b.on == ACCELERATORS
    resident = sum(r for r, _ in held) if together else max(r for r, _ in held)
    peak = resident + max(w for _, w in held) if together else max(r + w for r, w in held)
    placed = [Leaf(name, Units(u, 0) if p.on == ACCELERATORS else Units(0, u)) for name, p, u in ((first, a, units_a), (second, b, units_b))]
    return Option(lead, each, work, resident, peak, LoopLeaf(placed[0], placed[1], join, groups))


@functools.lru_cache(maxsize=256)
def _ends(round_: Round, granules: int) -> tuple[int, float]:
    """(turns of the loop until the last item is through, the share of them after which the first granule is)."""
    ended = finishes(round_.turns, round_.items, round_.slots)
    first, through = max(1, round_.items // granules), 0
    for at, _, items in ended:
        through += len(items)
        if through >= first:
            return ended[-1][0], at / ended[-1][0]
    raise AssertionError("every item ends")


def _filled(found: StageProfile, units: int) -> int:
    return units if found.most_units is None else min(units, found.most_units)


def joined(s: Option, t: Option, granules: int, cores: int, waits: bool, connected: bool, switch_s: float, mixes: bool) -> list[Option]:
    """s and t on the same units, in every way. waits: t does not stream. switch_s: load and unload seconds of both; 0 = nothing to load.

    mixes: both use cores, and not both accelerators.
    """
    s_lead, s_each, s_work, s_resident, s_peak, _ = s
    t_lead, t_each, t_work, t_resident, t_peak, _ = t
    work, in_turn = s_work + t_work, s_lead + (granules - 1) * s_each + t_lead
    resident, peak = s_resident + t_resident, max(s_peak + t_resident, t_peak + s_resident)
    ways = [Option(in_turn, t_each, work, resident, peak, ("turns", s, t))]
    if switch_s > 0:
        ways.append(Option(in_turn + switch_s, t_each, work, max(s_resident, t_resident), max(s_peak, t_peak), ("reloaded", s, t)))
    if waits or granules == 1:
        return ways
    ways.append(Option(s_lead + t_lead, s_each + t_each, work, resident, peak, ("interleaved", s, t)))
    if mixes:
        bound = work / cores
        lead = s_lead + t_lead if connected else max(s_lead, t_lead, bound)
        ways.append(Option(lead, max(s_each, t_each, bound), work, max(s_resident, t_resident), max(s_peak, t_peak), ("mixed", s, t)))
    return ways


def apart(s: Option, t: Option, granules: int, waits: bool, connected: bool) -> Option:
    """s and t on units of their own."""
    if waits:
        lead, each = s.lead + (granules - 1) * s.each + t.lead, t.each
    else:
        lead, each = (s.lead + t.lead if connected else max(s.lead, t.lead)), max(s.each, t.each)
    return Option(lead, each, s.work + t.work, max(s.resident, t.resident), max(s.peak, t.peak), ("split", s, t))


def tree_of(option: Option) -> Tree:
    """What was joined how, down to the stages."""
    how = option.how
    return Join(how[0], tree_of(how[1]), tree_of(how[2])) if type(how) is tuple else how
