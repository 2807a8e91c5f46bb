"""Views of an image for scoring: the whole or a part of it, brought to full size, and the mirror images of these.

An encoder trained on random crops knows things at the size they have there, larger than in the whole image; and the
mean of a score over several views is steadier than the score of one.
"""

from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

Views = Literal["one", "mirror", "ten"]

PART = 7 / 8
"""Side of each of the ten crops, as a fraction of the image's: 224 of 256 pixels, as has been usual since AlexNet."""


@dataclass(frozen=True)
class View:
    """A square part of an image, enlarged to the image's size.

    Attributes:
        part: its side, as a fraction of the image's.
        top: where it is between the image's top (0) and bottom (1).
        left: where it is between the image's left (0) and right (1).
        mirror: exchange left and right.

    >>> image = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    >>> View(part=0.5, top=0, left=1, mirror=True)(image)[0, 0].tolist()[0]
    [3, 3, 2, 2]
    """

    part: float = 1.0
    top: float = 0.5
    left: float = 0.5
    mirror: bool = False

    def __call__(self, images: Tensor) -> Tensor:
        """The view of uint8 images ``[B, C, H, W]``; bilinear, in the same shape."""
        height, width = images.shape[-2:]
        rows, columns = _cut(height, self.part, self.top), _cut(width, self.part, self.left)
        seen = images[..., rows, columns]
        if self.part < 1:
            seen = interpolate(seen.float(), (height, width), mode="bilinear").round().to(torch.uint8)
        return seen.flip(-1) if self.mirror else seen


WHOLE = View()


def views(name: Views, part: float = PART) -> tuple[View, ...]:
    """The views that go by a name: the image alone; it and its mirror image; or ten crops.

    Ten crops are those at the centre and the corners, and their mirror images.

    >>> len(views("one")), len(views("mirror")), len(views("ten"))
    (1, 2, 10)
    """
    if name == "ten":
        places = [(0.5, 0.5), *product((0.0, 1.0), repeat=2)]
        return tuple(View(part, top, left, mirror) for mirror in (False, True) for top, left in places)
    return (WHOLE, View(mirror=True)) if name == "mirror" else (WHOLE,)


def _cut(length: int, part: float, place: float) -> slice:
    """Pixels of a part, with a margin that can be halved, so that the centre is the centre of the mirror image too."""
    margin = min(max(1, round((1 - part) * length / 2)), (length - 1) // 2) if part < 1 else 0
    start = round(place * 2 * margin)
    return slice(start, start + length - 2 * margin)
