"""The report of one run: what it is, how it trained, what it reached, and the map of what it was not trained on."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vje.ood.benchmark import BENCHMARKS
from vje.reporting.atlas import TITLES, Atlas
from vje.reporting.compare import OWN_SCORES
from vje.reporting.html import Html, escaped, fill, page, table, tag
from vje.reporting.run_curves import curve_panels, read_warnings
from vje.runs import COMMANDS, RunFolder

SCRIPTS = ("common.js", "charts.js", "pictures.js", "map.js", "galleries.js", "report.js")
MINUS = "\u2212"
NOTHING = "\u2013"
"""Stands for a number that is none: an en dash."""
SPACES = {"z": "z", "mean": "the mean", "target": "the EMA encoder's z"}
MEANING = {  # of VJE's statistics; other methods' have the same names for other things
    "variance": "of the posterior; the prior's is 1",
    "kl": "what the posterior holds over the prior",
    "nll": "of z at s = mean; larger is less typical",
    "anisotropy": "spread of the variance over features",
}
RESULTS = {
    "evaluation": "k-NN accuracy, posterior statistics and effective rank",
    "probe": "The linear probe's accuracy",
    "ood": "AUROC against other images",
    "geometry": "The geometry of the posterior",
}


def run_page(folder: RunFolder, atlas: Atlas | None, no_map: str = "", weights: str | None = None) -> str:
    """The whole page.

    Args:
        folder: of the run; what is not in it is left out, with a line that says what makes it.
        atlas: the map; None leaves it and the galleries out.
        no_map: why there is no map.
        weights: fingerprint of the model on the map; results of others are marked.
    """
    config, records = folder.read("config"), folder.metrics()
    panels, curves = curve_panels(records), _read(folder, "ood-curves")
    numbers, notes = _numbers(folder, weights)
    body = fill(
        "report.html",
        name=folder.path.resolve().name,
        summary=summary(config, folder.progress()),
        origin=_origin(folder),
        numbers=_numbers_table(numbers),
        notes=Html("".join(tag("p", note, class_="note") for note in notes)),
        training=_training(bool(panels)),
        map=map_section(atlas, no_map),
        ood=_ood(folder, bool(curves)),
        warnings=warnings_list(read_warnings(folder)),
        config=_config(config),
    )
    data = {"panels": panels, "map": None if atlas is None else atlas.as_data(), "ood": _curves(curves)}
    return page(f"{folder.path.resolve().name}: report", body, data, SCRIPTS)


def summary(config: dict[str, Any], progress: str) -> str:
    """A run in a line."""
    method, data, encoder = config.get("method", "vje"), config.get("data", {}), config.get("encoder", {})
    epochs, seed = config.get("optimizer", {}).get("epochs"), config.get("run", {}).get("seed")
    name = "VJE" if method == "vje" else method
    return f"{name}, {encoder.get('encoder')} on {data.get('data')}; {epochs} epochs, seed {seed}; {progress}"


def shown(value: float | str, form: str, unit: str = "") -> str:
    """A number as text, or an en dash for one that is not finite.

    Args:
        value: the number; run folders have infinities and NaN as the strings that :func:`vje.runs.finite` makes.
        form: of a finite one, as in a format string.
        unit: to follow a finite one.

    >>> shown(71.5, ".2f", "%"), shown("nan", "+.2f"), shown(math.inf, ".1f", "%")
    ('71.50%', '–', '–')
    """
    number = float(value)
    return f"{number:{form}}{unit}" if math.isfinite(number) else NOTHING


def warnings_list(texts: list[str]) -> Html:
    """What the alarms said."""
    if not texts:
        return tag("p", "None.", class_="note")
    return tag("ul", *(tag("li", text) for text in texts), class_="warnings")


def _origin(folder: RunFolder) -> Html:
    found, data = _read(folder, "environment"), _read(folder, "data")
    words = [f"vje {found['vje']}" if "vje" in found else "", f"on {found['device']}" if "device" in found else ""]
    if "train_images" in data:
        words.append(f"{data['train_images']:,} training and {data.get('test_images', 0):,} held-out images")
    if "command" not in found:
        return escaped("; ".join(filter(None, words)))
    command = tag("code", " ".join(map(str, found["command"])))
    return Html(f"{escaped('; '.join(filter(None, words)))}. Started as: {command}")


# What was measured


def _numbers(folder: RunFolder, weights: str | None) -> tuple[list[tuple[str, str, str]], list[Html]]:
    """Rows (measure, value, what it says), and lines on what is missing or out of date."""
    rows: list[tuple[str, str, str]] = []
    notes = []
    labelled, method = _read(folder, "data").get("labels", True), folder.read("config").get("method", "vje")
    for name, what in RESULTS.items():
        found = _read(folder, name)
        if found:
            rows += _ROWS[name]({"method": method, **found})
            if weights is not None and found.get("weights", weights) != weights:
                notes.append(tag("span", f"{name}.json is of other weights than the model that is here now."))
        elif name == "evaluation" or (labelled and (name == "probe" or (name == "geometry" and method == "vje"))):
            notes.append(_absent(what, f"vje {COMMANDS[name]} {folder.path}"))
    return rows, notes


def _numbers_table(rows: list[tuple[str, str, str]]) -> Html:
    if not rows:
        return Html("")
    signed = [(name, value.replace("-", MINUS), words) for name, value, words in rows]
    return table(("Measure", "Value", ""), signed, "What was measured on images that the encoder was not trained on")


def _evaluation(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    knn, meaning = found.get("knn", {}), MEANING if found["method"] == "vje" else {}
    for space, words in SPACES.items():
        if space in knn:
            yield f"k-NN accuracy of {words}", shown(knn[space], ".2f", "%"), f"k = {knn['k']}, cosine"
    yield "Effective rank of z", shown(found["effective_rank"], ".1f"), "dimensions in real use"
    for name, value in found.get("posterior", {}).items():
        title = TITLES.get(name, name.replace("_", " "))
        yield title[0].upper() + title[1:], shown(value, ".4g"), meaning.get(name, "")


def _probe(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for space, result in found.get("spaces", {}).items():
        yield f"Linear probe of {SPACES.get(space, space)}", shown(result["top1"], ".2f", "%"), "top-1 accuracy"


def _ood_numbers(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    scores = found.get("summary", {})
    own = next((name for name in OWN_SCORES if name in scores), None)
    for score, title in ((own, "likelihood alone, nothing fitted"), ("knn", "k-NN distance to training features")):
        for part, words in (("near", "near sets"), ("far", "far sets"), ("avg", "average")):
            if score in scores and part in scores[score]:
                yield f"OOD detection, {words}", shown(scores[score][part], ".1f", "%"), f"AUROC of the {title}"


def _geometry(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "Class margin", shown(found["margin"], ".3f"), "cosine to the own class's centre, less the next nearest"
    for name, value in found.get("spearman", {}).get("margin", {}).items():
        yield f"Margin against {TITLES.get(name, name)}", shown(value, "+.2f"), "Spearman's rank correlation"


_ROWS = {"evaluation": _evaluation, "probe": _probe, "ood": _ood_numbers, "geometry": _geometry}


# Sections


def _training(there: bool) -> Html:
    if not there:
        return tag("p", "No epoch is finished yet.", class_="note")
    return Html('<div class="panels" id="training-panels"></div>')


def map_section(atlas: Atlas | None, reason: str = "") -> Html:
    """The map and the galleries, for the scripts to fill; without a map, the reason."""
    if atlas is None:
        return tag("p", reason or "There is no map.", class_="note")
    shown = f"{len(atlas.places):,} of the {atlas.total:,}" if len(atlas.places) < atlas.total else f"{atlas.total:,}"
    likelihood = atlas.typicality != "isolation"
    how = "its negative log-likelihood" if likelihood else "the cosine distance to its nearest neighbours"
    return fill("map.html", count=shown, most=len(atlas.places) - 1, space=atlas.space, how=how)


def _ood(folder: RunFolder, there: bool) -> Html:
    if there:
        return Html('<div id="ood-panels"></div>')
    known = Path(folder.read("config")["data"]["data"]).stem in BENCHMARKS
    command = f"vje ood {folder.path}" + ("" if known else " --id PATH --ood NAME=PATH")
    return tag("p", _absent("ROC curves and score densities", command), class_="note")


def _curves(found: dict[str, Any]) -> dict[str, Any] | None:
    """``ood-curves.json`` as the scripts want it: lists, in order."""
    if not found:
        return None
    titles = found["titles"]
    sets = [
        {
            "name": name,
            "roc": [{"name": titles.get(score, score), **curve} for score, curve in content["roc"].items()],
            "density": content["density"],
        }
        for name, content in found["sets"].items()
    ]
    return {"score": titles.get(found["density"], found["density"]), "sets": sets}


def _config(config: dict[str, Any]) -> Html:
    plain = {name: value for name, value in config.items() if not isinstance(value, dict) and name != "schema"}
    groups = {"recipe and method": plain} | {name: value for name, value in config.items() if isinstance(value, dict)}
    tables = []
    for group, values in groups.items():
        rows = [(name.replace("_", " "), _value(value)) for name, value in values.items()]
        tables.append(tag("div", tag("h3", group), table(("Setting", "Value"), rows, group), class_="group"))
    return tag("div", *tables, class_="groups")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _absent(what: str, command: str) -> Html:
    return Html(f"{escaped(what)}: not there yet; {tag('code', command)} makes it.")


def _read(folder: RunFolder, name: str) -> dict[str, Any]:
    return folder.read(name) if (folder.path / f"{name}.json").exists() else {}
