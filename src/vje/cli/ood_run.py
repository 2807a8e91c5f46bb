"""One run's part of ``vje ood``: its images and those to tell from them, embedded, scored, compared and drawn."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vje.cli.ood_sets import Sets, benchmark_of, missing_sets, open_sets
from vje.cli.subject import Subject, run_config
from vje.data.sources import ImageSource
from vje.errors import UserError
from vje.ood.benchmark import ID_IMAGES
from vje.ood.names import CURVE_SCORES, FIGURE_SCORES, LIKELIHOODS, title
from vje.runs import RunFolder, digest

if TYPE_CHECKING:
    from vje.cli.ood import Options
    from vje.evaluation.features import Features
    from vje.methods.method import Method
    from vje.ood.protocol import Scorer, Scores


def measure(folder: RunFolder, options: "Options") -> dict[str, Any]:
    """What ``ood.json`` holds, measured now or before; figures are drawn beside it."""
    import torch

    from vje.environment import environment
    from vje.evaluation.features import weights_fingerprint
    from vje.ood.protocol import compare

    config = run_config(folder, options.data, options.data_dir)
    sets = open_sets(folder, config, options)
    for note in sets.notes:
        print(note)
    subject = Subject(folder, options.device, options.batch, options.workers)
    model, features = subject.model, partial(subject.features, target=False)
    _check_scores(model, folder, options)
    used = {
        "inputs": _inputs(options, sets),
        "images": sets.images(),
        "weights": weights_fingerprint(model)[:16],
        "environment": environment(subject.device),
    }
    known = _measured_already(folder, used)
    if known is not None:
        print(f"{folder.path} was measured before, with the same weights, images and options.")
        return _confirmed(folder, known)
    scorer = _fitted(sets, features, model, options)
    counts: dict[str, int] = {}

    def scores(name: str, sources: Sequence[ImageSource]) -> "Scores":
        embedded = torch.cat([features(name, source).z for source in sources])
        counts[name] = len(embedded)
        return scorer(embedded) | _view_scores(name, sources, scorer, model, options)

    id_scores = scores("id", [sets.inside])
    ood_scores = {m.name: scores(m.name, m.sources) for m in sets.members}
    result = compare(id_scores, ood_scores, {m.name: m.near for m in sets.members})
    result |= {
        "counts": counts,
        "partial": [
            *(["id"] if options.id is None and counts["id"] != ID_IMAGES else []),
            *(m.name for m in sets.members if m.partial(counts[m.name])),
        ],
        "missing": {} if options.id else missing_sets(benchmark_of(config.data.data), sets.members),
        "tuned": dict(scorer.chosen),
        "usual": dict(scorer.usual),
        "data": config.data.data if options.id is None else options.id,
        "seed": config.run.seed,
        "epochs": config.optimizer.epochs,
        "finished": folder.model_file.exists(),
        "held_out": sets.held_out,
        **used,
    }
    if scorer.classifier is not None:
        result["classifier"] = scorer.classifier
    keep_earlier(folder, result)
    _draw(folder, id_scores, ood_scores, scorer.classifier)
    folder.write("ood", result)
    return result


def _fitted(
    sets: Sets, features: "Callable[[str, ImageSource], Features]", model: "Method", options: "Options"
) -> "Scorer":
    """The scores, and detectors fitted on the training images' features and tuned on the validation lists."""
    from vje.ood.protocol import build_scorer

    bank = None if sets.bank is None or not options.detectors else features("training images", sets.bank)
    tuning = None
    if bank is not None and sets.validation is not None:
        inside, outside = sets.validation
        tuning = features("validation images", inside).z, features("OOD validation images", outside).z
    return build_scorer(model, bank, tuning, options.samples)


def _view_scores(
    what: str, sources: Sequence[ImageSource], scorer: "Scorer", model: "Method", options: "Options"
) -> "Scores":
    """The same scores over several views of each image, if so asked; by names that say so."""
    from vje.cli.console import counting
    from vje.ood.averaged import mean_scores
    from vje.ood.protocol import joined

    if options.views in (None, "one"):
        return {}
    found = []
    for source in sources:
        with counting(f"{what}, {options.views}") as report:
            part = mean_scores(model, source, scorer, options.views, options.batch, options.workers, report)
        found.append(part)
    return {f"{name}_{options.views}": x for name, x in joined(found).items()}


def _confirmed(folder: RunFolder, known: dict[str, Any]) -> dict[str, Any]:
    """Results whose weights are the trained model's are final, whatever is written there."""
    if folder.model_file.exists() and not known["finished"]:
        known["finished"] = True
        folder.write("ood", known)
    return known


def keep_earlier(folder: RunFolder, now: Mapping[str, Any]) -> None:
    """Move results that are not in ``now``, with their figures, out of the way of new ones.

    These are those on other images, and scores of the same model that were asked for then and are not now. Their folder
    goes by the images and what was asked, so that a later measurement of the same takes their place.
    """
    if not (found := folder.find("ood")):
        return
    same_images = found.get("images") == now["images"]
    lost = sorted(found["scores"].keys() - now["scores"].keys()) if same_images else []
    if same_images and (not lost or found.get("weights") != now["weights"]):
        return
    images = found.get("images", found["counts"])  # which the first versions had alone
    key = [images, lost] if same_images else images
    figures = [f"ood-{name.replace('_', '-')}.png" for name in ("roc", *found["scores"])]
    place = folder.set_aside("ood.json", found["data"], key, [*figures, "ood-curves.json"])
    sets = ", ".join(name for name in found["counts"] if name != "id")
    what = (
        f"with scores that these lack ({len(lost)})"
        if same_images
        else f"on other images ({found['data']} against {sets})"
    )
    print(f"Earlier results {what} are in {place} now.")


def _inputs(options: "Options", sets: Sets) -> str:
    """Identifies the images, and what was asked of them."""
    return digest([options.samples, options.views, options.detectors, sets.fingerprints()])


def _measured_already(folder: RunFolder, used: dict[str, Any]) -> dict[str, Any] | None:
    """The result in the run folder, if this very code made it of the same weights, images and options."""
    found = folder.find_whole("ood")  # also where a figure is missing: a damaged file goes before hours of work
    if not all((folder.path / name).exists() for name in ("ood-curves.json", "ood-roc.png")):
        return None
    if any(found.get(name) != used[name] for name in ("inputs", "weights")):
        return None
    then, now = (x["environment"]["commit"] for x in (found, used))
    return found if now and then == now and not now.endswith("-changed") else None


def _draw(folder: RunFolder, inside: Any, outside: Any, classifier: str | None) -> None:
    from vje.reporting.ood import ood_curves, save_densities, save_roc

    main = next(name for name in (*LIKELIHOODS, *inside) if name in inside)
    shown = [name for name in (*FIGURE_SCORES, *CURVE_SCORES) if name in inside]
    curves = ood_curves(inside, outside, list(dict.fromkeys(shown)) or [main], main)
    curves |= {"titles": {name: title(name, classifier) for name in inside}}
    save_roc(folder.path / "ood-roc.png", [curves], FIGURE_SCORES)
    densities = {data: scores[main] for data, scores in outside.items()}
    save_densities(folder.path / f"ood-{main.replace('_', '-')}.png", inside[main], densities, title(main, classifier))
    folder.write("ood-curves", curves)


def _check_scores(model: "Method", folder: RunFolder, options: "Options") -> None:
    """Refuse a run that nothing could score, before its images are embedded."""
    import torch

    from vje.ood.scores import model_scores

    if not options.detectors and not model_scores(model, torch.zeros(1, model.encoder.dim), options.samples):
        raise UserError(
            f"{folder.path} was trained with {model.name()}, which has no scores of its own: leave --no-detectors out, "
            "so that detectors are fitted on its features."
        )
