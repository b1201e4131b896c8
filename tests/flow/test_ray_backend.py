"""The Ray backend on two nodes: the same rounds as in one process, references instead of data, and processes that die."""

from __future__ import annotations

import os
import signal
import socket
from functools import partial

import pytest
import ray
from ray_stages import Act, Hurt, Learn, Sim, SimElsewhere, SimHere, Sour, Stage, Stream, loop, make, refuse, thunk

from scheduler.backends import ray_cluster
from scheduler.backends.base import Call, StageLost
from scheduler.backends.local_backend import LocalBackend
from scheduler.backends.ray_backend import Host, RayBackend
from scheduler.backends.ray_host import Kept
from scheduler.resources import ClusterError
from scheduler.running.execute import execute, publish

FIRST = {0: [0, 1]}  # the parts of version 0


def hosts(members: int = 1, sim: type = Sim, act: dict | None = None) -> list[Host]:
    return [
        *(Host(("sim",), thunk(sim=(sim, {})), cores=0) for _ in range(members)),
        Host(("act",), thunk(act=(Act, act or {})), cores=0),
        Host(("learn",), thunk(learn=(Learn, {})), cores=0),
    ]


@pytest.fixture(scope="module")
def one(ray_nodes):
    with RayBackend(hosts(sim=SimHere)) as backend:
        yield backend


@pytest.fixture(scope="module")
def two(ray_nodes):
    """Two members run the source."""
    with RayBackend(hosts(2, SimElsewhere)) as backend:
        yield backend


def plain(results) -> list:
    return [(result.number, [(item.order, item.about) for item in result.items], result.report) for result in results]


class Watched:
    """A backend and the events it told."""

    def __init__(self, backend) -> None:
        self.backend, self.events = backend, []

    def now(self) -> float:
        return self.backend.now()

    def submit(self, call: Call) -> None:
        self.backend.submit(call)

    def wait(self, block: bool) -> list:
        events = self.backend.wait(block)
        self.events += events
        return events


@pytest.mark.parametrize("lag, totals", [(0, (10, 4014, 8018)), (1, (10, 10, 4014))])
@pytest.mark.parametrize("members, groups", [("one", 1), ("one", 2), ("two", 1), ("two", 2), ("two", 4)])
def test_rounds_are_those_of_one_process(request, members: str, groups: int, lag: int, totals: tuple[int, ...]) -> None:
    local = LocalBackend(make({"sim": (Sim, {"groups": groups}), "act": (Act, {}), "learn": (Learn, {})}))
    expected = plain(execute(loop(groups, lag), local, 0, 3, weights=FIRST))
    backend = request.getfixturevalue(members)
    backend.arrange(groups)
    backend.ask("sim", "regroup", groups)
    found = plain(execute(loop(groups, lag), backend, 0, 3, weights=FIRST))
    assert found == expected and [report for _, _, report in found] == [("sum", total) for total in totals]


def test_each_version_is_fetched_once_and_in_order(ray_nodes) -> None:
    with RayBackend(hosts()) as backend:
        list(execute(loop(1, lag=1), backend, 0, 4, weights=FIRST))
        assert backend.ask("act", "account") == [([(0, 0), (1, 0), (2, 1), (3, 2)], 6)]  # versions 0, 1 and 2 have two parts each


def test_the_caller_sees_references_only(two) -> None:
    two.arrange(2)
    two.ask("sim", "regroup", 2)
    watched = Watched(two)
    list(execute(loop(2), watched, 0, 2, weights=FIRST))
    outcomes = [(event.call, event.outcome) for event in watched.events]
    replies = [outcome.reply for call, outcome in outcomes if call.kind == "turn" and outcome.reply is not None]
    payloads = [item.payload for _, outcome in outcomes for item in outcome.items]
    parts = [part for _, outcome in outcomes for part in outcome.weights or ()]
    assert (len(replies), len(payloads), len(parts)) == (16, 8, 4)
    assert {type(value) for value in replies + payloads + parts} == {ray.ObjectRef}


def test_a_reply_stays_in_the_process_that_makes_and_takes_it(ray_nodes) -> None:
    together = Host(("sim", "act"), thunk(sim=(Sim, {}), act=(Act, {})))
    with RayBackend([together, Host(("learn",), thunk(learn=(Learn, {})))]) as backend:
        watched = Watched(backend)
        results = list(execute(loop(1), watched, 0, 2, weights=FIRST))
    replies = [event.outcome.reply for event in watched.events if event.call.kind == "turn" and event.outcome.reply is not None]
    assert [type(reply) for reply in replies] == 2 * [ray.ObjectRef] + 14 * [Kept]  # after one of each it is known who follows whom
    assert [result.report for result in results] == [("sum", 10), ("sum", 4014)]


def test_items_come_before_their_call_ends(ray_nodes) -> None:
    with RayBackend([Host(("stream",), thunk(stream=(Stream, {})))]) as backend:
        backend.submit(Call(1, "stream", "turn", 0, 0))
        (first,) = backend.wait(True)
        backend.ask("stream", "finish")
        (last,) = backend.wait(True)
    assert [(event.outcome.done, [item.order for item in event.outcome.items]) for event in (first, last)] == [(False, [0]), (True, [1])]


def test_a_load_is_over_when_all_members_have_loaded(two) -> None:
    two.submit(Call(1, "sim", "load", 0))
    (event,) = two.wait(True)
    assert (event.call.kind, event.outcome.done, two.wait(True)) == ("load", True, [])


def test_an_error_of_a_stage_is_raised_as_itself(ray_nodes) -> None:
    with RayBackend(hosts(act={"fails": True})) as backend:
        with pytest.raises(Sour, match="^this one is sour .in stage 'act'.$"):
            list(execute(loop(1), backend, 0, 1, weights=FIRST))


def test_an_error_of_a_question_is_raised_as_itself(one) -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        one.ask("act", "nothing")


def test_a_slot_group_that_nobody_has_is_refused(one) -> None:
    with pytest.raises(ValueError, match="slot group 9"):
        one.submit(Call(1, "sim", "turn", 0, 9))


def test_a_stage_that_cannot_be_built_raises_its_own_error(ray_nodes) -> None:
    with pytest.raises(Sour, match="cannot be built"):
        RayBackend([Host(("act",), partial(refuse))])


def test_a_round_after_a_death_in_a_call_is_as_without_it(ray_nodes, tmp_path) -> None:
    with RayBackend(hosts(act={"dies": (str(tmp_path / "died"), 1)})) as backend:
        results = []
        with pytest.raises(StageLost, match="'act'") as lost:
            for result in execute(loop(1), backend, 0, 3, weights=FIRST):
                results.append(result)
        backend.restart(lost.value.stage)
        results += execute(loop(1), backend, 1, 3, weights={1: publish(backend, "learn", 1)})
    assert [result.report for result in results] == [("sum", 10), ("sum", 4014), ("sum", 8018)]


def test_a_process_killed_between_calls_is_lost_by_name(ray_nodes) -> None:
    with RayBackend(hosts()) as backend:
        (pid,) = backend.processes("act")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StageLost, match=f"'act' is lost .process {pid}") as lost:
            list(execute(loop(1), backend, 0, 1, weights=FIRST))
        assert backend.restart(lost.value.stage) == {"act"}
        assert [result.report for result in execute(loop(1), backend, 0, 1, weights=FIRST)] == [("sum", 10)]


def test_a_process_that_gives_no_sign_of_life_is_lost(ray_nodes) -> None:
    with RayBackend([Host(("act",), thunk(act=(Act, {})))], timeout=2) as backend:
        (pid,) = backend.ask("act", "pid")
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(StageLost, match="'act'.*no sign of life for 2 s"):
            backend.ask("act", "pid")


def test_a_stage_that_lost_something_of_its_own_builds_that_anew_itself(ray_nodes) -> None:
    with RayBackend([Host(("hurt",), thunk(hurt=(Hurt, {})))]) as backend:
        (pid,) = backend.ask("hurt", "pid")
        backend.submit(Call(1, "hurt", "turn", 0, 0))
        with pytest.raises(StageLost, match="^stage 'hurt' lost a worker$"):
            backend.wait(True)
        assert (backend.restart("hurt"), backend.ask("hurt", "pid")) == (set(), [pid])
        backend.submit(Call(1, "hurt", "turn", 0, 0))
        assert [item.about for event in backend.wait(True) for item in event.outcome.items] == ["whole"]


def test_what_was_in_flight_at_a_restart_is_told_no_more(ray_nodes) -> None:
    with RayBackend([Host(("stream",), thunk(stream=(Stream, {}))), Host(("act",), thunk(act=(Act, {})))]) as backend:
        backend.submit(Call(1, "stream", "turn", 0, 0))
        os.kill(backend.ask("act", "pid")[0], signal.SIGKILL)
        with pytest.raises(StageLost, match="'act'"):
            backend.ask("act", "pid")
        backend.restart("act")
        backend.submit(Call(1, "stream", "turn", 5, 0))
        (event,) = backend.wait(True)
        assert [item.about for item in event.outcome.items] == [5]


def test_ask_gives_an_answer_for_each_member(two) -> None:
    assert len(set(two.ask("sim", "pid"))) == 2


def test_a_host_runs_on_the_node_it_names(ray_nodes) -> None:
    names = [node.name for node in ray_nodes.nodes][::-1]
    with RayBackend([Host(("sim",), thunk(sim=(Stage, {})), node=name) for name in names]) as backend:
        found = backend.ask("sim", "node")
    assert [name.rsplit("-", 1)[1] for name in names] == [node[:8] for node in found]


def test_hosts_without_room_are_refused_in_one_line(ray_nodes, monkeypatch) -> None:
    one, two = (node.name for node in ray_nodes.nodes)
    with RayBackend([Host(("sim",), thunk(sim=(Stage, {})), node=name, cores=2) for name in (one, two)]):
        monkeypatch.setattr(ray_cluster, "PLACE", 1.0)
        with pytest.raises(ClusterError, match="wanted {'CPU': 1.0} on [^\n]*$"):
            RayBackend([Host(("act",), thunk(act=(Act, {})), node=two)])


def test_the_nodes_are_told_apart(ray_nodes) -> None:
    assert [node.cores for node in ray_nodes.nodes] == [2, 2]


def test_an_address_where_nothing_answers_is_refused_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nothing answers
        with pytest.raises(ClusterError, match="^found no Ray that answers at 127.0.0.1:[^\n]*ray start --head[^\n]*$"):
            ray_cluster._answering(f"127.0.0.1:{taken.getsockname()[1]}")


def test_an_address_where_something_else_answers_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(ray_cluster, "ANSWER", 0.2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ClusterError, match="found no Ray that answers"):
            ray_cluster._answering(f"127.0.0.1:{other.getsockname()[1]}")


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ClusterError, match="wanted auto or host:port"):
        ray_cluster._answering("nonsense")
