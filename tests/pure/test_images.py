"""Each step of the image path against what TensorFlow and the reference processor gave."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from policies.parts import images

TINY = Path(__file__).parents[1] / "fixtures" / "openvla_tiny"


@pytest.fixture(scope="module")
def expected():
    return load_file(TINY / "expected.safetensors")


def config(**more):
    return {**json.loads((TINY / "preprocessor_config.json").read_text()), **more}


def grey_levels(found, wanted):
    difference = np.abs(found.astype(int) - wanted.numpy().astype(int))
    return difference.max(), difference.mean()


def test_lanczos3_is_tensorflows_antialiased_resize(expected):
    worst, mean = grey_levels(images.lanczos3(expected["image_raw"].numpy()), expected["image_resized_lanczos3_224"])
    assert worst <= 1 and mean <= 0.1


def test_jpeg_then_lanczos3_differs_by_no_more_than_another_jpeg_library_does(expected):
    # Pillow's decoder and TensorFlow's use different inverse transforms: 6 grey levels at worst, 1.05 on average here.
    found = images.lanczos3(images.jpeg(expected["image_raw"].numpy()))
    worst, mean = grey_levels(found, expected["image_resized_jpeg_lanczos3_224"])
    assert worst <= 8 and mean <= 1.2


def test_center_crop_is_tensorflows_crop_and_resize(expected):
    worst, mean = grey_levels(images.center_crop(expected["image_resized_jpeg_lanczos3_224"].numpy()), expected["image_center_cropped_224"])
    assert worst <= 1 and mean <= 0.1


def test_bicubic_and_both_normalisations_are_the_processors(expected):
    path = images.ImagePath.from_config(config())
    pixels = images.bicubic(expected["image_center_cropped_224"].numpy(), path.size)
    found = images.normalise(torch.from_numpy(pixels)[:, None], path.means, path.stds)
    torch.testing.assert_close(found, expected["pixel_values"], atol=1e-5, rtol=0)


def test_two_cameras_are_stacked_picture_by_picture(expected):
    path = images.ImagePath.from_config(config())
    pixels = images.bicubic(expected["image_center_cropped_224"].numpy(), path.size)
    found = images.normalise(torch.from_numpy(pixels)[None], path.means, path.stds)
    torch.testing.assert_close(found, expected["pixel_values_two_images"], atol=1e-5, rtol=0)


def test_a_published_folder_runs_the_whole_path(expected):
    path = images.ImagePath.from_config(config())
    raw = expected["image_raw"].numpy()
    by_hand = images.bicubic(images.center_crop(images.lanczos3(images.jpeg(raw))), (56, 56))
    np.testing.assert_array_equal(path.pixels(raw), by_hand)


def test_a_small_folder_takes_pictures_of_its_size_as_they_are():
    path = images.ImagePath.from_config(config(image_path=[], input_sizes=[[3, 8, 8]] * 2))
    raw = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
    np.testing.assert_array_equal(path.pixels(raw), raw)


def test_an_unknown_step_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="lanczos3"):
        images.ImagePath.from_config(config(image_path=["sharpen"]))


def test_a_picture_does_not_depend_on_its_neighbours(expected):
    path = images.ImagePath.from_config(config())
    raw = expected["image_raw"].numpy()
    np.testing.assert_array_equal(path.pixels(raw)[1], path.pixels(raw[1:])[0])


def test_normalise_by_hand():
    # 255 -> 1: (1 - 0.5) / 0.25 = 2 for the first tower, (1 - 0) / 1 = 1 for the second
    white = torch.full((1, 1, 1, 1, 3), 255, dtype=torch.uint8)
    found = images.normalise(white, ((0.5,) * 3, (0.0,) * 3), ((0.25,) * 3, (1.0,) * 3))
    assert found.flatten().tolist() == pytest.approx([2.0] * 3 + [1.0] * 3, abs=1e-6)
