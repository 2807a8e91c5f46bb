"""A config's images: opened, split, measured, and decoded if they fit."""

import warnings
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from vje.config import Config, DataConfig
from vje.data.registry import RawSplits, open_data, own_path
from vje.data.resident import Resident, channel_statistics, load_resident
from vje.data.sources import ArraySource, ImageSource
from vje.data.splits import Splits, apply_split, prepare_splits
from vje.errors import UserError
from vje.methods import find_method
from vje.preprocessing import Preprocessing

FOLDER_BYTES = 2 * 2**30
"""Folders that decode to more than this are streamed."""

STATISTICS_SAMPLE = 2048


@dataclass(frozen=True)
class Data:
    """The images of a run, ready to train on."""

    splits: Splits  # training, test and k-NN bank
    preprocessing: Preprocessing  # how they are fed
    resident: Resident | None  # the training images decoded; None if they are streamed
    path: Path | None = None  # where they are, if they were given by path
    labels: Path | None = None  # the file of their labels, if one was given

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(name, reason) of each training file that could not be read; of streamed ones, none is known yet."""
        return [] if self.resident is None else self.resident.skipped

    @property
    def train_images(self) -> int:
        """How many images there are to train on."""
        return len(self.splits.train) - len(self.skipped)

    def record(self) -> dict[str, Any]:
        """What the run folder keeps about it."""
        return {
            "train_images": self.train_images,
            "test_images": len(self.splits.test),
            "labels": self.splits.bank.labels is not None,
            "fingerprint": self.splits.train.fingerprint(),
            "test_fingerprint": self.splits.test.fingerprint(),
            "labels_fingerprint": _labels_fingerprint(self.splits.train),
            "test_labels_fingerprint": _labels_fingerprint(self.splits.test),
            "skipped": [list(item) for item in self.skipped],
            "ignored": len(getattr(self.splits.train, "ignored", ())),
            "held_out": self.splits.held_out_names,
            "classes": self.splits.train.classes,
            "path": None if self.path is None else str(self.path),
            "labels_path": None if self.labels is None else str(self.labels),
        }


def build_data(config: Config, recorded: dict[str, Any] | None = None) -> Data:
    """Open and split the data, decide whether to keep it in memory, and measure it.

    Args:
        config: of the run.
        recorded: the ``data.json`` of the run that is being resumed; its split is used again.
    """
    settings = config.data
    if recorded is None:
        splits = prepare_splits(_open(settings), config.run.seed, settings.held_out)
    else:
        splits = apply_split(_open(settings), recorded["held_out"])
        _check_fingerprint(splits.train, recorded, settings.data)  # files that changed, too: a resumed run is exact
        if find_method(config.method).needs_labels:
            _check_labels(splits.train, recorded, settings)
        splits = _counted(splits, recorded, settings.data)
    train = splits.train
    channels = settings.channels or (recorded or {}).get("channels") or train.channels
    resize = settings.resize or settings.size
    resident = None
    if _is_resident(train, settings, channels):
        storage = _storage_size(train, settings)
        resident = load_resident(train, storage, storage, channels, settings.workers)
        _check_skipped(resident, recorded or {}, settings.data)
        statistics = channel_statistics(resident.images)
    else:
        some = load_resident(train.thinned(STATISTICS_SAMPLE), resize, settings.size, channels, settings.workers)
        statistics = channel_statistics(some.images)
    mean, std = ([round(float(x), 4) for x in values] for values in statistics)
    std = [max(x, 1e-3) for x in std]
    preprocessing = Preprocessing(resize, settings.size, channels, mean, std)
    labels = None if settings.labels is None else settings.labels.expanduser().resolve()
    return Data(splits, preprocessing, resident, own_path(settings.data), labels)


def open_splits(settings: DataConfig, recorded: dict[str, Any]) -> Splits:
    """The training, test and bank images of a run; those held out stay so, and a warning tells if they changed.

    Args:
        settings: of the run, with its images where they are now.
        recorded: the run's ``data.json``.
    """
    splits = apply_split(_open(settings), recorded["held_out"])
    if isinstance(splits.train, ArraySource):  # images of arrays go by their places: others there would be mistaken
        _check_fingerprint(splits.train, recorded, settings.data)
    return _counted(splits, recorded, settings.data)


def _open(settings: DataConfig) -> RawSplits:
    return open_data(settings.data, settings.data_dir, settings.labels)


def _counted(splits: Splits, recorded: dict[str, Any], data: str) -> Splits:
    """The same, with a warning if they are not the images or labels that the run had: figures are then of others."""
    had = recorded.get("train_images", 0) + len(recorded.get("skipped", ())), recorded.get("test_images", 0)
    foreign = ""
    lacking = [max(0, n - len(source)) for n, source in zip(had, (splits.train, splits.test), strict=True)]
    if any(lacking):
        warnings.warn(
            f"{data} lacks {sum(lacking):,} of the {sum(had):,} images that the run had (training {lacking[0]:,}, held "
            f"out {lacking[1]:,}); what is measured is without them",
            stacklevel=3,
        )
    elif any(recorded.get(f"{part}fingerprint") not in ("", None, x.fingerprint()) for part, x in _parts(splits)):
        foreign = "images" if isinstance(splits.test, ArraySource) else ""  # files may only have been copied
        warnings.warn(
            f"the images of {data} do not seem to be those of training (files go by name, size and date); what is "
            "measured is of those there now",
            stacklevel=3,
        )
    elif any(
        recorded.get(f"{part}labels_fingerprint") not in ("", None, labels)
        for part, x in _parts(splits)
        if (labels := _labels_fingerprint(x)) is not None
    ):
        foreign = "labels"
        warnings.warn(f"the labels of {data} are not those of training; what is measured is by these", stacklevel=3)
    return replace(splits, missing=sum(lacking), foreign=foreign)


def _parts(splits: Splits) -> tuple[tuple[str, ImageSource], ...]:
    """The training and the test images, each with what the names of its fingerprints begin with."""
    return ("", splits.train), ("test_", splits.test)


def _check_fingerprint(train: ImageSource, recorded: dict[str, Any], data: str) -> None:
    if recorded.get("fingerprint") not in ("", None, train.fingerprint()):
        raise UserError(
            f"the images of {data} are not those the run was started with: put the original files back, or start a "
            "new run."
        )


def _check_labels(train: ImageSource, recorded: dict[str, Any], settings: DataConfig) -> None:
    if recorded.get("labels_fingerprint", "") not in ("", _labels_fingerprint(train)):
        where = settings.data if settings.labels is None else settings.labels
        raise UserError(
            f"the labels in {where} are not those the run was started with, and it learns from them: put the original "
            "ones back, or start a new run."
        )


def _labels_fingerprint(source: ImageSource) -> str | None:
    return None if source.labels is None else blake2b(source.labels.tobytes(), digest_size=16).hexdigest()


def _check_skipped(resident: Resident, recorded: dict[str, Any], data: str) -> None:
    """Refuse to go on with more images, or fewer, of the same files: another decoder, a drive that fails."""
    now = dict(resident.skipped)
    before = dict(recorded.get("skipped", now.items()))
    changed = sorted(before.keys() ^ now.keys())
    if changed:
        name = changed[0]
        how = f"cannot be read ({now[name]})" if name in now else "can be read"
        raise UserError(
            f"{name} of {data} {how}, unlike when the run was started, and a resumed run has the same images: see that "
            "files are read as they were (the same packages, no failing drive), or start a new run."
        )


def _is_resident(source: ImageSource, settings: DataConfig, channels: int) -> bool:
    if settings.resident != "auto":
        return settings.resident == "always"
    if isinstance(source, ArraySource):
        return True
    return len(source) * channels * _storage_size(source, settings) ** 2 <= FOLDER_BYTES


def _storage_size(source: ImageSource, settings: DataConfig) -> int:
    """Side at which images are kept: their own if they are all alike, else a little more than the encoder sees."""
    if source.uniform_shape is not None:
        return min(source.uniform_shape)
    return settings.resize or round(settings.size * 8 / 7)
