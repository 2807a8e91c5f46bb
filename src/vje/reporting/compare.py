"""Runs side by side: what each reached, mean and standard deviation over seeds, and k-NN over epochs."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vje.config import Config, changed_fields, stored_config
from vje.errors import command
from vje.reporting.figures import save_figure
from vje.reporting.own_sets import column_title, own_images, own_options, own_sets
from vje.runs import COMMANDS, RunFolder, distinct

OWN_SCORES = ("nll", "ps_nll")
"""The likelihood scores that stand for a method in the OOD columns; others are judged by k-NN distance alone."""

USUAL_K = 20
"""Neighbours of the k-NN in training, and of `vje evaluate` unless told otherwise."""

USUAL_PROBE: Mapping[str, Any] = {
    "epochs": 100,
    "batch": 256,
    "lr": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "weight_decay": 0.0,
    "standardize": True,
    "augment": False,
}
"""How `vje probe` trains its classifiers unless told otherwise."""

MARK = "*"
UNFINISHED = f"{MARK} unfinished: epochs done of all, and values that are not final"


@dataclass(frozen=True)
class Run:
    """What a run folder says of a run.

    Attributes:
        folder: where it is.
        config: its settings.
        values: what was measured, by column.
        curve: (epoch, k-NN of z) wherever it was evaluated during training.
        done: epochs it has trained; None for all.
        unfinished: columns whose values are not those of the trained model.
        notes: results that were left out, and why.
        images: what identifies the images of columns on sets of someone's own, by column.
    """

    folder: RunFolder
    config: Config
    values: dict[str, float]
    curve: list[tuple[int, float]]
    done: int | None = None
    unfinished: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)

    def epochs(self) -> str:
        """The epochs; of a run that is not finished, those done of all, with a mark."""
        total = self.config.optimizer.epochs
        return str(total) if self.done is None else f"{self.done}/{total}{MARK}"


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone.

    Attributes:
        name: their recipe, and what tells them from other groups of the same recipe.
        runs: at least one.
    """

    name: str
    runs: Sequence[Run]

    def epochs(self) -> str:
        """The epochs of the runs, such as ``200``, or ``200, 130/200*`` if one is not finished."""
        return ", ".join(dict.fromkeys(run.epochs() for run in self.runs))

    def unfinished(self) -> bool:
        """Whether any value, or any run, is not final."""
        return any(run.done is not None or run.unfinished for run in self.runs)

    def summary(self) -> dict[str, dict[str, float]]:
        """Of each column, over the runs that have it: mean, sample standard deviation, how many, of all, unfinished."""
        columns = {name: None for run in self.runs for name in run.values}
        found = {name: [run.values[name] for run in self.runs if name in run.values] for name in columns}
        return {
            name: {
                "mean": statistics.mean(values),
                "std": statistics.stdev(values) if len(values) > 1 else 0.0,
                "runs": len(values),
                "of": len(self.runs),
                "unfinished": sum(name in run.unfinished for run in self.runs),
            }
            for name, values in found.items()
        }

    def curve(self) -> list[tuple[int, float, float]]:
        """(epoch, mean, standard deviation) of k-NN at the epochs that every run has."""
        tables = [dict(run.curve) for run in self.runs]
        shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
        points = ((epoch, [table[epoch] for table in tables]) for epoch in shared)
        return [(e, statistics.mean(v), statistics.stdev(v) if len(v) > 1 else 0.0) for e, v in points]


def read_runs(folders: Iterable[RunFolder]) -> list[Run]:
    """Collect what run folders have; one that is given twice counts once.

    Results on sets of someone's own are left out where the same names stand for other images in another run.
    """
    runs = [read_run(folder) for folder in distinct(folders)]
    seen: dict[str, set[str]] = {}
    for run in runs:
        for column, images in run.images.items():
            seen.setdefault(column, set()).add(images)
    apart = {column for column, images in seen.items() if len(images) > 1}
    return [_without(run, [column for column in run.images if column in apart]) for run in runs]


def read_run(folder: RunFolder) -> Run:
    """Collect what a run folder has: of evaluations that were not made, or made of another model, nothing."""
    config, records = stored_config(folder), folder.metrics()
    done = records[-1]["epoch"] if records else 0
    whole = done >= config.optimizer.epochs or (not records and folder.model_file.exists())
    results, notes = _results(folder)
    values: dict[str, float] = {}
    unfinished: set[str] = set()
    for name, found in results.items():
        columns = dict(_COLUMNS[name](found))
        values |= columns
        unfinished |= set() if whole and found.get("finished", True) else columns.keys()
    knn = [r for r in records if "z" in r.get("knn", {})]
    last = {f"k-NN {space}": value for space, value in knn[-1]["knn"].items()} if knn else {}
    unfinished |= set() if whole else last.keys() - values.keys()
    values = {**last, **values}
    if records:
        values["images/s"] = statistics.median(r["images_per_second"] for r in records)
    curve = [(r["epoch"], r["knn"]["z"]) for r in knn]
    ood = results.get("ood", {})
    images = own_images(ood, [title for title, _ in _ood_scores(ood)], str(folder.path))
    return Run(folder, config, values, curve, None if whole else done, frozenset(unfinished), tuple(notes), images)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs that differ in nothing but the seed together, and name the groups apart."""
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            if not differences(group[0].config, run.config):
                group.append(run)
                break
        else:
            groups.append([run])
    return [Group(_name(group[0].config, [g[0].config for g in groups]), group) for group in groups]


def save_comparison(file: Path, groups: Sequence[Group]) -> None:
    """Draw k-NN of z over epochs, a line a group, with a band of one standard deviation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axis = figure.subplots()
    for group in groups:
        curve = group.curve()
        if curve:
            epochs, mean, std = (list(x) for x in zip(*curve, strict=True))
            label = f"{group.name} ({mean[-1]:.1f}{', unfinished' if group.unfinished() else ''})"
            (line,) = axis.plot(epochs, mean, label=label, marker="." if len(curve) < 30 else "")
            low, high = ([m + s * d for m, d in zip(mean, std, strict=True)] for s in (-1, 1))
            axis.fill_between(epochs, low, high, alpha=0.2, color=line.get_color())
    axis.set(xlabel="epoch", ylabel="k-NN accuracy of z (%)")
    axis.grid(alpha=0.3)
    if axis.has_data():
        axis.legend(fontsize=8)
    save_figure(figure, file, 120)


def cell(value: Mapping[str, float] | None, column: str) -> str:
    """A column of a :meth:`Group.summary` for the table; marked if it is not final, or not of all runs.

    >>> cell({"mean": 81.5, "std": 0.25, "runs": 2, "of": 3, "unfinished": 1}, "k-NN z")
    '81.50 ± 0.25* (2 of 3)'
    """
    if value is None:
        return ""
    some = f" ({value['runs']} of {value['of']})" if value["runs"] < value["of"] else ""
    if column == "images/s":
        return f"{value['mean']:,.0f}{some}"
    text = f"{value['mean']:.2f} ± {value['std']:.2f}" if value["runs"] > 1 else f"{value['mean']:.2f}"
    return text + (MARK if value["unfinished"] else "") + some


def footnotes(groups: Sequence[Group]) -> list[str]:
    """What has to be said below the table: what is not final, and what was left out."""
    marks = [UNFINISHED] if any(group.unfinished() for group in groups) else []
    return [*marks, *(note for group in groups for run in group.runs for note in run.notes)]


def _results(folder: RunFolder) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Results that are of the present model, by name, and lines on those that are not."""
    found, notes = {}, []
    for name in _COLUMNS:
        file = folder.path / f"{name}.json"
        if file.exists():
            reason = folder.out_of_date(name)
            if reason:
                again = command("vje", COMMANDS[name], folder.path, *own_options(folder.read(name)))
                notes.append(f"left out: {file}, {reason}; `{again}` makes it anew")
            else:
                found[name] = folder.read(name)
                missing = {part: sets for part, sets in found[name].get("missing", {}).items() if sets}
                notes += [f"left out: {p} OOD of {file}, measured without {', '.join(s)}" for p, s in missing.items()]
    return found, notes


def _evaluation(found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    knn = found.get("knn", {})
    k = knn.get("k", USUAL_K)
    for name in ("z", "mean", "target"):
        if name in knn:
            yield f"k-NN {name}" if k == USUAL_K else f"k-NN {name} (k={k})", knn[name]


def _probe(found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for space, result in found.get("spaces", {}).items():
        rates = tuple(rate["lr"] for rate in result.get("rates", ()))
        protocol = {**USUAL_PROBE, **found, "lr": rates or USUAL_PROBE["lr"]}
        marks = [_mark(name, protocol[name]) for name, usual in USUAL_PROBE.items() if protocol[name] != usual]
        yield f"probe {space} ({', '.join(marks)})" if marks else f"probe {space}", result["top1"]


def _mark(name: str, value: Any) -> str:
    """A setting of the probe in a column's title.

    >>> _mark("lr", (0.1, 0.3)), _mark("weight_decay", 1e-4), _mark("standardize", False)
    ('lr=0.1/0.3', 'weight-decay=0.0001', 'no-standardize')
    """
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    return f"{name}={'/'.join(f'{x:g}' for x in (value if isinstance(value, tuple) else (value,)))}"


def _ood(found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    summary, missing = found.get("summary", {}), found.get("missing", {})
    for title, score in _ood_scores(found):
        for part in ("near", "far"):
            if part in summary[score] and not missing.get(part):
                yield f"{part} OOD {title}", summary[score][part]
        for name in own_sets(found):
            yield column_title(found, title, name), found["scores"][score][name]["auroc"]


def _ood_scores(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(title, score) of those that are shown."""
    there = found.get("summary", {})
    own = next((name for name in OWN_SCORES if name in there), "")
    return [(title, score) for title, score in (("NLL", own), ("k-NN", "knn")) if score in there]


def _without(run: Run, columns: Sequence[str]) -> Run:
    """A run without columns whose images are not those of other runs, and with a note on them."""
    if not columns:
        return run
    note = f"left out: {', '.join(columns)} of {run.folder.path / 'ood.json'}, on other images than another run's"
    return replace(
        run,
        values={column: value for column, value in run.values.items() if column not in columns},
        unfinished=run.unfinished - set(columns),
        notes=(*run.notes, note),
    )


_COLUMNS = {"evaluation": _evaluation, "probe": _probe, "ood": _ood}


def differences(one: Config, other: Config) -> dict[str, Any]:
    """Settings that tell two runs apart, other than the seed and what cannot change a result."""
    if one.method != other.method:
        return {"method": other.method}
    found: Mapping[str, tuple[Any, Any, bool]] = changed_fields(one, other)
    return {name: new for name, (_, new, free) in found.items() if not free and name not in ("seed", "recipe")}


def _name(config: Config, all_configs: Sequence[Config]) -> str:
    """The recipe; with other groups of the same one, also what differs from the first of them."""
    same = [other for other in all_configs if other.recipe == config.recipe]
    marks = differences(same[0], config) if len(same) > 1 else {}
    return config.recipe + (f" ({', '.join(f'{k} {v}' for k, v in marks.items())})" if marks else "")
