"""``vje score RUN IMAGES``: how unusual each image is, a row a file, written as it goes."""

import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vje.cli.embed import open_images
from vje.cli.rows import CsvTable, ParquetTable, Row, Table, check_header, whole_rows
from vje.data.folders import holds_images
from vje.data.sources import FolderSource, ImageSource
from vje.errors import UserError
from vje.runs import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

    from vje.ood.detector import ImageDetector, ScoredBatch

SCORES = ("nll", "nll_directional", "nll_radial", "kl", "variance", "anisotropy", "cosine_mean_z")
SHEETS = (".png", ".jpg", ".pdf", ".svg")


@dataclass(frozen=True)
class Options:
    """Score images, however many: one row a file, in order, written as it goes.

    The columns are file, nll (larger means less typical), nll_directional, nll_radial, kl, variance, anisotropy,
    cosine_mean_z, p_value, outlier and error. A file that cannot be read has only the reason, in error.

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
    split: Literal["train", "val", "test"] | None = None
    """Which part of a data set; the default is its only one, or test."""
    data_dir: Path = Path("data")
    """Where named data sets are."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute."""
    batch: int = 256
    """Images at a time."""
    workers: int = 8
    """Threads that decode files."""

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
    source = open_images(_worth_opening(options.images), options.split, options.data_dir)
    if isinstance(source, FolderSource) and source.ignored:
        _say(f"files passed over, since they are not named like images: {len(source.ignored):,}")

    from vje.build import resolve_device, set_determinism
    from vje.ood.detector import ImageDetector

    set_determinism(deterministic=False)
    detector = ImageDetector.from_run(options.run, str(resolve_device(options.device)))
    if detector.calibration is None:
        _say(f"{options.run} has no calibration, so p_value and outlier stay empty; see `vje calibrate --help`.")
    elif options.alpha < detector.calibration.resolution:
        _say(
            f"no outlier can be told at --alpha {options.alpha}: p-values end at {detector.calibration.resolution:.2g}."
        )
    job = _Job(options, source, detector)
    try:
        job.score()
    except KeyboardInterrupt:
        if options.out.suffix == ".csv":
            _say(f"{options.out} keeps what was done. To go on, add --append to the command.")
        raise
    job.sum_up()
    return 0


def _check(options: Options) -> None:
    """Find mistakes before anything is computed."""
    from vje.ood.conformal import check_alpha

    check_alpha(options.alpha)
    for name, value, least in (("batch", options.batch, 1), ("top", options.top, 1), ("explain", options.explain, 0)):
        if value < least:
            raise UserError(f"--{name} must be at least {least}, got {value}.")
    if not options.run.exists():
        RunFolder.open(options.run)
    if options.file is not None and options.out.suffix not in (".csv", ".parquet"):
        raise UserError(f"--out {options.out}: the file must end in .csv or .parquet, or be - for standard output.")
    if options.sheet is not None and options.sheet.suffix not in SHEETS:
        raise UserError(f"--sheet {options.sheet}: the file must end in {', '.join(SHEETS)}.")
    if options.append and (options.force or options.out.suffix != ".csv"):
        raise UserError("--append continues a CSV file: use it with --out FILE.csv, and without --force.")
    for option, file in (("--out", options.file), ("--sheet", options.sheet)):
        if file is not None and not file.parent.is_dir():
            raise UserError(f"{option} {file}: there is no folder {file.parent}.")
        if file is not None and file.exists() and not (options.force or options.append):
            further = " --append to go on with it, or" if option == "--out" and file.suffix == ".csv" else ""
            raise UserError(f"{file} exists already: choose another {option}, or add{further} --force to replace it.")
    if options.append and options.out.exists():
        check_header(options.out, options.columns)
    if options.out.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UserError("writing .parquet needs pyarrow: pip install 'vje[parquet]', or use .csv.") from None


def _worth_opening(images: tuple[str, ...]) -> tuple[str, ...]:
    """The paths, without folders that hold no image, unless there is nothing else."""
    if len(images) > 1 and any(name.endswith(".npz") for name in images):
        raise UserError("an .npz file is scored alone: give one at a time.")
    empty = [name for name in images if Path(name).is_dir() and not holds_images(Path(name))]
    if len(empty) == len(images):
        return images
    for name in empty:
        _say(f"there are no images under {name}.")
    return tuple(name for name in images if name not in empty)


class _Job:
    """One pass over the images."""

    def __init__(self, options: Options, source: ImageSource, detector: "ImageDetector") -> None:
        from vje.reporting.sheet import Extremes

        self.options, self.source, self.detector = options, source, detector
        self.count: Counter[str] = Counter()
        self.extremes = Extremes(options.top)
        self._root = source.root if isinstance(source, FolderSource) else None
        if self._root is not None and self._root.is_absolute() and not Path(options.images[0]).is_absolute():
            self._root = Path(os.path.relpath(self._root))  # the folder that several paths have in common

    def score(self) -> None:
        """Score and write what is not written yet."""
        from rich.console import Console

        from vje.cli.console import counting

        todo, keep = self._remaining()
        table = self._table(keep)
        try:
            with counting(Console(stderr=True), "images") as report:
                for rows in self._scored(todo) if todo else ():
                    table.write([row for _, row in rows])
                    for place, row in rows:
                        self._note(dict(zip(self.options.columns, row, strict=True)), place)
                    report(sum(self.count[kind] for kind in ("before", "scored", "unreadable")), len(self.source))
        except BaseException:
            table.abandon()
            raise
        table.close()

    def sum_up(self) -> None:
        """Draw the sheet, and say what was done."""
        options, count = self.options, self.count
        if options.sheet is not None:
            from vje.reporting.sheet import save_sheet

            ends = [self.extremes.highest(), self.extremes.lowest()][:: self.detector.sign]
            titles = [f"{which} typical, by {self.detector.ranked_by}" for which in ("least", "most")]
            rows = dict(zip(titles, ends, strict=True))
            drawn = save_sheet(options.sheet, self.source, self.detector.preprocessing, rows, self._name)
            _say(f"{drawn} images drawn in {options.sheet}" if drawn else "no image could be read for the sheet")
        parts = [f"{count['scored']:,} images scored"]
        if self.detector.calibration is not None:
            parts.append(f"{count['outliers']:,} of them outliers at a false-alarm rate of {options.alpha:g}")
        parts += [f"{count['unreadable']:,} files unreadable"] if count["unreadable"] else []
        parts += [f"{count['before']:,} were there before"] if count["before"] else []
        _say("; ".join(parts) + ("." if options.file is None else f"; written to {options.out}"))

    def _remaining(self) -> tuple[Sequence[int], int]:
        """Places of the images that are not in the file yet, and how many bytes of the file stay."""
        options, everything = self.options, range(len(self.source))
        if not (options.append and options.out.exists()):
            return everything, 0
        here, done = Path.cwd(), dict[str, str]()
        rows = whole_rows(options.out, options.columns)
        _, end = next(rows, ({}, 0))  # the header
        for row, position in rows:
            self._check_row(row, thoroughly=len(done) < 100)
            end, done[os.path.normpath(here / row["file"])] = position, row[self.detector.ranked_by]
        names = [os.path.normpath(here / self._name(place)) for place in everything]
        for place in (place for place in everything if done.get(names[place])):
            self.extremes.add(float(done[names[place]]), place)
        todo = [place for place in everything if names[place] not in done]
        self.count["before"] = len(everything) - len(todo)
        return todo, end

    def _check_row(self, row: dict[str, str], thoroughly: bool) -> None:
        """Refuse to mix rows that do not mean the same."""
        from vje.ood.conformal import p_values

        out, detector, p = self.options.out, self.detector, ""
        if row["error"]:
            return
        if thoroughly and detector.calibration is not None:
            p = str(p_values(detector.calibration.scores, detector.sign * float(row[detector.ranked_by])))
        if thoroughly and row["p_value"] != p:
            raise UserError(f"{out} was begun with another calibration, or none: score it all again, with --force.")
        if row["p_value"] and row["outlier"] != str(float(row["p_value"]) <= self.options.alpha):
            raise UserError(f"{out} was begun with another --alpha: use that, or start a new file with --force.")

    def _scored(self, todo: Sequence[int]) -> Iterator[list[tuple[int, Row]]]:
        """(place, row) of each image to do, a batch at a time."""
        options, source, places, first = self.options, self.source, todo, todo[0]
        if len(todo) < len(source):
            # Begin where the interrupted batch began: a batch of others could change the last digits.
            places = [*range(first - first % options.batch, first), *todo]
            source = source.subset(places)
        explain = options.explain > 0
        for batch in self.detector.stream(source, options.alpha, explain, options.batch, options.workers):
            rows = ((places[index], values) for index, values in _values(batch, options))
            yield [(place, [self._name(place), *values]) for place, values in rows if place >= first]

    def _note(self, row: dict[str, Any], place: int) -> None:
        """Count a row, and remember the image if it is an extreme one."""
        if row["error"] is not None:
            self.count["unreadable"] += 1
            return
        self.count["scored"] += 1
        self.count["outliers"] += bool(row["outlier"])
        self.extremes.add(row[self.detector.ranked_by], place)

    def _name(self, place: int) -> str:
        """The column ``file``: a path that can be opened, or an array's name and the place in it."""
        if self._root is not None:
            return str(self._root / self.source.names[place])
        split = f":{self.options.split}" if self.options.split else ""
        return f"{self.options.images[0]}{split}[{self.source.names[place]}]"

    def _table(self, keep: int) -> Table:
        file, columns = self.options.file, self.options.columns
        if file is None or file.suffix == ".csv":
            return CsvTable(file, columns, keep)
        types = {"file": "string", "p_value": "float64", "outlier": "bool", "features": "string", "error": "string"}
        return ParquetTable(file, {column: types.get(column, "float32") for column in columns})


def _values(batch: "ScoredBatch", options: Options) -> list[tuple[int, Row]]:
    """What follows the file's name in the rows of a batch, each with its place, in order."""
    blank = [None] * (len(options.columns) - 2)
    rows: list[tuple[int, Row]] = [(index, [*blank, reason]) for index, reason in batch.failures]
    unknown = [None] * len(batch.indices)
    columns: list[list[Any]] = [
        batch.scores[name].tolist() if name in batch.scores else unknown for name in (*SCORES, "p_value", "outlier")
    ]
    columns += [_features(batch.scores["contributions"], options.explain)] if "contributions" in batch.scores else []
    for index, *values in zip(batch.indices, *columns, strict=True):
        usable = not any(map(math.isnan, values[: len(SCORES)]))
        rows.append((index, [*values, None] if usable else [*blank, "the model's scores are not numbers"]))
    return sorted(rows, key=lambda row: row[0])


def _features(contributions: "Tensor", count: int) -> list[str]:
    """The features that contribute most, each with its contribution."""
    values, indices = contributions.topk(min(count, contributions.shape[1]))
    pairs = zip(indices.tolist(), values.tolist(), strict=True)
    return [" ".join(f"{i}:{v:.4g}" for i, v in zip(*pair, strict=True)) for pair in pairs]


def _say(text: str) -> None:
    print(text, file=sys.stderr)
