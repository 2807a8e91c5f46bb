"""Pixels to encoder input, against Pillow and torchvision's transforms of Pillow images."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from vje.preprocessing import Preprocessing, luminance
from vje.resize import fit_image

STATISTICS = {1: {"mean": (0.5,), "std": (0.25,)}, 3: {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}}


def prepare(size, crop, channels=3):
    return Preprocessing(size, crop, channels, **STATISTICS[channels])


def pictures(height, width, channels=3, count=3):
    shape = (count, height, width, channels)
    return np.random.default_rng(height * width).integers(0, 256, shape, dtype=np.uint8)


def tensor(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("height", "width", "size", "crop"),
    [
        (32, 32, 32, 32),
        (32, 32, 32, 28),
        (64, 64, 32, 32),
        (20, 20, 32, 32),
        (37, 53, 16, 16),
        (53, 37, 16, 13),
        (10, 31, 24, 20),
        (99, 40, 33, 32),
        (8, 9, 8, 8),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_pillows_resize_and_a_centre_crop(height, width, size, crop, channels):
    images = pictures(height, width, channels)
    ours = prepare(size, crop, channels).fit(tensor(images))
    assert ours.shape == (3, channels, crop, crop)
    assert ours.dtype == torch.uint8
    theirs = transforms.Compose([transforms.Resize(size), transforms.CenterCrop(crop), transforms.PILToTensor()])
    for image, result in zip(images, ours, strict=True):
        picture = Image.fromarray(image.squeeze(-1) if channels == 1 else image)
        assert torch.equal(result, theirs(picture))


SIDES = st.integers(1, 90)


@given(height=SIDES, width=SIDES, size=st.integers(1, 60), channels=st.sampled_from([1, 3]), data=st.data())
def test_images_in_memory_are_fitted_as_those_in_files(height, width, size, channels, data):
    crop = data.draw(st.integers(1, size))
    images = pictures(height, width, channels, count=2)
    expected = [fit_image(Image.fromarray(x.squeeze(-1) if channels == 1 else x), size, crop) for x in images]
    assert np.array_equal(prepare(size, crop, channels).fit(tensor(images)), np.stack(expected))


@pytest.mark.parametrize("side", [8, 20])
def test_no_images(side):
    assert prepare(8, 6).fit(torch.zeros(0, 1, side, 30, dtype=torch.uint8)).shape == (0, 3, 6, 6)


def test_images_of_the_right_size_are_untouched():
    images = tensor(pictures(16, 16))
    assert torch.equal(prepare(16, 16).fit(images), images)


def test_the_aspect_ratio_is_kept():
    image = np.zeros((1, 20, 60, 3), np.uint8)
    image[:, :, 20:40] = 255  # a white square in the middle, which the crop shows whole
    assert (prepare(10, 10).fit(tensor(image)) > 200).float().mean() > 0.85
    assert (prepare(10, 10).fit(tensor(image))[..., 5, 5] == 255).all()


def test_grey_and_color_are_converted():
    color, grey = pictures(9, 9), pictures(9, 9, 1)
    as_grey = prepare(9, 9, channels=1).fit(tensor(color))
    for image, result in zip(color, as_grey, strict=True):
        assert np.array_equal(result[0].numpy(), np.asarray(Image.fromarray(image).convert("L")))
    as_color = prepare(9, 9).fit(tensor(grey))
    assert torch.equal(as_color, tensor(grey).repeat(1, 3, 1, 1))
    assert luminance(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)).item() == 255


def test_normalisation():
    images = tensor(pictures(8, 8))
    ours = prepare(8, 8).normalize(images)
    expected = transforms.Normalize(**STATISTICS[3])(images.float() / 255)
    assert ours.dtype == torch.float32
    assert torch.allclose(ours, expected, atol=1e-6)
    assert torch.equal(prepare(8, 8).normalize(images.float() / 255), ours)  # floats are taken for [0, 1]


def test_it_survives_json():
    original = prepare(36, 32)
    again = Preprocessing(**json.loads(json.dumps(original.as_dict())))
    images = tensor(pictures(40, 50))
    assert torch.equal(again.normalize(again.fit(images)), original.normalize(original.fit(images)))
    assert again.as_dict() == original.as_dict()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"channels": 4}, r"channels must be 1 \(grey\) or 3 \(RGB\), got 4"),
        ({"crop": 33}, "crop must be between 1 and size=32, got 33"),
        ({"crop": 0}, "got 0"),
        ({"mean": (0.5,)}, "mean and std need 3 values each"),
        ({"std": (0.5,)}, "mean and std need 3 values each"),
    ],
)
def test_what_cannot_be_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Preprocessing(**{"size": 32, "crop": 32, "channels": 3, **STATISTICS[3]} | change)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 8, 8), (2, 8, 8, 3), (2, 1, 0, 8), (2, 3, 8, 0)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"must be \[B, C, H, W\] with 1 or 3 channels, got \("):
        prepare(8, 8).fit(torch.zeros(shape, dtype=torch.uint8))


def test_statistics_that_are_not_of_pixels_from_zero_to_one_are_refused():
    for mean, std in (([0.5], [0.0]), ([127.0], [60.0]), ([0.5], [-0.1]), ([float("nan")], [0.2])):
        with pytest.raises(ValueError, match="pixels from 0 to 1"):
            Preprocessing(8, 8, 1, mean, std)


@pytest.mark.parametrize("size", [8, 16])
def test_floats_are_not_fitted_as_if_they_were_bytes(size):
    with pytest.raises(ValueError, match="must be uint8, 0 to 255, got torch"):
        prepare(8, 8, 1).fit(torch.rand(2, 1, size, size))
