"""A table with the paper's value, ours and the difference in each cell: as data, as Markdown and for a terminal."""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from vje.environment import shortened
from vje.errors import command
from vje.experiments import Cell, Experiment, Number
from vje.experiments.grid import Run, Scale
from vje.experiments.plan import Job, divergence, is_fresh
from vje.experiments.usual import unusual
from vje.reporting.ood_columns import absent_sets
from vje.runs import COMMANDS, Damaged, RunFolder, read_json

SHOWN = 6
"""Runs that are named in a note, at most."""


class Missing(Exception):
    """A number that is not there, and why."""


class Diverged(Missing):
    """A number that there cannot be."""


@dataclass(frozen=True)
class Found:
    """Our side of a cell."""

    values: tuple[float, ...]  # a run each
    std: float | None  # over seeds, or what the declaration says; None for a single run
    wanted: int  # runs that there should be
    diverged: int = 0  # those of them that have no value and will have none

    @property
    def mean(self) -> float:
        """Over the runs."""
        return statistics.mean(self.values)


@dataclass
class Results:
    """Reads the numbers of runs, and keeps account of those that are not there."""

    out: Path  # folder of the runs
    scale: Scale  # how much of the paper's grid they are
    jobs: Mapping[str, Job]  # the plan, by the runs' names
    failures: Mapping[str, str]  # of runs that failed just now, by name
    gaps: dict[str, dict[str, None]] = field(default_factory=dict)  # runs that lack something, by reason

    def cell(self, cell: Cell) -> Found | None:
        """Our numbers of a cell; None if there are none."""
        if cell.files() == ["profile"]:
            return self._profile(cell)
        runs = self.scale.runs(cell)
        values, spreads, diverged = [], [], 0
        for run in runs:
            try:
                values.append(statistics.mean(self.value(run, path) for path in cell.value))
                spreads += [self.value(run, cell.spread)] if cell.spread else []
            except Missing as reason:
                self.gaps.setdefault(str(reason), {})[run.name] = None
                diverged += isinstance(reason, Diverged)
        if not values and not diverged:
            return None
        over_seeds = statistics.stdev(values) if len(values) > 1 else None
        return Found(tuple(values), statistics.mean(spreads) if spreads else over_seeds, len(runs), diverged)

    def value(self, run: Run, path: str) -> float:
        """One number of one run."""
        file, _, rest = path.partition(":")
        if file == "speed":
            return lookup(self._speed(run.recipe), rest, "speed.json")
        folder = self._finished(run)
        if file == "metrics":
            record: Any = (folder.metrics() or [{}])[-1]
        elif not is_fresh(folder, file):
            raise Missing(self._unmeasured(run, file))
        else:
            record = folder.read(file)
        if file == "ood" and rest.startswith("summary."):
            part = rest.rpartition(".")[2]
            if absent := absent_sets(record, part):
                raise Missing(f"{part} OOD was measured without {', '.join(absent)}")
        return lookup(record, rest, "metrics.jsonl" if file == "metrics" else f"{file}.json")

    def folders(self, experiment: Experiment) -> list[RunFolder]:
        """The runs that are finished."""
        names = dict.fromkeys(run.name for cell in experiment.every_cell() for run in self.scale.runs(cell))
        return [self.jobs[name].folder for name in names if self.jobs[name].state == "finished"]

    def finished(self, run: Run) -> RunFolder | None:
        """A run's folder; None, with a note, if it is not finished."""
        try:
            return self._finished(run)
        except Missing as reason:
            self.gaps.setdefault(str(reason), {})[run.name] = None
            return None

    def notes(self) -> list[str]:
        """What is missing and why."""
        lines = []
        for reason, names in self.gaps.items():
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            lines.append(f"Missing, {reason.rstrip('.')}: {', '.join(list(names)[:SHOWN])}{more}.")
        return lines

    def _finished(self, run: Run) -> RunFolder:
        job = self.jobs[run.name]
        if job.state == "finished":
            return job.folder
        if job.state == "diverged":
            raise Diverged(divergence(job.folder))
        unfinished = f"unfinished after {job.folder.epochs_done()} epochs"
        raise Missing(self._why(run, "not trained yet" if job.state == "missing" else unfinished))

    def _unmeasured(self, run: Run, file: str) -> str:
        """Why a result is not there, or is not taken."""
        anew = f"vje {COMMANDS[file]} measures it anew"
        try:
            found = unusual(self.jobs[run.name].folder, file)
        except Damaged as error:
            return f"{str(error).rstrip('.')}; {self._why(run, anew)}"
        if not found:
            return self._why(run, f"not measured yet (vje {COMMANDS[file]})")
        return f"{file}.json was measured with {found}; {self._why(run, anew)}"

    def _why(self, run: Run, otherwise: str) -> str:
        return self.failures.get(run.name) or self.jobs[run.name].obstacle or otherwise

    def _speed(self, recipe: str) -> dict[str, Any]:
        """What ``benchmarks/speed.py`` measured of a recipe's step, alone on the device."""
        file = self.out / "speed.json"
        cases = {case["name"]: case for case in read_json(file)["results"]} if file.exists() else {}
        if f"{recipe}/graph" not in cases:
            raise Missing("speed not measured alone yet (benchmarks/speed.py)")
        return dict(cases[f"{recipe}/graph"])

    def _profile(self, cell: Cell) -> Found | None:
        file = self.out / "profile.json"
        try:
            if not file.exists():
                raise Missing("not measured yet (vje profile)")
            method, _, measure = cell.value[0].partition(":")[2].partition(".")
            return Found((lookup(read_json(file)["methods"].get(method), measure, file.name),), None, 1)
        except Missing as reason:
            self.gaps.setdefault(self.failures.get("profile", str(reason)), {})["profile"] = None
            return None


def lookup(record: Any, path: str, file: str) -> float:
    """The number at a path, such as knn.z, of nested dictionaries."""
    for word in path.split("."):
        if not isinstance(record, Mapping) or record.get(word) is None:
            raise Missing(f"{file} has no {path}")
        record = record[word]
    try:
        value = float(record)
    except (TypeError, ValueError):
        raise Missing(f"{path} of {file} is not a number") from None
    if not math.isfinite(value):
        raise Missing(f"{path} is not finite")
    return value


# What is written


def as_data(experiment: Experiment, found: Sequence[Sequence[Found | None]]) -> list[dict[str, Any]]:
    """The rows as plain values."""
    return [
        {"name": row.name, "cells": [_cell_data(c, f) for c, f in zip(cells, ours, strict=True)]}
        for row, cells, ours in zip(experiment.rows, experiment.cells(), found, strict=True)
    ]


def _cell_data(cell: Cell, found: Found | None) -> dict[str, Any]:
    paper = None if cell.paper is None else {"mean": cell.paper.mean, "std": cell.paper.std}
    data: dict[str, Any] = {"ours": None, "paper": paper, "difference": difference(found, cell.paper)}
    if found is not None and found.values:
        data["ours"] = {"mean": found.mean, "std": found.std, "values": list(found.values)}
    if found is not None and found.diverged:
        data["diverged"] = found.diverged
    return data | ({"quoted": cell.quoted} if cell.quoted else {})


def difference(found: Found | None, paper: Number | None) -> float | None:
    """Ours less the paper's."""
    return None if found is None or not found.values or paper is None else found.mean - paper.mean


def lines(experiment: Experiment, found: Sequence[Sequence[Found | None]]) -> list[list[str]]:
    """The table as text: for each row a line of ours, of the paper's and of differences."""
    table = []
    for row, cells, ours in zip(experiment.rows, experiment.cells(), found, strict=True):
        pairs = list(zip(cells, ours, strict=True))
        if not row.quoted:
            table.append([row.name, "ours", *(_ours(f, c.paper) for c, f in pairs)])
        source = f"{experiment.source}, from {row.quoted}" if row.quoted else experiment.source
        if row.paper:
            table.append([row.name if row.quoted else "", source, *(c.paper.text if c.paper else "" for c in cells)])
        if any(difference(f, c.paper) is not None for c, f in pairs):
            table.append(["", "difference", *(_difference(f, c.paper) for c, f in pairs)])
    return table


def _ours(found: Found | None, paper: Number | None) -> str:
    if found is None:
        return ""
    if not found.values:
        return "diverged" + (f" ({found.diverged} of {found.wanted})" if found.diverged < found.wanted else "")
    digits = paper.digits if paper is not None else _digits(max(abs(found.mean), found.std or 0.0))
    text = f"{found.mean:.{digits}f}" + ("" if found.std is None else f" ± {found.std:.{digits}f}")
    if len(found.values) == found.wanted:
        return text
    diverged = f", {found.diverged} diverged" if found.diverged else ""
    return f"{text} ({len(found.values)} of {found.wanted}{diverged})"


def _digits(size: float) -> int:
    """Digits after the point for about four figures that say something.

    >>> [f"{value:.{_digits(value)}f}" for value in (24336.2, 89.468, 0.65131, 0.06124, 0.00061238)]
    ['24336', '89.47', '0.6513', '0.0612', '0.000612']
    """
    if size >= 1 or size == 0:
        return 2 if size < 1000 else 0
    return max(4, 2 - math.floor(math.log10(size)))


def _difference(found: Found | None, paper: Number | None) -> str:
    value = difference(found, paper)
    if value is None or paper is None:
        return ""
    return f"{round(value, paper.digits) + 0.0:+.{paper.digits}f}"  # and never -0.0


def markdown(headings: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---", "---", *["---:"] * (len(headings) - 2)]
    rows = [headings, rule, *table]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def for_terminal(headings: Sequence[str], table: Sequence[Sequence[str]]) -> RichTable:
    """The same for a terminal; the paper's lines and differences are dim."""
    rich = RichTable(box=box.SIMPLE, pad_edge=False)
    for number, heading in enumerate(headings):
        rich.add_column(Text(heading), justify="left" if number < 2 else "right")
    for row, after in zip(table, [*table[1:], None], strict=True):
        last = after is None or bool(after[0])
        rich.add_row(*map(Text, row), style="" if row[1] == "ours" else "dim", end_section=last)
    return rich


def provenance(folders: Sequence[RunFolder], jobs: Sequence[Job], more: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the numbers were made with: command, commits, devices, seeds and epochs.

    Args:
        folders: the runs that are finished.
        jobs: all that were wanted.
        more: surroundings of what was measured without a run.
    """
    made = [*filter(None, map(_surroundings, folders)), *more]
    runs = [job.run for job in jobs]
    return {
        "command": command("vje", *sys.argv[1:]),
        "commits": sorted({shortened(str(e["commit"])) for e in made if e.get("commit")}),
        "devices": sorted({str(e["device"]) for e in made if "device" in e}),
        "seeds": sorted({run.seed for run in runs}),
        "epochs": sorted({run.epochs for run in runs}),
        "wanted": len(runs),
        "runs": [folder.path.name for folder in folders],
        "diverged": [job.run.name for job in jobs if job.state == "diverged"],
    }


def _surroundings(folder: RunFolder) -> dict[str, Any]:
    """What a run was made with, as far as it says."""
    try:
        return folder.find("environment")
    except Damaged:
        return {}


def provenance_line(made: Mapping[str, Any]) -> str:
    """The same in a sentence."""
    words = [f"`{made['command']}`"]
    for key, title in (("commits", "commit"), ("devices", "device"), ("seeds", "seeds"), ("epochs", "epochs")):
        if made[key]:
            words.append(f"{title} {', '.join(map(str, made[key]))}")
    if made["wanted"]:
        diverged = f", {len(made['diverged'])} diverged" if made["diverged"] else ""
        words.append(f"{len(made['runs'])} of {made['wanted']} runs finished{diverged}")
    return f"Made with {'; '.join(words)}."
