"""Batches for the training step: from images that live on the device, or streamed to it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vje.data.augment import Range
from vje.data.order import epoch_order, steps_per_epoch
from vje.data.sources import ImageSource
from vje.data.stream import StreamBatch, stream_loader
from vje.data.workers import death_in_words, signals_held


class ResidentBatches:
    """Images that live on the device as uint8; a step gathers its own, so the host has nothing to do.

    Args:
        images: uint8 ``[N, C, H, W]`` on the device.
        global_batch: images a step over all processes.
        batch: images a step in this process.
        first_position: place of the first of them in the global batch.
        seed: of the order.
        labels: class numbers ``[N]`` on the device, if known.
    """

    cropped = False

    def __init__(
        self,
        images: Tensor,
        global_batch: int,
        batch: int,
        first_position: int,
        seed: int,
        labels: Tensor | None = None,
    ) -> None:
        self.images, self.global_batch, self.seed = images, global_batch, seed
        self._all_labels = labels
        self.steps_per_epoch = steps_per_epoch(len(images), global_batch)
        self._positions = torch.arange(first_position, first_position + batch, device=images.device)
        self._order = torch.arange(len(images), device=images.device)

    def start_epoch(self, epoch: int, first_step: int) -> None:
        """Shuffle for an epoch; any of its steps may come first."""
        del first_step
        self._order.copy_(epoch_order(len(self.images), self.seed, epoch))

    def advance(self) -> None:
        """Get the next step's images ready; they always are."""

    def fetch(self, step: Tensor) -> Sequence[Tensor]:
        """This process's images of a step of the present epoch."""
        return [self.images[self._places(step)]]

    def labels(self, step: Tensor) -> Tensor | None:
        """Their classes."""
        return None if self._all_labels is None else self._all_labels[self._places(step)]

    def _places(self, step: Tensor) -> Tensor:
        start = (step % self.steps_per_epoch) * self.global_batch
        return self._order[start + self._positions]

    def notes(self) -> dict[str, Any]:
        """Nothing to say: unreadable files were left out before training."""
        return {}

    def state(self) -> dict[str, Any]:
        """Nothing to keep: batches depend on the seed and the step alone."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""

    def close(self) -> None:
        """Nothing to let go of."""


class StreamBatches:
    """Files that worker processes decode and crop while the device computes.

    Args:
        source: the images.
        size: side of the crops.
        channels: colour channels.
        area: range of the crops' area.
        ratio: range of their aspect ratio.
        global_batch: images a step over all processes.
        rank: number of this process.
        world: number of processes.
        seed: of the order and the crops.
        epochs: of the whole run.
        workers: processes that decode.
        device: where the images go.
    """

    cropped = True

    def __init__(
        self,
        source: ImageSource,
        *,
        size: int,
        channels: int,
        area: Range,
        ratio: Range,
        global_batch: int,
        rank: int,
        world: int,
        seed: int,
        epochs: int,
        workers: int,
        device: torch.device,
    ) -> None:
        self.steps_per_epoch = steps_per_epoch(len(source), global_batch)
        self._last_step = epochs * self.steps_per_epoch
        self._open: Callable[[int], DataLoader[StreamBatch]] = lambda first: stream_loader(
            source,
            batch_size=global_batch,
            size=size,
            channels=channels,
            seed=seed,
            start_step=first,
            stop_step=self._last_step,
            area=area,
            ratio=ratio,
            rank=rank,
            world=world,
            workers=workers,
            pin_memory=device.type == "cuda",
        )
        shape = (global_batch // world, channels, size, size)
        self._images = [torch.zeros(shape, dtype=torch.uint8, device=device) for _ in range(2)]
        self._all_labels = None if source.labels is None else torch.as_tensor(source.labels)
        self._labels = torch.zeros(shape[0], dtype=torch.int64, device=device)
        self._iterator: Iterator[StreamBatch] | None = None
        self._unreadable: dict[str, str] = {}

    def start_epoch(self, epoch: int, first_step: int) -> None:
        """Start the workers, the first time; after that they run ahead from epoch to epoch."""
        if self._iterator is None:
            with signals_held():
                self._iterator = iter(self._open(epoch * self.steps_per_epoch + first_step))

    def advance(self) -> None:
        """Copy the next batch to the device."""
        assert self._iterator is not None
        with death_in_words():
            batch = next(self._iterator)
        for buffer, images in zip(self._images, (batch.view_1, batch.view_2), strict=True):
            buffer.copy_(images, non_blocking=True)
        if self._all_labels is not None:
            self._labels.copy_(self._all_labels[batch.indices])
        self._unreadable.update(batch.failures)

    def fetch(self, step: Tensor) -> Sequence[Tensor]:
        """The views that were copied last, which are those of the present step."""
        del step
        return self._images

    def labels(self, step: Tensor) -> Tensor | None:
        """Their classes."""
        del step
        return None if self._all_labels is None else self._labels

    def notes(self) -> dict[str, Any]:
        """How many files could not be read so far, if any."""
        return {"unreadable_files": len(self._unreadable)} if self._unreadable else {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the files that could not be read, and why."""
        return {"unreadable": self._unreadable}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._unreadable = dict(state["unreadable"])

    def close(self) -> None:
        """End the workers: left to the garbage collector, each would be waited for in vain for five seconds."""
        self._iterator = None
