"""Rows, minibatches, padding: nothing lost, nothing doubled."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_samples import trajectory

from embodied.learning import batching
from embodied.learning.algorithms.base import Estimate


def estimate_of(trajectories, keep=None):
    return Estimate([torch.full((t.length, 1), float(t.episode)) for t in trajectories], None, keep or [True] * len(trajectories))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 40), size=st.integers(1, 50), seed=st.integers(0, 99))
def test_minibatches_hold_every_row_once(count, size, seed):
    permutation = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    parts = batching.minibatches(count, size, permutation)
    assert sorted(i for part in parts for i in part.tolist()) == list(range(count))
    assert all(len(part) == size for part in parts[:-1])
    assert all(len(part) for part in parts)


def test_a_permutation_that_loses_a_row_is_refused():
    with pytest.raises(ValueError, match="each of 0..2 once"):
        batching.minibatches(3, 2, torch.tensor([0, 1, 1]))


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=6), size=st.integers(1, 7), seed=st.integers(0, 99))
def test_microbatches_of_minibatches_hold_every_row_once(lengths, size, seed):
    members = [trajectory([0.0] * length, episode=i) for i, length in enumerate(lengths)]
    batch = batching.rows(members, estimate_of(members), "token_mean")
    permutation = torch.randperm(batch.rows, generator=torch.Generator().manual_seed(seed))
    seen = []
    for index in batching.minibatches(batch.rows, 5, permutation):
        for part in batching.microbatches(batching.select(batch, index), size):
            assert part.rows <= size
            seen += part.inputs["state"][:, 0].tolist()
    assert sorted(seen) == sorted(float(i) for i, length in enumerate(lengths) for _ in range(length))


def test_rows_stand_in_the_order_given_and_dropped_trajectories_give_none():
    members = [trajectory([0.0] * 2, episode=4), trajectory([0.0], episode=5), trajectory([0.0], episode=6)]
    batch = batching.rows(members, estimate_of(members, [True, False, True]), "token_mean")
    assert batch.advantages.flatten().tolist() == [4.0, 4.0, 6.0]


def test_when_nothing_is_kept_the_batch_has_no_rows_and_no_minibatch():
    members = [trajectory([0.0], length=3), trajectory([0.0], length=3)]
    batch = batching.rows(members, estimate_of(members, [False, False]), "token_mean")
    assert batch.rows == 0
    assert batch.choices.shape == (0, 3)
    assert batching.minibatches(0, 4, torch.arange(0)) == []
    assert list(batching.microbatches(batch, 4)) == []


def test_sequence_mean_gives_each_trajectory_a_weight_of_one():
    # 3 executed tokens of 4 -> 1/3 each; 2 of 2 -> 1/2 each.
    long = trajectory([0.0, 0.0], length=2, mask=torch.tensor([[True, True], [True, False]]))
    short = trajectory([0.0], length=2)
    weights = batching.rows([long, short], estimate_of([long, short]), "sequence_mean").weights
    assert weights.tolist() == [pytest.approx([1 / 3, 1 / 3]), pytest.approx([1 / 3, 0.0]), pytest.approx([0.5, 0.5])]


def test_prompts_and_answers_of_different_length_are_padded_on_the_right_and_masked():
    first = trajectory([0.0], length=2, inputs={"prompt_ids": torch.tensor([[7, 8, 9]]), "prompt_mask": torch.ones(1, 3, dtype=torch.bool)})
    second = trajectory([0.0], length=3, inputs={"prompt_ids": torch.tensor([[5]]), "prompt_mask": torch.ones(1, 1, dtype=torch.bool)})
    batch = batching.rows([first, second], estimate_of([first, second]), "token_mean")
    assert batch.inputs["prompt_ids"].tolist() == [[7, 8, 9], [5, 0, 0]]
    assert batch.inputs["prompt_mask"].tolist() == [[True, True, True], [True, False, False]]
    assert batch.weights.tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]


def test_other_inputs_of_different_shape_are_refused_by_name():
    first, second = trajectory([0.0], inputs={"state": torch.zeros(1, 2)}), trajectory([0.0], inputs={"state": torch.zeros(1, 3)})
    with pytest.raises(ValueError, match="'state'"):
        batching.rows([first, second], estimate_of([first, second]), "token_mean")


def test_reference_log_probs_go_with_their_rows():
    members = [trajectory([0.0], episode=0), trajectory([0.0], episode=1)]
    reference = [torch.full((1, 1, 3), float(i)) for i in range(2)]
    batch = batching.rows(members, replace(estimate_of(members), keep=[False, True]), "token_mean", reference)
    assert batch.reference.tolist() == [[[1.0, 1.0, 1.0]]]
