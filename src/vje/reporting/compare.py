"""Runs side by side: what each reached, mean and standard deviation over seeds, and k-NN over epochs."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vje.config import Config, changed_fields, stored_config
from vje.errors import UserError, command
from vje.evaluation.usual import SPACES, USUAL_K, probe_differences, said
from vje.recipes import load_recipe
from vje.reporting.ood_columns import HELD_OUT, Images, benchmark_images, differ, ood_columns, own_images, own_options
from vje.reporting.panels import Point, over_seeds, save_panels
from vje.reporting.records import is_number, read_epochs, read_failure
from vje.runs import COMMANDS, Damaged, RunFolder, distinct, repeated_seeds

MARK = "*"
OWN = "own"
"""Stands for the images that a run was trained with, and their labels."""
DIVERGED = "\u2020"
"""A dagger."""

EVIDENT = ("epochs", "data")
"""Settings that are part of a group's name only where groups of the same recipe differ in them; data where any do."""


@dataclass(frozen=True)
class Run:
    """What a run folder says of a run."""

    folder: RunFolder  # where it is
    config: Config  # its settings
    values: dict[str, float]  # what was measured, by column
    curve: list[tuple[int, float]]  # (epoch, k-NN of z) wherever it was evaluated during training
    done: int | None = None  # epochs it has trained; None for all
    unfinished: frozenset[str] = frozenset()  # columns whose values are not those of the trained model
    notes: tuple[str, ...] = ()  # results that were left out, and why
    # what identifies the images of columns that may be of any, by column; OWN for the run's own
    images: Mapping[str, str] = field(default_factory=dict)
    benchmark: Mapping[str, Images] = field(default_factory=dict)  # the images of columns of a benchmark, by column
    apart: tuple[str, ...] = ()  # columns that were left out, as another run's are of other images
    diverged: int | None = None  # step at which the loss was no longer finite; None if it always was

    def epochs(self) -> str:
        """The epochs; of a run that is not finished, those done of all, with a mark."""
        total = self.config.optimizer.epochs
        return str(total) if self.done is None else f"{self.done}/{total}{MARK if self.diverged is None else DIVERGED}"


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    name: str  # their recipe, and what tells them from other groups of the same recipe
    runs: Sequence[Run]  # at least one

    def epochs(self) -> str:
        """The epochs of the runs, such as ``200``, or ``200, 130/200*`` if one is not finished."""
        return ", ".join(dict.fromkeys(run.epochs() for run in self.runs))

    def unfinished(self) -> bool:
        """Whether any value, or any run, is not final; those that diverged apart."""
        return any(run.diverged is None and (run.done is not None or run.unfinished) for run in self.runs)

    def diverged(self) -> list[Run]:
        """The runs whose loss was no longer finite."""
        return [run for run in self.runs if run.diverged is not None]

    def apart(self) -> list[str]:
        """Columns that are of different images in different runs, so that a mean would say nothing."""
        found = dict.fromkeys(name for run in self.runs for name in run.benchmark)
        return [name for name in found if differ([run.benchmark[name] for run in self.runs if name in run.benchmark])]

    def partial(self) -> dict[str, list[str]]:
        """Columns of sets that are not the protocol's own image lists, with the names of these sets."""
        sets: dict[str, dict[str, None]] = {}
        for run in self.runs:
            for column, images in run.benchmark.items():
                sets.setdefault(column, {}).update(dict.fromkeys(images.partial))
        apart = self.apart()
        return {column: list(names) for column, names in sets.items() if names and column not in apart}

    def notes(self) -> list[str]:
        """What was left out, and why."""
        return [*self.own_notes(), *apart_notes(self.runs)]

    def own_notes(self) -> list[str]:
        """The same without :func:`apart_notes`, which may be of runs of several groups."""
        notes, apart = [note for run in self.runs for note in run.notes], self.apart()
        if apart:
            paths = [run.folder.path for run in self.runs if run.benchmark.keys() & apart]
            again = command("vje", "ood", *paths, "--data-dir", "PATH")
            there = ", ".join(str(path / "ood.json") for path in paths)
            columns = ", ".join(apart)
            notes.append(f"left out: {columns} of {there}, on different images; `{again}` measures all on the same")
        own = [name for run in self.runs for name, images in run.images.items() if images.startswith(HELD_OUT)]
        if own and len(self.runs) > 1:
            members = ", ".join(str(run.folder.path) for run in self.runs)
            notes.append(
                f"{', '.join(dict.fromkeys(own))} of {members}: each run's is of the images that it held out itself"
            )
        return notes + repeated_seeds((run.config.run.seed, run.folder) for run in self.runs)

    def summary(self) -> dict[str, dict[str, float]]:
        """Of each column, over the runs that have it: mean, sample standard deviation, how many, of all, not final."""
        apart = self.apart()
        columns = {name: None for run in self.runs for name in run.values if name not in apart}
        found = {name: [run.values[name] for run in self.runs if name in run.values] for name in columns}
        return {
            name: {
                "mean": statistics.mean(values),
                "std": statistics.stdev(values) if len(values) > 1 else 0.0,
                "runs": len(values),
                "of": len(self.runs),
                "unfinished": sum(name in run.unfinished and run.diverged is None for run in self.runs),
                "diverged": sum(name in run.unfinished for run in self.diverged()),
            }
            for name, values in found.items()
        }

    def curve(self) -> list[Point]:
        """k-NN over epochs."""
        return over_seeds([dict(run.curve) for run in self.runs])


def apart_notes(runs: Iterable[Run]) -> list[str]:
    """A line for all runs that lack the same columns, because they are on other images than another run's."""
    files: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        if run.apart:
            files.setdefault(run.apart, []).append(str(run.folder.path))
    return [
        f"left out: {', '.join(columns)} of {', '.join(found)}, on other images or labels than another run's"
        for columns, found in files.items()
    ]


def read_runs(folders: Iterable[RunFolder]) -> list[Run]:
    """Collect what run folders have; one that is given twice counts once.

    Results on sets of someone's own are left out where the same names stand for other images in another run, as are
    those on other images or labels than the run's own, where another run has its own, or others still.
    """
    runs = [read_run(folder) for folder in distinct(folders)]
    seen: dict[str, set[str]] = {}
    for run in runs:
        for column, images in run.images.items():
            seen.setdefault(column, set()).add(images)
    apart = {column for column, images in seen.items() if len(images) > 1}
    return [_without(run, [name for name, x in run.images.items() if name in apart and x != OWN]) for run in runs]


def read_run(folder: RunFolder) -> Run:
    """Collect what a run folder has: of evaluations that were not made, or made of another model, nothing."""
    config, records, failure = _config(folder), read_epochs(folder), read_failure(folder)
    done = records[-1]["epoch"] if records else 0
    whole = done >= config.optimizer.epochs or (not records and folder.model_file.exists())
    results, notes = _results(folder)
    values: dict[str, float] = {}
    unfinished: set[str] = set()
    images: dict[str, str] = {}
    for name, found in results.items():
        columns = {
            title: value for title, value in _COLUMNS[name](found | {"method": config.method}) if is_number(value)
        }
        values |= columns
        images |= dict.fromkeys(columns, str(found["inputs"]) if found.get("foreign") else OWN) if name != "ood" else {}
        unfinished |= set() if whole and found.get("finished", True) else columns.keys()
    knn = [r for r in records if is_number(r.get("knn", {}).get("z"))]
    last = {f"k-NN {space}": x for space, x in knn[-1]["knn"].items() if is_number(x)} if knn else {}
    unfinished |= set() if whole else last.keys() - values.keys()
    values = {**last, **values}
    speeds = [r["images_per_second"] for r in records if is_number(r.get("images_per_second"))]
    if speeds:
        values["images/s"] = statistics.median(speeds)
    ood = results.get("ood", {})
    return Run(
        folder=folder,
        config=config,
        values=values,
        curve=[(r["epoch"], r["knn"]["z"]) for r in knn],
        done=None if whole else done,
        unfinished=frozenset(unfinished),
        notes=tuple(notes),
        images=images | own_images(ood, unknown=str(folder.path)),
        benchmark={name: images for name, images in benchmark_images(ood).items() if name in values},
        diverged=None if whole else failure.get("step"),
    )


def _config(folder: RunFolder) -> Config:
    """A run's settings; data that was given by a path goes by the whole path, wherever training was started."""
    config = stored_config(folder)
    known = folder.find("data").get("path")
    return config if known is None else replace(config, data=replace(config.data, data=known))


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
    all_configs = [run.config for run in runs]
    return [Group(_name([run.config for run in group], all_configs), group) for group in groups]


def save_comparison(file: Path, groups: Sequence[Group]) -> None:
    """Draw k-NN of z over epochs, a line a group, the best first, with a band of one standard deviation."""
    lines = {}
    curves = [(group, curve) for group in groups if (curve := group.curve())]
    for group, curve in sorted(curves, key=lambda found: -found[1][-1][1]):
        state = ", diverged" if group.diverged() else ", unfinished" if group.unfinished() else ""
        lines[f"{group.name} ({curve[-1][1]:.1f}{state})"] = curve
    title = "k-NN accuracy of z (%)"
    save_panels(file, [""], [title], {(title, ""): lines}, size=(7.5, 4.5))


def _results(folder: RunFolder) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Results that are of the present model, by name, and lines on those that are not."""
    found, notes = {}, []
    for name in _COLUMNS:
        file = folder.path / f"{name}.json"
        if file.exists():
            try:
                result, reason = folder.read(name), folder.superseded(name)
            except Damaged:
                result, reason = {}, "which is damaged"
            if not reason and result.get("lacking"):
                reason = f"without {result['lacking']:,} of the run's images"
            if reason:
                again = command("vje", COMMANDS[name], folder.path, *own_options(result))
                notes.append(f"left out: {file}, {reason}; `{again}` makes it anew")
            else:
                found[name] = result
                missing = {part: sets for part, sets in result.get("missing", {}).items() if sets}
                notes += [f"left out: {p} OOD of {file}, measured without {', '.join(s)}" for p, s in missing.items()]
    return found, notes


def _evaluation(found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if "classifier" in found:
        yield "accuracy", found["classifier"]["top1"]
    knn = found.get("knn", {})
    k = knn.get("k", USUAL_K)
    for name in SPACES:
        if name in knn:
            yield f"k-NN {name}" if k == USUAL_K else f"k-NN {name} (k={k})", knn[name]
    posterior, rank = found.get("posterior", {}), found.get("effective_rank")
    whose = "" if found["method"] == "vje" else f" ({found['method']})"  # other priors: not to be compared with VJE's
    values = {f"variance{whose}": posterior.get("variance"), f"KL{whose}": posterior.get("kl"), "rank of z": rank}
    yield from ((title, value) for title, value in values.items() if value is not None)


def _probe(found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for space, result in found.get("spaces", {}).items():
        marks = [_mark(name, value) for name, (value, _) in probe_differences(found, result).items()]
        yield f"probe {space} ({', '.join(marks)})" if marks else f"probe {space}", result["top1"]


def _mark(name: str, value: Any) -> str:
    """A setting of the probe in a column's title.

    >>> _mark("lr", (0.1, 0.3)), _mark("weight_decay", 1e-4), _mark("standardize", False)
    ('lr=0.1/0.3', 'weight-decay=0.0001', 'no-standardize')
    """
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    return f"{name}={said(value)}"


def _without(run: Run, columns: Sequence[str]) -> Run:
    """A run without columns whose images are not those of other runs."""
    return replace(
        run,
        values={column: value for column, value in run.values.items() if column not in columns},
        unfinished=run.unfinished - set(columns),
        apart=tuple(columns),
    )


_COLUMNS = {"evaluation": _evaluation, "probe": _probe, "ood": ood_columns}


def differences(one: Config, other: Config) -> dict[str, Any]:
    """Settings that tell two runs apart, other than the seed and what cannot change a result."""
    if one.method != other.method:
        return {"method": other.method}
    found: Mapping[str, tuple[Any, Any, bool]] = changed_fields(one, other)
    return {name: new for name, (_, new, free) in found.items() if not free and name not in ("seed", "recipe")}


def _name(configs: Sequence[Config], all_configs: Sequence[Config]) -> str:
    """The recipe of a group, and what differs from it; of several, one with the least to say, and a known one first."""
    recipes = {config.recipe: config for config in configs}.values()
    found = [(config.recipe, _marks(config, all_configs), _recipe(config) is None) for config in recipes]
    name, marks, _ = min(found, key=lambda one: (len(one[1]), one[2]))
    return name + (f" ({', '.join(f'{k} {v}' for k, v in marks.items())})" if marks else "")


def _marks(config: Config, all_configs: Sequence[Config]) -> dict[str, Any]:
    """What differs from the recipe's own settings; where these are not known, from other groups of that name.

    Of the latter, a method and settings of it that are the usual ones go without saying: the others' are said.
    """
    same = [other for other in all_configs if other.recipe == config.recipe]
    between = {name: value for other in same for name, value in differences(other, config).items()}
    recipe = _recipe(config)
    if recipe is None:
        usual = vars(type(config.settings)()) | {"method": Config.method}
        marks = {name: value for name, value in between.items() if name not in usual or value != usual[name]}
    else:
        evident = {*EVIDENT} - between.keys()
        if any(other.data.data != config.data.data for other in all_configs):
            evident -= {"data"}
        marks = {name: value for name, value in differences(recipe, config).items() if name not in evident}
    if Path(str(marks.get("data", ""))).is_absolute():
        marks["data"] = Path(marks["data"]).name
    return marks


def _recipe(config: Config) -> Config | None:
    """The recipe of a run as it is here; None if there is none of that name, or it is of another method."""
    try:
        recipe = load_recipe(config.recipe)
    except UserError:
        return None
    return recipe if recipe.method == config.method else None
