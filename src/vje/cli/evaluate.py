"""``vje evaluate RUN``: k-NN, posterior statistics and effective rank, as a table and as ``evaluation.json``."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Column, Table

from vje.cli.checks import at_least
from vje.cli.subject import Batch, Device, OwnData, OwnDataDir, OwnLabels, Subject, Workers, run_config, tell_strangers
from vje.config import Config
from vje.data.registry import check_data
from vje.errors import UserError
from vje.evaluation.usual import USUAL_K
from vje.methods import find_method
from vje.runs import RunFolder
from vje.terminal import print_whole


@dataclass(frozen=True)
class Options:
    """Evaluate a run on the images that it never trained on."""

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Run folder."""
    data_dir: OwnDataDir = None
    data: OwnData = None
    labels: OwnLabels = None
    k: int = USUAL_K
    """Neighbours that vote."""
    device: Device = "auto"
    batch: Batch = 500
    workers: Workers = 8


def run(arguments: list[str]) -> int:
    """Evaluate, print and write."""
    options = tyro.cli(Options, args=arguments, prog="vje evaluate")
    at_least(1, k=options.k, batch=options.batch)
    at_least(0, workers=options.workers)
    folder = RunFolder.open(options.run)

    config = run_config(folder, options.data, options.data_dir, options.labels)
    check_data(config.data.data, config.data.data_dir)
    result = evaluate_run(folder, config, options)
    print_table(result)  # first of all: what was computed is seen even if it cannot be kept
    _keep_earlier(folder, result)
    print(f"\nWritten to {folder.write('evaluation', result)}")
    return 0


def _keep_earlier(folder: RunFolder, now: dict[str, Any]) -> None:
    """Put an earlier result aside whose k-NN accuracies the new one has not, or that is on other images or labels."""
    before: dict[str, Any] = {}
    with suppress(UserError, OSError):  # there is none, or it is damaged
        before = folder.read("evaluation")
    k, new = (found.get("knn", {}).get("k") for found in (before, now))
    inputs = before.get("inputs", {}) if before.get("weights") == now["weights"] else {}
    others = [what for what, value in inputs.items() if value not in (None, now["inputs"][what])]
    how = f"with k = {k}" if k is not None and k != new else f"on other {others[0]}" if others else ""
    if how:
        place = folder.set_aside("evaluation.json", before["data"]["name"], before)
        print(f"What was measured before, {how}, is in {place} now.")


def evaluate_run(folder: RunFolder, config: Config, options: Options) -> dict[str, Any]:
    """What ``evaluation.json`` holds."""
    from vje.build_data import open_splits
    from vje.evaluation.evaluate import check_neighbours, evaluate
    from vje.evaluation.features import weights_fingerprint
    from vje.reporting.atlas import mappable

    subject, recorded = Subject(folder, options.device, options.batch, options.workers), folder.read("data")
    splits = open_splits(config.data, recorded)
    found, labelled = {}, splits.bank.labels is not None and splits.test.labels is not None
    if labelled:
        check_neighbours(options.k, len(splits.bank))
        tell_strangers(splits.bank, splits.test)
    for name, source in (("test", splits.test), ("train", splits.bank)):
        if name == "test" or labelled:
            found[name] = subject.features(f"{name} images", source)
    model, z = subject.model, found["test"].z
    if len(z) >= 5 and not mappable(z.cpu().numpy()):
        print("the encoder has collapsed: to it, all images are the same", file=sys.stderr)
    result = evaluate(model, found.get("train"), found["test"], options.k)
    if recorded.get("classes", splits.train.classes) != splits.train.classes and result.pop("classifier", None):
        print("accuracy is left out: the classes are not those of training, so their numbers differ", file=sys.stderr)
    result["data"] = {"name": config.data.data, "test_images": len(splits.test), "seed": config.run.seed}
    result |= {"epochs": config.optimizer.epochs, "finished": folder.model_file.exists()}
    result |= {"method": model.name(), "weights": weights_fingerprint(model)[:16]}
    result["inputs"] = {"images": splits.test.fingerprint(), "labels": splits.inputs() if labelled else None}
    unreadable = sum(len(features.failures) for features in found.values())
    return result | splits.reservations() | ({"unreadable": unreadable} if unreadable else {})


def print_table(result: dict[str, Any]) -> None:
    """The result for a person."""
    from vje.reporting.run_page import evaluation_rows

    table = Table("measure", Column("value", justify="right"), Column("what it says", style="dim"))
    for row in evaluation_rows(result, find_method(result["method"])):
        table.add_row(*row)
    print_whole(table, f"{result['data']['name']}: {result['images']:,} images the encoder was not trained on")
    if "knn" not in result:
        print("k-NN accuracy needs labels, and this data has none: --labels FILE gives them.")
