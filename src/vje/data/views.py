"""Views of an image for scoring: the whole or a part of it, brought to full size, and the mirror images of these.

An encoder trained on random crops knows things at the size they have there, larger than in the whole image; and the
mean of a score over several views is steadier than the score of one.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.functional import ten_crop

Views = Literal["one", "mirror", "ten"]

PART = 7 / 8
"""Side of each of the ten crops, as a fraction of the image's: 224 of 256 pixels, as has been usual since AlexNet."""


def views(images: Tensor, name: Views) -> list[Tensor]:
    """The views of uint8 images ``[B, C, H, W]`` that go by a name, each in the same shape.

    They are the image alone; it and its mirror image; or crops at the corners and the centre and their mirror images.

    >>> [len(views(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), name)) for name in ("one", "mirror", "ten")]
    [1, 2, 10]
    """
    if name != "ten":
        return [images, images.flip(-1)][: 1 if name == "one" else 2]
    shape = images.shape[-2:]
    parts = ten_crop(images, [side - 2 * _margin(side) for side in shape])
    return [interpolate(part.float(), shape, mode="bilinear").round().to(torch.uint8) for part in parts]


def _margin(side: int) -> int:
    """Pixels on either side of the centre crop: as many on both, so that it is that of the mirror image too."""
    return min(max(1, round((1 - PART) * side / 2)), (side - 1) // 2)
