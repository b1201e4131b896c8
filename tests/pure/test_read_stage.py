"""What imitation reads: which tokens of a recorded answer are learned, and what a policy refuses, by its place."""

import numpy as np
import pytest
import torch

from embodied.stages.read import demonstration_rows
from policies.causal_lm import CausalLM
from policies.checkpoints.fresh_lm import character_tokenizer
from policies.generation.texts import Texts
from tests.pure.tiny_lms import tiny

END = 1  # <eos>, which pads as well
ONE = 2 + 1 + ord("1") - ord(" ")  # two special tokens and the line break stand before the printable ones


@pytest.fixture(scope="module")
def policy():
    return CausalLM(tiny("llama"), Texts(character_tokenizer()), max_tokens=5, prompt_length=6)


def shown(prompt: str, answer: str, line: int) -> dict:
    return {"prompt": [prompt], "actions": np.array([[answer]], dtype=object), "place": f"some.jsonl, line {line}"}


def test_an_answer_is_learned_with_its_end_token_and_without_what_pads_it(policy):
    rows = demonstration_rows(policy, [shown("1=?", "1", 1), shown("11=?", "11", 2)], 1)
    assert rows.choices.tolist() == [[ONE, END, -1, -1, -1], [ONE, ONE, END, -1, -1]]
    assert rows.weights.tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]


def test_a_prompt_is_prepared_as_the_policy_does_when_it_acts(policy):
    rows = demonstration_rows(policy, [shown("1=?", "1", 1), shown("11=?", "1", 2)], 1)
    wanted = policy.prepare({"prompt": ["1=?", "11=?"]})
    assert torch.equal(rows.inputs["prompt_ids"], wanted["prompt_ids"]) and torch.equal(rows.inputs["prompt_mask"], wanted["prompt_mask"])


def test_an_answer_that_is_too_long_is_refused_with_its_line_and_the_limit(policy):
    with pytest.raises(ValueError, match="some.jsonl, line 2: the answer(.*)6 tokens(.*)at most 5"):
        demonstration_rows(policy, [shown("1=?", "1111", 1), shown("1=?", "11111", 2)], 1)


def test_a_prompt_that_is_too_long_is_refused_with_its_line_and_the_limit(policy):
    with pytest.raises(ValueError, match="some.jsonl, line 2(.*)prompt_length=6(.*)longest of 7"):
        demonstration_rows(policy, [shown("111=?", "1", 1), shown("1111=?", "1", 2)], 1)
