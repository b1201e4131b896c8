"""State that comes and goes with a device: all of it, only when nobody else holds it, and training does not notice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from embodied.learning.optimizers import build_optimizer
from embodied.learning.memory.residence import HOST, OptimizerResidence, Residence
from envs.spec import ActionSpec, EnvSpec
from policies.mlp import MLP

SPEC = EnvSpec("toy", ActionSpec("discrete", 1, choices=3), state=4)
DEVICE = torch.device("cpu")


class Recorded:
    """A move that copies, as one between two memories does, and wipes what it leaves."""

    def __init__(self):
        self.addresses, self.targets = [], []

    def __call__(self, tensor, device):
        self.addresses.append(tensor.data_ptr())
        self.targets.append(device)
        copy = tensor.clone()
        tensor.fill_(float("nan"))
        return copy


def step(policy, optimizer, update):
    optimizer.zero_grad()
    state = torch.randn(6, 4, generator=torch.Generator().manual_seed(update))
    stats = policy.evaluate({"state": state}, torch.zeros(6, 1, dtype=torch.int64))
    (stats.values.square().sum() - stats.logprobs.sum()).backward()
    optimizer.step()


def trained(kind):
    policy = MLP(SPEC, hidden=(8, 8))
    optimizer = build_optimizer(policy, optimizer=kind, lr=1e-2, weight_decay=0.01)
    step(policy, optimizer, 0)
    return policy, optimizer


def without_gradients(kind):
    policy, optimizer = trained(kind)
    optimizer.zero_grad()
    return policy, optimizer


def test_every_parameter_and_buffer_moves_once_frozen_tied_and_unsaved_ones_too():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False, track_running_stats=False))
    module[1].weight = module[0].weight
    module[1].bias.requires_grad_(False)
    module[2].register_buffer("unsaved", torch.ones(2), persistent=False)
    tensors = [module[0].weight, module[0].bias, module[1].bias, module[2].unsaved]
    addresses, move = [tensor.data_ptr() for tensor in tensors], Recorded()
    Residence(module, DEVICE, move).take()
    assert sorted(move.addresses) == sorted(addresses)


@pytest.mark.parametrize(("kind", "names"), [("adamw", ["exp_avg", "exp_avg_sq"]), ("muon", ["exp_avg", "exp_avg_sq", "momentum_buffer"])])
def test_every_state_tensor_moves_once_but_the_counters_that_torch_keeps_on_the_host(kind, names):
    _, optimizer = without_gradients(kind)
    states = [state for part in optimizer.parts.values() for state in part.state.values()]
    assert sorted({name for state in states for name in state}) == [*names, "step"]
    addresses, move = [state[name].data_ptr() for state in states for name in names if name in state], Recorded()
    OptimizerResidence(optimizer, DEVICE, move).take()
    assert sorted(move.addresses) == sorted(addresses)


def test_the_counter_of_a_capturable_group_lives_on_the_device_and_moves():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = build_optimizer(nn.ParameterDict({"bias": parameter}))
    parameter.grad = torch.ones(2)
    optimizer.step()
    optimizer.parts["adamw"].param_groups[0]["capturable"] = True
    optimizer.zero_grad()
    move = Recorded()
    OptimizerResidence(optimizer, DEVICE, move).take()
    assert len(move.addresses) == 3  # step, exp_avg, exp_avg_sq


def test_what_two_hold_moves_with_the_first_to_take_and_the_last_to_release():
    move = Recorded()
    shared = Residence(nn.Linear(2, 2, bias=False), torch.device("cpu:0"), move)
    counts = []
    for act in (shared.take, shared.take, shared.release, shared.take, shared.release, shared.release):
        act()
        counts.append(len(move.targets))
    assert counts == [1, 1, 1, 1, 1, 2]
    assert move.targets == [torch.device("cpu:0"), HOST]


def test_a_release_without_a_take_is_refused():
    shared = Residence(nn.Linear(2, 2), DEVICE, Recorded())
    shared.take()
    shared.release()
    with pytest.raises(RuntimeError, match="without a take"):
        shared.release()


def test_a_take_that_fails_does_not_count():
    def no_memory(tensor, device):
        raise torch.OutOfMemoryError("none left")

    shared = Residence(nn.Linear(2, 2), DEVICE, no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        shared.take()
    assert shared.holders == 0


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_training_that_gives_its_device_back_between_updates_is_bit_equal_to_training_that_keeps_it(kind):
    kept, kept_optimizer = trained(kind)
    policy, optimizer = trained(kind)
    holds = [Residence(policy, DEVICE, Recorded()), OptimizerResidence(optimizer, DEVICE, Recorded())]
    for update in (1, 2, 3):
        step(kept, kept_optimizer, update)
        for hold in holds:
            hold.take()
        step(policy, optimizer, update)
        for hold in holds:
            hold.release()
    for (name, wanted), found in zip(kept.state_dict().items(), policy.state_dict().values()):
        assert torch.equal(wanted, found), name


def test_the_parameter_objects_stay():
    policy, optimizer = trained("adamw")
    objects = [id(p) for p in policy.parameters()]
    hold = Residence(policy, DEVICE, Recorded())
    hold.take()
    hold.release()
    assert [id(p) for p in policy.parameters()] == objects == sorted(map(id, optimizer.parameters), key=objects.index)


def test_gradients_travel_so_that_a_lease_may_end_while_they_are_added_up():
    policy, optimizer = trained("adamw")
    before = [p.grad.clone() for p in policy.parameters()]
    moved = Recorded()
    hold = OptimizerResidence(optimizer, DEVICE, moved)
    places = [p.grad.data_ptr() for p in policy.parameters()]
    hold.take()
    hold.release()
    assert all(torch.equal(p.grad, wanted) and p.grad.data_ptr() != place for p, wanted, place in zip(policy.parameters(), before, places))


def test_on_the_cpu_nothing_is_moved_or_dropped():
    policy, optimizer = trained("adamw")
    before = [(p.data_ptr(), p.grad.data_ptr()) for p in policy.parameters()]
    for hold in (Residence(policy, "cpu"), OptimizerResidence(optimizer, "cpu")):
        hold.take()
        hold.release()
    assert [(p.data_ptr(), p.grad.data_ptr()) for p in policy.parameters()] == before
