"""Pillow's bilinear resize for batches of arrays, bit for bit: images in memory and in files are prepared alike.

torch's own antialiased resize of bytes rounds otherwise on some processors, and Pillow takes one image at a time.
"""

from functools import lru_cache

import torch
from torch import Tensor

_UNIT = 2**22
"""Pillow's weights are integers, in units of 1 / 2^22."""
_CHUNK = 2**22
"""Pixels at a time; each takes 8 bytes while it is worked on."""


def fit_batch(images: Tensor, size: int, crop: int) -> Tensor:
    """Resize the shorter side to ``size`` (bilinear, antialiased) and cut ``crop`` x ``crop`` from the centre.

    The same pixels as :func:`vje.data.decode.fit_image` gives for each image alone, if :func:`is_exact`.

    Args:
        images: uint8, ``[B, C, H, W]``.
        size: of the shorter side.
        crop: at most ``size``.

    >>> fit_batch(torch.tensor([[[[0, 100], [100, 200]]]], dtype=torch.uint8), size=1, crop=1)
    tensor([[[[100]]]], dtype=torch.uint8)
    """
    tall, wide = images.shape[-2:]
    short = min(tall, wide)
    if short == size:
        return images[..., _middle(tall, crop), _middle(wide, crop)].contiguous()
    device = torch.device("cpu") if images.device.type == "mps" else images.device  # which has no float64
    down, across = (_weights(old, size * old // short, crop).to(device) for old in (tall, wide))
    count = max(1, _CHUNK // images[0].numel()) if len(images) else 1
    parts = [_shift(down @ _shift(part.to(device).double() @ across.T)) for part in images.split(count)]
    return torch.cat(parts).to(images.device, torch.uint8)


def is_exact(height: int, width: int) -> bool:
    """Whether the pixels are Pillow's, and those of one image alone.

    From version 13 on Pillow goes down before across, and so rounds otherwise, for some images more than twice as tall
    as wide; and the ends of long strips are cut off before they are resized.
    """
    return max(height, width) <= 2 * min(height, width)


def _shift(sums: Tensor) -> Tensor:
    """Weighted sums back to bytes; whole numbers this large are exact in float64."""
    return ((sums + _UNIT // 2) / _UNIT).floor().clamp(0, 255)


def _middle(length: int, crop: int) -> slice:
    start = round((length - crop) / 2)
    return slice(start, start + crop)


@lru_cache(maxsize=64)
def _weights(old: int, new: int, crop: int) -> Tensor:
    """What each of the ``crop`` middle pixels of a resized line takes from the old ones, ``[crop, old]``."""
    scale = old / new
    reach = max(scale, 1.0)
    rows = torch.zeros(new, old, dtype=torch.float64)
    for place in range(*_middle(new, crop).indices(new)):
        centre = (place + 0.5) * scale
        first, last = max(0, int(centre - reach + 0.5)), min(old, int(centre + reach + 0.5))
        raw = [max(0.0, 1.0 - abs((x - centre + 0.5) * (1.0 / reach))) for x in range(first, last)]
        total = sum(raw)
        rows[place, first:last] = torch.tensor([int(0.5 + w / total * _UNIT) for w in raw], dtype=torch.float64)
    return rows[_middle(new, crop)].contiguous()
