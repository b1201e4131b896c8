"""avg@k, pass@k and their intervals, against numbers worked by hand."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from embodied.runs.answers import answers, pass_at
from embodied.runs.protocol import block, protocol, remarks
from embodied.runs.success import ErroredEpisodes, clustered, rate, rate_of, table


def rows(*successes: str, task: int = 0) -> list[dict]:
    """One group per text, an attempt per letter: "+" succeeded, "-" failed, "!" errored."""
    return [
        {"suite": "math", "task": task, "init_state": group, "group": group, "success": letter == "+", "errored": letter == "!"}
        for group, letters in enumerate(successes)
        for letter in letters
    ]


@pytest.mark.parametrize(
    "k, n, successes, expected",
    [
        (1, 4, 1, 0.25),
        (2, 4, 1, 0.5),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (2, 4, 2, 5 / 6),  # 1 - C(2,2)/C(4,2) = 1 - 1/6
        (4, 4, 1, 1.0),
        (4, 32, 0, 0.0),
        (2, 4, 3, 1.0),  # fewer than 2 failed
        (500, 1000, 1, 0.5),
    ],
)
def test_pass_at_k_is_the_unbiased_estimate(k, n, successes, expected):
    assert pass_at(k, n, successes) == pytest.approx(expected, abs=1e-15)


def test_pass_at_k_is_the_share_of_all_choices_of_k_attempts_that_hold_a_success():
    attempts = [True, True, False, False, False, False, False]
    for k in range(1, 8):
        chosen = [any(each) for each in combinations(attempts, k)]
        assert pass_at(k, 7, 2) == pytest.approx(sum(chosen) / len(chosen))


@pytest.mark.parametrize("k, n, successes", [(0, 4, 1), (5, 4, 1), (1, 4, 5), (1, 4, -1)])
def test_what_no_attempts_can_give_is_refused(k, n, successes):
    with pytest.raises(ValueError, match=f"found pass@{k} of {n} attempts with {successes} successes"):
        pass_at(k, n, successes)


def test_shares_of_zero_and_one_have_the_plain_interval_of_the_problems():
    # 23 of 30 problems solved by any attempt; Wilson of 23/30 is [.59, .88], however many attempts there were
    found = clustered([1.0] * 23 + [0.0] * 7, 32)
    plain = rate(23, 30)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high)) and found.n == 960
    assert [round(bound, 2) for bound in (found.low, found.high)] == [0.59, 0.88]


def test_an_interval_is_that_of_the_effective_sample_size():
    # shares 1/4, 1/4, 1/2, 1/2 and the two made-up ones 0, 1: mean 2.5/6 = .41667; variance (.0625 + .0625 + .25 + .25 + 1)/6 - .17361 = .09722
    # size 4 * .41667 * .58333 / .09722 = 10; Wilson of p = .375 and n = 10: centre (.375 + .19207)/1.38415 = .40969,
    # half sqrt(3.84146 * (.0234375 + .00960365))/1.38415 = .25739
    found = clustered([0.25, 0.25, 0.5, 0.5], 4)
    assert (found.rate, found.low, found.high) == pytest.approx((0.375, 0.40969 - 0.25739, 0.40969 + 0.25739), abs=2e-5)


def test_no_success_at_all_is_as_sure_as_the_problems_are_many():
    assert (clustered([0.0] * 30, 32).low, clustered([0.0] * 30, 32).high) == pytest.approx((0.0, rate(0, 30).high))
    assert clustered([1 / 32] + [0.0] * 29, 32).high > 0.1  # nor is one success in 960 much surer: 960 independent ones would have 0.006


def test_attempts_that_all_problems_share_alike_are_never_more_than_independent():
    assert (clustered([0.5] * 400, 2).low, clustered([0.5] * 400, 2).high) == pytest.approx((rate(400, 800).low, rate(400, 800).high))


def test_more_attempts_at_the_same_problems_do_not_make_an_unequal_set_surer():
    few, many = clustered([0.0] * 10 + [1.0] * 10, 4), clustered([0.0] * 10 + [1.0] * 10, 64)
    assert (few.low, few.high) == (many.low, many.high)


@pytest.mark.parametrize("shares, count", [([], 4), ([1.5], 4), ([0.5], 0)])
def test_what_is_no_share_is_refused(shares, count):
    with pytest.raises(ValueError, match="wanted one or more in"):
        clustered(shares, count)


def test_the_answers_of_a_set_are_worked_by_hand():
    # 2, 1 and 0 of 4: avg@4 3/12; pass@1 the same; pass@2 (5/6 + 3/6 + 0)/3 = 4/9; pass@4 2/3
    found = answers(rows("+-+-", "---+", "----"))
    assert (found.problems, found.samples, list(found.passes)) == (3, 4, [1, 2, 4])
    assert [found.average.rate, *(each.rate for each in found.passes.values())] == pytest.approx([0.25, 0.25, 4 / 9, 2 / 3])
    assert str(found).startswith("avg@4 0.25 [") and "pass@2 0.44 [" in str(found) and str(found).endswith("(3 problems x 4 samples)")
    assert json.loads(json.dumps(found.as_dict()))["pass@4"]["rate"] == pytest.approx(2 / 3)


def test_passes_go_up_to_the_largest_power_of_two_that_there_are_attempts_for():
    assert list(answers(rows("+-----", "------")).passes) == [1, 2, 4]


def test_problems_met_once_have_a_rate_and_no_avg():
    once = rows("+", "-", "+")
    assert answers(once) is None and answers([]) is None
    assert rate_of(once) == rate(2, 3) == rate_of([{key: value for key, value in row.items() if key != "group"} for row in once])


def test_the_table_of_several_attempts_takes_the_problems_for_the_sample():
    (suite,) = table([*rows("++++", "----"), *[row | {"group": row["group"] + 2} for row in rows("++--", "++--", task=1)]])
    assert suite.tasks[0] == clustered([1.0, 0.0], 4) and suite.tasks[1] == clustered([0.5, 0.5], 4)
    assert suite.micro == clustered([1.0, 0.0, 0.5, 0.5], 4) and suite.micro.n == 16


def test_an_errored_attempt_leaves_no_estimate():
    with pytest.raises(ErroredEpisodes):
        answers(rows("+-", "!-"))


def test_a_problem_with_fewer_attempts_than_others_is_refused():
    with pytest.raises(ValueError, match="found groups of 1 to 2 attempts"):
        answers(rows("+-", "+"))


# The protocol


def test_what_words_a_prompt_on_either_side_changes_the_hash_of_the_template():
    hashes = {protocol({"template": env}, {"template": chat}, {})["template"] for env in ("{problem}", "Q: {problem}") for chat in (None, ["chat", {}, None], ["chat", {}, "Be brief."])}
    assert len(hashes) == 6 and all(len(each) == 12 for each in hashes)


def test_where_nothing_words_a_prompt_there_is_no_template():
    assert protocol({"env": "toy"}, {"temperature": 1.0}, {"seed": 0}) == {"env": "toy", "temperature": 1.0, "seed": 0}


def test_a_block_is_broken_between_its_items():
    lines = block({f"key{number}": "v" * 30 for number in range(6)}).splitlines()
    assert lines[0] == "protocol:" and all(line.startswith("  key") and len(line) <= 100 for line in lines[1:])
    assert sum(line.count("=") for line in lines) == 6


def test_remarks_are_counted_and_said_to_have_failed_where_they_did():
    said = [{"remark": "prompt longer than 8 tokens: dropped", "success": False}] * 3 + [{"remark": "cut", "success": True}, {"success": True}]
    assert remarks(said) == ["3 of 5 episodes: prompt longer than 8 tokens: dropped, counted as failed", "1 of 5 episodes: cut"]
