"""The linear probe: linear classifiers on frozen features, trained with SGD at several learning rates in one pass.

The test images have no say in the choice of the rate. A part of the training images is held out, and every rate has
two classifiers that are trained side by side on the same mini-batches: one passes over the images held out, and its
accuracy on them chooses the rate; the other learns from all training images, and its accuracy on the test images is
the result.

Features are standardised by default: less the mean and over the standard deviation that each has on training images.
Encoders differ tenfold in the scale of their features, and a rate would mean something else for each of them. The
result is still a linear classifier of the features themselves.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vje.data.order import epoch_order, steps_per_epoch
from vje.errors import UserError
from vje.evaluation.features import Report
from vje.evaluation.sweep import LinearSweep, scale_of
from vje.evaluation.usual import USUAL_PROBE

MOST_HELD_OUT = 10_000


class Split(NamedTuple):
    """Images as the probe sees them."""

    features: Mapping[str, Tensor]  # ``[N, D]``, by the name of the space they are in
    labels: Tensor  # class numbers, int64 ``[N]``


class TrainingFeatures(Protocol):
    """Where mini-batches come from."""

    batch: int
    steps_per_epoch: int

    def epoch(self, number: int) -> Iterator[tuple[Mapping[str, Tensor], Tensor]]:
        """Features ``[B, D]`` of each mini-batch by space, and the places of its images in the training set."""

    def unreadable(self) -> Mapping[str, str]:
        """Why files of the training set could not be read, by name, as far as is known."""

    def close(self) -> None:
        """Let go of what only training needs."""


class Training(NamedTuple):
    """What classifiers are trained on."""

    batches: TrainingFeatures  # mini-batches of the training images
    labels: Tensor  # class of each training image, int64 ``[N]``
    held_out: Tensor  # places of those that choose the rate; see :func:`hold_out`
    validation: Split  # the images held out, as they are tested on
    reference: Mapping[str, Tensor]  # features of training images to standardise by, ``[M, D]`` by space


class FeatureBatches:
    """Mini-batches of features that were computed before; the images' order is that of training.

    Args:
        features: ``[N, D]`` by space, on the device.
        batch: images a step.
        seed: of the order.
    """

    def __init__(self, features: Mapping[str, Tensor], batch: int, seed: int) -> None:
        self.features, self.batch, self.seed = dict(features), batch, seed
        self._first = next(iter(self.features.values()))
        self.steps_per_epoch = steps_per_epoch(len(self._first), batch)

    def epoch(self, number: int) -> Iterator[tuple[Mapping[str, Tensor], Tensor]]:
        """The mini-batches of an epoch; what does not fill one is left to other epochs."""
        order = epoch_order(len(self._first), self.seed, number).to(self._first.device)
        for rows in order.split(self.batch)[: self.steps_per_epoch]:
            yield {name: x[rows] for name, x in self.features.items()}, rows

    def unreadable(self) -> Mapping[str, str]:
        """None: what could not be read has no features."""
        return {}

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass(frozen=True)
class RateResult:
    """One learning rate: accuracies in percent; ``top5`` only for more than five classes."""

    lr: float
    validation_top1: float
    validation_loss: float
    test_top1: float
    test_top5: float | None


@dataclass(frozen=True)
class ProbeResult:
    """The probe of one space: the test accuracy in percent at the chosen rate, and what every rate gave."""

    top1: float
    top5: float | None
    lr: float
    rates: list[RateResult]


def linear_probe(
    training: Training,
    test: Split,
    *,
    rates: Sequence[float] = USUAL_PROBE["lr"],
    epochs: int = 100,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    standardize: bool = True,
    report: Report | None = None,
) -> dict[str, ProbeResult]:
    """Train and test classifiers at every rate, in every space that the test images have features of.

    Args:
        training: the training images.
        test: the images that tell how good the classifiers are; their device is where it is computed.
        rates: learning rates.
        epochs: passes over the training images.
        momentum: of SGD.
        weight_decay: of the weights, not the biases.
        standardize: bring every feature to mean 0 and standard deviation 1.
        report: told (epochs done, epochs in all) after each epoch.
    """
    classes = training.labels.unique()
    if len(classes) < 2:
        raise UserError("the linear probe needs images of at least two classes: check the labels.")
    both = [*rates, *rates]  # learning from all images, and from those not held out
    steps = epochs * training.batches.steps_per_epoch
    some = next(iter(test.features.values()))
    device, dtype = some.device, some.dtype
    sweeps = {}
    for name, x in test.features.items():
        mean, std = scale_of(training.reference[name]) if standardize else (None, None)
        sweeps[name] = LinearSweep(
            x.shape[1], len(classes), both, steps, momentum, weight_decay, mean, std, device, dtype
        )
    # Which classifiers learn from each image, [N, 2R].
    share = torch.ones(len(training.labels), len(both), device=device, dtype=dtype)
    share[training.held_out.to(device), len(rates) :] = 0
    numbers = _numbered(training.labels, classes).to(device)
    with closing(training.batches) as batches:
        for epoch in range(epochs):
            for features, rows in batches.epoch(epoch):
                for name, sweep in sweeps.items():
                    sweep.step(features[name], numbers[rows], share[rows])
            if report is not None:
                report(epoch + 1, epochs)
    inner, outer = (part._replace(labels=_numbered(part.labels, classes)) for part in (training.validation, test))
    return {name: _conclude(sweep, name, rates, inner, outer) for name, sweep in sweeps.items()}


def stored_training(
    features: Mapping[str, Tensor], labels: Tensor, batch: int = 256, held_out: float = 0.1, seed: int = 0
) -> Training:
    """Training on features that were computed before.

    Args:
        features: of the training images, ``[N, D]`` by space, on the device.
        labels: their classes, int64 ``[N]``.
        batch: images a step.
        held_out: fraction of them that chooses the rate.
        seed: of the order and of what is held out.

    >>> x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> test = Split({"x": x[300:]}, y[300:])
    >>> linear_probe(stored_training({"x": x[:300]}, y[:300], batch=50), test, epochs=20)["x"].top1 > 95
    True
    """
    held = hold_out(len(labels), held_out, seed)
    validation = Split({name: x[held.to(x.device)] for name, x in features.items()}, labels[held])
    return Training(FeatureBatches(features, batch, seed), labels, held, validation, features)


def hold_out(count: int, fraction: float, seed: int) -> Tensor:
    """Places of the training images that choose the rate: a random ``fraction``, 10,000 at most."""
    if not 0 < fraction < 1:
        raise UserError(f"the fraction held out to choose the rate must be between 0 and 1, got {fraction}.")
    return shuffled(count, seed)[: max(1, min(round(fraction * count), MOST_HELD_OUT, count - 1))]


def shuffled(count: int, seed: int) -> Tensor:
    """The training images in an order that no epoch has."""
    return epoch_order(count, seed, epoch=-1)


def _numbered(labels: Tensor, classes: Tensor) -> Tensor:
    """Places of labels in the sorted ``classes``; -1 for any other label."""
    labels = labels.to(classes.device)
    place = torch.searchsorted(classes, labels).clamp_max(len(classes) - 1)
    return torch.where(classes[place] == labels, place, -1)


def _conclude(sweep: LinearSweep, name: str, rates: Sequence[float], validation: Split, test: Split) -> ProbeResult:
    """Choose a rate on the validation images, and say what the test images make of it."""
    half, top5 = len(rates), sweep.bias.shape[1] > 5
    columns = (
        rates,
        sweep.accuracy(validation.features[name], validation.labels)[half:].tolist(),
        sweep.loss(validation.features[name], validation.labels)[half:].nan_to_num(math.inf).tolist(),
        sweep.accuracy(test.features[name], test.labels)[:half].tolist(),
        sweep.accuracy(test.features[name], test.labels, 5)[:half].tolist() if top5 else [None] * half,
    )
    found = [RateResult(*row) for row in zip(*columns, strict=True)]
    best = max(found, key=lambda rate: (rate.validation_top1, -rate.validation_loss))
    return ProbeResult(best.test_top1, best.test_top5, best.lr, found)
