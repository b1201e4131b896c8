"""Weights on their way to another copy of the policy: every bit arrives, and nothing that is not sound is written."""

from __future__ import annotations

import pickle
import weakref
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from embodied.learning.weights import Versions, WeightsError, checksum, export, install

SHAPES = {"matrix": (3, 5), "odd": (7,), "scalar": (), "empty": (0, 3), "wide": (1, 33)}


class Net(nn.Module):
    """Parameters of odd shapes, one frozen, and a buffer; numbers from a seed."""

    def __init__(self, dtype: torch.dtype = torch.float32, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator).to(dtype)))
        self.frozen = nn.Parameter(torch.full((2,), float(seed)), requires_grad=False)
        self.register_buffer("statistic", torch.full((2,), float(seed)))


def bits(module: nn.Module) -> dict[str, list[int]]:
    return {name: p.detach().contiguous().view(-1).view(torch.uint8).tolist() for name, p in module.named_parameters() if p.requires_grad}


def changed(bucket: Any, entry: int, **fields: Any) -> Any:
    entries = list(bucket.entries)
    entries[entry] = replace(entries[entry], **fields)
    return replace(bucket, entries=tuple(entries))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bucket_bytes", [1, 64, 2**20])
def test_every_bit_of_every_parameter_arrives(dtype, bucket_bytes):
    sender, receiver = Net(dtype, seed=1), Net(dtype, seed=2)
    install(receiver, 3, export(sender, 3, bucket_bytes))
    assert bits(receiver) == bits(sender)


def test_numbers_that_compare_unequal_to_themselves_arrive_bit_for_bit():
    # Two NaNs of different payload, and the negative zero.
    patterns = torch.tensor([0x7FC1, 0x7F81, -0x8000], dtype=torch.int16)
    sender, receiver = nn.Module(), nn.Module()
    sender.p, receiver.p = nn.Parameter(patterns.view(torch.bfloat16)), nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    install(receiver, 0, export(sender, 0))
    assert receiver.p.data.view(torch.int16).tolist() == patterns.tolist()


def test_a_parameter_that_is_not_contiguous_arrives_in_either_layout():
    sender, receiver = nn.Module(), nn.Module()
    sender.p, receiver.p = nn.Parameter(torch.arange(6.0).view(2, 3).t()), nn.Parameter(torch.zeros(2, 3).t())
    install(receiver, 0, export(sender, 0))
    assert receiver.p.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_buckets_hold_what_fits_and_a_longer_parameter_is_alone():
    # Float32, offsets a multiple of 16: matrix 60 bytes; odd 28 would end at 92 > 64. Then odd 28, scalar from 32 to 36, empty at 48; wide is 132 > 64.
    buckets = export(Net(), 5, bucket_bytes=64)
    assert [[(entry.name, entry.offset, entry.bytes) for entry in bucket.entries] for bucket in buckets] == [
        [("matrix", 0, 60)], [("odd", 0, 28), ("scalar", 32, 4), ("empty", 48, 0)], [("wide", 0, 132)],
    ]  # fmt: skip
    assert [(bucket.version, bucket.number, bucket.of) for bucket in buckets] == [(5, 0, 3), (5, 1, 3), (5, 2, 3)]


def test_what_is_not_trained_stays_as_it_is():
    receiver = Net(seed=2)
    install(receiver, 0, export(Net(seed=1), 0))
    assert (receiver.frozen.tolist(), receiver.statistic.tolist()) == ([2.0, 2.0], [2.0, 2.0])


def test_a_tied_parameter_travels_once():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    assert [entry.name for bucket in export(net, 0) for entry in bucket.entries] == ["0.weight"]


def test_training_on_does_not_change_what_was_exported():
    net = Net()
    (bucket,) = export(net, 0)
    with torch.no_grad():
        net.matrix.add_(1.0)
    assert checksum(bucket.data) == bucket.checksum


def test_a_module_without_trainable_parameters_has_no_part_and_takes_none():
    net = Net().requires_grad_(False)
    assert export(net, 0) == ()
    install(net, 0, ())


def flipped(bucket):
    data = bucket.data.clone()
    data[3] ^= 1
    return replace(bucket, data=data)


# The second of three buckets is wrong each time; what was to be written there is odd, scalar and empty.
DAMAGE = {
    "a flipped bit": (lambda b: [b[0], flipped(b[1]), b[2]], "bucket 1 of 3.*checksum"),
    "a bucket left out": (lambda b: [b[0], b[2]], "found bucket 2 of 3, wanted 1 of 3"),
    "a bucket of another version": (lambda b: [b[0], replace(b[1], version=8), b[2]], "found version 8, wanted 7"),
    "a bucket of another cut": (lambda b: [b[0], replace(b[1], of=4), b[2]], "found bucket 1 of 4"),
    "another name": (lambda b: [b[0], changed(b[1], 1, name="scale"), b[2]], "'scale'.*wanted 'scalar'"),
    "another shape": (lambda b: [b[0], changed(b[1], 0, shape=(7, 1)), b[2]], r"'odd'.*\[7, 1\], wanted float32 \[7\]"),
    "another type": (lambda b: [b[0], changed(b[1], 0, dtype="int32"), b[2]], "'odd'.*int32 .*wanted float32"),
    "bytes from outside the bucket": (lambda b: [b[0], changed(b[1], 1, offset=48), b[2]], "'scalar'.*wanted 4 inside it"),
    "bytes that are too few": (lambda b: [b[0], changed(b[1], 0, bytes=24), b[2]], "'odd'.*found 24 bytes"),
    "data of another type": (lambda b: [b[0], replace(b[1], data=b[1].data.view(torch.int32)), b[2]], "found torch.int32"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_nothing_of_its_bucket_is_written(damage):
    spoil, message = DAMAGE[damage]
    sender, receiver = Net(seed=1), Net(seed=2)
    before = bits(receiver)
    with pytest.raises(WeightsError, match=message):
        install(receiver, 7, spoil(export(sender, 7, bucket_bytes=64)))
    assert bits(receiver) == before | {"matrix": bits(sender)["matrix"]}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda b: b[:2], "found 2 buckets, wanted 3"),
        (lambda b: (), "found 0 parameters, wanted 5; missing: matrix, odd, scalar, empty, wide"),
        (lambda b: (*b, replace(b[2], number=3)), "found bucket 3 of 3"),
    ],
)
def test_a_version_that_ends_too_early_or_too_late_is_refused(parts, message):
    with pytest.raises(WeightsError, match=message):
        install(Net(), 7, parts(export(Net(), 7, bucket_bytes=64)))


def test_a_parameter_that_only_the_sender_trains_is_refused():
    receiver = Net()
    receiver.wide.requires_grad_(False)
    with pytest.raises(WeightsError, match="'wide': found one more than the 4"):
        install(receiver, 0, export(Net(), 0))


def test_a_parameter_that_only_the_receiver_trains_is_refused():
    sender = Net()
    sender.wide.requires_grad_(False)
    with pytest.raises(WeightsError, match="missing: wide"):
        install(Net(), 0, export(sender, 0))


def test_only_one_bucket_is_in_memory_at_a_time():
    waiting, last, alive = list(export(Net(seed=1), 0, bucket_bytes=64))[::-1], lambda: None, []

    def fetch(_):
        nonlocal last
        alive.append(last() is not None)
        bucket = waiting.pop()
        last = weakref.ref(bucket)
        return bucket

    install(Net(seed=2), 0, map(fetch, range(3)))  # a map holds on to nothing itself
    assert alive == [False, False, False]


@dataclass
class Given:
    """What a stage is handed, counting how often the parts were asked for."""

    version: int
    seed: int
    asked: int = 0

    @property
    def parts(self):
        self.asked += 1
        return iter(export(Net(seed=self.seed), self.version, bucket_bytes=64))


def test_a_stage_that_alternates_between_two_versions_fetches_each_once():
    versions, net, given = Versions(keep=2), Net(), {number: Given(number, seed=number + 10) for number in (4, 5, 6)}
    for number in (4, 5, 4, 5, 4, 6, 5, 6, 6):  # 6 comes while 4 is in the module, and drives out 4, not 5
        versions.use(net, given[number])
        assert bits(net) == bits(Net(seed=number + 10)), number
    assert [each.asked for each in given.values()] == [1, 1, 1]


def test_of_three_kept_versions_the_lowest_makes_room():
    versions, net, given = Versions(keep=3), Net(), {number: Given(number, seed=number) for number in (1, 2, 3, 4)}
    for number in (2, 1, 3, 4, 2, 3):
        versions.use(net, given[number])
        assert bits(net) == bits(Net(seed=number)), number
    assert [each.asked for each in given.values()] == [1, 1, 1, 1]


def test_with_room_for_one_version_its_memory_stays_where_it_is():
    versions, net = Versions(keep=1), Net()
    addresses = [p.data_ptr() for p in net.parameters()]
    first, second = Given(1, seed=11), Given(2, seed=12)
    for weights in (first, second, first):
        versions.use(net, weights)
    assert [p.data_ptr() for p in net.parameters()] == addresses
    assert (first.asked, second.asked) == (2, 1)


def test_parameters_stay_the_same_objects():
    versions, net = Versions(keep=2), Net()
    objects = [id(p) for p in net.parameters()]
    for number in (1, 2, 1, 3):
        versions.use(net, Given(number, seed=number))
    assert [id(p) for p in net.parameters()] == objects


def test_a_dropped_version_is_fetched_again():
    versions, net, old = Versions(keep=2), Net(), Given(1, seed=11)
    for weights in (old, Given(2, seed=12), Given(3, seed=13), old):
        versions.use(net, weights)
    assert (old.asked, bits(net) == bits(Net(seed=11))) == (2, True)


def test_the_version_that_a_module_was_built_with_is_kept_like_any_other():
    versions, net = Versions(keep=2, initial=0), Net(seed=7)
    start = Given(0, seed=99)
    for weights in (start, Given(1, seed=11), start):
        versions.use(net, weights)
    assert (start.asked, bits(net) == bits(Net(seed=7))) == (0, True)


def test_after_a_damaged_version_the_kept_one_is_whole_and_the_damaged_one_is_fetched_again():
    versions, net = Versions(keep=2), Net()
    good, damaged = Given(1, seed=11), Given(2, seed=12)
    versions.use(net, good)
    with pytest.raises(WeightsError):
        versions.use(net, SimpleNamespace(version=2, parts=DAMAGE["a flipped bit"][0](list(damaged.parts))))
    versions.use(net, good)
    assert (good.asked, bits(net) == bits(Net(seed=11))) == (1, True)
    versions.use(net, damaged)
    assert bits(net) == bits(Net(seed=12))


def test_another_module_starts_anew():
    versions, weights, other = Versions(keep=2), Given(1, seed=11), Net(seed=3)
    versions.use(Net(), weights)
    versions.use(other, weights)
    assert bits(other) == bits(Net(seed=11))


@pytest.mark.parametrize("make", [lambda: Versions(keep=0), lambda: export(Net(), 0, bucket_bytes=0)])
def test_a_size_below_one_is_refused(make):
    with pytest.raises(ValueError, match="wanted at least 1"):
        make()


def test_a_bucket_keeps_its_bits_when_it_travels_and_may_lie_in_memory_that_cannot_be_written():
    module = nn.Linear(3, 2)
    (sent,) = export(module, 4)
    buffers: list[pickle.PickleBuffer] = []
    plain = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
    came = pickle.loads(plain, buffers=[bytes(buffer) for buffer in buffers])
    other = nn.Linear(3, 2)
    install(other, 4, [came])
    assert len(buffers) == 1 and torch.equal(other.weight, module.weight) and torch.equal(other.bias, module.bias)
