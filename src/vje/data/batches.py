"""Images as evaluation sees them, batch by batch, in order, in constant memory; unreadable files are reported."""

import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from vje.data.decode import UnreadableImage
from vje.data.sources import ArraySource, ImageSource
from vje.data.workers import START, answer_to_the_parent, death_in_words, signals_held
from vje.errors import UserError
from vje.preprocessing import Preprocessing

Item = NDArray[np.uint8] | UnreadableImage
Part = tuple[list[int], NDArray[np.uint8], list[tuple[int, str]]]  # an EvalBatch without tensors
_BATCHES_AHEAD = 2

MANY = 1000
"""From so many images on, they are decoded by processes: of small ones a thread would do half as many as no thread."""
PART = 32
"""Images that a process decodes at a time."""


class EvalBatch(NamedTuple):
    """Some of a source's images."""

    indices: Tensor  # their places in the source, int64 ``[B]``; ``B`` is 0 if all of a batch's files are unreadable
    images: Tensor  # uint8 ``[B, C, crop, crop]``
    failures: list[tuple[int, str]]  # (place in the source, reason) of each unreadable file


def evaluation_batches(
    source: ImageSource, preprocessing: Preprocessing, batch_size: int, workers: int = 0
) -> Iterator[EvalBatch]:
    """Go through a source in order.

    Args:
        source: the images.
        preprocessing: size, crop and channels; normalisation is left to the device.
        batch_size: how many files a batch is made of; unreadable ones leave it smaller.
        workers: how many decode, a little ahead; 0 decodes in place. They are threads, as Pillow decodes outside the
            interpreter lock, or processes, for :data:`MANY` images and more, where these can be forked.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
    if workers < 0:
        raise UserError(f"--workers must be 0 or more, got {workers}.")
    batches = (range(start, min(start + batch_size, len(source))) for start in range(0, len(source), batch_size))
    if isinstance(source, ArraySource) and min(source.uniform_shape) == preprocessing.size:  # a crop at most
        for indices in batches:
            yield EvalBatch(torch.tensor(indices), preprocessing.fit(torch.from_numpy(source.planes(indices))), [])
        return
    processes = min(workers, _most_processes())
    if processes > 1 and len(source) >= MANY:
        yield from _by_processes(source, preprocessing, list(batches), processes)
    elif workers > 0:
        yield from _by_threads(source, preprocessing, batches, workers)
    else:
        yield from (_decoded(source, indices, preprocessing) for indices in batches)


def _most_processes() -> int:
    """One a core; none where one cannot be forked, but would load the caller's script again (macOS, Windows)."""
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 0
    return len(os.sched_getaffinity(0))


def _by_threads(
    source: ImageSource, preprocessing: Preprocessing, batches: Iterable[range], workers: int
) -> Iterator[EvalBatch]:
    waiting: deque[tuple[range, list[Future[Item]]]] = deque()

    def first() -> EvalBatch:
        indices, futures = waiting.popleft()
        return _collate(indices, [future.result() for future in futures], preprocessing)

    with ThreadPoolExecutor(workers) as pool:
        try:
            for indices in batches:
                waiting.append((indices, [pool.submit(_fitted, source, i, preprocessing) for i in indices]))
                if len(waiting) > _BATCHES_AHEAD:
                    yield first()
            while waiting:
                yield first()
        finally:  # the caller may stop early: what has not begun need not be done
            pool.shutdown(cancel_futures=True)


def _fitted(source: ImageSource, index: int, preprocessing: Preprocessing) -> Item:
    try:
        return source.fitted(index, preprocessing.size, preprocessing.crop, preprocessing.channels)
    except UnreadableImage as error:
        return error


def _decoded(source: ImageSource, indices: range, preprocessing: Preprocessing) -> EvalBatch:
    return _collate(indices, [_fitted(source, i, preprocessing) for i in indices], preprocessing)


def _by_processes(
    source: ImageSource, preprocessing: Preprocessing, batches: Sequence[range], workers: int
) -> Iterator[EvalBatch]:
    """Parts come back as arrays, through pipes: tensors would take shared memory, of which containers have little."""
    parts = [batch[start : start + PART] for batch in batches for start in range(0, len(batch), PART)]
    loader: DataLoader[Part] = DataLoader(
        parts,  # type: ignore[arg-type]  # a list does
        batch_size=None,
        collate_fn=partial(_part, source, preprocessing),  # in the worker
        num_workers=min(workers, len(parts)),
        worker_init_fn=answer_to_the_parent,
        multiprocessing_context=START,
        generator=torch.Generator(),  # the loader draws from it; the global generator stays as it was
    )
    decoded = None
    with suppress(OSError), signals_held():  # no semaphores, or no more processes, are to be had here
        multiprocessing.get_context(START).Lock()  # the loader would begin, and not know how to end
        decoded = iter(loader)
    if decoded is None:
        yield from _by_threads(source, preprocessing, batches, workers)
        return
    for batch in batches:
        with death_in_words():
            indices, images, failures = zip(*(next(decoded) for _ in range(0, len(batch), PART)), strict=True)
        places = torch.tensor(list(chain(*indices)), dtype=torch.int64)
        yield EvalBatch(places, torch.from_numpy(np.concatenate(images)), list(chain(*failures)))


def _part(source: ImageSource, preprocessing: Preprocessing, indices: range) -> Part:
    batch = _decoded(source, indices, preprocessing)
    return batch.indices.tolist(), batch.images.numpy(), batch.failures


def _collate(indices: range, items: Sequence[Item], preprocessing: Preprocessing) -> EvalBatch:
    pairs = list(zip(indices, items, strict=True))
    read = [(index, item) for index, item in pairs if not isinstance(item, UnreadableImage)]
    failed = [(index, item.reason) for index, item in pairs if isinstance(item, UnreadableImage)]
    images = torch.empty((len(read), preprocessing.channels, preprocessing.crop, preprocessing.crop), dtype=torch.uint8)
    for place, (_, pixels) in enumerate(read):
        images[place] = torch.from_numpy(pixels)
    return EvalBatch(torch.tensor([index for index, _ in read], dtype=torch.int64), images, failed)
