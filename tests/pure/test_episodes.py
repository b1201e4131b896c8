"""The ledger decides what is played; slots, workers and interruptions do not."""

from __future__ import annotations

from collections import Counter

import pytest

from embodied.episodes import EvaluationLedger, TrainingLedger


@pytest.mark.parametrize("episodes", [1, 10, 50])
def test_evaluation_meets_each_initial_state_once_before_any_twice(episodes: int) -> None:
    met = [episode.init_state for episode in EvaluationLedger(0, [0], range(50), episodes).round(0)]
    assert met == list(range(episodes))


def test_evaluation_gives_every_task_the_same_number_of_episodes() -> None:
    ledger = EvaluationLedger(0, [0, 3], range(50), 20).round(0)
    assert Counter(episode.task for episode in ledger) == {0: 10, 3: 10}
    assert len({(episode.task, episode.init_state) for episode in ledger}) == 20


def test_repeats_of_an_initial_state_are_other_episodes_with_other_noise() -> None:
    ledger = EvaluationLedger(0, [0], range(3), 6).round(0)
    assert [episode.id for episode in ledger] == [0, 1, 2, 3, 4, 5]
    assert ledger[0].seed == ledger[3].seed


def test_only_an_episode_that_shall_go_on_past_success_asks_for_it() -> None:
    asked = [EvaluationLedger(0, [2], None, 1, play_on).round(0)[0].options for play_on in (False, True)]
    assert asked == [{"task": 2}, {"task": 2, "play_on": True}]


def test_a_group_shares_task_state_and_seed() -> None:
    episodes = TrainingLedger(7, [0, 1], range(5), groups=3, group_size=4).round(2)
    assert [episode.order for episode in episodes] == list(range(12))
    for start in range(0, 12, 4):
        assert len({(e.group, e.task, e.init_state, e.seed) for e in episodes[start : start + 4]}) == 1


def test_training_goes_through_every_pair_before_any_comes_again() -> None:
    ledger = TrainingLedger(1, [0, 1], range(6), groups=4, group_size=2)
    pairs = [(e.task, e.init_state) for number in range(3) for e in ledger.round(number)[::2]]
    assert len(set(pairs)) == 12


def test_ids_are_unique_over_rounds_and_a_round_is_a_function_of_its_number() -> None:
    ledger = TrainingLedger(1, [0], None, groups=3, group_size=2)
    ids = [episode.id for number in range(4) for episode in ledger.round(number)]
    assert ids == list(range(24))
    assert ledger.round(3) == TrainingLedger(1, [0], None, groups=3, group_size=2).round(3)


def test_without_fixed_states_each_group_has_a_seed_of_its_own() -> None:
    seeds = [episode.seed for episode in TrainingLedger(1, [0], None, groups=8, group_size=1).round(0)]
    assert len(set(seeds)) == 8
