"""Prompts that are too long for the model: refused, dropped or cut, and said of each."""

import pytest

from policies.generation.limits import fit, remark

PROMPTS = [list(range(length)) for length in (10, 16, 17, 200)]


def test_a_prompt_too_long_is_an_error_that_counts():
    with pytest.raises(ValueError, match="found 2 of 4 prompts with more tokens than policy.prompt_length=16, the longest of 200"):
        fit(PROMPTS, 16)


def test_a_prompt_too_long_is_dropped_and_its_row_says_so():
    fitted = fit(PROMPTS, 16, "drop")
    assert fitted.over == [0, 0, 1, 184] and fitted.prompts[:2] == PROMPTS[:2]
    assert [remark(over, True, 16) for over in fitted.over] == [None, None, *2 * ["prompt longer than 16 tokens: dropped"]]


def test_a_prompt_too_long_is_cut_after_its_head():
    fitted = fit(PROMPTS, 16, "left_cut", head=3)
    assert fitted.prompts == [*PROMPTS[:2], [0, 1, 2, *range(4, 17)], [0, 1, 2, *range(187, 200)]]
    assert remark(fitted.over[3], False, 16) == "prompt longer than 16 tokens: cut on the left"


@pytest.mark.parametrize("limit, how, head, says", [(16, "cut", 0, "wanted one of error, drop, left_cut"), (0, "drop", 0, "found 0"), (4, "left_cut", 4, "wanted more than 4")])
def test_a_limit_that_cannot_be_is_refused(limit, how, head, says):
    with pytest.raises(ValueError, match=says):
        fit(PROMPTS, limit, how, head)
