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


def test_samples_of_a_start_are_a_group_of_episodes_with_randomness_of_their_own() -> None:
    ledger = EvaluationLedger(0, [0, 3], range(2), 3, samples=4)
    episodes = ledger.round(0)
    assert [episode.id for episode in episodes] == [episode.order for episode in episodes] == list(range(12)) and ledger.total == 12
    assert [(e.group, e.task, e.init_state) for e in episodes[::4]] == [(0, 0, 0), (1, 3, 0), (2, 0, 1)]
    for start in range(0, 12, 4):
        assert len({(e.group, e.task, e.init_state, e.seed) for e in episodes[start : start + 4]}) == 1


def test_a_start_is_the_same_however_often_it_is_sampled() -> None:
    for states in (range(3), None):
        once, often = (EvaluationLedger(5, [0], states, 3, samples=samples).round(0) for samples in (1, 8))
        assert [(e.init_state, e.seed) for e in once] == [(e.init_state, e.seed) for e in often[::8]]


def test_only_an_episode_that_is_held_out_asks_for_it() -> None:
    asked = [EvaluationLedger(0, [0], states, 1, held_out=held_out).round(0)[0].options for held_out in (False, True) for states in (range(1), None)]
    assert asked == [{"task": 0, "init_state": 0}, {"task": 0}, {"task": 0, "init_state": 0, "held_out": True}, {"task": 0, "held_out": True}]


@pytest.mark.parametrize(("states", "held_out", "says"), [(range(5), False, "4 of 10"), (range(5), True, "4 of 10 held out"), (None, True, "4 drawn held out")])
def test_a_ledger_says_how_many_starts_it_has_of_how_many_there_are(states, held_out, says) -> None:
    assert EvaluationLedger(0, [0, 1], states, 4, held_out=held_out).starts == says


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
