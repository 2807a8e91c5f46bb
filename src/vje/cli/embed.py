"""``vje embed RUN IMAGES --out FILE``: embeddings, posteriors and statistics for each image."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from vje.cli.checks import at_least, check_model, check_out
from vje.cli.rows import valid_unicode
from vje.cli.subject import Batch, Device, Workers, picked, ready_device
from vje.data.folders import scan_paths
from vje.data.registry import open_data
from vje.data.sources import ImageSource
from vje.errors import UserError
from vje.runs import replacing

FORMATS = (".npz", ".csv", ".parquet")


@dataclass(frozen=True)
class Options:
    """Write z, mean, variance and the statistics of each image to a file.

    .npz and .parquet hold everything, .csv the statistics alone. Images that cannot be read are counted and named.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Run folder, or a model.safetensors file."""
    images: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="IMAGES")]]
    """Image files and folders, one .npz file, or the name of a data set."""
    out: Path
    """File to write: .npz, .csv or .parquet."""
    split: Literal["train", "val", "test"] | None = None
    """Which part of a data set; the default is its only one, or test."""
    data_dir: Path = Path("data")
    """Where named data sets are."""
    force: bool = False
    """Replace the file if it is there."""
    device: Device = "auto"
    batch: Batch = 500
    workers: Workers = 8


def run(arguments: list[str]) -> int:
    """Embed and write."""
    options = tyro.cli(Options, args=arguments, prog="vje embed")
    _check(options)
    source = open_images(options.images, options.split, options.data_dir)
    columns, failures = _compute(options, source)
    with replacing(options.out, "choose another --out") as partial:
        _write(options.out.suffix, partial, columns, failures)
    print(f"{len(columns['name']):,} images embedded; written to {options.out}")
    if failures:
        files = "1 file" if len(failures) == 1 else f"{len(failures):,} files"
        print(f"{files} could not be read, such as {failures[0][0]}: {failures[0][1]}")
    return 0


def _check(options: Options) -> None:
    """Find mistakes before anything is computed."""
    check_out("--out", options.out, FORMATS, options.force)
    at_least(1, batch=options.batch)
    at_least(0, workers=options.workers)
    check_model(options.run)


def open_images(
    images: tuple[str, ...], split: str | None, data_dir: Path, every: bool = False, tell: bool = True
) -> ImageSource:
    """Images a person named: files and folders, an ``.npz`` file, or a data set.

    Args:
        images: their words.
        split: which part of a data set.
        data_dir: where named data sets are.
        every: every file of a folder counts, whatever it is called.
        tell: say which part it is where none was asked for.
    """
    only = images[0] if len(images) == 1 else None
    if only is None and any(name.lower().endswith(".npz") for name in images):
        raise UserError("an .npz file is taken alone: give one at a time.")
    if only is None or (Path(only).exists() and not only.lower().endswith(".npz") and split is None):
        return scan_paths(images, every)
    raw = open_data(only, data_dir)
    return picked(raw, split) if tell else raw.pick(split)


def _compute(options: Options, source: ImageSource) -> tuple[dict[str, "np.ndarray[Any, Any]"], list[tuple[str, str]]]:
    from vje.cli.console import counting
    from vje.evaluation.evaluate import in_chunks
    from vje.evaluation.features import compute_features
    from vje.methods.method import Method
    from vje.methods.vje import VJE
    from vje.models import load

    model = load(options.run, ready_device(options.device))
    if options.out.suffix == ".csv" and type(model).statistics is Method.statistics:
        raise UserError(
            f"a .csv holds an image's statistics, and {model.name()} has none: use .npz for its embeddings."
        )
    with counting("images") as report:
        features = compute_features(model, source, options.batch, options.workers, report)
    names = np.asarray([source.names[i] for i in features.kept.tolist()])
    scores = {name: x.cpu().numpy() for name, x in in_chunks(model, model.statistics, features.z).items()}
    columns = {"name": names, **{f"mean_{k}" if k == "variance" else k: x for k, x in scores.items()}}
    if options.out.suffix != ".csv":
        columns["z"] = features.z.numpy()
        others = (lambda z: dict(vars(model.inference(z)))) if isinstance(model, VJE) else model.spaces
        columns |= {name: x.cpu().numpy() for name, x in in_chunks(model, others, features.z).items()}
    return columns, features.failures


def _write(
    suffix: str, partial: Path, columns: dict[str, "np.ndarray[Any, Any]"], failures: list[tuple[str, str]]
) -> None:
    if suffix == ".npz":
        with partial.open("wb") as stream:
            unreadable = np.asarray([f"{name}: {reason}" for name, reason in failures], dtype=str)
            np.savez(stream, **columns, unreadable=unreadable)  # type: ignore[arg-type]
    elif suffix == ".csv":
        with partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream:
            writer = csv.writer(stream)
            writer.writerow(columns)
            writer.writerows(zip(*(x.tolist() for x in columns.values()), strict=True))
    else:
        import pyarrow
        from pyarrow import parquet

        lists = {name: list(x) if x.ndim > 1 else x for name, x in columns.items()}
        lists["name"] = [valid_unicode(name) for name in columns["name"].tolist()]
        parquet.write_table(pyarrow.table(lists), partial)
