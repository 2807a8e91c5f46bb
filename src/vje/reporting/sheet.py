"""The least and most typical of any number of images, on one sheet."""

from collections.abc import Callable
from pathlib import Path

from vje.data.decode import UnreadableImage
from vje.data.sources import ImageSource
from vje.preprocessing import Preprocessing
from vje.reporting.figures import drawable, save_gallery

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
        self._count = count
        self._found: list[tuple[float, int]] = []

    def add(self, score: float, place: int) -> None:
        """Look at one more image."""
        self._found.append((score, place))
        if len(self._found) > 4 * self._count + 1000:
            self._found = [*self.lowest(), *self.highest()]

    def highest(self) -> list[tuple[float, int]]:
        """(score, place), the highest first; of equals, the first."""
        most = min(self._count, (len(self._found) + 1) // 2)
        return sorted(self._found, key=lambda image: (-image[0], image[1]))[:most]

    def lowest(self) -> list[tuple[float, int]]:
        """(score, place), the lowest first; none that is among the highest."""
        high = set(self.highest())
        return [image for image in sorted(self._found) if image not in high][: self._count]


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
            captions.append(f"{score:.1f}\n{drawable(_short(Path(name(place)).name))}")
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
