"""The executor under a scripted clock: durations decide the order of events, and the guarantees must hold for all of them."""

from __future__ import annotations

import heapq
import random

import pytest

from scheduler.backends.base import Call, Event, Item, Outcome
from scheduler.graph import GraphError, MacroGraph
from scheduler.running.channel import Channel
from scheduler.running.execute import Stopped, execute
from scheduler.running.flow import Flow, Link, flow_of


class ScriptedBackend:
    """Each sim call of a group takes a random time; a group's round is `turns` turns and emits its ledger places at the end."""

    def __init__(self, places: dict[int, list[int]], turns: int, seed: int) -> None:
        self.places, self.turns, self.random = places, turns, random.Random(seed)
        self.clock, self.heap, self.log, self.progress = 0.0, [], [], {}

    def now(self) -> float:
        return self.clock

    def submit(self, call: Call) -> None:
        self.log.append(call)
        heapq.heappush(self.heap, (self.clock + self.random.random(), call.number, self.clock, call))

    def wait(self, block: bool) -> list[Event]:
        if not block:
            return []
        end, _, start, call = heapq.heappop(self.heap)
        self.clock = end
        return [Event(call, self.answer(call), start, end)]

    def answer(self, call: Call) -> Outcome:
        if call.stage == "sim":
            turn = self.progress[call.round, call.group] = self.progress.get((call.round, call.group), 0) + 1
            over = turn == self.turns
            items = tuple(Item(place, (call.round, place)) for place in self.places[call.group]) if over else ()
            return Outcome(None if over else "observation", items)
        if call.stage == "act":
            return Outcome("chunk")
        return Outcome(("report", call.round) if call.kind == "update" else None)

    def close(self) -> None:
        pass


def flow(groups: int, granule: int | None, lag: int = 0, devices: dict | None = None, capacity: int | None = None) -> Flow:
    return Flow("sim", "act", groups, (Link("sim", "learn", granule, capacity),), lag, devices or {})


PLACES = {0: [3, 0], 1: [1, 5], 2: [2, 4]}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("granule", [None, 1, 2, 4])
def test_every_item_reaches_the_learner_once_and_in_ledger_order(seed: int, granule: int | None) -> None:
    backend = ScriptedBackend(PLACES, turns=3, seed=seed)
    results = list(execute(flow(3, granule, capacity=1), backend, 0, 2))
    assert [result.report for result in results] == [("report", 0), ("report", 1)]
    granules = [[item.payload for item in call.payload] for call in backend.log if call.kind == "granule"]
    assert [payload for granule in granules for payload in granule] == [(r, place) for r in (0, 1) for place in range(6)]


@pytest.mark.parametrize("seed", range(10))
def test_lag_zero_starts_no_turn_of_a_round_before_the_update_of_the_one_before(seed: int) -> None:
    backend = ScriptedBackend(PLACES, turns=2, seed=seed)
    list(execute(flow(3, 2), backend, 0, 3))
    for call in backend.log:
        assert call.version == call.round


@pytest.mark.parametrize("seed", range(10))
def test_lag_one_overlaps_rounds_and_never_samples_more_than_one_version_behind(seed: int) -> None:
    backend = ScriptedBackend(PLACES, turns=2, seed=seed)
    list(execute(flow(3, 2, lag=1), backend, 5, 9))
    behind = {call.round - call.version for call in backend.log if call.stage == "act"}
    assert behind <= {0, 1} and 1 in behind


@pytest.mark.parametrize("seed", range(10))
def test_a_shared_device_has_one_holder_and_is_loaded_before_it_is_used(seed: int) -> None:
    backend = ScriptedBackend(PLACES, turns=2, seed=seed)
    list(execute(flow(3, 2, devices={"act": ("gpu",), "learn": ("gpu",)}), backend, 0, 2))
    holder = None
    for call in backend.log:
        if call.kind == "load":
            assert holder is None
            holder = call.stage
        elif call.kind == "unload":
            assert holder == call.stage
            holder = None
        elif call.stage in ("act", "learn"):
            assert holder == call.stage


def test_a_round_without_items_still_updates() -> None:
    backend = ScriptedBackend({0: []}, turns=2, seed=0)
    assert [result.report for result in execute(flow(1, None), backend, 0, 1)] == [("report", 0)]


def test_without_a_sink_a_round_ends_with_its_last_group() -> None:
    backend = ScriptedBackend(PLACES, turns=2, seed=1)
    results = list(execute(Flow("sim", "act", 3, (), None), backend, 0, 1))
    assert [item.order for item in results[0].items] == [0, 1, 2, 3, 4, 5]


def test_stop_names_the_first_round_without_an_update() -> None:
    backend = ScriptedBackend(PLACES, turns=2, seed=1)
    done = []
    with pytest.raises(Stopped) as stopped:
        for result in execute(flow(3, None), backend, 0, 9, stop=lambda: len(done) == 2):
            done.append(result)
    assert stopped.value.round == 2


def test_a_stop_waits_for_the_update_that_runs_and_begins_nothing_meanwhile() -> None:
    """Else the learner's state would be that of no round."""
    backend, done = ScriptedBackend(PLACES, turns=2, seed=1), []
    with pytest.raises(Stopped) as stopped:
        for result in execute(flow(3, None, lag=1), backend, 0, 9, stop=lambda: backend.log and backend.log[-1].kind == "update"):
            done.append(result.number)
    assert done == [0] and stopped.value.round == 1
    assert backend.log[-1].kind == "update"


def test_a_channel_that_is_full_of_later_items_does_not_block_the_earlier_one() -> None:
    channel = Channel(granule=1, capacity=1)
    for place in (3, 2, 1):
        channel.put(Item(place, None))
    assert not channel.full and not channel.available()
    channel.put(Item(0, None))
    assert channel.full and channel.take()[0].order == 0


def test_a_lost_item_is_an_error_when_the_channel_closes() -> None:
    channel = Channel(granule=1, capacity=None)
    channel.put(Item(1, None))
    with pytest.raises(RuntimeError, match="item 0 never came"):
        channel.close()


def test_a_doubled_item_is_an_error() -> None:
    channel = Channel(granule=1, capacity=None)
    channel.put(Item(0, None))
    with pytest.raises(RuntimeError, match="came twice"):
        channel.put(Item(0, None))


def test_a_whole_round_leaves_in_ledger_order_whoever_came_first() -> None:
    channel = Channel(granule=None, capacity=None, ordered=False)
    for place in (2, 0, 1):
        channel.put(Item(place, None))
    channel.close()
    assert [item.order for item in channel.take()] == [0, 1, 2]


def test_flow_of_takes_an_edges_order_along() -> None:
    graph = MacroGraph()
    for name in ("write", "learn"):
        graph.stage(name, None, "answers")
    graph.edge("write", "learn", carries="answers", ordered=False)
    assert not flow_of(graph, 1, {"learn": 1}, {}).links[0].ordered


def test_flow_of_reads_the_loop_the_chain_and_the_lag() -> None:
    graph = MacroGraph()
    for name in ("sim", "act", "learn"):
        graph.stage(name, None, "item")
    graph.loop("sim", "act", times=4)
    graph.edge("sim", "learn", carries="trajectory", capacity=2)
    graph.edge("learn", "act", carries="weights", lag=0)
    assert graph.order() == ["sim", "act", "learn"]
    assert flow_of(graph, 2, {"learn": 3}, {}) == Flow("sim", "act", 2, (Link("sim", "learn", 3, 2),), 0, taught="act")


def test_graph_errors_name_the_stage() -> None:
    graph = MacroGraph()
    for name in ("sim", "act", "learn"):
        graph.stage(name, None, "item")
    graph.loop("sim", "act")
    with pytest.raises(GraphError, match="learn.*connected to nothing"):
        graph.order()
    graph.edge("act", "learn", carries="trajectory")
    graph.edge("learn", "sim", carries="trajectory")
    with pytest.raises(GraphError, match="lag"):
        graph.order()
