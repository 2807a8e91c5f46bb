"""``vje calibrate RUN``: scores of held-out images, kept with the model, for the p-values of ``vje score``."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich.table import Table

from vje.cli.checks import at_least, check_model, check_vje, check_writable
from vje.cli.subject import Batch, Device, OwnDataDir, Workers, picked, ready_device, run_config
from vje.data.registry import open_data, own_path
from vje.data.sources import ImageSource
from vje.data.splits import Splits, apply_split
from vje.errors import UserError, command
from vje.ood.conformal import Calibration, threshold
from vje.ood.unseen import unseen
from vje.runs import RunFolder
from vje.terminal import print_whole

ALPHAS = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Options:
    """Store the scores of held-out images with a run, so that `vje score` can give p-values and tell outliers.

    The images must be like those that count as normal, and the run must not have trained on them. Without --data they
    are the run's own test images; given all images of the run, --data takes those that it held out. An earlier
    calibration on other images, or by another score or other views, is kept in RUN/calibration-earlier.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Run folder, or (with --data) a model.safetensors file."""
    data: str | None = None
    """Held-out images: a folder, an .npz, or the name of a data set."""
    split: Literal["train", "val", "test"] | None = None
    """Which part of --data; the default is test, else val, else the only one."""
    data_dir: OwnDataDir = None
    score: Literal[
        "nll",
        "nll_directional",
        "nll_radial",
        "nll_centered",
        "neg_elbo",
        "variance_trace",
        "neg_kl",
        "neg_anisotropy",
        "variance",
        "kl",
        "anisotropy",
    ] = "nll"
    """Which score decides what is an outlier; of kl and anisotropy, low values are unusual. With several views,
    neg_elbo asks how well each accounts for the others."""
    views: Literal["one", "mirror", "ten"] = "one"
    """Views of each image that scores are means over, in `vje score` too: the image; it and its mirror image; or crops
    at the centre and the corners and their mirror images, steadier, at ten times the work."""
    device: Device = "auto"
    batch: Batch = 256
    workers: Workers = 8


def run(arguments: list[str]) -> int:
    """Calibrate, write and print the thresholds."""
    options = tyro.cli(Options, args=arguments, prog="vje calibrate")
    at_least(1, batch=options.batch)
    at_least(0, workers=options.workers)
    if options.data is None and options.split is not None:
        raise UserError(f"--split {options.split} says which part of --data is taken, which was not given: add it.")
    check_model(options.run)
    if options.data is None and options.run.is_dir():
        RunFolder.open(options.run)
    check_vje(options.run)
    check_writable(options.run if options.run.is_dir() else options.run.parent, "calibrate")
    source = _own_images(options) if options.data is None else _given_images(options)
    source = _not_trained(options.run, source)

    from vje.cli.console import counting
    from vje.ood.detector import ImageDetector

    detector = ImageDetector.from_run(options.run, ready_device(options.device), False, options.views)
    with counting("images") as report:
        found = detector.calibrate(source, options.score, options.data, options.batch, options.workers, report)
    _print(found, len(source))
    if detector.file is not None:
        _keep_earlier(detector.file, found)
    file = detector.save_calibration()
    next_command = command("vje", "score", options.run, "IMAGES", "--out", "scores.csv")
    print(f"\nWritten to {file}\nNext: {next_command}")
    return 0


def _keep_earlier(file: Path, now: Calibration) -> None:
    """Put an earlier calibration aside if it is on other images, or by another score, other views or other weights."""
    before = None
    with suppress(UserError):  # there is none, or it is damaged
        before = Calibration.read(file)
    if before is not None and _identity(before) != _identity(now):
        place = RunFolder(file.parent).set_aside(file.name, before.data, _identity(before))
        print(
            f"The earlier calibration, {before.score} of {len(before.scores):,} images of {before.data}, is in {place}."
        )


def _identity(calibration: Calibration) -> list[str]:
    return [calibration.fingerprint, calibration.score, calibration.views, calibration.weights]


def _own_images(options: Options) -> ImageSource:
    """The test images of the run, as they were held out of its training."""
    from vje.build_data import open_splits

    if not options.run.is_dir():
        raise UserError(f"{options.run} is a model without a run folder: name held-out images with --data.")
    folder = RunFolder.open(options.run)
    config = run_config(folder, None, options.data_dir)
    return open_splits(config.data, folder.read("data")).test


def _given_images(options: Options) -> ImageSource:
    return picked(open_data(str(options.data), options.data_dir or _data_dir(options.run)), options.split)


def _data_dir(run: Path) -> Path:
    return Path(RunFolder(run).find("config").get("data", {}).get("data_dir", "data"))


def _not_trained(run: Path, source: ImageSource) -> ImageSource:
    """Refuse images that were trained on, which look more typical than new ones: the false-alarm rate would not hold.

    Of the very images of the run, perhaps in another place by now, those that it held out are taken.
    """
    folder = RunFolder(run)
    recorded = folder.find("data")
    if not recorded:
        return source
    new = unseen(source, recorded, _images_of(folder))
    trained = np.setdiff1d(np.arange(len(source)), new)
    if not len(trained):
        return source
    if len(new) and source.subset(trained).fingerprint() == recorded["fingerprint"]:
        print(f"{source.name}: {len(new):,} of its {len(source):,} images are used, those that {run} held out.")
        return source.subset(new)
    raise UserError(
        f"{source.name} holds images that {run} was trained on ({len(trained):,} of {len(source):,}); the false-alarm "
        "rate would not hold. Leave out --data to use the run's own held-out images, or give others."
    )


def _images_of(folder: RunFolder) -> Splits | None:
    """The images of a run, if they are files of a folder that is still as it was in training."""
    recorded = folder.read("data")
    try:
        data = run_config(folder, None, None).data
        place = own_path(data.data)
        if place is None or not place.is_dir():
            return None
        splits = apply_split(open_data(data.data, data.data_dir), recorded["held_out"])
    except UserError:
        return None
    return splits if splits.train.fingerprint() == recorded["fingerprint"] else None


def _print(found: Calibration, images: int) -> None:
    from vje.ood.detector import SCORES

    n, sign = len(found.scores), SCORES[found.score]
    table = Table()
    table.add_column("false-alarm rate", no_wrap=True)
    table.add_column(f"outlier if {found.score} is {'above' if sign > 0 else 'below'}", justify="right", no_wrap=True)
    for alpha in ALPHAS:
        limit = sign * threshold(found.scores, alpha)
        enough = found.resolution <= alpha
        table.add_row(f"{alpha:.0%}", f"{limit:.4f}" if enough else f"never: needs {round(1 / alpha) - 1:,} images")
    print_whole(table, f"{found.score} of {n:,} images of {found.data}")
    print(f"p-values come in steps of 1/(n + 1) = {found.resolution:.2g}.")
    if n < images:
        print(f"{images - n} of {images} files could not be read and are left out.")
    if n < 1 / min(ALPHAS):
        print(
            f"warning: {n} images are few. No outlier can be told at a false-alarm rate below {found.resolution:.2g}, "
            "and the rate varies much from one calibration set to another; use some hundreds or more.",
            file=sys.stderr,
        )
