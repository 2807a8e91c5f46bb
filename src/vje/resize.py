"""Resizing and cropping with Pillow, for images in files and in memory alike."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_LONGEST_STRIP = 8


def fit_image(image: Image.Image, size: int, crop: int) -> NDArray[np.uint8]:
    """Resize the shorter side to ``size`` (bilinear, antialiased) and cut ``crop`` x ``crop`` from the centre.

    Rounding is that of torchvision's ``Resize`` and ``CenterCrop``. A strip more than 8 times as long as wide is first
    cut to that, since resizing one could take any amount of memory and its ends are never seen.

    Returns:
        uint8, ``[C, crop, crop]``.

    >>> fit_image(Image.new("RGB", (40, 20), (1, 2, 3)), size=8, crop=6)[:, 0, 0]
    array([1, 2, 3], dtype=uint8)
    """
    if not 0 < crop <= size:
        raise ValueError(f"crop must be between 1 and size={size}, got {crop}")
    short = min(image.size)
    if short != size:
        image = _centre(image, *(min(side, _LONGEST_STRIP * short) for side in image.size))
        width, height = (size * side // short for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return as_planes(_centre(image, crop, crop))


def as_planes(image: Image.Image) -> NDArray[np.uint8]:
    """An ``L`` or ``RGB`` image as a writable uint8 array ``[C, H, W]``."""
    pixels = np.array(image, dtype=np.uint8)  # [H, W] or [H, W, 3]
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def middle(length: int, crop: int) -> slice:
    """The ``crop`` places in the middle of ``length``.

    >>> middle(10, 4)
    slice(3, 7, None)
    """
    start = round((length - crop) / 2)
    return slice(start, start + crop)


def _centre(image: Image.Image, width: int, height: int) -> Image.Image:
    across, down = middle(image.width, width), middle(image.height, height)
    return image if image.size == (width, height) else image.crop((across.start, down.start, across.stop, down.stop))
