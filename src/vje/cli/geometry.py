"""``vje geometry RUN``: how the posterior's statistics go with the place of an image among the classes."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich import box
from rich.table import Table

from vje.cli.checks import at_least, check_vje, check_writable
from vje.cli.subject import Batch, Device, OwnData, OwnDataDir, OwnLabels, Subject, Workers, run_config
from vje.config import Config
from vje.data.registry import check_data, open_data
from vje.data.sources import ImageSource
from vje.data.splits import apply_split
from vje.errors import UserError
from vje.runs import RunFolder
from vje.terminal import print_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """Geometry of the learned uncertainty, on the images that the encoder was not trained on.

    Class-centre margin, within-class radius and distance of the posterior means, posterior statistics by tertile of the
    margin, rank correlations, and a t-SNE map coloured by class and by each statistic. Also, over training as the run
    recorded it: effective rank, the directional and the radial part of the NLL (whichever likelihood was trained),
    variance and KL. Results go to RUN/geometry.json, the figures to RUN/geometry.png and RUN/geometry-training.png.
    Needs a VJE run and labels.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Run folder."""
    data_dir: OwnDataDir = None
    data: OwnData = None
    labels: OwnLabels = None
    points: int = 10_000
    """Images on the map, at most; 0 for no map."""
    device: Device = "auto"
    batch: Batch = 500
    workers: Workers = 8


def run(arguments: list[str]) -> int:
    """Write ``geometry.json``, ``geometry.png`` and ``geometry-training.png``, print the table."""
    options = tyro.cli(Options, args=arguments, prog="vje geometry")
    at_least(0, points=options.points, workers=options.workers)
    at_least(1, batch=options.batch)
    folder = RunFolder.open(options.run)
    check_writable(folder.path, "geometry")
    check_vje(folder.path)
    config = run_config(folder, options.data, options.data_dir, options.labels)
    _check_data(folder, config)

    from vje.build_data import open_splits
    from vje.environment import environment
    from vje.evaluation.evaluate import in_chunks
    from vje.evaluation.features import weights_fingerprint
    from vje.evaluation.geometry import geometry, training_curves
    from vje.methods.vje import VJE

    subject = Subject(folder, options.device, options.batch, options.workers)
    model, device = subject.model, subject.device
    assert isinstance(model, VJE)
    splits = open_splits(config.data, folder.read("data"))
    _require_labels(splits.test, config)
    features = subject.features("test images", splits.test)
    assert features.labels is not None
    means = in_chunks(model, model.spaces, features.z)["mean"]
    statistics = in_chunks(model, model.statistics, features.z)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*array is constant")  # NaN says it: isotropic runs' anisotropy is
        warnings.filterwarnings("ignore", message=".*degrees of freedom")  # NaN too: the spread of one image
        result: dict[str, Any] = geometry(means, features.labels.to(device), statistics)
    result["training"] = training_curves(folder.metrics())
    result |= {"data": config.data.data, "seed": config.run.seed, "epochs": config.optimizer.epochs}
    result |= {"finished": folder.model_file.exists(), "weights": weights_fingerprint(model)[:16]}
    result |= splits.reservations()
    folder.write("geometry", result | {"environment": environment(device)})
    _print(result)
    print(_end_of_training(folder, result["training"]))
    written = [folder.path / "geometry.json"]

    from vje.reporting.geometry import save_training

    if result["training"]:
        written.append(folder.path / "geometry-training.png")
        save_training(written[-1], result["training"], folder.path.resolve().name, model.likelihood)
    if options.points:
        written.append(folder.path / "geometry.png")
        rows = slice(None, None, -(-len(means) // options.points))
        shown = {name: x[rows] for name, x in statistics.items()}
        _draw(written[-1], means[rows], features.labels[rows], shown, splits.test.classes, config.run.seed)
    print(f"Written to {', '.join(map(str, written))}")
    return 0


def _draw(
    file: Path,
    means: "Tensor",
    labels: "Tensor",
    statistics: "dict[str, Tensor]",
    classes: "Sequence[str] | None",
    seed: int,
) -> None:
    """The map of the posterior means."""
    from vje.reporting.atlas import layout
    from vje.reporting.geometry import save_geometry

    print("Drawing the map (t-SNE) ...")
    places = layout(means.cpu().numpy(), seed)
    save_geometry(file, places, labels.numpy(), {name: x.cpu().numpy() for name, x in statistics.items()}, classes)


def _check_data(folder: RunFolder, config: Config) -> None:
    """Refuse data that is not there or has no labels, without torch; if the run knows of labels, without opening it."""
    settings, recorded = config.data, folder.read("data")
    check_data(settings.data, settings.data_dir)
    if recorded.get("labels"):  # of the training images
        return
    raw = open_data(settings.data, settings.data_dir, settings.labels)
    _require_labels(apply_split(raw, recorded["held_out"]).test, config)


def _require_labels(test: ImageSource, config: Config) -> None:
    if test.labels is None:
        raise UserError(
            f"geometry is between classes, and {config.data.data} has no labels: give them with --labels FILE."
        )


def _print(result: dict[str, Any]) -> None:
    """The paper's table."""
    from vje.evaluation.geometry import STATISTICS
    from vje.reporting.run_page import shown

    forms = dict(zip(STATISTICS, (".4f", ".2f", ".2f", ".4f"), strict=True))
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("", no_wrap=True)
    for title in ("variance", "NLL", "KL", "anisotropy"):
        table.add_column(title, justify="right", no_wrap=True)
    for third, row in result["tertiles"].items():
        cells = [" ± ".join(shown(row[name][key], forms[name]) for key in ("mean", "std")) for name in STATISTICS]
        table.add_row(f"{third} margin ({row['images']:,})", *cells)
    table.add_section()
    for place, row in result["spearman"].items():
        table.add_row(f"Spearman with {place}", *(shown(row[name], "+.2f") for name in STATISTICS))
    print_whole(table, f"{result['data']}: {result['images']:,} images, {result['classes']} classes")


def _end_of_training(folder: RunFolder, training: dict[str, list[Any]]) -> str:
    """The last recorded effective rank, and what direction and norm have in the likelihood, in a line."""
    from vje.methods.vje import VJE
    from vje.reporting.run_page import shown

    if not training:
        return f"Nothing on training: {folder.metrics_file} has no epochs."
    last = {name: values[-1] for name, values in training.items() if values[-1] is not None}
    forms = {"effective_rank": ".1f", "nll_directional": ".2f", "nll_radial": ".2f", "nll_standard": ".2f"}
    found = (f"{VJE.quantity(name).title} {shown(last[name], form)}" for name, form in forms.items() if name in last)
    return f"Training, epoch {last['epoch']}: {'; '.join(found)}"
