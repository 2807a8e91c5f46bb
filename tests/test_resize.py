"""Resizing batches, against Pillow one image at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vje.data.decode import fit_image
from vje.resize import fit_batch, is_exact

SIDES = st.integers(1, 90)


def one_by_one(images, size, crop):
    pictures = (Image.fromarray(x[..., 0] if x.shape[2] == 1 else x) for x in images)
    return np.stack([fit_image(picture, size, crop) for picture in pictures])


def in_a_batch(images, size, crop):
    return fit_batch(torch.from_numpy(images).permute(0, 3, 1, 2), size, crop).numpy()


@given(height=SIDES, width=SIDES, size=st.integers(1, 60), data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_every_pixel_is_pillow_s(height, width, size, data, seed):
    crop = data.draw(st.integers(1, size))
    channels, extreme = data.draw(st.sampled_from([1, 3])), data.draw(st.booleans())
    images = np.random.default_rng(seed).integers(0, 256, (2, height, width, channels), dtype=np.uint8)
    if extreme:  # black and white, whose sums come closest to the ends
        images = np.where(images > 127, 255, 0).astype(np.uint8)
    ours, theirs = in_a_batch(images, size, crop), one_by_one(images, size, crop)
    assert ours.shape == (2, channels, crop, crop)
    if max(height, width) <= 8 * min(height, width):  # the ends of longer strips are cut off first
        assert np.abs(ours.astype(int) - theirs).max() <= (0 if is_exact(height, width) else 1)


@pytest.mark.parametrize(
    ("height", "width", "size", "crop"), [(128, 128, 32, 32), (28, 28, 32, 32), (375, 500, 256, 224)]
)
def test_the_sizes_of_common_data_sets(height, width, size, crop):
    images = np.random.default_rng(0).integers(0, 256, (3, height, width, 3), dtype=np.uint8)
    assert np.array_equal(in_a_batch(images, size, crop), one_by_one(images, size, crop))


def test_a_batch_that_is_worked_on_in_parts(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (7, 20, 30, 3), dtype=np.uint8)
    whole = in_a_batch(images, 8, 8)
    monkeypatch.setattr("vje.resize._CHUNK", 2 * 20 * 30 * 3)
    assert np.array_equal(in_a_batch(images, 8, 8), whole)


def test_no_images():
    assert fit_batch(torch.zeros(0, 3, 20, 30, dtype=torch.uint8), 8, 6).shape == (0, 3, 6, 6)
