"""Rates and their intervals, against numbers worked by hand and counts that were published with theirs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.runs.success import ErroredEpisodes, Rate, rate, rate_of, table, wilson


def row(success: bool, task: int = 0, suite: str = "libero_spatial", errored: bool = False, init_state: int = 0) -> dict:
    return {"suite": suite, "task": task, "init_state": init_state, "success": success, "errored": errored}


@pytest.mark.parametrize(
    "successes, n, low, high",
    [
        # 10 of 10: p = 1, z^2 = 3.8415; centre (1 + .19207) / 1.38415 = .86124, half (1.96 * sqrt(.0096)) / 1.38415 = .13876 -> [.7225, 1]
        (10, 10, 72.2, 100.0),
        (0, 10, 0.0, 27.8),
        (45, 50, 78.6, 95.7),
        (50, 50, 92.9, 100.0),
        (423, 500, 81.2, 87.5),
        (485, 500, 95.1, 98.2),
        (500, 500, 99.2, 100.0),
        (1942, 2000, 96.3, 97.7),
    ],
)
def test_the_interval_equals_the_hand_worked_one(successes, n, low, high):
    assert [round(100 * bound, 1) for bound in wilson(successes, n)] == [low, high]


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_bounds_are_the_two_rates_that_lie_z_standard_deviations_away(counts):
    successes, n = counts
    z2 = 1.959963984540054**2
    for bound in wilson(successes, n):
        # (p_hat - p)^2 = z^2 p (1 - p) / n is what defines both bounds; an end cut to exactly 0 or 1 solves it too
        assert (successes / n - bound) ** 2 == pytest.approx(z2 * bound * (1 - bound) / n, abs=1e-12)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate_and_has_a_width_even_at_the_ends(counts):
    successes, n = counts
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1 and low < high
    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low))


def test_more_confidence_is_a_wider_interval():
    assert wilson(45, 50, 0.99)[0] < wilson(45, 50, 0.95)[0] < wilson(45, 50, 0.8)[0]


@pytest.mark.parametrize("successes, n", [(3, 2), (-1, 5), (1, 0), (0, -1)])
def test_impossible_counts_are_refused(successes, n):
    with pytest.raises(ValueError, match=f"found {successes} successes of {n}"):
        rate(successes, n)


def test_a_confidence_given_in_percent_is_refused():
    with pytest.raises(ValueError, match="0.95"):
        wilson(1, 2, confidence=95)


def test_no_episode_is_no_rate_rather_than_zero():
    assert rate(0, 0) == Rate(None, 0, None, None)
    assert str(rate(0, 0)) == "none n=0"


def test_a_rate_prints_its_interval_and_its_n():
    # 79 of 150: centre (.52667 + .012805) / 1.02561 = .52601, half .07884 -> [.447, .605]
    assert str(rate(79, 150)) == "0.53 [0.45, 0.60] n=150"


def test_a_rate_survives_json():
    assert Rate(**json.loads(json.dumps(rate(3, 4).as_dict()))) == rate(3, 4)
    assert set(rate(3, 4).as_dict()) == {"rate", "n", "low", "high"}


def test_an_errored_episode_is_no_failure_and_leaves_no_rate():
    rows = [row(True), row(False), row(False, errored=True, task=3, init_state=7)]
    with pytest.raises(ErroredEpisodes, match=r"1 errored of 3 episodes \(libero_spatial task 3 initial state 7\), beside 1 that succeeded and 1 that failed"):
        rate_of(rows)
    with pytest.raises(ErroredEpisodes):
        table(rows)


def test_the_table_gives_each_task_and_tells_micro_from_macro():
    # task 0: 1 of 4, task 2: 2 of 2; over all 3 of 6 = .5, mean of tasks (.25 + 1) / 2 = .625
    rows = [row(True), row(False), row(False), row(False), row(True, task=2), row(True, task=2)]
    (suite,) = table(rows)
    assert {task: (r.rate, r.n) for task, r in suite.tasks.items()} == {0: (0.25, 4), 2: (1.0, 2)}
    assert suite.micro.rate == 0.5 and suite.macro == 0.625
    assert "mean of tasks 0.62" in str(suite) or "mean of tasks 0.63" in str(suite)


def test_each_suite_has_a_table_of_its_own():
    suites = table([row(True, suite="libero_object"), row(False, suite="libero_goal")])
    assert [(suite.suite, suite.micro.rate) for suite in suites] == [("libero_goal", 0.0), ("libero_object", 1.0)]
    json.dumps([suite.as_dict() for suite in suites])
