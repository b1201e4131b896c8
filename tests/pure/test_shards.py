"""Rows are dealt out to CPU threads in whole and in order; an accelerator gets them as they are."""

from __future__ import annotations

import pytest
import torch

from embodied.learning.batching import labelled
from embodied.learning.data import Batch
from embodied.learning.shards import Shards


def rows(count: int, device: str = "cpu") -> Batch:
    return labelled({"state": torch.zeros(count, 1, device=device)}, torch.arange(count, device=device)[:, None], torch.ones(count, 1, device=device))


@pytest.mark.parametrize(("count", "threads", "parts"), [(64, 1, [64]), (31, 4, [31]), (32, 4, [16, 16]), (65, 3, [22, 22, 21])])
def test_every_row_is_in_one_part_and_no_part_is_too_small(count: int, threads: int, parts: list[int]) -> None:
    found = Shards(torch.nn.Linear(1, 1), threads).run(lambda policy, part: part.choices[:, 0].tolist(), rows(count))
    assert [len(part) for part in found] == parts and sum(found, []) == list(range(count))


def test_rows_on_an_accelerator_are_not_cut_and_cost_no_copy_of_the_policy() -> None:
    policy = torch.nn.Linear(1, 1, device="meta")
    assert Shards(policy, 4).run(lambda its, part: (its is policy, part.rows), rows(64, "meta")) == [(True, 64)]


def test_rows_by_length_are_dealt_in_turn() -> None:
    found = Shards(torch.nn.Linear(1, 1), 2).run(lambda policy, part: part.choices[:, 0].tolist(), rows(33), dealt=True)
    assert found == [list(range(0, 33, 2)), list(range(1, 33, 2))]
