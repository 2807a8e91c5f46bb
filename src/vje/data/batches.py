"""Images as evaluation sees them, batch by batch, in order, in constant memory; unreadable files are reported."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vje.data.decode import UnreadableImage
from vje.data.sources import ArraySource, ImageSource
from vje.preprocessing import Preprocessing
from vje.resize import is_exact

Item = NDArray[np.uint8] | UnreadableImage
_BATCHES_AHEAD = 2


class EvalBatch(NamedTuple):
    """Some of a source's images.

    Attributes:
        indices: their places in the source, int64 ``[B]``; ``B`` is 0 if all of a batch's files are unreadable.
        images: uint8 ``[B, C, crop, crop]``.
        failures: (place in the source, reason) of each unreadable file.
    """

    indices: Tensor
    images: Tensor
    failures: list[tuple[int, str]]


def evaluation_batches(
    source: ImageSource, preprocessing: Preprocessing, batch_size: int, workers: int = 0
) -> Iterator[EvalBatch]:
    """Go through a source in order.

    Args:
        source: the images.
        preprocessing: size, crop and channels; normalisation is left to the device.
        batch_size: how many files a batch is made of; unreadable ones leave it smaller.
        workers: threads that decode (Pillow releases the interpreter lock), two batches ahead; 0 decodes in place.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
    batches = (range(start, min(start + batch_size, len(source))) for start in range(0, len(source), batch_size))
    if isinstance(source, ArraySource) and is_exact(*source.uniform_shape):
        for indices in batches:
            yield EvalBatch(torch.tensor(indices), preprocessing.fit(torch.from_numpy(source.planes(indices))), [])
        return
    with ThreadPoolExecutor(workers) if workers > 0 else nullcontext() as pool:
        waiting: deque[tuple[range, list[Future[Item]]]] = deque()
        try:
            for indices in batches:
                if pool is None:
                    yield _collate(indices, [_fitted(source, i, preprocessing) for i in indices], preprocessing)
                    continue
                waiting.append((indices, [pool.submit(_fitted, source, i, preprocessing) for i in indices]))
                if len(waiting) > _BATCHES_AHEAD:
                    yield _gather(*waiting.popleft(), preprocessing)
            while waiting:
                yield _gather(*waiting.popleft(), preprocessing)
        finally:  # the caller may stop early: what has not begun need not be done
            for _, futures in waiting:
                for future in futures:
                    future.cancel()


def _gather(indices: range, futures: list["Future[Item]"], preprocessing: Preprocessing) -> EvalBatch:
    return _collate(indices, [future.result() for future in futures], preprocessing)


def _fitted(source: ImageSource, index: int, preprocessing: Preprocessing) -> Item:
    try:
        return source.fitted(index, preprocessing.size, preprocessing.crop, preprocessing.channels)
    except UnreadableImage as error:
        return error


def _collate(indices: range, items: Sequence[Item], preprocessing: Preprocessing) -> EvalBatch:
    pairs = list(zip(indices, items, strict=True))
    read = [(index, item) for index, item in pairs if not isinstance(item, UnreadableImage)]
    failed = [(index, item.reason) for index, item in pairs if isinstance(item, UnreadableImage)]
    images = torch.empty((len(read), preprocessing.channels, preprocessing.crop, preprocessing.crop), dtype=torch.uint8)
    for place, (_, pixels) in enumerate(read):
        images[place] = torch.from_numpy(pixels)
    return EvalBatch(torch.tensor([index for index, _ in read], dtype=torch.int64), images, failed)
