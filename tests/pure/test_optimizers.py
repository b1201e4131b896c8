"""Optimisers: schedules by hand, what Muon takes, and restoring bit for bit."""

import copy

import pytest
import torch

from embodied.learning.optimizers import build_optimizer, learning_rate
from envs.spec import ActionSpec, EnvSpec
from policies.mlp import MLP

SPEC = EnvSpec("toy", ActionSpec("discrete", 1, choices=3), state=4)


def test_the_warm_up_rises_in_equal_steps_to_the_peak():
    rates = [learning_rate(update, lr=1.0, warmup_updates=4) for update in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_the_cosine_goes_from_the_peak_through_the_middle_to_three_percent_and_stays():
    rates = [learning_rate(9, share, lr=1.0, warmup_updates=1, schedule="cosine") for share in (0.0, 0.5, 1.0, 1.5)]
    assert rates == pytest.approx([1.0, 0.515, 0.03, 0.03])


def test_a_warm_up_rises_towards_the_cosine():
    assert learning_rate(0, 0.5, lr=1.0, warmup_updates=2, schedule="cosine") == pytest.approx(0.5 * 0.515)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="constant, cosine"):
        learning_rate(0, lr=1.0, schedule="linear")
    with pytest.raises(ValueError, match="adamw, muon"):
        build_optimizer(MLP(SPEC), optimizer="sgd")


def test_muon_takes_the_hidden_matrices_and_adamw_all_the_rest_once():
    policy = MLP(SPEC, hidden=(8, 8))
    optimizer = build_optimizer(policy, optimizer="muon")
    names = {id(p): name for name, p in policy.named_parameters()}
    taken = [names[id(p)] for group in optimizer.parts["muon"].param_groups for p in group["params"]]
    assert sorted(taken) == ["actor.2.weight", "critic.2.weight"]
    assert sorted(names[id(p)] for p in optimizer.parameters) == sorted(names.values())


def test_weight_decay_is_on_matrices_only():
    policy = MLP(SPEC, hidden=(8,))
    names = {id(p): name for name, p in policy.named_parameters()}
    groups = build_optimizer(policy, weight_decay=0.1).parts["adamw"].param_groups
    decay = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    assert all((value > 0) == name.endswith("weight") for name, value in decay.items())


def test_the_value_head_keeps_its_own_share_of_the_rate():
    optimizer = build_optimizer(MLP(SPEC), lr=1e-3, value_lr=3e-3)
    optimizer.set_rate(0.5e-3)
    assert sorted({group["lr"] for group in optimizer.parts["adamw"].param_groups}) == pytest.approx([0.5e-3, 1.5e-3])


def test_the_value_heads_rate_may_be_another_one_than_the_rest_has():
    policy = MLP(SPEC, hidden=(8, 8))
    optimizer = build_optimizer(policy, optimizer="muon", lr=1e-3, value_lr=3e-3)
    optimizer.set_rate(0.1e-3, value_lr=1e-3)
    names = {id(p): name for name, p in policy.named_parameters()}
    rates = {names[id(p)]: group["lr"] for part in optimizer.parts.values() for group in part.param_groups for p in group["params"]}
    assert all(rate == pytest.approx(3e-3 if name.startswith("critic") else 0.1e-3) for name, rate in rates.items())


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_what_is_held_is_neither_stepped_nor_decayed_and_gathers_no_moments(kind):
    policy = MLP(SPEC, hidden=(8, 8))
    before = copy.deepcopy(policy.state_dict())
    optimizer = build_optimizer(policy, optimizer=kind, lr=1e-2, weight_decay=0.1)
    advance(policy, optimizer, range(1), held=True)
    moved = {name for name, p in policy.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name, _ in policy.named_parameters() if name.startswith("critic")}
    assert {p for part in optimizer.parts.values() for p in part.state} == set(policy.critic.parameters())


def advance(policy, optimizer, updates, held=False):
    for update in updates:
        optimizer.set_rate(learning_rate(update, lr=1e-2, warmup_updates=3))
        optimizer.zero_grad()
        state = torch.randn(6, 4, generator=torch.Generator().manual_seed(update))
        stats = policy.evaluate({"state": state}, torch.zeros(6, 1, dtype=torch.int64))
        (stats.values.square().sum() - stats.logprobs.sum()).backward()
        if held:
            optimizer.hold()
        optimizer.step()


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_restored_optimizer_goes_on_bit_for_bit(kind, tmp_path):
    unbroken = MLP(SPEC, hidden=(8, 8))
    optimizer = build_optimizer(unbroken, optimizer=kind, lr=1e-2, weight_decay=0.01)
    advance(unbroken, optimizer, range(4))
    resumed = copy.deepcopy(unbroken)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    advance(unbroken, optimizer, range(4, 8))

    other = build_optimizer(resumed, optimizer=kind, lr=1e-2, weight_decay=0.01)
    other.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    advance(resumed, other, range(4, 8))
    for (name, before), after in zip(unbroken.state_dict().items(), resumed.state_dict().values()):
        assert torch.equal(before, after), name


def test_the_state_of_another_kind_is_refused():
    adamw, muon = build_optimizer(MLP(SPEC)), build_optimizer(MLP(SPEC), optimizer="muon")
    with pytest.raises(ValueError, match="learner.optimizer"):
        muon.load_state_dict(adamw.state_dict())
