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
from torch.utils.data import DataLoader, Dataset, Sampler

from vje.data.augment import CROP_DRAWS, Range, crop_boxes
from vje.data.decode import UnreadableImage
from vje.data.order import global_batch, rank_slice
from vje.data.sources import ImageSource
from vje.data.workers import START, answer_to_the_parent
from vje.errors import UserError
from vje.random import Draws, Stream
from vje.resize import as_planes

Place = tuple[int, int, int]  # (index of the image, step, position in the global batch)
_MOST_REPLACEMENTS = 1000


class StreamBatch(NamedTuple):
    """This process's part of a step.

    Attributes:
        step: counted over all epochs from 0.
        indices: place in the source of each image that is shown, int64 ``[B]``.
        positions: place of each in the global batch, int64 ``[B]``.
        view_1: random crops, uint8 ``[B, C, size, size]``.
        view_2: other random crops of the same images.
        failures: (name, reason) of each file that could not be read; the next readable one takes its place.
    """

    step: int
    indices: Tensor
    positions: Tensor
    view_1: Tensor
    view_2: Tensor
    failures: list[tuple[str, str]]


class _Item(NamedTuple):
    place: Place
    views: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    failures: list[tuple[str, str]]


def stream_loader(
    source: ImageSource,
    *,
    batch_size: int,
    size: int,
    channels: int,
    seed: int,
    start_step: int,
    stop_step: int,
    area: Range = (0.08, 1.0),
    ratio: Range = (3 / 4, 4 / 3),
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
    pin_memory: bool = False,
) -> "DataLoader[StreamBatch]":
    """The batches of steps ``start_step`` to ``stop_step`` (not included), as :class:`StreamBatch`.

    Args:
        source: the images.
        batch_size: of all processes together.
        size: side of the crops after resizing.
        channels: 1 or 3.
        seed: the run's seed.
        start_step: first step, counted over all epochs from 0.
        stop_step: the step after the last.
        area: range of the crops' area, as a fraction of the image's.
        ratio: range of the crops' width / height.
        rank: number of this process.
        world: number of processes.
        workers: worker processes; 0 decodes in this one.
        pin_memory: keep batches in page-locked memory, for copying to a GPU.
    """
    return DataLoader(
        _Crops(source, size=size, channels=channels, seed=seed, area=area, ratio=ratio),  # type: ignore[arg-type]
        batch_sampler=_Steps(
            len(source), batch_size, seed, range(start_step, stop_step), rank_slice(batch_size, rank, world)
        ),
        collate_fn=_collate,
        num_workers=workers,
        worker_init_fn=answer_to_the_parent,
        multiprocessing_context=START if workers else None,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # the loader draws from it; the global generator stays as it was
    )


class _Steps(Sampler[list[Place]]):
    """The places of each step's images, a pure function of its arguments."""

    def __init__(self, count: int, batch_size: int, seed: int, steps: range, share: slice) -> None:
        self.count, self.batch_size, self.seed, self.steps, self.share = count, batch_size, seed, steps, share

    def __iter__(self) -> Iterator[list[Place]]:
        positions = range(self.batch_size)[self.share]
        for step in self.steps:
            indices = global_batch(self.count, self.batch_size, self.seed, step)[self.share].tolist()
            yield [(index, step, position) for index, position in zip(indices, positions, strict=True)]

    def __len__(self) -> int:
        return len(self.steps)


class _Crops(Dataset[_Item]):
    """Two random resized crops of each image, from one decoding."""

    def __init__(self, source: ImageSource, *, size: int, channels: int, seed: int, area: Range, ratio: Range) -> None:
        self.source, self.channels, self.seed = source, channels, seed
        self.size, self.area, self.ratio = size, area, ratio
        # A JPEG decoded at this size still has a pixel for each one of the smallest crop.
        self.draft = math.ceil(size / math.sqrt(area[0] * min(ratio[0], 1 / ratio[1]))) if area[0] > 0 else None

    def __getitem__(self, place: Place) -> _Item:
        return self.__getitems__([place])[0]

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
        return _Item((index, *place[1:]), (first, second), failures)

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


def _collate(items: Sequence[_Item]) -> StreamBatch:
    first, second = (torch.from_numpy(np.stack([item.views[view] for item in items])) for view in (0, 1))
    indices, steps, positions = torch.tensor([item.place for item in items]).unbind(1)
    failures = [failure for item in items for failure in item.failures]
    return StreamBatch(int(steps[0]), indices, positions, first, second, failures)
