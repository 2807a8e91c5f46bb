"""What ``vje reproduce`` leaves behind: the table or figure, as Markdown and JSON, and as a picture."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from vje.errors import UserError
from vje.experiments import Experiment
from vje.experiments.check import PICTURES
from vje.experiments.grid import Scale
from vje.experiments.plan import Job, is_fresh
from vje.experiments.table import (
    SHOWN,
    Found,
    Missing,
    Results,
    as_data,
    for_terminal,
    lines,
    lookup,
    markdown,
    provenance,
    provenance_line,
)
from vje.reporting.ood import save_roc
from vje.reporting.ood_columns import partial_sets
from vje.reporting.panels import Point, over_seeds, save_panels, save_scalar
from vje.runs import RunFolder, read_json, write_atomically, write_json
from vje.terminal import print_whole, say

ROC = "ood-roc.png"
ROC_SCORES = ("nll", "neg_anisotropy", "variance_trace", "neg_kl")
"""Those of the paper's figure."""


def write(
    experiment: Experiment,
    scale: Scale,
    jobs: list[Job],
    failures: Mapping[str, str],
    out: Path,
    console: Console,
    own: Sequence[str] = (),
) -> list[Path]:
    """Make the table or figure from what the runs have, print it, and write it; none that has more is replaced.

    Args:
        experiment: which.
        scale: how much of it was wanted.
        jobs: the plan, as things stand now.
        failures: of runs that failed just now, by name.
        out: folder of runs and results.
        console: where to print.
        own: notes of the user's.

    Returns:
        The files written.
    """
    file = out / scale.file_name(experiment)
    results = Results(out, scale, {job.run.name: job for job in jobs}, failures)
    content = _table(experiment, results) if experiment.kind == "table" else _figure(experiment, results, file)
    folders = results.folders(experiment)
    made = provenance(folders, jobs, _measured(experiment, out))
    scaled = scale.label(experiment)
    notes = [f"Scaled down: {scaled}."] if scaled else []
    notes += [*experiment.notes, *(_ood_notes(folders) if _uses(experiment, "ood") else [])]
    notes += [*own, *results.notes(), provenance_line(made)]
    record: dict[str, Any] = {
        "name": experiment.name,
        "label": experiment.label,
        "about": experiment.about,
        "scaled": scaled,
    }
    record |= {"notes": notes, **content.get("data", {}), "made": made}
    _print(experiment, scaled, content, notes, console)
    files = [out / f"{file.name}.md", out / f"{file.name}.json", *content.get("pictures", [])]
    _check_kept(files[1], record)
    if "draw" in content:
        content["draw"]()
    write_atomically(files[0], _page(experiment, scaled, content, notes).encode())
    write_json(files[1], record)
    return files


def _check_kept(file: Path, record: Mapping[str, Any]) -> None:
    """Refuse to replace a table or a figure by one that lacks numbers of it."""
    before, now = _counts(read_json(file)) if file.exists() else {}, _counts(record)
    lost = [name for name, count in before.items() if now.get(name, count) < count]
    if lost:
        more = f"; and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
        raise UserError(
            f"{file} is left as it was, as numbers that it has are not there now: {'; '.join(lost[:SHOWN])}{more}. "
            "Bring back what they are read from, or move the file away to have it written without them."
        )


def _counts(record: Mapping[str, Any]) -> dict[str, int]:
    """How many numbers of ours each cell of a table has, and each line of a figure."""
    cells = {
        f"{row['name']}, {column}": len(cell["ours"]["values"]) if cell["ours"] else 0
        for row in record.get("rows", ())
        for column, cell in zip(record["columns"], row["cells"], strict=True)
    }
    return cells | {", ".join((x["panel"], x["column"], x["line"])): len(x["points"]) for x in record.get("series", ())}


def _table(experiment: Experiment, results: Results) -> dict[str, Any]:
    found: list[list[Found | None]] = [
        [None if cell.quoted else results.cell(cell) for cell in row] for row in experiment.cells()
    ]
    columns = [column.name for column in experiment.columns]
    return {
        "headings": [experiment.corner, "", *columns],
        "lines": lines(experiment, found),
        "data": {"columns": columns, "rows": as_data(experiment, found)},
    }


def _figure(experiment: Experiment, results: Results, place: Path) -> dict[str, Any]:
    file = place.with_name(f"{place.name}.png")
    if experiment.kind == "scalar":
        save_scalar(file)
        return {"pictures": [file]}
    if experiment.kind == "picture":
        made = (experiment.picture == ROC and _roc(experiment, results, file)) or _copied(experiment, results, file)
        return {"pictures": [file] if made else []}
    curves = {
        (strip.name, column.name): {
            row.name: _curve(cells[number], strip.value, results)
            for row, cells in zip(experiment.rows, experiment.cells(), strict=True)
        }
        for strip in experiment.strips
        for number, column in enumerate(experiment.columns)
    }
    columns, strips = [column.name for column in experiment.columns], [strip.name for strip in experiment.strips]
    begun = [name for name in columns if any(points for strip in strips for points in curves[strip, name].values())]
    draw = partial(save_panels, file, begun or columns, strips, curves)  # what is missing is named below the picture
    series = [
        {"panel": strip, "column": column, "line": name, "points": points}
        for (strip, column), panel in curves.items()
        for name, points in panel.items()
    ]
    return {"pictures": [file], "data": {"series": series}, "draw": draw}


def _curve(cell: Any, value: tuple[str, ...], results: Results) -> list[Point]:
    """A line of the figure, over the seeds that are finished."""
    tables = []
    for folder in filter(None, (results.finished(run) for run in results.scale.runs(cell))):
        path = (value or cell.value)[0].partition(":")[2]
        table = {}
        for record in folder.metrics():
            try:
                table[int(record["epoch"])] = lookup(record, path, "metrics.jsonl")
            except Missing:
                continue
        tables.append(table)
    return over_seeds(tables)


def _finished(experiment: Experiment, results: Results) -> Iterator[RunFolder]:
    runs = [run for cell in experiment.every_cell() for run in results.scale.runs(cell)]
    return filter(None, (results.finished(run) for run in runs))


def _roc(experiment: Experiment, results: Results, file: Path) -> bool:
    """Draw the paper's ROC curves, over all runs whose curves are there."""
    found = []
    for folder in _finished(experiment, results):
        if is_fresh(folder, "ood") and (curves := folder.find("ood-curves")):
            found.append(curves)
        else:
            results.gaps.setdefault("no ood-curves.json, which `vje ood` writes", {})[folder.path.name] = None
    if found:
        save_roc(file, found, ROC_SCORES)
    return bool(found)


def _copied(experiment: Experiment, results: Results, file: Path) -> bool:
    """Take the picture that an evaluation drew for the first run that has it."""
    for folder in _finished(experiment, results):
        picture = folder.path / experiment.picture
        if picture.exists():
            shutil.copyfile(picture, file)
            return True
        results.gaps.setdefault(f"no {experiment.picture} yet", {})[folder.path.name] = None
    return False


def _measured(experiment: Experiment, out: Path) -> list[dict[str, Any]]:
    """The surroundings of the computational profile and of the benchmark of speed, if they are in the table."""
    files = [out / f"{kind}.json" for kind in ("profile", "speed") if _uses(experiment, kind)]
    found = [read_json(file) for file in files if file.exists()]
    return [record.get("environment", record) for record in found]


def _uses(experiment: Experiment, kind: str) -> bool:
    """Whether numbers or the picture come from that kind of file."""
    return experiment.reads(kind) or PICTURES.get(experiment.picture) == kind


def _ood_notes(folders: list[RunFolder]) -> list[str]:
    """Which images the out-of-distribution sets were."""
    found = [found for folder in folders if (found := folder.find("ood"))]
    sets = {", ".join(f"{name} {count:,}" for name, count in result["counts"].items()) for result in found}
    partial = sorted({name for result in found for name in partial_sets(result).values()})
    notes = [f"Images of each set: {text}." for text in sorted(sets)]
    return notes + ([f"Not the protocol's own image list: {', '.join(partial)}."] if partial else [])


def _title(experiment: Experiment, scaled: str) -> str:
    return f"{experiment.about} ({experiment.label or experiment.name})" + (f" [{scaled}]" if scaled else "")


def _page(experiment: Experiment, scaled: str, content: dict[str, Any], notes: list[str]) -> str:
    """The Markdown file."""
    parts = [f"# {_title(experiment, scaled)}\n"]
    if "lines" in content:
        parts.append(markdown(content["headings"], content["lines"]))
    parts += [f"![{experiment.about}]({picture.name})\n" for picture in content.get("pictures", [])]
    return "\n".join([*parts, *(f"{note}\n" for note in notes)])


def _print(experiment: Experiment, scaled: str, content: dict[str, Any], notes: list[str], console: Console) -> None:
    if "lines" in content:
        print_whole(for_terminal(content["headings"], content["lines"]), _title(experiment, scaled), console)
    else:
        say(console, _title(experiment, scaled), "bold")
    for note in notes:
        say(console, note, "dim")
