"""What commands share that look at a run: options, and the run with its data, its model and how to compute with it.

Mistakes are found before torch is imported, which takes seconds.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from vje.config import Config, stored_config
from vje.data.registry import RawSplits
from vje.data.sources import ImageSource
from vje.errors import UserError
from vje.runs import RunFolder

if TYPE_CHECKING:
    from vje.evaluation.features import Features

# Types of options, each with its help.
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], tyro.conf.arg(help="Where to compute.")]
Batch = Annotated[int, tyro.conf.arg(help="Images at a time.")]
Workers = Annotated[int, tyro.conf.arg(help="Threads, or for many files processes, that decode.")]
OwnData = Annotated[str | None, tyro.conf.arg(help="Name, folder or .npz, if the data has moved.")]
OwnDataDir = Annotated[
    Path | None,
    tyro.conf.arg(help="Where named data sets are; the default is where they were in training."),
]
OwnLabels = Annotated[
    Path | None,
    tyro.conf.arg(help="File of labels, if the data has none: CSV with columns file,label, or .npy."),
]


def run_config(folder: RunFolder, data: str | None, data_dir: Path | None, labels: Path | None = None) -> Config:
    """A run's config, with its data elsewhere, or labels that came later, if so said."""
    config = stored_config(folder)
    if labels is not None and not labels.is_file():
        raise UserError(f"--labels {labels} is a folder, or does not exist: give a CSV or .npy file.")
    changes = {"data_dir": data_dir, "labels": labels or own_labels(folder, config.data.labels)}
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return replace(config, data=replace(config.data, data=data or own_data(folder, config.data.data), **given))


def own_data(folder: RunFolder, given: str) -> str:
    """What a run was trained on, also seen from another folder than the one it was started in."""
    recorded = folder.find("data").get("path")
    here = Path(given).expanduser()
    same = here.is_absolute() or recorded is None or here.resolve() == Path(recorded)
    if recorded is None or (here.exists() and (same or not Path(recorded).exists())):
        return given
    if not Path(recorded).exists():
        raise UserError(
            f"{folder.path} was trained on {recorded}, which is not there: put it back, or say where it is now "
            "with --data PATH (`vje train --resume`, `evaluate`, `probe`, `geometry`, `calibrate`, `ood` and `report` "
            "have it)."
        )
    return str(recorded)


def own_labels(folder: RunFolder, given: Path | None) -> Path | None:
    """The file of labels that a run was given, also seen from another folder: there a file may have the same name."""
    recorded = folder.find("data").get("labels_path")
    return given if given is None or recorded is None else Path(recorded)


def ready_device(name: str) -> str:
    """The device that an option asks for, with the fastest algorithms chosen."""
    from vje.build import resolve_device, set_determinism

    set_determinism(deterministic=False)
    return str(resolve_device(name))


class Subject:
    """A run with its model, to be looked at.

    Args:
        folder: of the run.
        device: as the option says it.
        batch: images at a time.
        workers: threads, or for many files processes, that decode.

    Attributes:
        model: in evaluation mode, on the device.
        device: where that is.
    """

    def __init__(self, folder: RunFolder, device: str, batch: int = 500, workers: int = 0) -> None:
        from vje.models import load

        self.folder, self.batch, self.workers = folder, batch, workers
        self.model = load(folder.path, ready_device(device))
        self.device = next(self.model.parameters()).device

    def features(self, what: str, source: ImageSource, target: bool = True) -> "Features":
        """Embeddings of images, computed or kept from before, while a bar counts; unreadable files are told."""
        from vje.cli.console import counting
        from vje.evaluation.features import cached_features

        with counting(what) as report:
            found = cached_features(
                self.model, source, self.folder.cache, self.batch, self.workers, report, target=target
            )
        tell_unreadable(found.failures, what)
        return found


def picked(raw: RawSplits, split: str | None) -> ImageSource:
    """The part of a data set that --split names; where it names none of several, say which is taken."""
    parts, part = raw.parts(), raw.pick(split)
    if split is None and len(parts) > 1:
        first, *others = parts
        print(
            f"{raw.name}: its {first} split is taken, {len(part):,} of {sum(map(len, parts.values())):,} images; "
            f"--split {' or '.join(others)} takes another",
            file=sys.stderr,
        )
    return part


def tell_unreadable(failures: Sequence[tuple[str, str]], what: str) -> None:
    """Say which files could not be read, as (name, reason), if any: what is measured is without them."""
    if failures:
        name, reason = failures[0]
        several = f", and {len(failures) - 1:,} more" if len(failures) > 1 else ""
        print(f"{what}: left out, as they cannot be read: {name} ({reason}){several}", file=sys.stderr)


def tell_strangers(bank: ImageSource, test: ImageSource) -> None:
    """Say how many test images are of classes that no training image is of: whatever is found for them is wrong."""
    if bank.labels is not None and test.labels is not None:
        unknown = ~np.isin(test.labels, bank.labels)
        if unknown.any():
            which = np.unique(test.labels[unknown]).tolist()
            names = ", ".join(str(n) if test.classes is None else test.classes[n] for n in which[:3])
            more = f" and {len(which) - 3} more" if len(which) > 3 else ""
            print(
                f"{unknown.sum():,} of {len(test):,} test images count as wrong: no training image is of their class "
                f"({names}{more})",
                file=sys.stderr,
            )
