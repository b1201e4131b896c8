"""The language model that travels with the package: small, and where reinforcement has something to find."""

from importlib import resources

import numpy as np
import pytest
import torch

from envs.math.problems import load
from policies.causal_lm import CausalLM

COUNT, TOKENS = 200, 64


@pytest.fixture(scope="module")
def folder():
    return resources.files("assets") / "causal_lm_small"


@pytest.fixture(scope="module")
def answered(folder):
    """(problems that training never meets, a sampled answer to each)."""
    problems = load("arithmetic", "evaluate")
    policy = CausalLM.from_pretrained(str(folder), prompt_length=32, max_tokens=TOKENS, slots=128)
    noise = np.random.default_rng(0).uniform(1e-9, 1.0, (COUNT, TOKENS))
    with torch.no_grad():
        chunk = policy.act({"prompt": [problems[i].prompt for i in range(COUNT)]}, noise)
    return problems, chunk.actions[:, 0, 0].tolist()


def test_its_files_are_no_more_than_five_megabytes(folder):
    assert sum(len(file.read_bytes()) for file in folder.iterdir()) < 5e6


def test_it_is_right_about_one_time_in_five(answered):
    problems, answers = answered
    assert 0.1 <= np.mean([problems.score(problems[i], answer) for i, answer in enumerate(answers)]) <= 0.32


def test_it_is_right_far_oftener_where_it_works_the_sum_out(answered):
    problems, answers = answered
    worked = [problems.score(problems[i], answer) for i, answer in enumerate(answers) if ";" in answer]
    assert len(worked) > COUNT / 10 and np.mean(worked) > 0.45
