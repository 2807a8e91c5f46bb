"""The report of one run: what it is, how it trained, what it reached, and the map of what it was not trained on."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vje.config import OptimizerConfig
from vje.errors import command
from vje.evaluation.usual import SPACES, USUAL_K
from vje.methods.method import Method
from vje.ood.benchmark import benchmark_name
from vje.ood.names import CURVE_SCORES
from vje.reporting.atlas import Atlas, mappable
from vje.reporting.html import Html, escaped, fill, page, table, tag
from vje.reporting.ood_columns import absent_sets, ood_scores, partial_sets
from vje.reporting.records import checkpoint_step, has_model, no_model, read_epochs, read_failure
from vje.reporting.run_curves import curve_panels, method_of, titled
from vje.runs import COMMANDS, RunFolder

SCRIPTS = ("common.js", "charts.js", "pictures.js", "map.js", "galleries.js", "report.js")
MINUS = "\u2212"
NOTHING = "\u2013"
"""Stands for a number that is none: an en dash."""
Row = tuple[str, str, str]
"""Measure, value, what it says."""
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
        weights: fingerprint of the model on the map; results of others are left out.
    """
    config, records, failure = folder.read("config"), read_epochs(folder), read_failure(folder)
    method, results = method_of(config), _results(folder, weights)
    panels, curves = curve_panels(records, method), folder.find("ood-curves") if "ood" in results.current else {}
    body = fill(
        "report.html",
        name=folder.path.resolve().name,
        summary=summary(config, folder.progress()),
        origin=_origin(folder),
        numbers=_numbers_table(_numbers(results.current, records, method)),
        notes=Html("".join(tag("p", note, class_="note") for note in _notes(folder, results, records, atlas))),
        training=_training(bool(panels), diverged=bool(failure)),
        map=map_section(atlas, no_map),
        ood=_ood(folder, bool(curves)),
        warnings=warnings_list([*folder.warnings(), *_divergence(failure, records)]),
        config=_config(config),
    )
    data = {"panels": panels, "map": None if atlas is None else atlas.as_data(), "ood": _curves(curves)}
    return page(f"{folder.path.resolve().name}: report", body, data, SCRIPTS)


def summary(config: dict[str, Any], progress: str) -> str:
    """A run in a line."""
    return f"{about(config)}; {progress}"


def about(config: dict[str, Any]) -> str:
    """What is trained on what."""
    method, data, encoder = config.get("method", "vje"), config.get("data", {}), config.get("encoder", {})
    epochs, seed = config.get("optimizer", {}).get("epochs"), config.get("run", {}).get("seed")
    name = "VJE" if method == "vje" else method
    return f"{name}, {encoder.get('encoder')} on {data.get('data')}; {epochs} epochs, seed {seed}"


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


def _divergence(failure: Mapping[str, Any], records: list[dict[str, Any]]) -> Iterator[str]:
    """When and why training stopped, if the loss was no longer finite."""
    if failure:
        when = f"after epoch {records[-1]['epoch']}" if records else "in the first epoch"
        yield f"Diverged {when}: {failure['message']}"


def _origin(folder: RunFolder) -> Html:
    found, data = folder.find("environment"), folder.find("data")
    words = [f"vje {found['vje']}" if "vje" in found else "", f"on {found['device']}" if "device" in found else ""]
    if "train_images" in data:
        words.append(f"{data['train_images']:,} training and {data.get('test_images', 0):,} held-out images")
    if "command" not in found:
        return escaped("; ".join(filter(None, words)))
    started = Html(" ".join(tag("span", command(str(word)), class_="word") for word in found["command"]))
    return Html(f"{escaped('; '.join(filter(None, words)))}. Started as: {tag('code', started)}")


# What was measured


class Results(NamedTuple):
    """What the run folder has of :data:`RESULTS`."""

    current: Mapping[str, dict[str, Any]]  # those of the model that is here now
    stale: Mapping[str, str]  # why each of the others is not, in words


def _results(folder: RunFolder, weights: str | None) -> Results:
    found = {name: content for name in RESULTS if (content := folder.find(name))}
    stale = {name: reason for name in found if (reason := folder.superseded(name, weights))}
    return Results({name: content for name, content in found.items() if name not in stale}, stale)


def _numbers(results: Mapping[str, dict[str, Any]], records: list[dict[str, Any]], method: type[Method]) -> list[Row]:
    rows = [] if "evaluation" in results else list(_recorded(records))
    for name, content in results.items():
        rows += _ROWS[name](content, method)
    return rows


def _notes(folder: RunFolder, results: Results, records: list[dict[str, Any]], atlas: Atlas | None) -> Iterator[Html]:
    """Lines on what was left out, and on what is not there yet, with the commands that make it."""
    saved, last = checkpoint_step(folder), records[-1].get("step") if records else None
    if not folder.model_file.exists() and saved is not None and isinstance(last, int) and saved < last:
        yield escaped(
            f"The model, and so the map, is the one saved after step {saved:,}; the curves go on to step {last:,}."
        )
    held_out = folder.find("data").get("test_images", 0)
    if atlas is not None and atlas.total < held_out:
        yield escaped(
            f"The map is of {atlas.total:,} of the {held_out:,} images held out; others are missing or unreadable."
        )
    labelled, vje = folder.find("data").get("labels", True), folder.read("config").get("method", "vje") == "vje"
    expected = {"evaluation": True, "probe": labelled, "geometry": labelled and vje, "ood": False}
    model = has_model(folder)
    for name, what in RESULTS.items():
        code = tag("code", _command(folder, name))
        if name in results.stale:
            again = f"; {code} makes it anew" if model else ""
            yield Html(f"Left out: {name}.json, {escaped(results.stale[name])}{again}.")
        elif name not in results.current and expected[name] and model:
            yield Html(f"{escaped(what)}: not there yet; {code} makes it.")
    if not model:
        yield escaped(f"Nothing more can be measured: the run {no_model(folder)}.")


def _command(folder: RunFolder, name: str) -> str:
    """What makes a result of the run."""
    known = name != "ood" or benchmark_name(folder.read("config")["data"]["data"]) is not None
    return command("vje", COMMANDS[name], folder.path) + ("" if known else " --id PATH --ood NAME=PATH")


def _numbers_table(rows: list[Row]) -> Html:
    if not rows:
        return Html("")
    signed = [(name, value.replace("-", MINUS), words) for name, value, words in rows]
    return table(("Measure", "Value", ""), signed, "What was measured on images that the encoder was not trained on")


def _recorded(records: list[dict[str, Any]]) -> Iterator[Row]:
    """The last k-NN accuracies of training."""
    for last in [record for record in records if "knn" in record][-1:]:
        how = f"in training, after epoch {last['epoch']}; k = {USUAL_K}, cosine"
        for space, words in SPACES.items():
            if space in last["knn"]:
                yield f"k-NN accuracy of {words}", shown(last["knn"][space], ".2f", "%"), how


def evaluation_rows(found: dict[str, Any], method: type[Method]) -> Iterator[Row]:
    """What ``evaluation.json`` holds."""
    if "classifier" in found:
        yield "Accuracy", shown(found["classifier"]["top1"], ".2f", "%"), "of the classifier it was trained with"
    knn = found.get("knn", {})
    for space, words in SPACES.items():
        if space in knn:
            yield f"k-NN accuracy of {words}", shown(knn[space], ".2f", "%"), f"k = {knn['k']}, cosine"
    yield "Effective rank of z", shown(found["effective_rank"], ".1f"), "dimensions in real use"
    for name, value in found.get("posterior", {}).items():
        yield titled(method, name), shown(value, ".4g"), method.quantity(name).meaning


def _probe(found: dict[str, Any], method: type[Method]) -> Iterator[Row]:
    for space, result in found.get("spaces", {}).items():
        yield f"Linear probe of {SPACES.get(space, space)}", shown(result["top1"], ".2f", "%"), "top-1 accuracy"


def _ood_numbers(found: dict[str, Any], method: type[Method]) -> Iterator[Row]:
    titles = {"NLL": "likelihood alone, nothing fitted", "k-NN": "k-NN distance to training features"}
    for title, score in ood_scores(found):
        means = found["summary"][score]
        for part, words in (("near", "near sets"), ("far", "far sets"), ("avg", "average")):
            if part in means:
                absent, partial = absent_sets(found, part), partial_sets(found, part).values()
                note = f"; not the protocol's own images: {', '.join(partial)}" if partial else ""
                without = f"; not the protocol's mean: without {', '.join(absent)}" if absent else ""
                said = f"AUROC of the {titles[title]}{without}{note}"
                yield f"OOD detection, {words}", shown(means[part], ".1f", "%"), said


def _geometry(found: dict[str, Any], method: type[Method]) -> Iterator[Row]:
    yield "Class margin", shown(found["margin"], ".3f"), "cosine to the own class's centre, less the next nearest"
    for name, value in found.get("spearman", {}).get("margin", {}).items():
        yield f"Margin against {method.quantity(name).title}", shown(value, "+.2f"), "Spearman's rank correlation"


_ROWS = {"evaluation": evaluation_rows, "probe": _probe, "ood": _ood_numbers, "geometry": _geometry}


# Sections


def _training(there: bool, diverged: bool) -> Html:
    if not there:
        words = "It diverged before the end of the first epoch." if diverged else "No epoch is finished yet."
        return tag("p", words, class_="note")
    return Html('<div class="panels" id="training-panels"></div>')


def map_section(atlas: Atlas | None, reason: str = "") -> Html:
    """The map and the galleries, for the scripts to fill; without a map, the reason."""
    if atlas is None:
        return tag("p", reason or "There is no map.", class_="note")
    shown = f"{len(atlas.places):,} of the {atlas.total:,}" if len(atlas.places) < atlas.total else f"{atlas.total:,}"
    likelihood = atlas.typicality != "isolation"
    how = "its negative log-likelihood" if likelihood else "the cosine distance to its nearest neighbours"
    placed = f"placed by t\u2011SNE of {atlas.space}: images that are near each other look alike to the model"
    if not mappable(atlas.vectors):
        placed = "spread out evenly: they are too few for a map, or to a model that has collapsed all the same"
    return fill("map.html", count=shown, most=len(atlas.places) - 1, placed=placed, how=how)


def _ood(folder: RunFolder, there: bool) -> Html:
    if there:
        return Html('<div id="ood-panels"></div>')
    if not has_model(folder):
        return tag("p", f"There are no ROC curves and score densities: the run {no_model(folder)}.", class_="note")
    words = "ROC curves and score densities: not there yet; ", tag("code", _command(folder, "ood")), " makes them."
    return tag("p", *words, class_="note")


def _curves(found: dict[str, Any]) -> dict[str, Any] | None:
    """``ood-curves.json`` as the scripts want it: lists, in order."""
    if not found:
        return None
    titles, main = found["titles"], found["density"]
    shown = {*CURVE_SCORES, main}
    sets = [
        {
            "name": name,
            "roc": [{"name": titles.get(s, s), **curve} for s, curve in content["roc"].items() if s in shown],
            "density": content["density"],
        }
        for name, content in found["sets"].items()
    ]
    return {"score": titles.get(main, main), "sets": sets}


def _config(config: dict[str, Any]) -> Html:
    plain = {name: value for name, value in config.items() if not isinstance(value, dict) and name != "schema"}
    groups = {"recipe and method": plain} | {name: value for name, value in config.items() if isinstance(value, dict)}
    tables = []
    for group, values in groups.items():
        rows = [(name.replace("_", " "), _value(value) + _instead(name, values)) for name, value in values.items()]
        tables.append(tag("div", tag("h3", group), table(("Setting", "Value"), rows, group), class_="group"))
    return tag("div", *tables, class_="groups")


def _instead(name: str, group: Mapping[str, Any]) -> str:
    """What was used in place of a setting that did not suit the run, in words."""
    if name != "warmup_epochs":
        return ""
    known = {key: group[key] for key in ("epochs", "schedule_epochs", name) if key in group}
    used = OptimizerConfig(**known).warmup
    return "" if used == group[name] else f" ({used:g} used)"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
