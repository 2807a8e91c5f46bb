"""Batches for the training step: from images that live on the device, or streamed to it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vje.data.order import epoch_order, steps_per_epoch
from vje.data.stream import Crops, StreamBatch, stream_batches
from vje.data.workers import death_in_words, signals_held


class Batches(ABC):
    """Where a step's images come from. The loop leads it through the epochs."""

    cropped: bool  # whether there are images for each view, which are crops already
    steps_per_epoch: int  # in an epoch

    @abstractmethod
    def start_epoch(self, epoch: int, first_step: int) -> None:
        """Begin an epoch at one of its steps."""

    def advance(self) -> None:
        """Have the next step's images ready."""

    @abstractmethod
    def fetch(self, step: Tensor) -> Sequence[Tensor]:
        """Raw uint8 images ``[B, C, H, W]`` of this process: one for all views, or one for each if cropped."""

    @abstractmethod
    def labels(self, step: Tensor) -> Tensor | None:
        """Class numbers ``[B]`` of the same images, where they are known."""

    def notes(self) -> dict[str, Any]:
        """What an epoch's record should say about the images."""
        return {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""

    def close(self) -> None:
        """Let go of what only training needs; another epoch may still be started."""


class ResidentBatches(Batches):
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
        self._order.copy_(epoch_order(len(self.images), self.seed, epoch))

    def fetch(self, step: Tensor) -> Sequence[Tensor]:
        """This process's images of a step of the present epoch."""
        return [self.images[self._places(step)]]

    def labels(self, step: Tensor) -> Tensor | None:
        """Their classes."""
        return None if self._all_labels is None else self._all_labels[self._places(step)]

    def _places(self, step: Tensor) -> Tensor:
        start = (step % self.steps_per_epoch) * self.global_batch
        return self._order[start + self._positions]


class StreamBatches(Batches):
    """Files that worker processes decode and crop while the device computes.

    Args:
        crops: of the images.
        global_batch: images a step over all processes.
        batch: images a step in this process.
        first_position: place of the first of them in the global batch.
        epochs: of the whole run.
        workers: processes that decode.
        device: where the images go.
    """

    cropped = True

    def __init__(
        self,
        crops: Crops,
        global_batch: int,
        batch: int,
        first_position: int,
        *,
        epochs: int,
        workers: int,
        device: torch.device,
    ) -> None:
        self.crops, self.global_batch, self.epochs, self.workers = crops, global_batch, epochs, workers
        self.steps_per_epoch = steps_per_epoch(len(crops.source), global_batch)
        self._positions = range(first_position, first_position + batch)
        shape = (batch, crops.channels, crops.size, crops.size)
        self._images = [torch.zeros(shape, dtype=torch.uint8, device=device) for _ in range(2)]
        self._all_labels = None if crops.source.labels is None else torch.as_tensor(crops.source.labels)
        self._labels = torch.zeros(batch, dtype=torch.int64, device=device)
        self._iterator: Iterator[StreamBatch] | None = None
        self._unreadable: dict[str, str] = {}

    def start_epoch(self, epoch: int, first_step: int) -> None:
        """Start the workers, the first time; after that they run ahead from epoch to epoch."""
        if self._iterator is None:
            steps = range(epoch * self.steps_per_epoch + first_step, self.epochs * self.steps_per_epoch)
            on_gpu = self._labels.device.type == "cuda"
            with signals_held():
                self._iterator = stream_batches(
                    self.crops, steps, self.global_batch, self._positions, self.workers, on_gpu
                )

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
        return self._images

    def labels(self, step: Tensor) -> Tensor | None:
        """Their classes."""
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
