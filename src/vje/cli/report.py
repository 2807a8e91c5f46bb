"""``vje report RUN...``: one HTML file to look at a run, or to compare several. Mistakes are found before torch is."""

import io
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro
from rich.console import Console

from vje.cli.checks import at_least, check_parent, of_known_methods, open_runs
from vje.cli.subject import Batch, Device, OwnData, OwnDataDir, OwnLabels, Subject, Workers, run_config
from vje.data.registry import check_data
from vje.data.sources import ImageSource
from vje.errors import UserError
from vje.reporting.records import has_model, no_model
from vje.reporting.sprites import Sprites, make_sprites
from vje.reporting.written import check_own, is_page
from vje.runs import RunFolder, write_atomically

if TYPE_CHECKING:
    from vje.evaluation.features import Features
    from vje.methods.method import Method
    from vje.reporting.atlas import Atlas, Floats

MOST_POINTS = 10_000
LARGEST_PICTURE = 64


@dataclass(frozen=True)
class Options:
    """Make a page to look at a run: curves, results, a map of the held-out images, typical and odd ones, settings.

    It is one file that needs no network. With several runs, the page compares them.
    """

    runs: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN")]]
    """Run folders; of several paths, those that are none are passed over."""
    out: Path | None = None
    """Page to write, .html; the default is RUN/report.html, and comparison.html for several runs. Only a page that vje
    wrote is replaced."""
    points: int = MOST_POINTS
    """Images on the map, at most; 0 for no map, which needs neither the model nor the data."""
    data_dir: OwnDataDir = None
    data: OwnData = None
    labels: OwnLabels = None
    device: Device = "auto"
    batch: Batch = 500
    workers: Workers = 8


def run(arguments: list[str]) -> int:
    """Write the page and say where it is."""
    options = tyro.cli(Options, args=arguments, prog="vje report")
    if not options.runs:
        raise UserError("`vje report` needs a run folder, such as runs/cifar10-ema.")
    at_least(1, batch=options.batch)
    at_least(0, workers=options.workers)
    if not 0 <= options.points <= MOST_POINTS:
        raise UserError(f"--points must be between 0 and {MOST_POINTS:,}, got {options.points}.")
    folders = open_runs(options.runs)
    if len(folders) > 1:  # of one alone there is a page all the same
        folders = of_known_methods(folders)
    out = options.out or (folders[0].path / "report.html" if len(folders) == 1 else Path("comparison.html"))
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: name a file, such as {out / 'report.html'}.")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: the file must end in .html or .htm.")
    check_parent("--out", out)
    check_own(out, is_page, "page")
    if len(folders) == 1 and options.points and has_model(folders[0]):
        _check_data(folders[0], options)
    if len(folders) == 1:
        write_report(folders[0], out, options)
    else:
        from vje.reporting.compare_page import compare_page

        write_atomically(out, compare_page(folders, out).encode())
    print(f"Written to {out}")
    return 0


def _check_data(folder: RunFolder, options: Options) -> None:
    """Find out before anything heavy is loaded whether the images of the map are there."""
    config = run_config(folder, options.data, options.data_dir, options.labels)
    try:
        check_data(config.data.data, config.data.data_dir)
    except UserError as error:
        raise UserError(f"{error} (--points 0 makes the report without the map, which needs no images.)") from None


def write_report(folder: RunFolder, out: Path, options: Options) -> Path:
    """The page of one run."""
    from vje.reporting.run_page import run_page

    atlas, reason, weights = None, "The map was left out (--points 0).", None
    if options.points and not has_model(folder):
        reason = f"The map needs a model, and {folder.path} {no_model(folder)}."
    elif options.points:
        atlas, weights = _survey(folder, options)
    write_atomically(out, run_page(folder, atlas, reason, weights).encode())
    return out


def _survey(folder: RunFolder, options: Options) -> "tuple[Atlas, str]":
    """The map, and the fingerprint of the weights it is of."""
    from vje.build_data import open_splits
    from vje.evaluation.features import weights_fingerprint

    config = run_config(folder, options.data, options.data_dir, options.labels)
    subject = Subject(folder, options.device, options.batch, options.workers)
    model, test = subject.model, open_splits(config.data, folder.read("data")).test
    features = subject.features("held-out images", test)
    weights, step = weights_fingerprint(model)[:16], -(-len(features.z) // options.points)
    name = f"map-{weights}-{test.fingerprint()[:16]}-{step}-{config.run.seed}.npy"
    with Console(stderr=True).status("placing the images on a map ..."):
        rows, cache = slice(None, None, step), folder.cache / name
        return _atlas(model, test, features, rows, cache, config.run.seed, options.workers), weights


def _atlas(
    model: "Method", test: ImageSource, features: "Features", rows: slice, cache: Path, seed: int, workers: int
) -> "Atlas":
    """The map of some rows of the features."""
    from vje.reporting.atlas import Atlas, survey

    kept, found = features.kept[rows].tolist(), survey(model, features.z[rows])
    return Atlas(
        **vars(found),
        places=_cached_layout(cache, found.vectors, seed),
        names=[str(test.names[i]) for i in kept],
        pictures=_pictures(model, test, kept, workers),
        labels=None if features.labels is None else features.labels[rows].numpy(),
        classes=test.classes,
        total=len(features.z),
    )


def _cached_layout(file: Path, vectors: "Floats", seed: int) -> "Floats":
    """Places on the map; they take a minute for ten thousand images, so they are kept."""
    from vje.reporting.atlas import layout

    try:
        places: Floats = np.load(file).astype(np.float32)
        if places.shape == (len(vectors), 2):
            return places
    except (OSError, ValueError, EOFError):  # not there, or damaged: it is only a cache
        pass
    places = layout(vectors, seed)
    stream = io.BytesIO()
    np.save(stream, places)
    with suppress(UserError):  # a run that one may only read has a page elsewhere
        write_atomically(file, stream.getvalue())
    return places


def _pictures(model: "Method", source: ImageSource, kept: list[int], workers: int) -> Sprites:
    """The images as the model sees them, no larger than a thumbnail; one that can no longer be read is grey."""
    from vje.data.batches import evaluation_batches

    assert model.preprocessing is not None
    side = min(LARGEST_PICTURE, model.preprocessing.crop)
    size = max(side, round(model.preprocessing.size * side / model.preprocessing.crop))
    small = replace(model.preprocessing, size=size, crop=side)
    images = np.full((len(kept), small.channels, side, side), 128, np.uint8)
    for batch in evaluation_batches(source.subset(kept), small, 500, workers):
        images[batch.indices.numpy()] = batch.images.numpy()
    return make_sprites(images)
