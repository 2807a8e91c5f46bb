"""Views of images for scoring, against Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image

from vje.data.views import views

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
IMAGES = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


def test_the_whole_image_is_itself_and_mirrored_it_is_the_mirror_image():
    (one,) = views(IMAGES, "one")
    assert torch.equal(one, IMAGES)
    whole, mirrored = views(IMAGES, "mirror")
    assert torch.equal(whole, IMAGES) and torch.equal(mirrored, IMAGES.flip(-1))


def test_ten_crops_are_ten_and_symmetric():
    """Together they are the same of the mirror image."""
    seen, mirrored = (
        {view[0].numpy().tobytes() for view in views(x, "ten")} for x in (IMAGES[:1], IMAGES[:1].flip(-1))
    )
    assert seen == mirrored and len(seen) == 10


def test_ten_crops_are_the_centre_and_the_corners_of_seven_eighths_and_their_mirror_images():
    for y, x in ((2, 2), (0, 0), (0, 4), (4, 0), (4, 4)):
        cut = Image.fromarray(PIXELS[0, y : y + 28, x : x + 28]).resize((32, 32), Image.Resampling.BILINEAR)
        for expected in (np.asarray(cut, dtype=int), np.asarray(cut, dtype=int)[:, ::-1]):
            found = [view[0].permute(1, 2, 0).numpy() for view in views(IMAGES, "ten")]
            close = [np.abs(view - expected).max() <= 1 for view in found]
            assert sum(close) == 1


@pytest.mark.parametrize("size", [(10, 20), (8, 8), (5, 7), (2, 1)])
def test_any_size_keeps_its_shape_and_its_symmetry(size):
    image = torch.randint(256, (1, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen, mirrored = views(image, "ten"), views(image.flip(-1), "ten")
    assert all(view.shape == image.shape for view in seen)
    centre, of_mirrored = seen[4].int(), mirrored[4].int()  # torchvision has the corners first
    assert (of_mirrored - centre.flip(-1)).abs().max() <= 1  # halves are rounded
