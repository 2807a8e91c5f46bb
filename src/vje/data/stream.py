"""Training batches for folders too large to keep in memory: workers decode and crop, the device does the rest.

What a step holds depends on the seed and the step alone: not on the number of workers, of processes, or on where a
resumed run began.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vje.data.augment import CROP_DRAWS, Range, crop_boxes
from vje.data.decode import UnreadableImage
from vje.data.order import global_batch
from vje.data.sources import ImageSource
from vje.data.workers import START, answer_to_the_parent
from vje.errors import UserError
from vje.random import Draws, Stream
from vje.resize import as_planes

Place = tuple[int, int, int]  # (index of the image, step, position in the global batch)
_MOST_REPLACEMENTS = 1000


class StreamBatch(NamedTuple):
    """This process's part of a step."""

    indices: Tensor  # place in the source of each image that is shown, int64 ``[B]``
    view_1: Tensor  # random crops, uint8 ``[B, C, size, size]``
    view_2: Tensor  # other random crops of the same images
    # (name, reason) of each file that could not be read; the next readable one takes its place
    failures: list[tuple[str, str]]


class _Item(NamedTuple):
    shown: int
    views: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    failures: list[tuple[str, str]]


class Crops(Dataset[_Item]):
    """Two random resized crops of each image, from one decoding.

    Args:
        source: the images.
        size: side of the crops after resizing.
        channels: 1 or 3.
        seed: the run's seed.
        area: range of the crops' area, as a fraction of the image's.
        ratio: range of the crops' width / height.
    """

    def __init__(
        self,
        source: ImageSource,
        *,
        size: int,
        channels: int,
        seed: int,
        area: Range = (0.08, 1.0),
        ratio: Range = (3 / 4, 4 / 3),
    ) -> None:
        self.source, self.channels, self.seed = source, channels, seed
        self.size, self.area, self.ratio = size, area, ratio
        # A JPEG decoded at this size still has a pixel for each one of the smallest crop.
        self.draft = math.ceil(size / math.sqrt(area[0] * min(ratio[0], 1 / ratio[1]))) if area[0] > 0 else None

    def __getitems__(self, places: Sequence[Place]) -> list[_Item]:
        """The items of one step together, since drawing numbers one image at a time would cost more than decoding."""
        positions = torch.tensor([position for _, _, position in places])
        draws = Draws(self.seed, places[0][1], positions)
        # The first numbers of a view's stream are the crop's; the device draws them too, and uses the rest.
        uniform = torch.stack([draws.uniform(view, CROP_DRAWS) for view in (Stream.VIEW_1, Stream.VIEW_2)], 1)
        return [self._item(place, u) for place, u in zip(places, uniform, strict=True)]

    def _item(self, place: Place, uniform: Tensor) -> _Item:
        index, image, failures = self._read(place[0])
        boxes = crop_boxes(uniform, image.height, image.width, self.area, self.ratio)
        first, second = (self._cut(image, box) for box in boxes.tolist())
        return _Item(index, (first, second), failures)

    def _cut(self, image: Image.Image, box: Sequence[int]) -> NDArray[np.uint8]:
        top, left, height, width = box
        part = image.crop((left, top, left + width, top + height))
        return as_planes(part.resize((self.size, self.size), Image.Resampling.BILINEAR))

    def _read(self, index: int) -> tuple[int, Image.Image, list[tuple[str, str]]]:
        """The image at ``index``, or the next that can be read."""
        failures: list[tuple[str, str]] = []
        for offset in range(min(len(self.source), _MOST_REPLACEMENTS)):
            other = (index + offset) % len(self.source)
            try:
                return other, self.source.image(other, self.channels, self.draft), failures
            except UnreadableImage as error:
                failures.append((self.source.names[other], error.reason))
        raise UserError(
            f"{len(failures)} files of {self.source.name} in a row cannot be read; {failures[0][0]}: {failures[0][1]}"
        )


def stream_batches(
    crops: Crops, steps: range, batch_size: int, positions: range, workers: int = 0, pin_memory: bool = False
) -> Iterator[StreamBatch]:
    """The batches of some steps.

    Args:
        crops: of the images.
        steps: counted over all epochs from 0.
        batch_size: of all processes together.
        positions: this process's places in the global batch.
        workers: worker processes; 0 decodes in this one.
        pin_memory: keep batches in page-locked memory, for copying to a GPU.
    """
    loader: DataLoader[StreamBatch] = DataLoader(
        crops,  # type: ignore[arg-type]  # what is collated is of another type
        batch_sampler=_places(crops, steps, batch_size, positions),
        collate_fn=_collate,
        num_workers=workers,
        worker_init_fn=answer_to_the_parent,
        multiprocessing_context=START if workers else None,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # the loader draws from it; the global generator stays as it was
    )
    return iter(loader)


def _places(crops: Crops, steps: range, batch_size: int, positions: range) -> Iterator[list[Place]]:
    """The places of each step's images, a pure function of its arguments."""
    for step in steps:
        indices = global_batch(len(crops.source), batch_size, crops.seed, step).tolist()
        yield [(indices[position], step, position) for position in positions]


def _collate(items: Sequence[_Item]) -> StreamBatch:
    first, second = (torch.from_numpy(np.stack([item.views[view] for item in items])) for view in (0, 1))
    failures = [failure for item in items for failure in item.failures]
    return StreamBatch(torch.tensor([item.shown for item in items]), first, second, failures)
