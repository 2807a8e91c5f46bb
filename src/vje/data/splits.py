"""Which images train, and which are kept from training.

A set without a test split of its own gets one drawn from the seed. The names of its images are recorded in the run, and
:func:`apply_split` rebuilds the same split from them, so that nothing trained on is ever evaluated on.
"""

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from vje.data.registry import RawSplits, no_training_images
from vje.data.sources import ImageSource
from vje.errors import UserError

_MOST_HELD_OUT = 10_000


@dataclass(frozen=True)
class Splits:
    """A data set, divided."""

    train: ImageSource  # what is trained on; labels are optional
    test: ImageSource  # what is evaluated on
    bank: ImageSource  # what a k-NN looks its neighbours up in: the training images, or those that have labels
    # images of ``test`` that were held out of the one set there is; ``None`` if the set has a split
    held_out_names: list[str] | None = None
    missing: int = 0  # how many images of the run no longer exist
    foreign: str = ""  # what is not as in training: "images", "labels", or nothing as far as can be told

    def inputs(self) -> str:
        """Identifies the images that are evaluated and those that they are compared with, and the labels of both."""
        digest = blake2b(digest_size=8)
        for source in (self.bank, self.test):
            labels = b"" if source.labels is None else source.labels.astype("<i8").tobytes()
            digest.update(source.fingerprint().encode() + labels)
        return digest.hexdigest()

    def reservations(self) -> dict[str, int | str]:
        """What results on these images have to say of them, where they are not all of the run's, or others."""
        return {name: x for name, x in (("lacking", self.missing), ("foreign", self.foreign)) if x}


def prepare_splits(raw: RawSplits, seed: int, held_out: float = 0.1) -> Splits:
    """Divide a set for training: its own test (else validation) images, or a part held out by the seed.

    Args:
        raw: the set as it was found.
        seed: decides what is held out. Whether an image is depends on its name and the seed, not on its place.
        held_out: the fraction held out, at least 1 image and at most 10,000.
    """
    if not 0 < held_out < 1:
        raise UserError(f"the held-out fraction must be between 0 and 1, got {held_out}")
    train = _training_images(raw)
    test = raw.test or raw.val
    if test is not None:
        return Splits(train, test, raw.labelled or train)
    count = min(max(1, round(held_out * len(train))), _MOST_HELD_OUT, len(train) - 1)
    keys = [_key(seed, name) for name in train.names]
    chosen = np.zeros(len(train), dtype=bool)
    chosen[sorted(range(len(train)), key=keys.__getitem__)[:count]] = True
    return _divide(raw, train, chosen)


def apply_split(raw: RawSplits, held_out_names: Collection[str] | None) -> Splits:
    """Divide a set as it was divided for training.

    Args:
        raw: the set as it is now.
        held_out_names: what :func:`prepare_splits` held out; everything else counts as trained on.
    """
    train = _training_images(raw)
    if held_out_names is None:
        test = raw.test or raw.val
        if test is None:
            raise UserError(
                f"{raw.name} had test images of its own when it was trained on and has none now; restore them"
            )
        return Splits(train, test, raw.labelled or train)
    wanted = set(held_out_names)
    chosen = np.array([name in wanted for name in train.names])
    if not chosen.any() or chosen.all():
        raise UserError(
            f"{raw.name} is not the set that was trained on: {int(chosen.sum())} of the {len(wanted)} images held out "
            f"then are among its {len(train)}; give the original data"
        )
    return _divide(raw, train, chosen, missing=len(wanted) - int(chosen.sum()))


def _training_images(raw: RawSplits) -> ImageSource:
    if raw.train is None:
        raise no_training_images(raw.name)
    if len(raw.train) < 2:
        raise UserError(f"{raw.name} has {len(raw.train)} image for training; at least 2 are needed")
    return raw.train


def _divide(raw: RawSplits, train: ImageSource, chosen: NDArray[np.bool_], missing: int = 0) -> Splits:
    kept, test = train.subset(np.flatnonzero(~chosen)), train.subset(np.flatnonzero(chosen))
    return Splits(kept, test, raw.labelled or kept, list(test.names), missing)


def _key(seed: int, name: str) -> bytes:
    return blake2b(f"{seed}:{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
