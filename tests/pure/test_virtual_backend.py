"""The virtual clock gives calls the seconds that a machine with so many cores would: shared cores, lanes, inline calls, partial outcomes.

Every number is worked by hand in a comment; seconds from the start.
"""

from __future__ import annotations

import pytest

from scheduler.backends.base import Call, Event, Outcome
from scheduler.backends.virtual_backend import Part, Task, VirtualBackend


class Scripted:
    """A stage that answers its calls, one after the other, with the parts given."""

    def __init__(self, *answers: list[Part], inline: bool = False) -> None:
        self.inline, self._answers = inline, list(answers)

    def parts(self, call: Call) -> list[Part]:
        return self._answers.pop(0)


def one(lane: str, seconds: float, cores: float = 1.0) -> list[Part]:
    """A call of one task."""
    return [Part((Task(lane, seconds, cores),), Outcome())]


def ran(backend: VirtualBackend, *stages: str) -> list[tuple[str, float, float]]:
    """Calls every stage at once, in order; (stage, start, end) of every event, as told."""
    for number, stage in enumerate(stages):
        backend.submit(call(number, stage))
    return spans(drained(backend))


def call(number: int, stage: str) -> Call:
    return Call(number, stage, "turn", 0)


def drained(backend: VirtualBackend) -> list[Event]:
    events = []
    while told := backend.wait(block=True):
        events += told
    return events


def spans(events: list[Event]) -> list[tuple[str, float, float]]:
    return [(event.call.stage, event.start, event.end) for event in events]


def test_two_tasks_of_one_core_on_one_core_take_twice_as_long_and_end_together():
    # 2 cores wanted, 1 there: half speed, so 3 s each take 6 s.
    backend = VirtualBackend({"a": Scripted(one("a", 3)), "b": Scripted(one("b", 3))}, cores=1)
    assert ran(backend, "a", "b") == [("a", 0, 6), ("b", 0, 6)]


def test_tasks_of_unequal_length_share_until_the_shorter_one_is_over():
    # Half speed until a's 1 s is done at 2; b has 4 - 1 = 3 s left and goes on alone: 2 + 3.
    backend = VirtualBackend({"a": Scripted(one("a", 1)), "b": Scripted(one("b", 4))}, cores=1)
    assert ran(backend, "a", "b") == [("a", 0, 2), ("b", 0, 5)]


def test_a_task_of_two_threads_beside_one_of_one_thread_on_two_cores_slows_both_to_two_thirds():
    # 3 cores wanted, 2 there. The 2 s of a take 3; b has done 2 of its 4 s by then and does the rest alone: 3 + 2.
    backend = VirtualBackend({"a": Scripted(one("a", 2, cores=2)), "b": Scripted(one("b", 4))}, cores=2)
    assert ran(backend, "a", "b") == [("a", 0, pytest.approx(3)), ("b", 0, pytest.approx(5))]


def test_tasks_that_want_no_more_cores_than_there_are_go_at_full_speed():
    backend = VirtualBackend({"a": Scripted(one("a", 2, cores=2)), "b": Scripted(one("b", 3))}, cores=3)
    assert ran(backend, "a", "b") == [("a", 0, 2), ("b", 0, 3)]


def test_an_accelerator_task_is_not_slowed_by_busy_cores():
    # a and b halve each other, 3 s take 6; the accelerator's 4 s take 4.
    stages = {"a": Scripted(one("a", 3)), "b": Scripted(one("b", 3)), "gpu": Scripted(one("gpu", 4, cores=0))}
    assert ran(VirtualBackend(stages, cores=1), "a", "b", "gpu") == [("gpu", 0, 4), ("a", 0, 6), ("b", 0, 6)]


def test_a_task_that_comes_later_slows_the_others_only_from_then_on():
    # b comes at 2, when gpu is over: a has 2 of its 4 s left, which take 4 at half speed; b has done 2 of 3 by then: 6 + 1.
    backend = VirtualBackend({"a": Scripted(one("a", 4)), "b": Scripted(one("b", 3)), "gpu": Scripted(one("gpu", 2, cores=0))}, cores=1)
    backend.submit(call(0, "a"))
    backend.submit(call(1, "gpu"))
    backend.wait(block=True)
    backend.submit(call(2, "b"))
    assert spans(drained(backend)) == [("a", 0, 6), ("b", 2, 7)]


def test_one_lane_runs_its_tasks_in_the_order_they_came():
    # 3, then 1, then 2 s; all were called at 0.
    backend = VirtualBackend({"a": Scripted(one("lane", 3)), "b": Scripted(one("lane", 1)), "c": Scripted(one("lane", 2))}, cores=9)
    assert ran(backend, "a", "b", "c") == [("a", 0, 3), ("b", 0, 4), ("c", 0, 6)]


def test_a_task_that_waits_for_its_lane_takes_no_cores():
    # Only the head of the lane wants a core, so with other's there are 2 for 2.
    backend = VirtualBackend({"a": Scripted(one("lane", 2)), "b": Scripted(one("lane", 2)), "other": Scripted(one("other", 3))}, cores=2)
    assert ran(backend, "a", "b", "other") == [("a", 0, 2), ("other", 0, 3), ("b", 0, 4)]


def test_a_part_is_over_when_the_last_of_its_tasks_is():
    backend = VirtualBackend({"a": Scripted([Part((Task("x", 1, 1), Task("y", 4, 1), Task("z", 2, 1)), Outcome())])}, cores=3)
    assert ran(backend, "a") == [("a", 0, 4)]


def test_an_inline_call_holds_up_the_caller():
    backend = VirtualBackend({"a": Scripted(one("main", 5), inline=True)}, cores=1)
    backend.submit(call(0, "a"))
    assert backend.now() == 5
    assert spans(backend.wait(block=False)) == [("a", 0, 5)]


def test_what_ends_during_an_inline_call_is_told_after_it_with_its_own_end():
    backend = VirtualBackend({"far": Scripted(one("far", 2)), "a": Scripted(one("main", 5), inline=True)}, cores=2)
    backend.submit(call(0, "far"))
    backend.submit(call(1, "a"))
    assert (backend.now(), spans(backend.wait(block=False))) == (5, [("far", 0, 2), ("a", 0, 5)])


def test_what_runs_longer_than_an_inline_call_goes_on_after_it():
    backend = VirtualBackend({"far": Scripted(one("far", 7)), "a": Scripted(one("main", 5), inline=True)}, cores=2)
    assert ran(backend, "far", "a") == [("a", 0, 5), ("far", 0, 7)]


def test_partial_outcomes_come_in_order_and_only_the_last_has_done():
    # Parts of 1, 2 and 4 s: they end at 1, 3 and 7, all of the call that began at 0.
    parts = [Part((Task("a", seconds, 1),), Outcome(seconds, done=seconds == 4)) for seconds in (1, 2, 4)]
    backend = VirtualBackend({"a": Scripted(parts)}, cores=1)
    backend.submit(call(0, "a"))
    assert [(e.outcome.reply, e.outcome.done, e.start, e.end) for e in drained(backend)] == [(1, False, 0, 1), (2, False, 0, 3), (4, True, 0, 7)]


def test_a_part_without_tasks_takes_no_time():
    # Nothing, 2 s, nothing, nothing.
    parts = [Part((), Outcome("a", done=False)), Part((Task("a", 2, 1),), Outcome("b", done=False)), Part((), Outcome("c", done=False)), Part((), Outcome("d"))]
    backend = VirtualBackend({"a": Scripted(parts)}, cores=1)
    backend.submit(call(0, "a"))
    assert [(event.outcome.reply, event.end) for event in drained(backend)] == [("a", 0), ("b", 2), ("c", 2), ("d", 2)]


def test_a_call_without_tasks_is_over_at_once():
    backend = VirtualBackend({"a": Scripted([Part((), Outcome())])}, cores=1)
    backend.submit(call(0, "a"))
    assert spans(backend.wait(block=False)) == [("a", 0, 0)]


def test_a_later_part_waits_for_what_came_to_its_lane_before_it_began():
    # a's first part 0..2, b 2..5, a's second part 5..6.
    parts = [Part((Task("lane", 2, 1),), Outcome(done=False)), Part((Task("lane", 1, 1),), Outcome())]
    backend = VirtualBackend({"a": Scripted(parts), "b": Scripted(one("lane", 3))}, cores=1)
    assert ran(backend, "a", "b") == [("a", 0, 2), ("b", 0, 5), ("a", 0, 6)]


def test_the_overhead_of_a_call_delays_the_caller_while_others_go_on():
    # 1 s before each call: far begins at 1, near at 2; far's 3 s run from 1 to 4 all the same.
    backend = VirtualBackend({"far": Scripted(one("far", 3)), "near": Scripted(one("near", 3))}, cores=2, overhead=1)
    assert ran(backend, "far", "near") == [("far", 1, 4), ("near", 2, 5)]


def test_what_ends_within_the_overhead_of_the_next_call_is_told_with_its_own_end():
    # far runs from 2 to 3; the overhead of the next call lasts from 2 to 4.
    backend = VirtualBackend({"far": Scripted(one("far", 1)), "near": Scripted(one("near", 1))}, cores=2, overhead=2)
    backend.submit(call(0, "far"))
    backend.submit(call(1, "near"))
    assert (backend.now(), spans(backend.wait(block=False))) == (4, [("far", 2, 3)])


def test_without_block_the_clock_stands():
    backend = VirtualBackend({"a": Scripted(one("a", 3))}, cores=1)
    backend.submit(call(0, "a"))
    assert (backend.wait(block=False), backend.now()) == ([], 0)


def test_waiting_for_nothing_returns_at_once():
    assert VirtualBackend({}, cores=1).wait(block=True) == []


@pytest.mark.parametrize("cores", [0, -1])
def test_no_cores_are_refused(cores):
    with pytest.raises(ValueError, match=f"found {cores} cores, wanted more than 0"):
        VirtualBackend({}, cores=cores)
