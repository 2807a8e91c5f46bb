"""Views of images for scoring, against Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image

from vje.data.views import WHOLE, View, views

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
IMAGES = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


@pytest.mark.parametrize("part, side", [(0.75, 24), (0.875, 28), (0.6, 20)])
@pytest.mark.parametrize("top, left", [(0, 0), (0, 1), (1, 0), (1, 1), (0.5, 0.5)])
def test_a_part_is_cut_and_enlarged_as_pillow_does(part, side, top, left):
    y, x = (round(place * (32 - side)) for place in (top, left))
    expected = [
        np.asarray(Image.fromarray(p[y : y + side, x : x + side]).resize((32, 32), Image.Resampling.BILINEAR))
        for p in PIXELS
    ]
    found = View(part, top, left)(IMAGES).permute(0, 2, 3, 1).numpy().astype(int)
    assert np.abs(found - np.stack(expected)).max() <= 1  # Pillow rounds between its two passes
    mirrored = View(part, top, left, mirror=True)(IMAGES).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(mirrored, found[:, :, ::-1])


def test_the_whole_image_is_itself():
    assert torch.equal(WHOLE(IMAGES), IMAGES)
    assert torch.equal(View(mirror=True)(IMAGES), IMAGES.flip(-1))


def test_ten_crops_are_ten_and_symmetric():
    """Together they are the same of the mirror image."""
    ten = views("ten")
    seen, mirrored = ({view(x)[0].numpy().tobytes() for view in ten} for x in (IMAGES[:1], IMAGES[:1].flip(-1)))
    assert seen == mirrored and len(seen) == 10


def test_ten_crops_are_the_centre_and_the_corners_of_seven_eighths_and_their_mirror_images():
    for y, x in ((2, 2), (0, 0), (0, 4), (4, 0), (4, 4)):
        cut = Image.fromarray(PIXELS[0, y : y + 28, x : x + 28]).resize((32, 32), Image.Resampling.BILINEAR)
        for expected in (np.asarray(cut, dtype=int), np.asarray(cut, dtype=int)[:, ::-1]):
            close = [np.abs(view(IMAGES)[0].permute(1, 2, 0).numpy() - expected).max() <= 1 for view in views("ten")]
            assert sum(close) == 1


def test_a_part_is_from_the_centre_unless_told_otherwise():
    assert torch.equal(View(0.75)(IMAGES), View(0.75, 0.5, 0.5)(IMAGES))
    assert not torch.equal(View(0.75)(IMAGES), View(0.75, 1.0, 0.5)(IMAGES))


@pytest.mark.parametrize("size", [(10, 20), (8, 8), (5, 7), (2, 1)])
def test_any_size_keeps_its_shape_and_its_symmetry(size):
    image = torch.randint(256, (1, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for view in views("ten"):
        assert view(image).shape == image.shape
    centre = View(7 / 8)
    assert (centre(image.flip(-1)).int() - centre(image).flip(-1).int()).abs().max() <= 1  # halves are rounded
