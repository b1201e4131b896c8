"""Counter-based numbers: a function of (seed, stream, episode, step) and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from embodied import seeding


def test_the_same_address_gives_the_same_numbers_in_any_order() -> None:
    first = seeding.uniforms(3, "act/train", 5, 2, 56)
    seeding.uniforms(3, "act/train", 6, 2, 56)
    assert np.array_equal(first, seeding.uniforms(3, "act/train", 5, 2, 56))


@pytest.mark.parametrize("other", [(4, "act/train", 5, 2), (3, "act/evaluate", 5, 2), (3, "act/train", 6, 2), (3, "act/train", 5, 3)])
def test_each_part_of_the_address_matters(other: tuple) -> None:
    assert not np.array_equal(seeding.uniforms(3, "act/train", 5, 2, 56), seeding.uniforms(*other, 56))


def test_neighbouring_steps_do_not_overlap() -> None:
    """A chunk longer than one block of the generator must not run into the next step's numbers."""
    long = seeding.uniforms(0, "s", 0, 0, 10_000)
    assert not np.isin(seeding.uniforms(0, "s", 0, 1, 100), long).any()


def test_uniforms_lie_strictly_inside_the_unit_interval() -> None:
    numbers = seeding.uniforms(0, "s", 0, 0, 100_000)
    assert 0 < numbers.min() and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.005
