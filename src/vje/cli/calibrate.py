"""``vje calibrate RUN``: scores of held-out images, kept with the model, for the p-values of ``vje score``."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from vje.cli.evaluate import run_config
from vje.data.sources import ImageSource
from vje.errors import UserError
from vje.runs import RunFolder

if TYPE_CHECKING:
    from vje.ood.conformal import Calibration

ALPHAS = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Options:
    """Store the scores of held-out images with a run, so that `vje score` can give p-values and tell outliers.

    The images must be like those that count as normal, and the run must not have trained on them. Without --data they
    are the run's own test images. A calibration that is there already is replaced.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Run folder, or (with --data) a model.safetensors file."""
    data: str | None = None
    """Held-out images: a folder, an .npz, or the name of a data set."""
    split: Literal["train", "val", "test"] | None = None
    """Which part of --data; the default is test, else val, else the only one."""
    data_dir: Path | None = None
    """Where named data sets are; the default is where they were in training."""
    score: Literal["nll", "nll_directional", "nll_radial", "variance", "kl", "anisotropy"] = "nll"
    """Which score decides what is an outlier; of kl and anisotropy, low values are unusual."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute."""
    batch: int = 256
    """Images at a time."""
    workers: int = 8
    """Threads that decode files."""


def run(arguments: list[str]) -> int:
    """Calibrate, write and print the thresholds."""
    options = tyro.cli(Options, args=arguments, prog="vje calibrate")
    if options.batch < 1:
        raise UserError(f"--batch must be at least 1, got {options.batch}.")
    if not options.run.exists() or (options.data is None and options.run.is_dir()):
        RunFolder.open(options.run)
    source = _own_images(options) if options.data is None else _given_images(options)
    _refuse_trained(options.run, source)

    from rich.console import Console

    from vje.build import resolve_device, set_determinism
    from vje.cli.console import counting
    from vje.ood.detector import ImageDetector

    set_determinism(deterministic=False)
    detector = ImageDetector.from_run(options.run, str(resolve_device(options.device)), calibrated=False)
    with counting(Console(stderr=True), "images") as report:
        found = detector.calibrate(source, options.score, options.data, options.batch, options.workers, report)
    file = detector.save_calibration()
    _print(found, len(source))
    print(f"\nWritten to {file}\nNext: vje score {options.run} IMAGES --out scores.csv")
    return 0


def _own_images(options: Options) -> ImageSource:
    """The test images of the run, as they were held out of its training."""
    from vje.build_data import open_splits

    if not options.run.is_dir():
        raise UserError(f"{options.run} is a model without a run folder: name held-out images with --data.")
    folder = RunFolder.open(options.run)
    config = run_config(folder, None, options.data_dir)
    return open_splits(config.data, config.run.seed, folder.read("data")).test


def _given_images(options: Options) -> ImageSource:
    from vje.data.registry import open_data

    raw = open_data(str(options.data), options.data_dir or _data_dir(options.run))
    parts = {"test": raw.test, "val": raw.val, "train": raw.train}
    found = next((part for name, part in parts.items() if part is not None and options.split in (None, name)), None)
    if found is None:
        there = ", ".join(name for name, part in parts.items() if part is not None)
        raise UserError(f"{options.data} has no {options.split} split; it has {there}.")
    return found


def _data_dir(run: Path) -> Path:
    folder = RunFolder(run)
    return run_config(folder, None, None).data.data_dir if folder.config_file.is_file() else Path("data")


def _refuse_trained(run: Path, source: ImageSource) -> None:
    """Images that were trained on look more typical than new ones, and the false-alarm rate would not hold."""
    folder = RunFolder(run)
    if not (folder.path / "data.json").is_file():
        return
    recorded = folder.read("data")
    held_out = set(recorded["held_out"] or ())
    trained = recorded["fingerprint"]
    rest = [i for i, name in enumerate(source.names) if name not in held_out]
    within = 0 < len(rest) < len(source) and source.subset(np.asarray(rest)).fingerprint() == trained
    if within or source.fingerprint() == trained:
        raise UserError(
            f"{source.name} holds the images that {run} was trained on; the false-alarm rate would not hold. Leave "
            "out --data to use the run's own held-out images, or give others."
        )


def _print(found: "Calibration", images: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vje.ood.conformal import threshold
    from vje.ood.detector import SCORES

    n, sign = len(found.scores), SCORES[found.score]
    title = f"{found.score} of {n:,} images of {found.data}"
    table = Table(title=Text(title, "table.title"))  # brackets in a name are no markup
    table.add_column("false-alarm rate")
    table.add_column(f"outlier if {found.score} is {'above' if sign > 0 else 'below'}", justify="right")
    for alpha in ALPHAS:
        limit = sign * threshold(found.scores, alpha)
        enough = found.resolution <= alpha
        table.add_row(f"{alpha:.0%}", f"{limit:.4f}" if enough else f"never: needs {round(1 / alpha) - 1:,} images")
    Console().print(table)
    print(f"p-values come in steps of 1/(n + 1) = {found.resolution:.2g}.")
    if n < images:
        print(f"{images - n} of {images} files could not be read and are left out.")
    if n < 1 / min(ALPHAS):
        print(
            f"warning: {n} images are few. No outlier can be told at a false-alarm rate below {found.resolution:.2g}, "
            "and the rate varies much from one calibration set to another; use some hundreds or more.",
            file=sys.stderr,
        )
