"""Each step of the image path against what TensorFlow and the reference processor gave."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from policies.parts import images

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "fixtures" / "openvla_tiny"


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


def test_resizing_in_bands_is_the_whole_kernel_on_each_axis():
    # an oblong picture whose sides are no multiple of a band: lanczos3 in float64, every source pixel weighed for every target pixel
    raw = np.random.default_rng(0).integers(0, 256, (1, 301, 250, 3), dtype=np.uint8)
    down, across = (dense_lanczos3(length, 224) for length in (301, 250))
    wanted = np.clip(np.rint(np.einsum("ih,bhwc,jw->bijc", down, raw.astype(float), across, optimize=True)), 0, 255)
    worst, mean = grey_levels(images.lanczos3(raw), torch.from_numpy(wanted))
    assert worst <= 1 and mean < 1e-4  # a sum that falls on a half may go either way


def dense_lanczos3(source, target):
    scale = source / target
    x = ((np.arange(source) + 0.5)[None] / scale - (np.arange(target) + 0.5)[:, None]) / max(1.0, 1 / scale)
    weights = np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)
    return weights / weights.sum(1, keepdims=True)


def test_the_number_of_threads_changes_no_pixel():
    # a large product is split among OpenBLAS's threads, at places that its kernels round differently: one of this size is
    program = "import hashlib, numpy as np; from policies.parts import images; print(hashlib.sha256(images.lanczos3(np.random.default_rng(0).integers(0, 256, (4, 480, 640, 3), np.uint8))).hexdigest())"
    runs = [subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=os.environ | {"OPENBLAS_NUM_THREADS": threads}, stdout=subprocess.PIPE, text=True) for threads in "12"]
    one, two = (run.communicate()[0] for run in runs)
    assert len(one.strip()) == 64 and one == two


def test_normalise_by_hand():
    # 255 -> 1: (1 - 0.5) / 0.25 = 2 for the first tower, (1 - 0) / 1 = 1 for the second
    white = torch.full((1, 1, 1, 1, 3), 255, dtype=torch.uint8)
    found = images.normalise(white, ((0.5,) * 3, (0.0,) * 3), ((0.25,) * 3, (1.0,) * 3))
    assert found.flatten().tolist() == pytest.approx([2.0] * 3 + [1.0] * 3, abs=1e-6)
