"""Answers of very different lengths are learned from beside their like: the gradient is that of all of them at once."""

from __future__ import annotations

import copy

import pytest
import torch

from embodied.learning import batching
from embodied.learning.accumulate import Accumulator
from embodied.learning.algorithms.reinforce import REINFORCE
from embodied.learning.data import Batch
from embodied.learning.optimizers import build_optimizer
from policies.causal_lm import NO_TOKEN, CausalLM
from policies.checkpoints.fresh_lm import character_tokenizer
from policies.generation.texts import Texts
from tests.pure.tiny_lms import tiny

ROWS, TOKENS = 40, 16


@pytest.fixture
def policy() -> CausalLM:
    return CausalLM(tiny("llama"), Texts(character_tokenizer()), max_tokens=TOKENS, prompt_length=12)


@pytest.fixture
def batch(policy: CausalLM) -> Batch:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, TOKENS + 1, (ROWS,), generator=generator)
    mask = torch.arange(TOKENS) < lengths[:, None]
    choices = torch.where(mask, torch.randint(2, 98, (ROWS, TOKENS), generator=generator), NO_TOKEN)
    inputs = policy.prepare({"prompt": [f"{row}+{row * row}=?" for row in range(ROWS)]})
    with torch.no_grad():
        old = policy.evaluate(inputs, choices).logprobs
    advantages = torch.randn(ROWS, 1, generator=generator).expand(ROWS, TOKENS)
    return Batch(inputs, choices, old, mask.float(), advantages, torch.zeros(ROWS), torch.zeros(ROWS))


def gradients(policy: CausalLM, batch: Batch, threads: int, microbatch: int | None) -> list[torch.Tensor]:
    sums = Accumulator(policy, REINFORCE(group_size=2), build_optimizer(policy, lr=0.0), microbatch, None, threads=threads)
    sums.add(batch)
    sums.step(0.0, "an update")
    return [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("threads", "microbatch"), [(1, None), (2, None), (2, 36), (1, 5)])
def test_the_gradient_is_that_of_all_rows_at_once(threads: int, microbatch: int | None, policy: CausalLM, batch: Batch) -> None:
    other = copy.deepcopy(policy)
    loss = REINFORCE(group_size=2).loss(other.evaluate(batch.inputs, batch.choices), batch)
    (loss.sum / loss.count).backward()
    for found, wanted in zip(gradients(policy, batch, threads, microbatch), (p.grad for p in other.parameters() if p.grad is not None), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)


def test_rows_stand_by_length_and_equal_ones_as_they_stood(batch: Batch) -> None:
    lengths = (batching.by_length(batch).weights > 0).sum(1)
    assert torch.equal(lengths, lengths.sort().values)
    equal = batching.by_length(batching.select(batch, torch.tensor([3, 3, 1])))
    assert torch.equal(equal.choices, batching.select(batch, torch.tensor(sorted([3, 3, 1], key=lambda row: int((batch.weights[row] > 0).sum())))).choices)


def test_nothing_beside_a_row_is_longer_than_its_like(policy: CausalLM, batch: Batch) -> None:
    widths: list[tuple[int, int]] = []
    evaluate = policy.evaluate
    policy.evaluate = lambda inputs, choices, **more: (widths.append((len(choices), int((choices != NO_TOKEN).sum(1).max()))), evaluate(inputs, choices, **more))[1]
    gradients(policy, batch, 1, None)
    lengths = sorted(int(row.sum()) for row in batch.weights > 0)
    assert widths == [(4, lengths[end - 1]) for end in range(4, ROWS + 1, 4)]
