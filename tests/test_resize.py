"""One image to the encoder's size, against torchvision's transforms of Pillow images."""

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms.v2 import functional as F

from vje.resize import fit_image


@pytest.mark.parametrize(("width", "height"), [(37, 23), (23, 37), (16, 16), (50, 16), (7, 9), (16, 21), (131, 17)])
@pytest.mark.parametrize(("size", "crop"), [(16, 16), (16, 13), (17, 16), (20, 14)])
def test_fit_equals_torchvision(width: int, height: int, size: int, crop: int) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
    expected = F.center_crop(F.resize(image, [size], antialias=True), [crop, crop])
    assert np.array_equal(fit_image(image, size, crop), F.pil_to_tensor(expected).numpy())


def test_a_strip_takes_little_memory() -> None:
    strip = Image.new("L", (1, 50_000), 7)
    assert fit_image(strip, 64, 64).shape == (1, 64, 64)
    assert np.unique(fit_image(strip, 64, 64)).tolist() == [7]


def test_a_strip_that_is_not_resized_is_cut_in_its_middle() -> None:
    strip = np.random.default_rng(0).integers(0, 256, (16, 133), dtype=np.uint8)
    assert np.array_equal(
        fit_image(Image.fromarray(strip), 16, 15)[0], strip[:15, 59:74]
    )  # (1 / 2, 118 / 2) from the ends
