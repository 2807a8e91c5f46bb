"""Thousands of small pictures in a few files: sheets of WebP that a page cuts them from."""

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

COLUMNS = 32
"""Pictures along the side of a sheet: 1,024 on each."""

BLOCK = 16
"""Lossy WebP codes blocks of this side; a picture that begins and ends with one does not bleed into the next."""

BUDGET = 5_500_000
"""Bytes that all sheets may take; a third more in the page."""

LOSSLESS = 2_000_000
"""Pictures with this many values or fewer in all are kept exactly."""

QUALITIES = (88, 80, 70, 55, 40)


@dataclass(frozen=True)
class Sprites:
    """Pictures on sheets, row by row."""

    side: int  # of a picture, in pixels
    stride: int  # from one picture to the next on a sheet
    count: int  # of all pictures
    sheets: list[bytes]  # WebP files

    def as_data(self) -> dict[str, Any]:
        """For the page's scripts."""
        sheets = [base64.b64encode(sheet).decode() for sheet in self.sheets]
        return {"side": self.side, "stride": self.stride, "columns": COLUMNS, "sheets": sheets}


def make_sprites(images: NDArray[np.uint8], budget: int = BUDGET) -> Sprites:
    """Put pictures on sheets, as good as the budget allows: exact, then coarser, then smaller.

    Args:
        images: uint8 ``[N, C, H, H]`` with 1 or 3 channels.
        budget: bytes of all sheets together.
    """
    count, _, side, _ = images.shape
    if images.size <= LOSSLESS:
        exact = [_encode(sheet, None) for sheet in _tiled(images, side)]
        if sum(map(len, exact)) <= budget:
            return Sprites(side, side, count, exact)
    stride = -(-side // BLOCK) * BLOCK
    for quality in QUALITIES:
        sheets = [_encode(sheet, quality) for sheet in _tiled(images, stride)]
        if sum(map(len, sheets)) <= budget or side <= BLOCK:
            return Sprites(side, stride, count, sheets)
    return make_sprites(at_most(images, max(BLOCK, side * 3 // 4)), budget)


def _tiled(images: NDArray[np.uint8], stride: int) -> list[NDArray[np.uint8]]:
    """Sheets ``[H, W, 3]``; what lies between two pictures repeats the edge of the first."""
    gap = stride - images.shape[-1]
    found = []
    for start in range(0, len(images), COLUMNS**2):
        part = np.pad(images[start : start + COLUMNS**2], ((0, 0), (0, 0), (0, gap), (0, gap)), mode="edge")
        rows, channels = -(-len(part) // COLUMNS), part.shape[1]
        tiles = np.zeros((rows * COLUMNS, channels, stride, stride), np.uint8)
        tiles[: len(part)] = part
        grid = tiles.reshape(rows, COLUMNS, channels, stride, stride).transpose(0, 3, 1, 4, 2)
        sheet = grid.reshape(rows * stride, COLUMNS * stride, channels)
        found.append(np.repeat(sheet, 3, axis=2) if channels == 1 else sheet)
    return found


def _encode(sheet: NDArray[np.uint8], quality: int | None) -> bytes:
    stream = io.BytesIO()
    if quality is None:
        Image.fromarray(sheet).save(stream, "WEBP", lossless=True)
    else:
        Image.fromarray(sheet).save(stream, "WEBP", quality=quality, method=4)
    return stream.getvalue()


def at_most(images: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Pictures ``[N, C, H, H]`` made smaller if they are larger than ``side``."""
    if images.shape[-1] <= side:
        return images

    def one(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        pixels = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
        small = np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.LANCZOS))
        return small[None] if small.ndim == 2 else small.transpose(2, 0, 1)

    return np.stack([one(picture) for picture in images])
