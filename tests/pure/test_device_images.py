"""The image path on tensors gives what the one on arrays gives, but for a grey level where a sum is a half; policies take tensors as they take arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from envs.spec import ActionSpec, EnvSpec
from policies import device_images
from policies.codec import StateCodec
from policies.mlp import MLP
from policies.openvla_oft import OpenVLAOFT
from policies.parts import images
from tests.pure.test_images import TINY


@pytest.fixture(scope="module")
def pictures():
    """[2, 128, 160, 3]: noise, and a slope of whole numbers with an edge, where many sums are halves."""
    random = np.random.default_rng(0)
    slope = np.add.outer(np.arange(128), np.arange(160))[..., None] * np.array([1, 2, 3]) // 3 % 256
    slope[40:80, 50:90] = 255
    return np.stack([random.integers(0, 256, (128, 160, 3)), slope]).astype(np.uint8)


@pytest.mark.parametrize(
    ("step", "arguments"),
    [("lanczos3", ()), ("lanczos3", (64,)), ("center_crop", ()), ("bicubic", ((224, 224),)), ("bicubic", ((56, 56),)), ("bicubic", ((32, 160),)), ("bicubic", ((128, 160),))],
)
def test_each_step_equals_the_one_on_arrays_but_for_a_grey_level_at_halves(pictures, step, arguments):
    wanted = getattr(images, step)(pictures, *arguments).astype(int)
    found = getattr(device_images, step)(torch.from_numpy(pictures), *arguments)
    difference = np.abs(found.numpy().astype(int) - wanted)
    assert found.dtype == torch.uint8 and found.shape == wanted.shape
    noise, slope = (difference > 0).mean((1, 2, 3))
    assert difference.max() <= 1 and noise < 1e-4 and slope < 0.02


@pytest.mark.parametrize("steps", [(), ("lanczos3", "center_crop"), images.STEPS])
def test_the_whole_path_runs_the_steps_that_the_checkpoint_asks_for(pictures, steps):
    path = images.ImagePath(steps, (56, 56), ((0.5, 0.5, 0.5),), ((0.5, 0.5, 0.5),))
    difference = np.abs(device_images.pixels(path, torch.from_numpy(pictures)).numpy().astype(int) - path.pixels(pictures))
    assert difference.max() <= 1 and (difference > 0).mean() < 0.01


def test_a_pictures_result_does_not_depend_on_the_others(pictures):
    both = device_images.lanczos3(torch.from_numpy(pictures))
    assert torch.equal(both[1:], device_images.lanczos3(torch.from_numpy(pictures[1:])))


def test_an_openvla_prepares_tensors_as_it_prepares_arrays(pictures):
    policy = OpenVLAOFT.from_pretrained(TINY)
    policy.prompts = lambda texts: (torch.zeros(len(texts), 4, dtype=torch.int64), torch.ones(len(texts), 4, dtype=torch.bool))  # the folder has no tokenizer
    texts = {"instruction": ["pick up the cup"] * 2}
    arrays = policy.prepare({f"images/{camera}": pictures for camera in policy.spec.cameras} | texts)
    tensors = policy.prepare({f"images/{camera}": torch.from_numpy(pictures) for camera in policy.spec.cameras} | texts)
    assert {name: (t.dtype, t.shape) for name, t in tensors.items()} == {name: (t.dtype, t.shape) for name, t in arrays.items()}
    assert (tensors["pixels"].int() - arrays["pixels"].int()).abs().max() <= 1


def test_a_misshapen_tensor_of_pictures_is_refused_as_an_array_is(pictures):
    policy = OpenVLAOFT.from_pretrained(TINY)
    with pytest.raises(ValueError, match="found torch.float32 .*wanted uint8 \\[b, H, W, 3\\]"):
        policy.prepare({f"images/{camera}": torch.from_numpy(pictures).float() for camera in policy.spec.cameras})


def test_a_state_on_a_device_is_scaled_to_the_same_numbers():
    codec = StateCodec({"robot": {"proprio": {"q01": [-1.0, 0.0, 2.0], "q99": [1.0, 4.0, 2.0], "mask": [True, True, False]}}})
    state = np.array([[0.5, 1.0, 0.25], [3.0, -9.0, -2.0]], np.float32)
    assert np.array_equal(codec.encode(torch.from_numpy(state)).numpy(), codec.encode(state))


def test_a_state_that_is_not_finite_is_refused_with_its_place():
    codec = StateCodec({"robot": {"proprio": {"q01": [-1.0], "q99": [1.0], "mask": [True]}}})
    with pytest.raises(ValueError, match="found nan at \\[1, 0\\]"):
        codec.encode(torch.tensor([[0.0], [float("nan")]]))


def test_an_mlp_takes_a_tensor_as_it_takes_an_array():
    policy = MLP(EnvSpec("any", ActionSpec("discrete", choices=2), state=3))
    state = np.arange(6, dtype=np.float64).reshape(2, 3)
    assert torch.equal(policy.prepare({"state": torch.from_numpy(state)})["state"], policy.prepare({"state": state})["state"])
