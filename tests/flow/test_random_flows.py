"""What the executor guarantees, for any flow: random chains, loops, granules, capacities, lags, leases and durations.

Items: each passes each stage once, after it was sent there, and in ledger order where the link keeps it. Bounds: what waits in the first
channel, and how old the weights are that a sample was taken with. Leases: one holder, and no call without. Ends: no flow stands still.
Slot groups: more of them never make a loop slower that shares nothing, see the last section.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Iterator

import pytest
from flows import Case, Recording, any_case, chain, record

from scheduler.backends.base import Call, Event
from scheduler.running.flow import Flow

SAMPLING = ("sim", "act")


@pytest.fixture(scope="module", params=[0, *(pytest.param(thousand, marks=pytest.mark.slow) for thousand in range(1, 10))])
def runs(request) -> list[Recording]:
    """A thousand random flows; ten thousand with the slow ones."""
    return [record(any_case(seed)) for seed in range(request.param * 1000, (request.param + 1) * 1000)]


def test_every_flow_comes_to_its_end(runs: list[Recording]) -> None:
    for run in runs:
        rounds = list(range(run.case.first, run.case.first + run.case.rounds))
        assert (run.error, [result.number for result in run.results]) == (None, rounds), run.case


def test_a_round_gives_what_its_source_emitted_and_what_its_sink_reported(runs: list[Recording]) -> None:
    for run in runs:
        for result in run.results:
            report = ("report", result.number) if run.case.flow.sink else None
            assert ([item.order for item in result.items], result.report) == (list(range(run.case.items)), report), run.case


def received(run: Recording) -> Iterator[tuple[str, bool, int, list[int]]]:
    """(stage, whether its link keeps the ledger's order, round, the items it was handed one after the other)."""
    for link in run.case.flow.links:
        handed = {number: [] for number in range(run.case.first, run.case.first + run.case.rounds)}
        for call in run.calls(link.target, "granule"):
            assert all(item.payload == call.round for item in call.payload), run.case
            handed[call.round] += [item.order for item in call.payload]
        yield from ((link.target, link.ordered, number, orders) for number, orders in handed.items())


def test_every_item_passes_every_stage_once(runs: list[Recording]) -> None:
    for run in runs:
        for stage, _, number, orders in received(run):
            assert sorted(orders) == list(range(run.case.items)), (stage, number, run.case)


def test_a_link_that_keeps_the_order_hands_on_the_ledger(runs: list[Recording]) -> None:
    for run in runs:
        for stage, ordered, number, orders in received(run):
            assert not ordered or orders == sorted(orders), (stage, number, run.case)


def test_a_link_without_order_hands_on_as_items_came(runs: list[Recording]) -> None:
    for run in runs:
        for link in run.case.flow.links:
            if not link.ordered and link.granule is not None:  # a whole round leaves in ledger order
                sent = [(e.call.round, item.order) for e in run.log if isinstance(e, Event) and e.call.stage == link.source for item in e.outcome.items]
                for stage, _, number, orders in received(run):
                    assert stage != link.target or orders == [order for of_round, order in sent if of_round == number], (stage, number, run.case)


def test_a_granule_holds_only_what_had_been_sent(runs: list[Recording]) -> None:
    for run in runs:
        sender = {link.target: link.source for link in run.case.flow.links}
        sent: dict[tuple[str, int], set[int]] = defaultdict(set)  # (stage, round) -> items it has sent
        for entry in run.log:
            if isinstance(entry, Event):
                sent[entry.call.stage, entry.call.round].update(item.order for item in entry.outcome.items)
            elif entry.kind == "granule":
                assert {item.order for item in entry.payload} <= sent[sender[entry.stage], entry.round], (entry, run.case)


def test_a_granule_is_as_large_as_the_plan_says_but_for_the_last_of_a_round(runs: list[Recording]) -> None:
    for run in runs:
        for link in run.case.flow.links:
            sizes = defaultdict(list)
            for call in run.calls(link.target, "granule"):
                sizes[call.round].append(len(call.payload))
            whole = link.granule or run.case.items
            for number, found in sizes.items():
                assert set(found[:-1]) <= {whole} and 1 <= found[-1] <= whole, (link, number, run.case)


def test_a_stage_behind_a_link_is_through_with_a_round_before_it_begins_the_next(runs: list[Recording]) -> None:
    for run in runs:
        for link in run.case.flow.links:
            numbers = [call.round for call in run.log if isinstance(call, Call) and call.stage == link.target and call.kind in ("granule", "update")]
            assert numbers == sorted(numbers), (link, run.case)


# Bounds: the channel out of the source.


def sent_out(entry: Call | Event) -> bool:
    return isinstance(entry, Call) and (entry.stage, entry.kind) == ("sim", "turn")


def first_channel(run: Recording) -> Iterator[tuple[Call | Event, int, int]]:
    """Every turn, what the source told and what was taken from it: what then may leave and has not, and what waits for an earlier item."""
    link = run.case.flow.links[0]
    sent: dict[int, set[int]] = defaultdict(set)
    taken: dict[int, int] = defaultdict(int)
    for entry in run.log:
        call = entry.call if isinstance(entry, Event) else entry
        if isinstance(entry, Event) and call.stage == link.source:
            sent[call.round].update(item.order for item in entry.outcome.items)
        elif isinstance(entry, Call) and (call.stage, call.kind) == (link.target, "granule"):
            taken[call.round] += len(call.payload)
        elif not sent_out(entry):
            continue
        come = sent[call.round]
        leading = next(place for place in range(len(come) + 1) if place not in come) if link.ordered else len(come)
        yield entry, leading - taken[call.round], len(come) - leading


def bounded(runs: list[Recording]) -> Iterator[tuple[Recording, int]]:
    """The runs whose first channel has a bound, with the items it may hold."""
    for run in runs:
        for link in run.case.flow.links[:1]:
            if link.granule is not None and link.capacity is not None:
                yield run, link.granule * link.capacity


def test_the_source_is_not_called_while_its_channel_is_full(runs: list[Recording]) -> None:
    for run, most in bounded(runs):
        for entry, free, _ in first_channel(run):
            assert not sent_out(entry) or free < most, (entry, run.case)


def test_what_may_leave_exceeds_the_capacity_by_no_more_than_the_calls_in_flight_add(runs: list[Recording]) -> None:
    """A turn goes out while less than `most` may leave, and each group can have one out: every slot may still put one item, and one of
    these may be what all the items that wait for an earlier one have waited for. So, from the last turn that went out,
    free <= most - 1 + slots + what waited then. (Without an order nothing waits.)"""
    for run, most in bounded(runs):
        waited: dict[int, int] = defaultdict(int)
        for entry, free, waiting in first_channel(run):
            if sent_out(entry):
                waited[entry.round] = waiting
            number = entry.call.round if isinstance(entry, Event) else entry.round
            assert free <= most - 1 + run.case.slots + waited[number], (entry, run.case)


# Bounds: how old the weights are.


def turns(run: Recording) -> Iterator[tuple[Call, int]]:
    """Every turn of the loop with the updates that had been told when it went out."""
    done = run.case.first
    for entry in run.log:
        if isinstance(entry, Event):
            done += entry.call.kind == "update"
        elif entry.kind == "turn":
            yield entry, done


def test_a_sample_is_at_most_lag_versions_old(runs: list[Recording]) -> None:
    for run in runs:
        if run.case.flow.lag is not None:
            assert all(call.round - call.version <= run.case.flow.lag for stage in SAMPLING for call in run.calls(stage, "turn")), run.case


def test_a_round_samples_with_the_version_that_is_lag_updates_older_whatever_has_come_in_since(runs: list[Recording]) -> None:
    for run in runs:
        lag = run.case.flow.lag
        if run.case.flow.sink is not None and lag is not None:
            assert all(call.version == max(call.round - lag, run.case.first) <= done for call, done in turns(run)), run.case


def test_with_lag_the_iterations_take_together_what_the_run_took(runs: list[Recording]) -> None:
    for run in runs:
        if run.case.flow.lag and run.results:
            last = max(span.end for result in run.results for span in result.timeline.spans)
            assert sum(result.took for result in run.results) == pytest.approx(last), run.case


def test_lag_zero_starts_no_turn_of_a_round_before_the_update_of_the_one_before(runs: list[Recording]) -> None:
    for run in runs:
        if run.case.flow.lag == 0 and run.case.flow.sink is not None:
            assert all(call.round == done for call, done in turns(run)), run.case


# Leases.


def leases(run: Recording) -> Iterator[tuple[Call, set[str], set[str], dict[str, str]]]:
    """Every call on devices when it goes out: those devices, those of them in use, and device -> the stage that has loaded and not begun to unload."""
    holder: dict[str, str] = {}
    out: dict[int, Call] = {}
    for entry in run.log:
        call = entry.call if isinstance(entry, Event) else entry
        devices = set(run.case.flow.devices.get(call.stage, ()))
        if isinstance(entry, Event):
            if entry.outcome.done:
                del out[call.number]
                holder.update(dict.fromkeys(devices, call.stage) if call.kind == "load" else {})
            continue
        used = {device for other in out.values() for device in run.case.flow.devices.get(other.stage, ())}
        if devices:
            yield call, devices, devices & used, dict(holder)
        out[call.number] = call
        if call.kind == "unload":
            holder = {device: stage for device, stage in holder.items() if device not in devices}


def test_a_device_is_taken_when_nobody_holds_it_and_nothing_runs_on_it(runs: list[Recording]) -> None:
    for run in runs:
        for call, devices, used, holder in leases(run):
            assert call.kind != "load" or not used and not devices & set(holder), (call, run.case)


def test_a_device_is_given_back_whole_and_when_nothing_runs_on_it(runs: list[Recording]) -> None:
    for run in runs:
        for call, devices, used, holder in leases(run):
            assert call.kind != "unload" or not used and all(holder.get(device) == call.stage for device in devices), (call, run.case)


def test_no_call_goes_to_a_device_without_its_lease(runs: list[Recording]) -> None:
    for run in runs:
        for call, devices, _, holder in leases(run):
            assert call.kind in ("load", "unload") or all(holder.get(device) == call.stage for device in devices), (call, run.case)


# Slot groups.


def loop_of_its_own(seed: int) -> Case:
    """A loop with a lane for each stage and a core for each lane, no cost of a call beside its items', no lease, no bound, and no round
    that begins before the one before has ended."""
    draw = random.Random(seed)
    groups = draw.randint(2, 4)
    flow = Flow("sim", "act", groups, chain(draw, draw.randint(0, 3), (None, 1, 1, 2, 3), (None,), (True, False)), 0)
    backwards = frozenset(link.target for link in flow.links if draw.random() < 0.3)
    return Case(flow, seed, items=draw.randint(1, 12), slots=groups * draw.randint(1, 3), rounds=draw.randint(1, 2), backwards=backwards)


def test_slot_groups_never_make_a_loop_slower_that_shares_nothing() -> None:
    """Why it must hold: lanes work off their queues in order, so no group overtakes another: items begin and end in the same order as with
    one group, and the parts of its long turn leave one after the other instead of together at its end. What follows comes no later."""
    for seed in range(500):
        case = loop_of_its_own(seed)
        together = replace(case, flow=replace(case.flow, groups=1))
        assert record(case).now() <= record(together).now() + 1e-6, case


def test_slot_groups_never_make_a_loop_slower_whose_partner_holds_up_the_executor() -> None:
    """While a group waits, either its partner runs or the source's lane does: together no longer than one after the other, which is what
    one group takes. Nothing is behind the loop: an inline partner also holds up what is handed on."""
    for seed in range(500):
        case = loop_of_its_own(seed)
        case = replace(case, inline=frozenset({"act"}), flow=replace(case.flow, links=()))
        together = replace(case, flow=replace(case.flow, groups=1))
        assert record(case).now() <= record(together).now() + 1e-6, case
