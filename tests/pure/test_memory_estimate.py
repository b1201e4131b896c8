"""The memory estimate against numbers worked by hand, and against the bytes of the tensors that a real update keeps alive."""

from __future__ import annotations

import torch
from torch import nn

from embodied.learning import batching
from embodied.learning.accumulate import Accumulator
from embodied.learning.algorithms.bc import BehaviourCloning
from embodied.learning.memory import estimate
from embodied.learning.memory.estimate import Update
from embodied.learning.memory.phantom import Phantom, Tally
from embodied.learning.optimizers import build_optimizer
from policies.base import TokenStats

ADAMW = {"optimizer": "adamw"}
# Chain(4 layers of 256 x 256): a layer's weight has 262144 bytes, and 16 rows that it takes or gives 16 * 256 * 4 = 16384.
WEIGHT, ROW_BLOCK = 256 * 256 * 4, 16 * 256 * 4


class Chain(nn.Module):
    """Linear layers without bias, one token per row; tanh between them is what autograd keeps."""

    def __init__(self, layers: int = 4, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh()) for _ in range(layers))

    def blocks(self):
        return list(self.layers)

    def evaluate(self, inputs, choices, distribution=False):
        states = inputs["state"]
        for layer in self.layers:
            states = layer(states)
        logprobs = states.sum(1, keepdim=True)
        return TokenStats(logprobs, logprobs.detach(), None)


class Stubborn(Chain):
    def evaluate(self, inputs, choices, distribution=False):
        return super().evaluate({"state": inputs["state"][inputs["state"].sum(1) > 0]}, choices)  # as many rows as the numbers say


class Cache:
    def __init__(self):
        self.kept = []


class Remembering(nn.Module):
    """Appends what it is given, [2, 8] float32, to the cache it is handed."""

    def forward(self, values, cache):
        cache.kept.append(values * 2)
        return values


class Talker(nn.Module):
    """Three steps of one layer with a cache."""

    def __init__(self):
        super().__init__()
        self.layer = Remembering()
        self.scale = nn.Parameter(torch.ones(8))

    def act(self):
        cache, values = Cache(), torch.zeros(2, 8) + self.scale
        for _ in range(3):
            values = self.layer(values, cache=cache)


def rows(policy, count):
    return batching.labelled({"state": torch.zeros(count, 256)}, torch.zeros(count, 1), torch.ones(count, 1))


def learned(policy, **update) -> estimate.Estimate:
    return estimate.learning(policy, BehaviourCloning(), rows, Update(**{"rows": 16, "microbatch": None, "optimizer": ADAMW, **update}))


def test_weights_gradients_and_moments_are_counted_to_the_byte():
    found = learned(Chain())
    counters = 4 * 4  # AdamW counts the steps of each parameter in a float32
    assert (found.parameters, found.gradients, found.optimizer, found.unknown) == (4 * WEIGHT, 4 * WEIGHT, 8 * WEIGHT + counters, None)


def test_frozen_parameters_need_neither_gradient_nor_optimizer():
    policy = Chain()
    policy.layers[:3].requires_grad_(False)
    found = learned(policy)
    assert (found.parameters, found.gradients, found.optimizer) == (4 * WEIGHT, WEIGHT, 2 * WEIGHT + 4)


def test_the_peak_is_the_steps_where_activations_are_small():
    # 16 rows keep a few blocks of 16 KiB. For each weight the step makes the root of its second moment and its quotient, while the last one's quotient is still there.
    assert learned(Chain()).activations == 3 * WEIGHT


def test_activations_grow_with_the_rows_of_a_micro_batch_alone():
    # 1600 rows: each of 4 tanh keeps 100 blocks; the loss and one gradient on its way add less than 3 layers' worth.
    many = learned(Chain(), rows=1600)
    assert 4 * 100 * ROW_BLOCK <= many.activations + many.gradients <= 7 * 100 * ROW_BLOCK + 4 * WEIGHT
    assert learned(Chain(), rows=1600, microbatch=400).activations < 0.5 * many.activations


def test_the_estimate_is_the_peak_of_real_updates():
    with Tally() as tally:
        policy = Chain()
        before = tally.live
        batch = rows(policy, 1600)
        given = tally.live - before
        sums = Accumulator(policy, BehaviourCloning(), build_optimizer(policy), 800, 1.0)
        for _ in range(2):
            sums.begin()
            sums.add(batch)
            sums.step(1e-3, "a test's update")
    assert abs(learned(Chain(), rows=1600, microbatch=800, grad_clip=1.0).total - (tally.peak - given)) < 4096  # counts and metrics


def test_a_second_micro_batch_finds_the_gradients_of_the_first():
    # The peak of a lone one is before there are gradients, so all four weights' gradients come on top, less the one that was being made.
    alone, second = learned(Chain(), rows=1600), learned(Chain(), rows=3200, microbatch=1600)
    assert 3 * WEIGHT <= second.activations - alone.activations <= 5 * WEIGHT


def test_checkpointing_keeps_what_enters_a_block_alone():
    class Deep(Chain):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256, bias=False), *[nn.Tanh() for _ in range(10)]) for _ in range(4))

    # Plain: each of 40 tanh keeps what it gives. Checkpointed: what enters blocks 2 to 4, and the 10 of the block that runs again; a few are at work in both.
    plain, kept = learned(Deep(), rows=1600), learned(Deep(), rows=1600, checkpointing=True)
    assert 25 <= (plain.total - kept.total) / (100 * ROW_BLOCK) <= 28


def test_threads_have_gradients_of_their_own():
    assert learned(Chain(), rows=64, threads=2).gradients == 8 * WEIGHT


def test_processes_hold_their_part_and_one_unit_put_together():
    found = learned(Chain(), processes=4)
    assert (found.parameters, found.gradients, found.optimizer) == (WEIGHT + WEIGHT, WEIGHT + WEIGHT, 2 * WEIGHT + 4)


def test_offloaded_parts_are_in_host_memory():
    found = learned(Chain(), processes=4, offload=True)
    assert (found.parameters, found.gradients, found.optimizer, found.host) == (WEIGHT, WEIGHT, 0, 4 * WEIGHT + 4)


def test_adapters_are_trained_in_place_of_the_weights():
    # Rank 8 of 256 x 256: 2 * 8 * 256 numbers a layer, of 4 bytes.
    adapter = 2 * 8 * 256 * 4
    found = learned(Chain(), rank=8)
    assert (found.parameters, found.gradients, found.optimizer) == (4 * (WEIGHT + adapter), 4 * adapter, 8 * adapter + 8 * 4)


def test_half_precision_weighs_half():
    assert learned(Chain(), dtype=torch.bfloat16).parameters == 2 * WEIGHT


def test_what_a_layer_keeps_from_step_to_step_is_the_cache():
    found = estimate.working(Talker(), lambda policy: policy.act())
    assert found.cache == 3 * 2 * 8 * 4 and found.parameters == 8 * 4


def test_a_policy_that_needs_numbers_is_estimated_without_activations_and_says_why():
    found = learned(Stubborn())
    assert (found.parameters, found.gradients, found.optimizer, found.activations) == (4 * WEIGHT, 4 * WEIGHT, 8 * WEIGHT, 0)
    assert "Dynamic" in found.unknown


def test_a_module_in_a_phantom_takes_no_memory_and_keeps_its_ties():
    policy = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    policy[1].weight = policy[0].weight
    with Phantom() as phantom:
        body = phantom.copy(policy)
        assert body[0].weight is body[1].weight and phantom.live == 4 * 4 * 4
        huge = torch.empty(2**50, dtype=torch.uint8)
        assert phantom.live == 4 * 4 * 4 + 2**50
        del huge
        assert phantom.live == 4 * 4 * 4


def test_numbers_read_from_a_phantom_are_ones():
    with Phantom():
        tensor = torch.zeros(2, dtype=torch.int64)
        assert tensor.tolist() == [1, 1] and float(tensor.sum()) == 1.0 and tensor.numpy().sum() == 2
