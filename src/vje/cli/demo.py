"""``vje demo``: train on scikit-learn's handwritten digits on the CPU, and show what was learned."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from vje.claims import new_run
from vje.cli.report import write_report
from vje.cli.subject import run_config
from vje.data.splits import Splits
from vje.errors import command
from vje.recipes import load_recipe
from vje.runs import RunFolder

if TYPE_CHECKING:
    import torch

    from vje.evaluation.features import Features
    from vje.methods.method import Method
    from vje.methods.vje import VJE


@dataclass(frozen=True)
class Options:
    """Train a small VJE encoder on 8x8 digits (no labels used), evaluate it, and draw the most and least typical."""

    out: Path | None = None
    """Run folder to write; the default is runs/demo, or the next name that is free."""
    epochs: int | None = None
    """Passes over the 1,438 training digits; the default is the recipe's."""
    seed: int = 0
    """Of everything random."""


def run(arguments: list[str]) -> int:
    """Run the demo."""
    options = tyro.cli(Options, args=arguments, prog="vje demo")
    recipe = load_recipe("digits")
    epochs = recipe.optimizer.epochs if options.epochs is None else options.epochs
    config = replace(
        recipe,
        recipe="demo",
        optimizer=replace(recipe.optimizer, epochs=epochs),
        run=replace(recipe.run, seed=options.seed, device="cpu"),
    )
    config.check()
    with new_run(options.out or Path("runs/demo"), exact=options.out is not None) as folder:
        from vje.cli.launch import train

        print("Training on scikit-learn's handwritten digits, without their labels.\n")
        status = train(config, folder, resuming=False, environment={"command": ["vje", "demo"]})
    return status or _show(folder)


def _show(folder: RunFolder) -> int:
    """Evaluate and explain."""
    import torch

    from vje.build import build_method
    from vje.build_data import open_splits
    from vje.evaluation.evaluate import evaluate, in_chunks, knn_of_features
    from vje.evaluation.features import cached_features, compute_features
    from vje.models import load_vje

    config = run_config(folder, None, None)
    model = load_vje(folder.path)
    splits = open_splits(config.data, folder.read("data"))
    bank, test = (cached_features(model, source, folder.cache) for source in (splits.bank, splits.test))
    result = evaluate(model, bank, test)
    assert model.preprocessing is not None
    torch.manual_seed(config.run.seed)
    untrained = build_method(config, model.preprocessing).eval()
    its_bank, its_test = (compute_features(untrained, source) for source in (splits.bank, splits.test))
    result["knn_untrained"] = knn_of_features(untrained, its_bank, its_test)
    result["knn_pixels"] = _pixels(splits)
    result["data"] = {"name": "digits", "test_images": len(splits.test), "seed": config.run.seed}
    picture = folder.path / "typical.png"
    scores = in_chunks(model, model.statistics, test.z)
    _draw(picture, splits, test, scores["nll"])
    strangers = _strangers()
    result["ood"] = _told_apart(model, scores["nll"], strangers)
    its_nll = in_chunks(untrained, untrained.statistics, its_test.z)["nll"]
    result["ood_untrained"] = _told_apart(untrained, its_nll, strangers)
    folder.write("evaluation", result)
    _explain(result, scores, folder, picture, model, _report(folder))
    return 0


def _report(folder: RunFolder) -> Path:
    """The page that shows all of it, with a map of the digits."""
    from vje.cli.report import Options as ReportOptions

    return write_report(folder, folder.path / "report.html", ReportOptions((folder.path,), device="cpu", workers=0))


def _strangers(count: int = 500) -> dict[str, "torch.Tensor"]:
    """Images that are no digits, by name."""
    import torch
    from PIL import Image
    from sklearn.datasets import load_sample_images

    patches = []
    for photo in load_sample_images().images:
        grey = Image.fromarray(photo).convert("L").reduce(4)
        pixels = np.asarray(grey)[: grey.height // 8 * 8, : grey.width // 8 * 8]
        patches.append(pixels.reshape(grey.height // 8, 8, -1, 8).swapaxes(1, 2).reshape(-1, 1, 8, 8))
    rng = np.random.default_rng(0)
    return {
        "patches of photographs": torch.from_numpy(np.concatenate(patches)[:count]),
        "noise": torch.from_numpy(rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)),
    }


def _told_apart(model: "Method", nll: "torch.Tensor", strangers: Mapping[str, "torch.Tensor"]) -> dict[str, float]:
    """AUROC in percent of telling digits, whose NLL is given, from other images by the likelihood alone."""
    from vje.ood.metrics import auroc

    return {name: 100 * auroc(nll, model.score(images)["nll"]) for name, images in strangers.items()}


def _pixels(splits: Splits) -> float:
    """k-NN accuracy of the raw pixels."""
    import torch

    from vje.evaluation.knn import knn_accuracy

    def flat(source: Any) -> "torch.Tensor":
        return torch.as_tensor(source.planes(range(len(source)))).flatten(1).float()

    bank, test = splits.bank, splits.test
    return knn_accuracy(flat(bank), torch.as_tensor(bank.labels), flat(test), torch.as_tensor(test.labels))


def _draw(picture: Path, splits: Splits, test: "Features", nll: "torch.Tensor", count: int = 10) -> None:
    from vje.reporting.figures import save_gallery

    order = nll.argsort().tolist()
    rows = []
    for title, chosen in (("most typical", order[:count]), ("least typical", order[::-1][:count])):
        images = [np.asarray(splits.test.image(int(test.kept[i]), 1))[None] for i in chosen]
        captions = [f"NLL {float(nll[i]):.0f}" for i in chosen]
        rows.append((f"The {title} of {len(nll)} digits that were not trained on", images, captions))
    save_gallery(picture, rows)


def _explain(
    result: dict[str, Any],
    scores: dict[str, "torch.Tensor"],
    folder: RunFolder,
    picture: Path,
    model: "VJE",
    report: Path,
) -> None:
    """What was learned, in words."""
    knn, before, posterior = result["knn"], result["knn_untrained"], result["posterior"]
    table = Table(title="Which digit is it? k-NN accuracy (k = 20) on digits that were not trained on")
    for column in ("representation", "untrained", "trained"):
        table.add_column(column, justify="left" if column == "representation" else "right")
    table.add_row("raw pixels", f"{result['knn_pixels']:.1f}%", "")
    for name, label in (("z", "z, the encoder's embedding"), ("mean", "mean of the posterior"), ("target", "EMA z")):
        if name in knn:
            table.add_row(label, f"{before[name]:.1f}%", f"{knn[name]:.1f}%")
    console = Console()
    console.print()
    console.print(table)
    dim = model.encoder.dim
    low, high = (float(scores["nll"].quantile(q)) for q in (0.05, 0.95))
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)  # paths and commands stay whole
    say(
        f"\nEvery digit has its own Gaussian posterior over {dim} features. Its variance averages "
        f"{posterior['variance']:.2f} (the prior's is 1),\nuneven over features (std / mean "
        f"{posterior['anisotropy']:.2f}); it holds {posterior['kl']:.0f} nats more than the prior. "
        f"{result['effective_rank']:.0f} of the {dim} dimensions are\nin real use. The negative log-likelihood, the "
        f"score of how unusual an image is, runs from {low:.0f} for typical\ndigits to {high:.0f} for odd ones."
    )
    found = ", ".join(
        f"{name} {value:.1f}% (untrained {result['ood_untrained'][name]:.1f}%)" for name, value in result["ood"].items()
    )
    say(f"\nIs it a digit at all? Told by that score alone (AUROC; 50% is chance): {found}.")
    say(f"\nThe most and least typical digits: {picture}")
    say(f"Everything about the run:          {folder.path}")
    say("\nWhat to run next:")
    say("  vje train cifar10-ema               the paper's CIFAR-10 setting (one GPU, minutes)")
    say("  vje train folder --data PHOTOS/     your own images, no labels needed")
    score = command("vje", "score", folder.path, "IMAGES")
    say(f"  {command('vje', 'calibrate', folder.path)}             then `{score}` gives p-values")
    say("  vje recipes                         what else can be trained by name")
    say(f"\nOpen this in a browser to look around: {report}")
