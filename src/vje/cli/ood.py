"""``vje ood RUN...``: the OpenOOD v1.5 benchmark, or sets of one's own, for every score."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from vje.cli.evaluate import run_config, tell_unreadable
from vje.config import stored_config
from vje.errors import UserError
from vje.runs import RunFolder, distinct, write_json

if TYPE_CHECKING:
    from vje.data.sources import ImageSource
    from vje.methods.method import Method
    from vje.ood.benchmark import Member
    from vje.ood.protocol import Scores

FIGURE_SCORES = (
    *("nll", "nll_directional", "variance_trace", "neg_kl", "neg_anisotropy"),
    *("ps_nll", "neg_kappa", "neg_elbo", "cosine_distance", "knn", "mahalanobis"),
)
CURVE_SCORES = ("nll", "ps_nll", "nll_directional", "variance_trace", "knn", "mahalanobis", "energy")
"""Scores whose curves the report shows; more would hide each other."""
TITLES = {
    "nll": "NLL",
    "nll_directional": "NLL dir",
    "nll_radial": "NLL rad",
    "nll_mc": "NLL sampled",
    "variance_trace": "Tr(v)",
    "neg_kl": "-KL",
    "neg_anisotropy": "-CoV(v)",
    "ps_nll": "PS NLL",
    "neg_kappa": "-kappa",
    "neg_elbo": "-ELBO",
    "cosine_distance": "cosine distance",
    "knn": "k-NN distance",
    "mahalanobis": "Mahalanobis",
    "mahalanobis_class": "Mahalanobis (classes)",
    "feature_norm": "-|z|",
    "msp": "MSP",
    "energy": "energy",
    "react": "ReAct",
    "vim": "ViM",
}
MIRROR = "_mirror"
"""Ends the name of a score that is the mean over an image and its mirror image."""
RESERVED = ("id", "bank", "tuning")
"""Names that sets of one's own cannot have."""
CLASSIFIER_SCORES = ("msp", "energy", "react", "vim")
CLASSIFIERS = {"own": "own classifier", "fitted": "probe"}


@dataclass(frozen=True)
class Options:
    """Out-of-distribution detection: AUROC, AUPR and FPR@95 of every score on every set.

    A run trained on CIFAR-10 or CIFAR-100 is put through the OpenOOD v1.5 protocol with the sets found in --data-dir;
    any run can be tried on images of your own with --id and --ood. Several runs give mean and standard deviation; they
    must be of one method and on the same data.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    data_dir: Path | None = None
    """Where the data sets are; the default is where they were in training."""
    id: str | None = None
    """In-distribution images that the run did not train on: a folder, an .npz, or a name."""
    ood: tuple[str, ...] = ()
    """Other images, each as NAME=PATH."""
    samples: int = 0
    """Monte-Carlo samples of the sampled NLL; 0 leaves it out."""
    mirror: bool = False
    """Score each image's mirror image too, and add the mean of the two as NAME_mirror: twice the time."""
    detectors: bool = True
    """Fit the detectors on training features too."""
    out: Path | None = None
    """File for the mean over several runs (JSON)."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute."""
    batch: int = 500
    """Images at a time."""
    workers: int = 8
    """Threads that decode files."""


def run(arguments: list[str]) -> int:
    """Run the benchmark on each run, write ``RUN/ood.json`` and figures, print a table."""
    options = tyro.cli(Options, args=arguments, prog="vje ood")
    if not options.runs:
        raise UserError("`vje ood` needs a run folder, such as runs/cifar10-ema.")
    if bool(options.id) != bool(options.ood):
        raise UserError("--id and --ood go together: what is in-distribution, and what is not.")
    for option, value, least in (("--samples", options.samples, 0), ("--batch", options.batch, 1)):
        if value < least:
            raise UserError(f"{option} must be at least {least}, got {value}.")
    if options.out is not None and len(options.runs) == 1:
        raise UserError("--out is for the mean over several runs; the result of one is in RUN/ood.json.")
    folders = distinct(RunFolder.open(path) for path in options.runs)
    differing = _check_alike(folders)
    results = [_evaluate(folder, options) for folder in folders]
    _print(results, folders)
    for line in differing:
        print(line)
    if len(results) > 1:
        from vje.ood.protocol import mean_and_std

        merged = mean_and_std([{k: r[k] for k in ("scores", "summary")} for r in results])
        if options.out is not None:
            write_json(options.out, merged | {"runs": [str(f.path) for f in folders], "counts": results[0]["counts"]})
            print(f"Mean and standard deviation written to {options.out}")
    return 0


def _check_alike(folders: list[RunFolder]) -> list[str]:
    """Refuse to average runs of several methods or data sets; returns lines on other settings that differ."""
    from vje.reporting.compare import differences

    configs = [stored_config(folder) for folder in folders]
    lines = []
    for folder, config in zip(folders[1:], configs[1:], strict=True):
        for what, one, other in (
            ("method", configs[0].method, config.method),
            ("data", configs[0].data.data, config.data.data),
        ):
            if one != other and not (what == "data" and _same_images(folders[0], folder)):
                raise UserError(
                    f"{folders[0].path} and {folder.path} are of different {what} ({one} and {other}), and a mean over "
                    "them would say nothing: run `vje ood` on each, and put them side by side with `vje compare`."
                )
        found = {name: value for name, value in differences(configs[0], config).items() if name != "data"}
        if found:
            words = ", ".join(f"{name} {value}" for name, value in found.items())
            lines.append(f"Not only the seeds differ: {folder.path} has {words}, unlike {folders[0].path}")
    return lines


def _same_images(one: RunFolder, other: RunFolder) -> bool:
    """Whether two runs trained on the same images, which may have been in two places."""
    prints = [folder.read("data").get("fingerprint") for folder in (one, other)]
    return bool(prints[0]) and prints[0] == prints[1]


def _check_scores(model: "Method", folder: RunFolder, options: Options) -> None:
    """Refuse a run that nothing could score, before its images are embedded."""
    import torch

    from vje.ood.scores import model_scores

    if not options.detectors and not model_scores(model, torch.zeros(1, model.encoder.dim), options.samples):
        raise UserError(
            f"{folder.path} was trained with {model.name()}, which has no scores of its own: leave --no-detectors out, "
            "so that detectors are fitted on its features."
        )


def title(score: str, classifier: str | None = None) -> str:
    """A score's name for people; of those on a linear classifier, with whose it was.

    >>> title("msp", "own"), title("msp", "fitted"), title("nll", "own")
    ('MSP (own classifier)', 'MSP (probe)', 'NLL')
    >>> title("nll_mirror")
    'NLL, mirrored too'
    """
    if score.endswith(MIRROR):
        return f"{title(score.removesuffix(MIRROR), classifier)}, mirrored too"
    name = TITLES.get(score, score)
    return f"{name} ({CLASSIFIERS[classifier]})" if classifier and score in CLASSIFIER_SCORES else name


def _evaluate(folder: RunFolder, options: Options) -> dict[str, Any]:
    from rich.console import Console

    from vje.build import open_splits, resolve_device, set_determinism
    from vje.cli.console import counting
    from vje.data.sources import MirroredSource
    from vje.environment import environment
    from vje.evaluation.features import Features, cached_features, weights_fingerprint
    from vje.models import load
    from vje.ood.protocol import build_scorer, compare, embeddings

    config = run_config(folder, None, options.data_dir)
    set_determinism(deterministic=False)
    model = load(folder.path, str(resolve_device(options.device)))
    _check_scores(model, folder, options)
    console = Console(stderr=True)

    def features(what: str, source: "ImageSource") -> Features:
        with counting(console, what) as report:
            found = cached_features(model, source, folder.cache, options.batch, options.workers, report)
        tell_unreadable(found, what)
        return found

    splits = open_splits(config.data, config.run.seed, folder.read("data"))
    inside, members, validation = _sets(options, config.data.data, config.data.data_dir, splits.test)
    everything: dict[str, Sequence[ImageSource]] = {"bank": [splits.bank], "id": [inside], "tuning": validation or ()}
    used = {
        "inputs": _inputs(options, everything | {m.name: m.sources for m in members}),
        "weights": weights_fingerprint(model)[:16],
        "environment": environment(next(model.parameters()).device),
    }
    known = _measured_already(folder, used)
    if known is not None:
        print(f"{folder.path} was measured before, with the same weights, images and options.")
        return known
    bank = features("training images", splits.bank) if options.detectors else None
    tuning = None
    if validation is not None:
        tuning = features("validation images", validation[0]).z, features("OOD validation images", validation[1]).z
    scorer = build_scorer(model, bank, tuning, options.samples)

    counts = {}

    def scores(what: str, sources: Sequence["ImageSource"]) -> "Scores":
        embedded = embeddings([features(what, part) for part in sources])
        counts[what], found = len(embedded), scorer(embedded)
        if not options.mirror:
            return found
        other = scorer(embeddings([features(f"{what}, mirrored", MirroredSource(part)) for part in sources]))
        return found | {name + MIRROR: (found[name] + other[name]) / 2 for name in found}

    id_scores = scores("id", [inside])
    ood_scores = {m.name: scores(m.name, m.sources) for m in members}
    result = compare(id_scores, ood_scores, {m.name: m.near for m in members})
    result |= {
        "counts": counts,
        "partial": [m.name for m in members if m.partial(counts[m.name])],
        "missing": {} if options.id else _missing(Path(config.data.data).stem, members),
        "tuned": dict(scorer.chosen),
        "data": config.data.data if options.id is None else options.id,
        "seed": config.run.seed,
        "epochs": config.optimizer.epochs,
        "finished": folder.model_file.exists(),
        **used,
    }
    if scorer.classifier is not None:
        result["classifier"] = scorer.classifier
    _draw(folder, id_scores, ood_scores, scorer.classifier)
    folder.write("ood", result)
    return result


def _inputs(options: Options, sets: "Mapping[str, Sequence[ImageSource]]") -> str:
    """Identifies the images, and what was asked of them."""
    prints = {name: [source.fingerprint() for source in sources] for name, sources in sets.items()}
    asked = [options.samples, options.mirror, options.detectors, prints]
    return blake2b(json.dumps(asked).encode(), digest_size=8).hexdigest()


def _measured_already(folder: RunFolder, used: dict[str, Any]) -> dict[str, Any] | None:
    """The result in the run folder, if this very code made it of the same weights, images and options."""
    if not all((folder.path / name).exists() for name in ("ood.json", "ood-curves.json", "ood-roc.png")):
        return None
    found = folder.read("ood")
    if any(found.get(name) != used[name] for name in ("inputs", "weights")):
        return None
    then, now = (x["environment"]["commit"] for x in (found, used))
    return found if now and then == now and not now.endswith("-changed") else None


def _missing(benchmark: str, members: Sequence["Member"]) -> dict[str, list[str]]:
    """Sets of the protocol that are not at hand, in each group that lacks any: its mean is not the protocol's."""
    from vje.ood.benchmark import BENCHMARKS

    there = {member.name for member in members}
    groups: dict[str, list[str]] = {}
    for wanted in BENCHMARKS[benchmark]:
        if wanted.name not in there:
            groups.setdefault("near" if wanted.near else "far", []).append(wanted.name)
    return groups


def _sets(
    options: Options, data: str, data_dir: Path, test: "ImageSource"
) -> "tuple[ImageSource, list[Member], tuple[ImageSource, ImageSource] | None]":
    """In-distribution test images, the sets to tell from them, and images to choose hyper-parameters on."""
    from vje.cli.embed import open_images
    from vje.ood.benchmark import BENCHMARKS, Member, find_sets, id_images

    if options.id is not None:
        members: list[Member] = []
        for word in options.ood:
            name, equals, path = word.partition("=")
            if not (name and equals and path):
                raise UserError(f"--ood {word}: write it as NAME=PATH.")
            if name in (*RESERVED, *(member.name for member in members)):
                raise UserError(f"--ood {word}: the name {name} is taken; choose another.")
            members.append(Member(name, None, (open_images((path,), None, data_dir),)))
        return open_images((options.id,), None, data_dir), members, None
    benchmark = Path(data).stem
    if benchmark not in BENCHMARKS:
        raise UserError(
            f"there is no benchmark for a run on {data} (there are {', '.join(BENCHMARKS)}): say what to compare with "
            "--id PATH --ood NAME=PATH."
        )
    validation, inside = id_images(benchmark, test)
    members, missing, tuning = find_sets(benchmark, data_dir)
    for message in missing:
        print(message)
    if not members:
        raise UserError(f"none of the benchmark's data sets is in {data_dir}; see above for how to get them.")
    return inside, members, None if tuning is None else (validation, tuning)


def _draw(folder: RunFolder, inside: Any, outside: Any, classifier: str | None) -> None:
    from vje.reporting.ood import ood_curves, save_densities, save_roc

    shown = [name for name in FIGURE_SCORES if name in inside]
    save_roc(folder.path / "ood-roc.png", {name: inside[name] for name in shown}, outside)
    main = next(name for name in ("nll", "ps_nll", *inside) if name in inside)
    densities = {data: scores[main] for data, scores in outside.items()}
    save_densities(folder.path / f"ood-{main.replace('_', '-')}.png", inside[main], densities, title(main, classifier))
    curves = ood_curves(inside, outside, [name for name in CURVE_SCORES if name in inside] or [main], main)
    folder.write("ood-curves", curves | {"titles": {name: title(name, classifier) for name in inside}})


def _print(results: list[dict[str, Any]], folders: list[RunFolder]) -> None:
    """AUROC of every score on every set."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from vje.ood.protocol import mean_and_std

    first = results[0]
    several = len(results) > 1
    merged = mean_and_std([{k: r[k] for k in ("scores", "summary")} for r in results])

    def cell(leaf: dict[str, float]) -> str:
        return f"{leaf['mean']:.1f} ± {leaf['std']:.1f}" if several else f"{leaf['mean']:.1f}"

    sets = [name for name in first["counts"] if name != "id"]
    groups = [name for name in ("near", "far", "avg") if name in next(iter(first["summary"].values()))]
    above = f"AUROC (%), in-distribution {first['data']} ({first['counts']['id']:,} images)"
    table = Table(title=f"{above}, {len(results)} runs" if several else above, box=box.SIMPLE, pad_edge=False)
    table.add_column("score", no_wrap=True)
    for name in sets:
        mark = "*" if name in first["partial"] else ""
        table.add_column(f"{name}{mark}\n{first['counts'][name]:,}", justify="right")
    missing = first.get("missing", {})
    for name in groups:
        short = name in missing or (name == "avg" and missing)
        table.add_column(f"{name}†" if short else name, justify="right", style="bold")
    for score, values in merged["scores"].items():
        cells = [cell(values[name]["auroc"]) for name in sets] + [cell(merged["summary"][score][g]) for g in groups]
        table.add_row(title(score, first.get("classifier")), *cells)
    needed = 150 if several else 110
    Console(width=max(needed, Console().width)).print(
        table
    )  # a narrow window wraps lines; a narrow table loses figures
    if first["partial"]:
        print(f"* not the protocol's own image list (other counts): {', '.join(first['partial'])}")
    if missing:
        print(f"† not the protocol's mean: without {', '.join(x for names in missing.values() for x in names)}")
    if first["tuned"]:
        print("chosen on validation images: " + ", ".join(f"{k} {v:g}" for k, v in first["tuned"].items()))
    for folder in folders:
        print(f"Written to {folder.path / 'ood.json'}, with figures (ood-*.png) beside it")
