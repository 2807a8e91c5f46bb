"""What `vje probe` trains on: features that were computed before, or augmented images as they come."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vje.config import Config
from vje.data.augment import Augmentation
from vje.data.resident import load_resident
from vje.data.sources import ImageSource
from vje.data.stream import Crops
from vje.errors import UserError
from vje.evaluation.evaluate import encoded_spaces, stored_spaces
from vje.evaluation.features import Features
from vje.evaluation.probe import Split, Training, hold_out, shuffled, stored_training
from vje.evaluation.usual import USUAL_PROBE
from vje.methods.method import Method
from vje.random import Draws, Stream
from vje.training.batches import Batches, ResidentBatches, StreamBatches

if TYPE_CHECKING:
    from vje.cli.probe import Options

REFERENCE = 20_000
"""Images whose features are standardised by, where not all are at hand."""

FeaturesOf = Callable[[str, ImageSource], Features]


class EncodedBatches:
    """Mini-batches of features of augmented images; the encoder, in evaluation mode, runs on each as it comes.

    Args:
        model: whose features they are, with its preprocessing.
        images: batches of raw images, whose "labels" are the images' places in the training set.
        augmentation: of the one view there is.
        names: spaces.
        batch: images a step.
        seed: that ``images`` was made with, of the crops and flips.
        autocast: run the encoder in bfloat16.
        unreadable: files that are known to be so, by name, and why.
    """

    def __init__(
        self,
        model: Method,
        images: Batches,
        augmentation: Augmentation,
        names: Sequence[str],
        batch: int,
        seed: int,
        autocast: bool = False,
        unreadable: Mapping[str, str] | None = None,
    ) -> None:
        self.model, self.images, self.augmentation, self.batch = model, images, augmentation, batch
        self.names, self.seed, self.autocast = list(names), seed, autocast
        self.steps_per_epoch = images.steps_per_epoch
        self._unreadable = dict(unreadable or {})
        device = next(model.parameters()).device
        self._step = torch.zeros((), dtype=torch.int64, device=device)  # counted there, so that nothing waits for it
        self._positions = torch.arange(batch, device=device)

    def epoch(self, number: int) -> Iterator[tuple[Mapping[str, Tensor], Tensor]]:
        """The mini-batches of an epoch; epochs come in order."""
        self.images.start_epoch(number, 0)
        self._step.fill_(number * self.steps_per_epoch)
        for _ in range(self.steps_per_epoch):
            self.images.advance()
            pixels, places = self.images.fetch(self._step)[0], self.images.labels(self._step)
            assert places is not None
            draws = Draws(self.seed, self._step, self._positions)
            x = self.augmentation(pixels, draws, Stream.VIEW_1, self.images.cropped)
            yield encoded_spaces(self.model, x, self.names, self.autocast), places
            self._step += 1

    def unreadable(self) -> Mapping[str, str]:
        """Why files could not be read, by name: those known before, and those that were met."""
        met: dict[str, str] = self.images.state().get("unreadable", {})
        return self._unreadable | met

    def close(self) -> None:
        """End the processes that decode images."""
        self.images.close()


def step_batch(wanted: int | None, images: int) -> int:
    """Images a step, for so many training images.

    >>> step_batch(None, 50_000), step_batch(None, 162), step_batch(64, 162)
    (256, 81, 64)
    """
    half = max(1, images // 2)
    if wanted is not None and wanted > images:
        raise UserError(f"--batch {wanted} is more than the {images} training images: use --batch {half}.")
    usual: int = USUAL_PROBE["batch"]
    return wanted or (usual if images >= usual else half)


def stored(
    model: Method, bank: ImageSource, names: list[str], features: FeaturesOf, _: Config, options: "Options"
) -> Training:
    """Training on features without augmentation, each computed once."""
    found = features("training images", bank)
    assert found.labels is not None
    spaces, batch = stored_spaces(model, found, names), step_batch(options.batch, len(found.labels))
    return stored_training(spaces, found.labels, batch, options.held_out, options.seed)


def augmented(
    model: Method,
    bank: ImageSource,
    names: list[str],
    features: FeaturesOf,
    config: Config,
    options: "Options",
) -> Training:
    """Training on random crops and flips; the images held out are seen whole, as test images are."""
    assert bank.labels is not None
    held = hold_out(len(bank), options.held_out, options.seed)
    few = shuffled(len(bank), options.seed)[: max(REFERENCE, len(held))]  # the images held out come first
    found = features("reference images", bank.subset(few.numpy()))
    reference = stored_spaces(model, found, names)
    inner = found.kept < len(held)  # unreadable files have no features
    assert found.labels is not None
    validation = Split({name: x[inner.to(x.device)] for name, x in reference.items()}, found.labels[inner])
    batches = _encoded(model, bank, names, config, options, dict(found.failures))
    return Training(batches, torch.as_tensor(bank.labels), held, validation, reference)


def _encoded(
    model: Method,
    bank: ImageSource,
    names: list[str],
    config: Config,
    options: "Options",
    unreadable: Mapping[str, str],
) -> EncodedBatches:
    """The run's crops and flips, on images that live on the device or are streamed to it."""
    prepare, device, settings = model.preprocessing, next(model.parameters()).device, config.augment
    assert prepare is not None
    area, ratio = settings.crop_area, settings.crop_ratio
    images: Batches
    if bank.uniform_shape is not None:
        side = min(bank.uniform_shape)
        found = load_resident(bank, side, side, prepare.channels, options.workers)
        places = torch.from_numpy(found.kept).to(device)
        batch = step_batch(options.batch, len(found.kept))
        images = ResidentBatches(found.images.to(device), batch, batch, 0, options.seed, places)
    else:
        source, workers = bank.labelled(np.arange(len(bank))), min(options.workers, os.cpu_count() or 1)
        batch = step_batch(options.batch, len(bank))
        crops = Crops(source, size=prepare.crop, channels=prepare.channels, seed=options.seed, area=area, ratio=ratio)
        images = StreamBatches(crops, batch, batch, 0, epochs=options.epochs, workers=workers, device=device)
    augmentation = Augmentation(prepare.crop, area, ratio, settings.flip, jitter=0.0, grayscale=0.0)
    autocast = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return EncodedBatches(model, images, augmentation, names, batch, options.seed, autocast, unreadable)
