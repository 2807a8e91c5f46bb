"""Small data sets, decoded once and kept whole as uint8."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vje.data.batches import evaluation_batches
from vje.data.sources import ImageSource
from vje.errors import UserError
from vje.preprocessing import Preprocessing

_BATCH = 256
_CHUNK = 4096


class NothingReadable(UserError):
    """No image of a source can be read."""


@dataclass(frozen=True)
class Resident:
    """A data set in memory."""

    images: Tensor  # uint8 ``[N, C, crop, crop]``, on the CPU
    labels: Tensor | None  # int64 ``[N]``, or ``None``
    kept: NDArray[np.int64]  # place in the source of each image, int64 ``[N]``
    skipped: list[tuple[str, str]]  # (name, reason) of each file that could not be read


def load_resident(source: ImageSource, size: int, crop: int, channels: int, workers: int = 0) -> Resident:
    """Read a whole source, exactly as :func:`vje.data.batches.evaluation_batches` would.

    Args:
        source: the images; unreadable ones are left out and listed.
        size: side of the shorter edge after resizing.
        crop: side of the square cut from the centre.
        channels: 1 or 3.
        workers: threads, or for many files processes, that decode.
    """
    prepare = Preprocessing(size, crop, channels, mean=(0.0,) * channels, std=(1.0,) * channels)
    images = torch.empty((len(source), channels, crop, crop), dtype=torch.uint8)
    kept: list[Tensor] = []
    skipped: list[tuple[str, str]] = []
    filled = 0
    for batch in evaluation_batches(source, prepare, _BATCH, workers):
        images[filled : filled + len(batch.indices)] = batch.images
        filled += len(batch.indices)
        kept.append(batch.indices)
        skipped += [(source.names[index], reason) for index, reason in batch.failures]
    if not filled:
        raise NothingReadable(
            f"none of the {len(source)} images of {source.name} can be read; {skipped[0][0]}: {skipped[0][1]}"
        )
    index = torch.cat(kept).numpy()
    labels = None if source.labels is None else torch.from_numpy(source.labels[index])
    return Resident(images[:filled], labels, index, skipped)


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel on the [0, 1] scale, from exact counts of the 256 levels.

    Args:
        images: uint8 ``[N, C, H, W]``.

    Returns:
        mean and std; a constant channel has std 1, so that dividing by it is safe.

    >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or not images.numel():
        raise ValueError(f"images must be uint8 [N, C, H, W], got {images.dtype} {tuple(images.shape)}")
    levels = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        counts = torch.zeros(256, dtype=torch.int64)
        for start in range(0, len(images), _CHUNK):  # a channel is not contiguous, and flattening it makes a copy
            counts += torch.bincount(images[start : start + _CHUNK, channel].flatten(), minlength=256).cpu()
        weights = counts.numpy() / counts.sum().item()
        mean = float(weights @ levels)
        means.append(mean)
        stds.append(float(np.sqrt(weights @ (levels - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)
