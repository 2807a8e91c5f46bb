"""One run's part of ``vje ood``: its images and those to tell from them, embedded, scored, compared and drawn."""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vje.cli.evaluate import run_config, tell_unreadable
from vje.errors import UserError
from vje.ood.names import CURVE_SCORES, FIGURE_SCORES, MIRROR, title
from vje.runs import RunFolder

if TYPE_CHECKING:
    from vje.cli.ood import Options
    from vje.data.sources import ImageSource
    from vje.methods.method import Method
    from vje.ood.benchmark import Member
    from vje.ood.protocol import Scores

RESERVED = ("id", "bank", "tuning")
"""Names that sets of one's own cannot have."""


def measure(folder: RunFolder, options: "Options") -> dict[str, Any]:
    """What ``ood.json`` holds, measured now or before; figures are drawn beside it."""
    from rich.console import Console

    from vje.build import resolve_device, set_determinism
    from vje.build_data import open_splits
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


def _inputs(options: "Options", sets: "Mapping[str, Sequence[ImageSource]]") -> str:
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
    options: "Options", data: str, data_dir: Path, test: "ImageSource"
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


def _check_scores(model: "Method", folder: RunFolder, options: "Options") -> None:
    """Refuse a run that nothing could score, before its images are embedded."""
    import torch

    from vje.ood.scores import model_scores

    if not options.detectors and not model_scores(model, torch.zeros(1, model.encoder.dim), options.samples):
        raise UserError(
            f"{folder.path} was trained with {model.name()}, which has no scores of its own: leave --no-detectors out, "
            "so that detectors are fitted on its features."
        )
