"""Runs side by side: what each reached, mean and standard deviation over seeds, and k-NN over epochs."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vje.config import Config, changed_fields, stored_config
from vje.runs import RunFolder

OWN_SCORES = ("nll", "ps_nll")
"""The likelihood scores that stand for a method in the OOD columns; others are judged by k-NN distance alone."""


@dataclass(frozen=True)
class Run:
    """What a run folder says of a run.

    Attributes:
        folder: where it is.
        config: its settings.
        values: what was measured, by column.
        curve: (epoch, k-NN of z) wherever it was evaluated during training.
    """

    folder: RunFolder
    config: Config
    values: dict[str, float]
    curve: list[tuple[int, float]]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone.

    Attributes:
        name: their recipe, and what tells them from other groups of the same recipe.
        runs: at least one.
    """

    name: str
    runs: Sequence[Run]

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean, sample standard deviation and count of each column, over the runs that have it."""
        columns = {name: None for run in self.runs for name in run.values}
        found = {name: [run.values[name] for run in self.runs if name in run.values] for name in columns}
        return {
            name: {
                "mean": statistics.mean(values),
                "std": statistics.stdev(values) if len(values) > 1 else 0.0,
                "runs": len(values),
            }
            for name, values in found.items()
        }

    def curve(self) -> list[tuple[int, float, float]]:
        """(epoch, mean, standard deviation) of k-NN at the epochs that every run has."""
        tables = [dict(run.curve) for run in self.runs]
        shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
        points = ((epoch, [table[epoch] for table in tables]) for epoch in shared)
        return [(e, statistics.mean(v), statistics.stdev(v) if len(v) > 1 else 0.0) for e, v in points]


def read_run(folder: RunFolder) -> Run:
    """Collect what a run folder has: of evaluations that were not made, nothing."""
    records = folder.metrics()
    values = dict(_measured(folder))
    knn = [r for r in records if "z" in r.get("knn", {})]
    if knn and "k-NN z" not in values:
        values["k-NN z"] = knn[-1]["knn"]["z"]
    if records:
        values["images/s"] = statistics.median(r["images_per_second"] for r in records)
    return Run(folder, stored_config(folder), values, [(r["epoch"], r["knn"]["z"]) for r in knn])


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs that differ in nothing but the seed together, and name the groups apart."""
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            if not _differences(group[0].config, run.config):
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
            label = f"{group.name} ({mean[-1]:.1f})"
            (line,) = axis.plot(epochs, mean, label=label, marker="." if len(curve) < 30 else "")
            low, high = ([m + s * d for m, d in zip(mean, std, strict=True)] for s in (-1, 1))
            axis.fill_between(epochs, low, high, alpha=0.2, color=line.get_color())
    axis.set(xlabel="epoch", ylabel="k-NN accuracy of z (%)")
    axis.grid(alpha=0.3)
    if axis.has_data():
        axis.legend(fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)


def _measured(folder: RunFolder) -> Iterator[tuple[str, float]]:
    for name, value in _read(folder, "evaluation").get("knn", {}).items():
        if name in ("z", "mean", "target"):
            yield f"k-NN {name}", value
    for space, result in _read(folder, "probe").get("spaces", {}).items():
        yield f"probe {space}", result["top1"]
    summary = _read(folder, "ood").get("summary", {})
    own = next((name for name in OWN_SCORES if name in summary), None)
    for title, score in (("NLL", own), ("k-NN", "knn")):
        for part in ("near", "far"):
            if score in summary and part in summary[score]:
                yield f"{part} OOD {title}", summary[score][part]


def _read(folder: RunFolder, name: str) -> dict[str, Any]:
    return folder.read(name) if (folder.path / f"{name}.json").exists() else {}


def _differences(one: Config, other: Config) -> dict[str, Any]:
    """Settings that tell two runs apart, other than the seed and what cannot change a result."""
    if one.method != other.method:
        return {"method": other.method}
    found: Mapping[str, tuple[Any, Any, bool]] = changed_fields(one, other)
    return {name: new for name, (_, new, free) in found.items() if not free and name not in ("seed", "recipe")}


def _name(config: Config, all_configs: Sequence[Config]) -> str:
    """The recipe; with other groups of the same one, also what differs from the first of them."""
    same = [other for other in all_configs if other.recipe == config.recipe]
    marks = _differences(same[0], config) if len(same) > 1 else {}
    return config.recipe + (f" ({', '.join(f'{k} {v}' for k, v in marks.items())})" if marks else "")
