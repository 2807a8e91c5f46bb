"""``vje score RUN IMAGES``: how unusual each image is, a row a file, written as it goes."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vje.cli.checks import at_least, check_model, check_out, check_vje
from vje.cli.embed import open_images
from vje.cli.rows import check_header
from vje.cli.subject import Batch, Device, Workers, ready_device
from vje.data.folders import holds_files
from vje.data.sources import FolderSource, ImageSource
from vje.data.workers import WorkerEnded, death_in_words
from vje.errors import UserError
from vje.ood.conformal import check_alpha

SCORES = (
    *("nll", "nll_directional", "nll_radial", "nll_centered", "neg_elbo"),
    *("variance_trace", "neg_kl", "neg_anisotropy"),
    *("kl", "variance", "anisotropy", "cosine_mean_z"),
)
TABLES = (".csv", ".parquet")
SHEETS = (".png", ".jpg", ".pdf", ".svg")


@dataclass(frozen=True)
class Options:
    """Score images, however many: one row a file, in order, written as it goes.

    The columns are file; nll, nll_directional, nll_radial, nll_centered, neg_elbo, variance_trace, neg_kl and
    neg_anisotropy, of which larger means less typical; kl, variance, anisotropy and cosine_mean_z as they are; p_value,
    outlier and error. A file that cannot be read has only the reason, in error.

    p_value and outlier need `vje calibrate RUN`. An image is an outlier if its p-value is at most --alpha. By split
    conformal prediction that happens to an image exchangeable with the calibration images (drawn like them, and not
    trained on) with probability --alpha at most: marginally, over the choice of calibration images and image together,
    not for each calibration set or each kind of image.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Run folder, or a model.safetensors file."""
    images: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="IMAGES")]]
    """Image files and folders, one .npz file, or the name of a data set."""
    out: Path = Path("-")
    """File to write, .csv or .parquet; - is CSV on standard output."""
    alpha: float = 0.05
    """False-alarm rate: an image like the calibration images is called an outlier with this probability at most."""
    append: bool = False
    """Go on with the CSV of an interrupted job: files that are in it are not scored again."""
    force: bool = False
    """Replace the file if it is there."""
    explain: int = 0
    """Add a column with the N features that add most to nll_directional, as INDEX:CONTRIBUTION."""
    sheet: Path | None = None
    """Picture of the least and most typical images, with their scores: .png, .jpg, .pdf or .svg."""
    top: int = 20
    """How many of each on the sheet."""
    views: Literal["one", "mirror", "ten"] | None = None
    """Views of each image that scores are means over; the default is what was calibrated (`vje calibrate --views`)."""
    split: Literal["train", "val", "test"] | None = None
    """Which part of a data set; the default is its only one, or test."""
    data_dir: Path = Path("data")
    """Where named data sets are."""
    device: Device = "auto"
    batch: Batch = 256
    workers: Workers = 8

    @property
    def file(self) -> Path | None:
        """The file to write; None for standard output."""
        return None if str(self.out) == "-" else self.out

    @property
    def columns(self) -> list[str]:
        """Of the file."""
        return ["file", *SCORES, "p_value", "outlier", *(["features"] if self.explain else []), "error"]


def run(arguments: list[str]) -> int:
    """Score, write and sum up."""
    options = tyro.cli(Options, args=arguments, prog="vje score")
    _check(options)
    paths = _worth_opening(options.images)
    source = _without_own(options, open_images(paths, options.split, options.data_dir, every=True)) if paths else None

    from vje.cli.score_job import ScoringJob, open_table
    from vje.ood.detector import ImageDetector

    if not source:
        if not (options.append and options.out.exists()):
            open_table(options).close()
        say("0 images scored.")
        return 0

    detector = ImageDetector.from_run(options.run, ready_device(options.device), views=options.views)
    if detector.calibration is None:
        say(f"{options.run} has no calibration, so p_value and outlier stay empty; see `vje calibrate --help`.")
    elif options.alpha < detector.calibration.resolution:
        say(
            f"no outlier can be told at --alpha {options.alpha}: p-values end at {detector.calibration.resolution:.2g}."
        )
    job = ScoringJob(options, source, detector)
    try:
        with death_in_words():
            job.score()
    except (KeyboardInterrupt, WorkerEnded):
        if options.out.suffix == ".csv":
            say(f"{options.out} keeps what was done. To go on, add --append to the command.")
        raise
    job.sum_up()
    return 0


def _check(options: Options) -> None:
    """Find mistakes before anything is computed."""
    check_alpha(options.alpha)
    at_least(1, batch=options.batch, top=options.top)
    at_least(0, explain=options.explain, workers=options.workers)
    check_model(options.run)
    check_vje(options.run)
    replace = options.force or options.append
    if options.file is not None:
        further = " --append to go on with it, or" if options.out.suffix == ".csv" else ""
        check_out("--out", options.file, TABLES, replace, ", or be - for standard output", further)
    if options.sheet is not None:
        check_out("--sheet", options.sheet, SHEETS, replace)
    if options.append and (options.force or options.out.suffix != ".csv"):
        raise UserError("--append continues a CSV file: use it with --out FILE.csv, and without --force.")
    if options.append and options.out.exists():
        check_header(options.out, options.columns)


def _worth_opening(images: tuple[str, ...]) -> tuple[str, ...]:
    """The paths, without folders that hold no file."""
    if not images:
        raise UserError("no images were named; give image files or folders.")
    empty = [name for name in images if Path(name).is_dir() and not holds_files(Path(name))]
    for name in empty:
        say(f"there are no images under {name}.")
    return tuple(name for name in images if name not in empty)


def _without_own(options: Options, source: ImageSource) -> ImageSource | None:
    """The images, without what the command itself wrote, or will write, among them; None if nothing is left."""
    if not isinstance(source, FolderSource):
        return source
    own = {file.name: file.resolve() for file in (options.file, options.sheet) if file is not None}
    files = (source.root / name for name in source.files)
    kept = [i for i, file in enumerate(files) if file.name not in own or file.resolve() not in own.values()]
    return source if len(kept) == len(source) else source.subset(kept) if kept else None


def say(text: str) -> None:
    """To standard error, since rows may go to standard output."""
    print(text, file=sys.stderr)
