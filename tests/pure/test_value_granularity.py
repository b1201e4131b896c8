"""Values per chunk, per action and per token: the same episode judged at each level, by hand-worked numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied.learning import batching
from embodied.learning.algorithms.ppo import PPO
from embodied.learning.collect import ChunkRecord, assemble
from envs.spec import ActionSpec, EnvSpec
from policies.base import TokenStats
from policies.mlp import MLP
from policies.openvla import OpenVLA
from policies.openvla_oft import OpenVLAOFT
from policies.parts.value_head import ValueHead

TINY = Path(__file__).parents[1] / "fixtures" / "openvla_tiny"
RUBBISH = 100.0  # what stands where nothing was executed
REWARDS = [[1.0, 0.0], [0.0, 2.0], [4.0]]  # of primitive steps: the last chunk was cut after one of its two actions
VALUES = {
    "chunk": [1.0, 2.0, 3.0],
    "action": [[1.0, 2.0], [2.0, 1.0], [3.0, RUBBISH]],
    "token": [[1.0, 1.0, 2.0, 0.0], [2.0, 2.0, 1.0, 1.0], [3.0, 1.0, RUBBISH, RUBBISH]],
}
ENTRIES = {"chunk": (), "action": (2,), "token": (4,)}


def episode(values, rewards=REWARDS, length=4, chunk=2, mask=None, terminated=False):
    """Chunks of two actions of two tokens, unless other sizes are given; cut by the step budget."""
    mask = torch.ones(length, dtype=torch.bool) if mask is None else mask
    judged = [value if isinstance(value, float) else torch.tensor(value) for value in values]
    steps = [ChunkRecord({"state": torch.zeros(1, 2)}, torch.zeros(length, dtype=torch.int64), torch.zeros(length), mask, r, v) for r, v in zip(rewards, judged)]
    final = None if terminated else {"state": torch.zeros(1, 2)}
    return assemble(steps, episode=0, group=0, chunk=chunk, terminated=terminated, truncated=not terminated, final_observation=final, success=False)


def zeros(level, steps=3):
    return torch.zeros(steps, *ENTRIES[level]).tolist()


def estimate(*episodes, bootstrap=8.0, **settings):
    return PPO(level="token", **{"gamma": 0.5, "lam": 0.5, "normalise": False, **settings}).advantages(episodes, torch.full((len(episodes),), bootstrap))


def test_a_value_per_chunk_by_hand():
    # r = (1, 2, 4), V = (1, 2, 3), then 8; gamma .5, lambda .5. delta = (1 + 1 - 1, 2 + 1.5 - 2, 4 + 4 - 3) = (1, 1.5, 5).
    # A_2 = 5, A_1 = 1.5 + .25 * 5 = 2.75, A_0 = 1 + .25 * 2.75 = 1.6875.
    found = estimate(episode(VALUES["chunk"]))
    assert found.advantages[0].tolist() == [[1.6875] * 4, [2.75] * 4, [5.0] * 4]
    assert found.returns[0].tolist() == [2.6875, 4.75, 8.0]


def test_a_value_per_action_by_hand():
    # r = (1, 0, 0, 2, 4), V = (1, 2, 2, 1, 3), then 8. delta = (1, -1, -1.5, 2.5, 5).
    # A_4 = 5, A_3 = 2.5 + 1.25 = 3.75, A_2 = -1.5 + .9375 = -.5625, A_1 = -1 - .140625, A_0 = 1 - .28515625.
    found = estimate(episode(VALUES["action"]))
    first, second, third = found.advantages[0].tolist()
    assert (first, second) == ([0.71484375] * 2 + [-1.140625] * 2, [-0.5625] * 2 + [3.75] * 2)
    assert third[:2] == [5.0] * 2
    assert found.returns[0][:2].tolist() == [[1.71484375, 0.859375], [1.4375, 4.75]]


def test_a_value_per_token_by_hand():
    # An action's reward comes with its second token; the discount is 1 to it and .5 from it to the next action. Backwards, with V of the
    # table: tokens of the last action 4 + 4 - 1 = 7 and (1 - 3) + .5 * 7 = 1.5; of the one before (2 + 1.5 - 1) + .25 * 1.5 = 2.875 and
    # 0 + .5 * 2.875; then (.5 - 2) + .25 * 1.4375 = -1.140625 and its half; (1 - 0) + .25 * -.5703125 = .857421875 and -2 + .4287109375;
    # (1 + 1 - 1) + .25 * -1.5712890625 = .607177734375 and its half.
    found = estimate(episode(VALUES["token"])).advantages[0].tolist()
    assert found[0] == [0.3035888671875, 0.607177734375, -1.5712890625, 0.857421875]
    assert found[1] == [-0.5703125, -1.140625, 1.4375, 2.875]
    assert found[2][:2] == [1.5, 7.0]


@pytest.mark.parametrize("level", VALUES)
def test_without_discount_and_values_every_level_gives_the_reward_to_go(level):
    # Rewards 1, 0 | 0, 2 | 4, and 8 after them: from each action on 15, 14 | 14, 14 | 12; from each chunk on 15, 14, 12.
    found = estimate(episode(zeros(level)), gamma=1.0, lam=1.0).advantages[0]
    wanted = torch.tensor([[15.0] * 4, [14.0] * 4, [12.0] * 4]) if level == "chunk" else torch.tensor([[15.0] * 2 + [14.0] * 2, [14.0] * 4, [12.0] * 4])
    executed = episode(zeros(level)).mask
    assert torch.equal(found[executed], wanted[executed])


@pytest.mark.parametrize("level", VALUES)
def test_an_episode_that_the_env_ended_is_worth_nothing_after_it_at_every_level(level):
    found = estimate(episode(zeros(level), terminated=True), gamma=1.0, lam=1.0)
    assert found.returns[0].flatten()[0] == 7.0


def test_actions_of_one_token_are_judged_alike_by_actions_and_by_tokens():
    # Without padding, two chunks of two actions of one token: the two levels have one shape and one meaning.
    found = estimate(episode([[1.0, 2.0], [3.0, 4.0]], rewards=[[1.0, 2.0], [3.0, 4.0]], length=2))
    assert found.advantages[0][1, 1].item() == 4.0 + 0.5 * 8.0 - 4.0
    assert found.advantages[0][1, 0].item() == 3.0 + 0.5 * 4.0 - 3.0 + 0.25 * 4.0


def test_the_reward_of_an_action_comes_with_its_last_token_before_the_padding():
    # An answer of two tokens beside two of padding, right: 1 and nothing after it, V = 0, gamma .5, lambda 1. No discount within the answer.
    answer = episode([[0.0] * 4], rewards=[[1.0]], chunk=1, mask=torch.tensor([True, True, False, False]), terminated=True)
    assert estimate(answer, lam=1.0).advantages[0].tolist() == [[1.0, 1.0, 0.0, 0.0]]


def test_what_was_never_executed_has_no_part_in_the_reported_numbers():
    # Values and returns of the five actions that ran: mean V 1.8; A and V as above.
    metrics = estimate(episode(VALUES["action"])).metrics
    values, advantages = torch.tensor([1.0, 2.0, 2.0, 1.0, 3.0]), torch.tensor([0.71484375, -1.140625, -0.5625, 3.75, 5.0])
    assert metrics["value"] == pytest.approx(1.8)
    assert metrics["explained_variance"] == pytest.approx(1 - advantages.var(correction=0).item() / (values + advantages).var(correction=0).item())


@pytest.mark.parametrize("level", VALUES)
def test_normalised_advantages_have_mean_0_and_deviation_1_over_the_executed_tokens(level):
    judged = episode(VALUES[level])
    found = estimate(judged, normalise=True).advantages[0][judged.mask]
    assert found.mean().item() == pytest.approx(0.0, abs=1e-5) and found.std(correction=0).item() == pytest.approx(1.0, abs=1e-4)


def test_the_error_of_a_value_weighs_as_much_as_the_tokens_it_judges():
    # The last chunk of the table alone: V of its one action is 1 beside a return of 8, so .5 * 49 for each of two tokens; the action that
    # never ran adds nothing. Advantage 0 and entropy 0 leave the value's term.
    batch = batching.rows([episode(VALUES["action"])], estimate(episode(VALUES["action"])), "token_mean")
    last = replace(batching.select(batch, torch.tensor([2])), advantages=torch.zeros(1, 4))
    loss = PPO(value_coef=0.5).loss(TokenStats(torch.zeros(1, 4), torch.zeros(1, 4), torch.tensor([[1.0, RUBBISH]])), last)
    assert (loss.sum.item(), loss.count) == (0.5 * 2 * 24.5, 2.0)
    assert loss.metrics["value_loss"] == (49.0, 2.0)


def test_values_of_answers_of_different_length_are_padded_with_their_tokens():
    long, short = episode([[1.0, 2.0, 3.0]], rewards=[[1.0]], length=3, chunk=1), episode([[4.0]], rewards=[[1.0]], length=1, chunk=1)
    assert batching.rows([long, short], estimate(long, short), "token_mean").values.tolist() == [[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]


def test_values_that_fit_neither_actions_nor_tokens_are_refused():
    with pytest.raises(ValueError, match="found 3 values per chunk and 2 actions of 4 tokens.*value_level=chunk"):
        estimate(episode([[0.0] * 3] * 3))
    with pytest.raises(ValueError, match="no rewards of primitive steps"):
        estimate(replace(episode(VALUES["action"]), step_rewards=None))


@pytest.mark.parametrize(("ratio", "value"), [("action", "token"), ("chunk", "token"), ("chunk", "action")])
def test_a_ratio_that_spans_several_values_is_refused(ratio, value):
    with pytest.raises(ValueError, match=f"algorithm.level={value}"):
        PPO(level=ratio).check_value_level(value)


@torch.no_grad()
def test_a_head_of_each_level_reads_the_mean_of_what_its_value_judges():
    states = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    heads = {level: ValueHead(5, hidden=3, level=level, actions=3) for level in VALUES}
    torch.manual_seed(1)
    for parameter in heads["chunk"].parameters():
        parameter.normal_()
    for head in heads.values():
        head.load_state_dict(heads["chunk"].state_dict())
    assert heads["chunk"](states).shape == (2,)
    actions, tokens = heads["action"](states), heads["token"](states)
    torch.testing.assert_close(actions, torch.stack([heads["chunk"](states[:, 2 * i : 2 * i + 2]) for i in range(3)], 1))
    torch.testing.assert_close(tokens, torch.stack([heads["chunk"](states[:, i : i + 1]) for i in range(6)], 1))


@pytest.mark.parametrize(("level", "shape"), [("chunk", (5,)), ("action", (5, 3)), ("token", (5, 6))])
def test_a_small_network_gives_as_many_values_as_its_level_asks_for(level, shape):
    policy = MLP(EnvSpec("t", ActionSpec("continuous", 2), state=4), hidden=(8,), chunk=3, value_level=level)
    chunk = policy.act({"state": np.zeros((5, 4), dtype=np.float32)}, None)
    assert chunk.values.shape == shape
    assert torch.equal(policy.evaluate(chunk.inputs, chunk.choices).values, chunk.values)


def test_a_critic_that_was_saved_at_another_level_is_begun_anew_and_the_rest_is_loaded(tmp_path):
    spec = EnvSpec("t", ActionSpec("continuous", 2), state=4)
    saved = MLP(spec, hidden=(8,), chunk=3, value_level="token", seed=1)
    saved.save_pretrained(tmp_path)
    again, other = (MLP(spec, hidden=(8,), value_level=level, seed=2, checkpoint=tmp_path).state_dict() for level in ("token", "action"))
    fresh = MLP(spec, hidden=(8,), chunk=3, value_level="action", seed=2).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in saved.state_dict().items())
    assert all(torch.equal(tensor, fresh[name] if name.startswith("critic") else saved.state_dict()[name]) for name, tensor in other.items())


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="chunk, action, token"):
        MLP(EnvSpec("t", ActionSpec("continuous", 2), state=4), value_level="tokens")


def openvla(level, kind=OpenVLA):
    policy = kind.from_pretrained(TINY, value_head=True, value_level=level)
    torch.nn.init.ones_(policy.value_head.fc2.weight)
    return policy


def blank(policy):
    """Two rows that a policy without a tokenizer can read."""
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 1, 56, 56, 3), dtype=np.uint8))
    ids = torch.tensor([[1, 5, 6, 7, 9, 8]] * 2)
    return {"pixels": pixels, "prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)}


@torch.no_grad()
@pytest.mark.parametrize(("level", "shape"), [("chunk", (2,)), ("action", (2, 8)), ("token", (2, 56))])
def test_a_parallel_policys_values_are_the_same_whatever_was_chosen(level, shape):
    policy = openvla(level, OpenVLAOFT)
    choices, _, values = policy._sample(blank(policy), np.random.default_rng(1).random((2, 56)))
    assert values.shape == shape and values.abs().min() > 1e-4
    assert torch.equal(policy.evaluate(blank(policy), torch.zeros_like(choices)).values, values)


@torch.no_grad()
@pytest.mark.parametrize(("level", "shape"), [("chunk", (2,)), ("action", (2, 1)), ("token", (2, 7))])
def test_a_causal_policys_values_are_the_same_step_by_step_and_at_once(level, shape):
    policy = openvla(level)
    inputs = blank(policy)
    choices, _, values = policy._sample(inputs, np.random.default_rng(1).random((2, 7)))
    assert values.shape == shape and values.abs().min() > 1e-3
    torch.testing.assert_close(policy.evaluate(inputs, choices).values, values, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_causal_policys_value_of_a_token_has_seen_the_tokens_before_it_and_no_other():
    policy = openvla("token")
    choices = torch.full((2, 7), 100)
    changed = choices.clone()
    changed[:, 3] = 7
    before, after = (policy.evaluate(blank(policy), tokens).values for tokens in (choices, changed))
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4] != after[:, 4]).all()
