"""``vje evaluate RUN``: k-NN, posterior statistics and effective rank, as a table and as ``evaluation.json``."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vje.config import Config, stored_config
from vje.errors import UserError
from vje.runs import RunFolder


@dataclass(frozen=True)
class Options:
    """Evaluate a run on the images that it never trained on."""

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Run folder."""
    data_dir: Path | None = None
    """Where named data sets are; the default is where they were in training."""
    data: str | None = None
    """Name, folder or .npz, if the data has moved."""
    k: int = 20
    """Neighbours that vote."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute."""
    batch: int = 500
    """Images at a time."""
    workers: int = 8
    """Threads, or for many files processes, that decode."""


def run(arguments: list[str]) -> int:
    """Evaluate, print and write."""
    options = tyro.cli(Options, args=arguments, prog="vje evaluate")
    for option, value in (("--k", options.k), ("--batch", options.batch)):
        if value < 1:
            raise UserError(f"{option} must be at least 1, got {value}.")
    folder = RunFolder.open(options.run)

    from vje.data.registry import check_data

    config = run_config(folder, options.data, options.data_dir)
    check_data(config.data.data, config.data.data_dir)
    result = evaluate_run(folder, config, options)
    print_table(result)  # first of all: what was computed is seen even if it cannot be kept
    print(f"\nWritten to {folder.write('evaluation', result)}")
    return 0


def run_config(folder: RunFolder, data: str | None, data_dir: Path | None) -> Config:
    """A run's config, with its data elsewhere if so said."""
    config = stored_config(folder)
    data = data or own_data(folder, config.data.data)
    return replace(config, data=replace(config.data, data=data, data_dir=data_dir or config.data.data_dir))


def own_data(folder: RunFolder, given: str) -> str:
    """What a run was trained on, also seen from another folder than the one it was started in."""
    recorded = folder.read("data").get("path") if (folder.path / "data.json").is_file() else None
    here = Path(given).expanduser()
    if recorded is None or (here.exists() and (here.is_absolute() or not Path(recorded).exists())):
        return given
    if not Path(recorded).exists():
        raise UserError(
            f"{folder.path} was trained on {recorded}, which is not there: put it back, or say where it is now "
            "with --data PATH (`vje train --resume`, `evaluate`, `probe`, `geometry`, `ood` and `report` have it)."
        )
    return str(recorded)


def tell_unreadable(failures: Sequence[tuple[str, str]], what: str) -> None:
    """Say which files could not be read, as (name, reason), if any: what is measured is without them."""
    if failures:
        name, reason = failures[0]
        several = f", and {len(failures) - 1:,} more" if len(failures) > 1 else ""
        print(f"{what}: left out, as they cannot be read: {name} ({reason}){several}", file=sys.stderr)


def evaluate_run(folder: RunFolder, config: Config, options: Options) -> dict[str, Any]:
    """What ``evaluation.json`` holds."""
    from rich.console import Console

    from vje.build import resolve_device, set_determinism
    from vje.build_data import open_splits
    from vje.cli.console import counting
    from vje.evaluation.evaluate import check_neighbours, evaluate
    from vje.evaluation.features import cached_features, weights_fingerprint
    from vje.models import load

    device = resolve_device(options.device)
    set_determinism(deterministic=False)
    model = load(folder.path, str(device))
    recorded = folder.read("data")
    splits = open_splits(config.data, config.run.seed, recorded)
    found, labelled = {}, splits.bank.labels is not None and splits.test.labels is not None
    if labelled:
        check_neighbours(options.k, len(splits.bank))
    for name, source in (("test", splits.test), ("train", splits.bank)):
        if name == "test" or labelled:
            with counting(Console(stderr=True), f"{name} images") as report:
                found[name] = cached_features(model, source, folder.cache, options.batch, options.workers, report)
            tell_unreadable(found[name].failures, f"{name} images")
    result = evaluate(model, found.get("train"), found["test"], options.k)
    if recorded.get("classes", splits.train.classes) != splits.train.classes and result.pop("classifier", None):
        print("accuracy is left out: the classes are not those of training, so their numbers differ", file=sys.stderr)
    result["data"] = {"name": config.data.data, "test_images": len(splits.test), "seed": config.run.seed}
    result |= {"epochs": config.optimizer.epochs, "finished": folder.model_file.exists()}
    result |= {"method": model.name(), "weights": weights_fingerprint(model)[:16]}
    unreadable = sum(len(features.failures) for features in found.values())
    counts = {"unreadable": unreadable, "lacking": splits.missing}
    return result | {name: count for name, count in counts.items() if count}


def print_table(result: dict[str, Any]) -> None:
    """The result for a person."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vje.methods import find_method
    from vje.reporting.run_page import shown

    method = find_method(result["method"])
    title = f"{result['data']['name']}: {result['images']:,} images the encoder was not trained on"
    table = Table(title=Text(title, "table.title"))  # brackets in a name are no markup
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("what it says", style="dim")
    if "classifier" in result:
        table.add_row(
            "accuracy", shown(result["classifier"]["top1"], ".2f", "%"), "of the classifier it was trained with"
        )
    for name, value in result.get("knn", {}).items():
        if name in KNN:
            table.add_row(f"k-NN of {KNN[name]}", shown(value, ".2f", "%"), f"k = {result['knn']['k']}, cosine")
    for name, value in result.get("posterior", {}).items():
        words = method.quantity(name)
        table.add_row(words.title, shown(value, ".4g"), words.meaning)
    table.add_row("effective rank", shown(result["effective_rank"], ".1f"), "dimensions of z in real use")
    Console().print(table)
    if "knn" not in result:
        print("k-NN accuracy needs labels, and this data has none.")


KNN = {"z": "z", "mean": "posterior mean", "target": "EMA encoder's z"}
