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

Every rule is written once, for columns of placements: each number may be an array. They know nothing of lag: where sampling may run
ahead of learning, `Search.ahead` adds what pays only then, and rehearsing tells.
"""

from __future__ import annotations

import functools
from typing import Iterator, NamedTuple, Union

import numpy as np

from scheduler.planning.tables import lookup
from scheduler.planning.rehearse import finishes
from scheduler.profile import ACCELERATORS, CORES, Profile, Round

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


class Columns(NamedTuple):
    """Placements side by side. Of a placement that is none, lead is infinite."""

    lead: np.ndarray
    each: np.ndarray
    work: np.ndarray  # core-seconds per granule
    resident: np.ndarray  # bytes on its fullest accelerator while loaded
    peak: np.ndarray  # bytes on its fullest accelerator at the worst moment


class Option(NamedTuple):
    """One placement, as `Columns`."""

    lead: float
    each: float
    work: float
    resident: int
    peak: int
    how: "Leaf | LoopLeaf | tuple[str, Option, Option]"  # what it is, or (join, upstream, downstream)

    def total(self, granules: int) -> float:
        """Seconds of a round."""
        return self.lead + (granules - 1) * self.each


def leaves(profile: Profile, stage: str, units: np.ndarray, granules: int) -> Columns:
    """A stage by itself on so many of its units; none where the granule does not divide over its accelerators or there is nothing to run on."""
    found, items = profile.stage(stage), profile.round.items
    granule, held = items // granules, found.on == ACCELERATORS
    at_once = granule if found.streams else items
    seconds = lookup.seconds(found, at_once, units)
    lead, each = seconds + found.update_s, seconds if found.streams else 0.0 * seconds
    lead = np.where((units < 1) | (granule % np.maximum(1, units) > 0 if held else False), np.inf, lead)
    if held:
        return Columns(lead, each, 0.0 * each, 0.0 * each + found.resident, found.resident + lookup.memory(found, at_once, units))
    return Columns(lead, each, (lead + (granules - 1) * each) * lookup.filled(found, units) / granules, 0.0 * each, 0.0 * each)


def alone(profile: Profile, stage: str, units: np.ndarray, granules: int) -> Columns:
    """A source without a partner whose items take several turns: continuous batching in the round's slots."""
    found, round_ = profile.stage(stage), profile.round
    ended = finishes(round_.turns, round_.items, round_.slots)
    at, active = (np.array([entry[i] for entry in ended]) for i in (0, 1))
    ends = np.cumsum(np.diff(at, prepend=0) * lookup.seconds(found, active, units[:, None]), axis=1)
    through = np.cumsum([len(items) for _, _, items in ended])
    total, lead = ends[:, -1], ends[:, np.searchsorted(through, max(1, round_.items // granules))]
    lead = np.where(units < 1, np.inf, lead)
    each = (total - lead) / (granules - 1) if granules > 1 else 0.0 * total
    if found.on == CORES:
        return Columns(lead, each, total * lookup.filled(found, units) / granules, 0.0 * total, 0.0 * total)
    return Columns(lead, each, 0.0 * total, 0.0 * total + found.resident, found.resident + lookup.memory(found, round_.slots, units))


def loop(profile: Profile, first: str, second: str, one: np.ndarray, two: np.ndarray, cores: np.ndarray, join: str, groups: int) -> Columns:
    """Two stages that answer each other turn by turn, `first` on so many of its units, with `groups` slot groups in flight. join "mixed": both at once on so many cores.

    As of one granule; `parted` gives several. Slots need not divide over the units: the largest share decides.
    """
    a, b, slots = profile.stage(first), profile.stage(second), profile.round.slots
    members = slots // groups
    none = (np.minimum(one, two) < 1) | (slots % groups > 0) | (a.on == ACCELERATORS) & (members < one) | (b.on == ACCELERATORS) & (members < two)
    one, two = np.maximum(1, lookup.filled(a, one)), np.maximum(1, lookup.filled(b, two))
    answer = lookup.seconds(b, members, two)
    if a.on == CORES:  # a group has its own processes, and all of them together the cores
        step, whole = lookup.seconds(a, members, np.maximum(1, one // groups)), lookup.seconds(a, slots, one)
    else:
        step = lookup.seconds(a, members, one)
        whole = groups * step
    if groups == 1:
        cycle = step + answer
    elif join == "turns":
        cycle = whole + groups * answer
    else:
        cycle = np.maximum(step + answer, np.maximum(whole, groups * answer))
    work = (whole * one if a.on == CORES else 0.0) + (groups * answer * two if b.on == CORES else 0.0)
    if join == "mixed":
        cycle = np.maximum(cycle, work / np.maximum(1, cores))
    begin, turns = profile.round.items * a.begin_s / one, ends(profile.round, 1)[0]
    # The first holds every slot at all times, the second works on a group's at a time.
    (r, w), (q, v) = ((p.resident, lookup.memory(p, n, u)) if p.on == ACCELERATORS else (0, 0.0) for p, n, u in ((a, slots, one), (b, members, two)))
    together = join == "turns" and a.on == b.on == ACCELERATORS
    resident = r + q if together else max(r, q)
    peak = resident + np.maximum(w, v) if together else np.maximum(r + w, q + v)
    total = turns * cycle + begin
    return Columns(np.where(none, np.inf, total), 0.0 * total, turns * work + (begin * one if a.on == CORES else 0.0) + 0.0 * total, resident + 0.0 * total, peak + 0.0 * total)


def parted(whole: Columns, round_: Round, granules: int) -> Columns:
    """A loop's columns with its items handed on in so many granules: they end as their turns do."""
    share = ends(round_, granules)[1]
    lead = whole.lead * share
    each = np.where(np.isfinite(lead), whole.lead, 0.0) * (1 - share) / (granules - 1) if granules > 1 else whole.each
    return Columns(lead, each, whole.work / granules, whole.resident, whole.peak)


@functools.lru_cache(maxsize=256)
def ends(round_: Round, granules: int) -> tuple[int, float]:
    """(turns of the loop until the last item is through, the share of them after which the first granule is)."""
    ended = finishes(round_.turns, round_.items, round_.slots)
    first, through = max(1, round_.items // granules), 0
    for at, _, items in ended:
        through += len(items)
        if through >= first:
            return ended[-1][0], at / ended[-1][0]
    raise AssertionError("every item ends")


def joined(s: Columns, t: Columns, later: np.ndarray, cores: np.ndarray, waits: bool, connected: bool, switch_s: float, mixes: bool) -> Iterator[tuple[str, Columns]]:
    """s and t on the same units, in every way. later: granules after the first. waits: t does not stream. switch_s: load and unload seconds of both; 0 = nothing to load.

    mixes: both use cores, and not both accelerators.
    """
    work, in_turn = s.work + t.work, s.lead + later * s.each + t.lead
    resident, peak = s.resident + t.resident, np.maximum(s.peak + t.resident, t.peak + s.resident)
    least, lower = np.maximum(s.resident, t.resident), np.maximum(s.peak, t.peak)
    yield "turns", Columns(in_turn, t.each, work, resident, peak)
    if switch_s > 0:
        yield "reloaded", Columns(in_turn + switch_s, t.each, work, least, lower)
    if waits:
        return
    yield "interleaved", Columns(s.lead + t.lead, s.each + t.each, work, resident, peak)
    if mixes:
        bound = work / cores
        lead = s.lead + t.lead if connected else np.maximum(np.maximum(s.lead, t.lead), bound)
        yield "mixed", Columns(lead, np.maximum(np.maximum(s.each, t.each), bound), work, least, lower)


def apart(s: Columns, t: Columns, later: np.ndarray, waits: bool, connected: bool) -> Columns:
    """s and t on units of their own."""
    if waits:
        lead, each = s.lead + later * s.each + t.lead, t.each
    else:
        lead, each = (s.lead + t.lead if connected else np.maximum(s.lead, t.lead)), np.maximum(s.each, t.each)
    return Columns(lead, each, s.work + t.work, np.maximum(s.resident, t.resident), np.maximum(s.peak, t.peak))


def tree_of(option: Option) -> Tree:
    """What was joined how, down to the stages."""
    how = option.how
    return Join(how[0], tree_of(how[1]), tree_of(how[2])) if type(how) is tuple else how
