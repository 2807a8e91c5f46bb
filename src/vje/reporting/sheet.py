"""The least and most typical of any number of images, on one sheet."""

import heapq
from collections.abc import Callable
from pathlib import Path

from vje.data.decode import UnreadableImage
from vje.data.sources import ImageSource
from vje.preprocessing import Preprocessing
from vje.reporting.gallery import save_gallery

COLUMNS = 10
WIDTH = 1.4
LONGEST_NAME = 16


class Extremes:
    """The places of the images with the highest and lowest scores, in memory that does not grow with their number.

    Args:
        count: how many of each; of fewer images than twice that, half are high and half are low.

    >>> extremes = Extremes(2)
    >>> for place, score in enumerate([5.0, 1.0, 9.0, 7.0, 1.0]):
    ...     extremes.add(score, place)
    >>> extremes.highest(), extremes.lowest()
    ([(9.0, 2), (7.0, 3)], [(1.0, 1), (1.0, 4)])
    """

    def __init__(self, count: int) -> None:
        self._count, self._seen = count, 0
        self._high: list[tuple[float, int]] = []  # heaps of (rank, -place): of equals, the first stay
        self._low: list[tuple[float, int]] = []

    def add(self, score: float, place: int) -> None:
        """Look at one more image."""
        self._seen += 1
        for heap, rank in ((self._high, score), (self._low, -score)):
            heapq.heappush(heap, (rank, -place))
            if len(heap) > self._count:
                heapq.heappop(heap)

    def highest(self) -> list[tuple[float, int]]:
        """(score, place), the highest first."""
        found = [(rank, -place) for rank, place in sorted(self._high, reverse=True)]
        return found[: (self._seen + 1) // 2]

    def lowest(self) -> list[tuple[float, int]]:
        """(score, place), the lowest first; none that is among the highest."""
        high = set(self.highest())
        found = [(-rank, -place) for rank, place in sorted(self._low, reverse=True)]
        return [image for image in found if image not in high]


def save_sheet(
    file: Path,
    source: ImageSource,
    preprocessing: Preprocessing,
    rows: dict[str, list[tuple[float, int]]],
    name: Callable[[int], str],
) -> int:
    """Draw images as the model sees them, with score and name; returns how many.

    Args:
        file: picture to write; with no image that can still be read, none is.
        source: of the images, which are decoded again.
        preprocessing: their size.
        rows: title, and (score, place in the source) of each image.
        name: of the image at a place.
    """
    sheet = []
    for title, entries in rows.items():
        images, captions = [], []
        for score, place in entries:
            try:
                images.append(source.fitted(place, preprocessing.size, preprocessing.crop, preprocessing.channels))
            except UnreadableImage:  # it could be read when it was scored
                continue
            captions.append(f"{score:.1f}\n{_short(Path(name(place)).name)}")
        for start in range(0, len(images), COLUMNS):
            part = slice(start, start + COLUMNS)
            sheet.append(("" if start else title, images[part], captions[part]))
    if sheet:
        save_gallery(file, sheet, WIDTH)
    return sum(len(images) for _, images, _ in sheet)


def _short(name: str) -> str:
    """A name that fits under a picture.

    >>> _short("IMG_0001.jpg"), _short("a-very-long-name-from-a-phone.jpg")
    ('IMG_0001.jpg', 'a-very…phone.jpg')
    """
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME // 2 - 2]}…{name[-(LONGEST_NAME // 2 + 1) :]}"
