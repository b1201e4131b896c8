"""From the chunks of an episode to a trajectory."""

import pytest
import torch

from embodied.learning.collect import ChunkRecord, assemble, executed_mask


def chunk_of(rewards, length=6, value=0.5, mask=None):
    return ChunkRecord({"state": torch.ones(1, 2)}, torch.arange(length), torch.zeros(length), torch.ones(length, dtype=torch.bool) if mask is None else mask, rewards, value)


def episode(steps, **changes):
    wanted = {"episode": 1, "group": 0, "chunk": 3, "terminated": True, "truncated": False, "final_observation": None, "success": True}
    return assemble(steps, **{**wanted, **changes})


def test_tokens_of_actions_that_never_ran_are_masked():
    # C = 3 actions of A = 2 tokens; the last chunk ended after one action.
    whole = episode([chunk_of([0.0, 0.0, 0.25]), chunk_of([1.0])])
    assert whole.mask.tolist() == [[True] * 6, [True, True, False, False, False, False]]
    assert whole.rewards.tolist() == [0.25, 1.0]
    assert (whole.steps, whole.length) == (4, 2)


def test_the_policys_own_padding_stays_masked():
    padded = torch.tensor([True, False] * 3)
    assert episode([chunk_of([0.0, 0.0], mask=padded)]).mask.tolist() == [[True, False, True, False, False, False]]


def test_a_cut_episode_keeps_its_last_observation_and_an_ended_one_has_none():
    final = {"state": torch.full((1, 2), 4.0)}
    cut = episode([chunk_of([0.0] * 3)], terminated=False, truncated=True, final_observation=final)
    assert cut.final_observation["state"].tolist() == [[4.0, 4.0]]
    both = episode([chunk_of([0.0] * 3)], terminated=True, truncated=True, final_observation=final)
    assert (both.terminated, both.truncated, both.final_observation) == (True, False, None)


def test_values_are_kept_only_where_there_are_any():
    assert episode([chunk_of([0.0] * 3)]).values.tolist() == [0.5]
    assert episode([chunk_of([0.0] * 3, value=None)]).values is None


def test_values_of_actions_or_tokens_are_kept_as_they_are_and_so_are_the_rewards_they_judge():
    # The last chunk ended after one of its three actions: nothing came of the others.
    judged = episode([chunk_of([0.0, 0.5, 0.0], value=torch.tensor([1.0, 2.0, 3.0])), chunk_of([1.0], value=torch.tensor([4.0, 5.0, 6.0]))])
    assert judged.values.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert judged.step_rewards.tolist() == [[0.0, 0.5, 0.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("steps", "changes", "message"),
    [
        ([], {}, "no chunk"),
        ([chunk_of([0.0] * 3)], {"terminated": False}, "neither terminated nor truncated"),
        ([chunk_of([0.0] * 3)], {"terminated": False, "truncated": True}, "no final observation"),
        ([chunk_of([0.0]), chunk_of([0.0])], {}, "chunk 0 ran 1 of 3"),
        ([chunk_of([])], {}, "0 executed actions"),
        ([chunk_of([0.0] * 4)], {}, "4 executed actions"),
        ([chunk_of([0.0], length=7)], {}, "7 tokens for chunk=3"),
    ],
)
def test_an_impossible_episode_is_refused(steps, changes, message):
    with pytest.raises(ValueError, match=message):
        episode(steps, **changes)


def test_a_text_answer_is_one_action_of_many_tokens():
    assert executed_mask(5, 1, 1).all()
