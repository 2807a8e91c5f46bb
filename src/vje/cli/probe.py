"""``vje probe RUN``: a linear classifier on frozen features, as a table and as ``probe.json``."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.table import Table

from vje.cli.checks import at_least
from vje.cli.subject import (
    Device,
    OwnData,
    OwnDataDir,
    OwnLabels,
    Subject,
    Workers,
    run_config,
    tell_strangers,
    tell_unreadable,
)
from vje.config import Config
from vje.data.registry import check_data
from vje.data.sources import ImageSource
from vje.data.splits import Splits
from vje.errors import UserError
from vje.evaluation.usual import KEPT_BYTES, SPACES, USUAL_PROBE, said
from vje.runs import RunFolder
from vje.terminal import print_whole

if TYPE_CHECKING:
    from vje.methods.method import Method

MOMENTUM = 0.9
COMPARED = ("epochs", "batch", "momentum", "weight_decay", "standardize", "augment", "seed", "held_out", "rates")
"""Settings that results of several calls must have in common to stand side by side."""
OTHER_WORDS = {"ema": "target"}


@dataclass(frozen=True)
class Options:
    """The linear probe: how well a linear classifier does on the frozen features of a run.

    Every learning rate has two classifiers, all trained in one pass with SGD and a cosine to zero. One passes over
    the training images held out, which choose the rate; the other learns from all training images, and its accuracy
    on the test images is reported.

    Results go to RUN/probe.json: spaces has one entry for each kind of features, and top1 and top5 at the top are those
    of z. Other kinds that were probed before stay there if weights, images and settings are the same; if not, what was
    found before is kept in RUN/probe-earlier, with a word on why.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Run folder."""
    space: str = "z"
    """Features: z, mean (of VJE's posterior), target or ema (the EMA encoder's z), or all that the run has."""
    epochs: int = 100
    """Passes over the training images."""
    batch: int | None = None
    """Images a step; the default is 256, or half of the training images where there are fewer."""
    lr: tuple[float, ...] = ()
    """Learning rates to try; the default is eight of them, from 0.001 to 3."""
    weight_decay: float = 0.0
    """L2 penalty of the weights."""
    held_out: float = 0.1
    """Fraction of the training images that chooses the learning rate, 10,000 images at most."""
    standardize: bool = True
    """Bring every feature to mean 0 and standard deviation 1, so that rates suit any encoder."""
    augment: bool = False
    """Train on random crops and flips, as is usual for ImageNet; done anyway where features would take over 8 GiB."""
    seed: int = 0
    """Of the order, the crops and the images held out."""
    labels: OwnLabels = None
    data_dir: OwnDataDir = None
    data: OwnData = None
    device: Device = "auto"
    workers: Workers = 8


def run(arguments: list[str]) -> int:
    """Train classifiers, print and write."""
    options = tyro.cli(Options, args=arguments, prog="vje probe")
    _check(options)
    folder = RunFolder.open(options.run)

    config = run_config(folder, options.data, options.data_dir, options.labels)
    check_data(config.data.data, config.data.data_dir)
    folder.find_whole("probe")
    result = probe_run(folder, config, options)
    print_table(result)
    together, note = with_earlier(result, earlier := folder.find("probe"))
    if (reason := _difference(earlier, result)) and (before := earlier.get("spaces")):
        place = folder.set_aside("probe.json", str(earlier.get("data", "")), earlier)
        there = f"{_accuracies(before)}; now in {place / 'probe.json'}"
        note = f"Replaced: what earlier calls found ({there}), as {reason}."
    file = folder.write("probe", together)
    if note:
        print(note)
    print(f"\nWritten to {file}")
    return 0


def _check(options: Options) -> None:
    at_least(1, epochs=options.epochs, batch=options.batch)
    at_least(0, workers=options.workers, seed=options.seed)
    if options.seed >= 2**32:
        raise UserError(f"--seed must be between 0 and 2**32 - 1, got {options.seed}.")
    for rate in options.lr:
        if not 0 < rate < float("inf"):
            raise UserError(f"--lr must be positive numbers, got {rate}.")
    if not 0 <= options.weight_decay < float("inf"):
        raise UserError(f"--weight-decay must be a number, 0 or more, got {options.weight_decay}.")
    if not 0 < options.held_out < 1:
        raise UserError(f"--held-out must be between 0 and 1, got {options.held_out}.")


def probe_run(folder: RunFolder, config: Config, options: Options) -> dict[str, Any]:
    """What ``probe.json`` holds."""
    from vje.build_data import open_splits
    from vje.cli.console import counting
    from vje.cli.probe_images import augmented, step_batch, stored
    from vje.evaluation.evaluate import stored_spaces
    from vje.evaluation.probe import Split, linear_probe

    splits = open_splits(config.data, folder.read("data"))
    _check_images(splits, config)
    tell_strangers(splits.bank, splits.test)
    step_batch(options.batch, len(splits.bank))  # one that is too large is told before anything is computed
    subject = Subject(folder, options.device, workers=options.workers)
    model = subject.model
    names, rates = _spaces(model, options.space), sorted(set(options.lr)) or list(USUAL_PROBE["lr"])
    test = subject.features("test images", splits.test)
    assert test.labels is not None
    augment = options.augment or _too_many(splits.bank, model, names)
    prepare = augmented if augment else stored
    training = prepare(model, splits.bank, names, subject.features, config, options)
    told = training.batches.unreadable()
    with counting("epochs of the probe") as report:
        found = linear_probe(
            training,
            Split(stored_spaces(model, test, names), test.labels),
            rates=rates,
            epochs=options.epochs,
            momentum=MOMENTUM,
            weight_decay=options.weight_decay,
            standardize=options.standardize,
            report=report,
        )
    unreadable = training.batches.unreadable()
    if len(unreadable) > len(told):
        tell_unreadable(list(unreadable.items()), "training images")
    images = {
        "train": len(training.labels) - len(unreadable),
        "held_out": len(training.validation.labels),
        "test": len(test.labels),
    }
    return {
        "data": config.data.data,
        "spaces": {name: asdict(result) for name, result in found.items()},
        "inputs": splits.inputs(),
        "images": images,
        "classes": len(training.labels.unique()),
        **_protocol(options, training.batches.batch, augment, rates),
        **_origin(model),
        "finished": folder.model_file.exists(),
        **splits.reservations(),
    }


def _protocol(options: Options, batch: int, augment: bool, rates: list[float]) -> dict[str, Any]:
    """How the classifiers were trained."""
    return {
        "epochs": options.epochs,
        "batch": batch,
        "momentum": MOMENTUM,
        "weight_decay": options.weight_decay,
        "standardize": options.standardize,
        "augment": augment,
        "seed": options.seed,
        "held_out": options.held_out,
        "rates": rates,
    }


def _origin(model: "Method") -> dict[str, Any]:
    from vje.environment import environment
    from vje.evaluation.features import weights_fingerprint

    device = next(model.parameters()).device
    return {"method": model.name(), "weights": weights_fingerprint(model)[:16], "environment": environment(device)}


def _check_images(splits: Splits, config: Config) -> None:
    """Refuse data that cannot be probed, before anything is computed."""
    if splits.bank.labels is None or splits.test.labels is None:
        raise UserError(
            f"the linear probe needs labels, and {config.data.data} has none: give them with --labels FILE "
            "(CSV with columns file,label, or .npy)."
        )


def _spaces(model: "Method", wanted: str) -> list[str]:
    from vje.evaluation.evaluate import space_names

    known = space_names(model)
    name = wanted if wanted in known else OTHER_WORDS.get(wanted, wanted)
    if name != "all" and name not in known:
        raise UserError(f"--space {wanted}: this {model.name()} run has {', '.join(known)}; use one of them, or all.")
    return known if name == "all" else [name]


def _too_many(bank: ImageSource, model: "Method", names: list[str]) -> bool:
    size = 4 * len(bank) * model.encoder.dim * len(names)
    if size > KEPT_BYTES:
        print(f"The features of {len(bank):,} images would take {size / 2**30:.0f} GiB: training on crops and flips.")
    return size > KEPT_BYTES


def with_earlier(now: dict[str, Any], earlier: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A result together with those of other spaces that an earlier call left, and a line on those.

    Args:
        now: what was just measured.
        earlier: what ``probe.json`` had; empty if there was none.

    Returns:
        What ``probe.json`` is to hold. A space that was measured with other versions or on another device has an
        ``environment`` of its own.
    """
    before = {} if _difference(earlier, now) else earlier.get("spaces", {})
    kept = {name: found for name, found in before.items() if name not in now["spaces"]}
    spaces = now["spaces"] | {name: _with_origin(found, earlier, now) for name, found in kept.items()}
    spaces = {name: spaces[name] for name in dict.fromkeys((*SPACES, *spaces)) if name in spaces}
    of_z = {name: spaces["z"][name] for name in ("top1", "top5")} if "z" in spaces else {}
    words = "Kept: what earlier calls found with the same weights, images and settings"
    note = f"{words} ({_accuracies(kept)})." if kept else ""
    return {"data": now["data"], **of_z, **now, "spaces": spaces}, note


def _difference(earlier: dict[str, Any], now: dict[str, Any]) -> str:
    """Why two results cannot stand side by side, in words; empty if they can."""
    if earlier.get("weights") != now["weights"]:
        return "the weights differ"
    if "inputs" not in earlier:
        return "an older vje wrote it, which did not say on which images"
    images = "the images or their labels differ"
    if earlier["inputs"] != now["inputs"]:
        return images
    changed = [name for name in COMPARED if earlier.get(name) != now[name]]
    words = (f"{name.replace('_', ' ')} {said(earlier.get(name))} then, {said(now[name])} now" for name in changed)
    if changed:
        return f"settings differ: {'; '.join(words)}"
    return "" if earlier.get("images") == now["images"] else images


def _with_origin(found: dict[str, Any], earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """A kept result, which says what it was made with where that is not what the new one was made with."""
    origin = found.get("environment", earlier.get("environment"))
    plain = {name: value for name, value in found.items() if name != "environment"}
    return plain if origin == now["environment"] else plain | {"environment": origin}


def _accuracies(spaces: dict[str, Any]) -> str:
    return ", ".join(f"{SPACES.get(name, name)} {found['top1']:.2f}% top-1" for name, found in spaces.items())


def print_table(result: dict[str, Any]) -> None:
    """The result for a person."""
    images, table = result["images"], Table()
    table.add_column("features")
    for column in ("learning rate", "held out, top-1", "test, top-1", "test, top-5"):
        table.add_column(column, justify="right")
    for space, found in result["spaces"].items():
        for rate in found["rates"]:
            top5 = "" if rate["test_top5"] is None else f"{rate['test_top5']:.2f}%"
            table.add_row(
                SPACES.get(space, space),
                f"{rate['lr']:g}",
                f"{rate['validation_top1']:.2f}%",
                f"{rate['test_top1']:.2f}%",
                top5,
                style="bold" if rate["lr"] == found["lr"] else "dim",
                end_section=rate is found["rates"][-1],
            )
    title = f"Linear probe on {result['data']}: {images['train']:,} training and {images['test']:,} test images"
    print_whole(table, title)
    for space, found in result["spaces"].items():
        print(_summary(SPACES.get(space, space), found, images["held_out"]))


def _summary(space: str, found: dict[str, Any], held_out: int) -> str:
    top5 = "" if found["top5"] is None else f", {found['top5']:.2f}% top-5"
    rates = [rate["lr"] for rate in found["rates"]]
    text = (
        f"{space}: {found['top1']:.2f}% top-1{top5} at the rate {found['lr']:g}, "
        f"chosen on {held_out:,} training images held out."
    )
    if len(rates) > 1 and found["lr"] in (rates[0], rates[-1]):
        text += f" It is the {'smallest' if found['lr'] == rates[0] else 'largest'} tried: try others with --lr."
    return text
