"""Mistakes in a declaration that would only be noticed after hours of training, refused when it is read.

Options are looked at more closely when runs are planned: see ``vje.experiments.plan``.
"""

from typing import TYPE_CHECKING, Any

from vje.errors import UserError
from vje.runs import COMMANDS

if TYPE_CHECKING:
    from vje.experiments import Cell, Experiment, Line

FILES = (*COMMANDS, "metrics", "profile", "speed")
"""What the part of a value's path before the colon may be.

``metrics`` is the last epoch's record; ``speed`` is what ``benchmarks/speed.py`` wrote of the recipe to OUT/speed.json.
"""
PICTURES = {"geometry.png": "geometry", "ood-roc.png": "ood", "ood-nll.png": "ood"}
"""The command that draws each picture of a run."""
OWN_FIELDS = {
    "epochs": "write epochs = {value} beside options instead",
    "seed": "write seeds = N beside options instead, for runs with the seeds 0 to N - 1",
}
"""What to do with options that are fields of rows and columns."""


def check_tables(entries: Any, kind: str, file: str) -> None:
    """Refuse rows, columns or strips that are not a list of tables."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{file}: {kind} must be tables, each below a line [[{kind}]].")
    for entry in entries:
        if "name" not in entry:
            raise UserError(f"{file}: {kind}: every one needs a name.")
        for key, example in (("options", "nu = 3.0"), ("set", 'data = "cifar10"')):
            if not isinstance(entry.get(key, {}), dict):
                words = f"{key} must be a table, such as {key} = {{ {example} }}, got {entry[key]!r}"
                raise UserError(f"{file}: {kind.removesuffix('s')} {entry['name']}: {words}.")


def check_line(line: "Line", given: dict[str, Any], where: str) -> None:
    """Refuse what is wrong with a row or column by itself; ``given`` is what the file says of it."""
    for name in ("epochs", "seeds"):
        if name in given and getattr(line, name) < 1:
            raise UserError(f"{where}: {name} must be at least 1, got {given[name]}; leave it out for the table's.")
    for name, value in line.options.items():
        if name in OWN_FIELDS:
            raise UserError(f"{where}: {name} is no option: {OWN_FIELDS[name].format(value=value)}.")
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str | int | float) for item in items):
            raise UserError(f"{where}: option {name} must be a number, a word, true, false or a list, got {value!r}.")


def check(experiment: "Experiment") -> None:
    """Refuse a table that lacks something, or has values that cannot be read."""
    file = f"{experiment.name}.toml"
    _check_papers(experiment, file)
    cells = experiment.every_cell()
    for cell in cells:
        for path in cell.paths():
            kind, colon, rest = path.partition(":")
            if kind not in FILES or not colon or not rest:
                raise UserError(f"{cell.where}: the value {path!r} must be FILE:PATH, FILE one of {', '.join(FILES)}.")
    if experiment.kind == "picture" and experiment.picture not in PICTURES:
        raise UserError(f"{file}: picture must be one of {', '.join(PICTURES)}, got {experiment.picture!r}.")
    if experiment.seeds < 1:
        raise UserError(f"{file}: seeds must be at least 1, got {experiment.seeds}.")
    if experiment.epochs < 0:
        raise UserError(f"{file}: epochs must be at least 1, or 0 for each recipe's own, got {experiment.epochs}.")
    if experiment.kind != "scalar":
        _check_lines(experiment, file)
        for cell in cells:
            _check_cell(cell, experiment)


def _check_papers(experiment: "Experiment", file: str) -> None:
    for row in experiment.rows:
        if row.paper and len(row.paper) != len(experiment.columns):
            raise UserError(
                f"{file}: row {row.name} has {len(row.paper)} of the paper's numbers for "
                f"{len(experiment.columns)} columns."
            )


def _check_lines(experiment: "Experiment", file: str) -> None:
    for kind in ("columns", "rows", *(["strips"] if experiment.kind == "curves" else [])):
        if not getattr(experiment, kind):
            raise UserError(f"{file}: there are no {kind}: add at least one, [[{kind}]] with a name below it.")


def _check_cell(cell: "Cell", experiment: "Experiment") -> None:
    """Refuse a cell without a value to read, or without runs to read it from."""
    if cell.quoted:
        return
    in_strips = bool(experiment.strips) and all(strip.value for strip in experiment.strips)
    if not cell.value and not in_strips and experiment.kind != "picture":
        raise UserError(f'{cell.where}: no value: give the row or the column one, such as value = "evaluation:knn.z".')
    if not cell.recipe and cell.files() != ["profile"]:
        raise UserError(f'{cell.where}: no recipe: give the row or the column one, such as recipe = "digits".')
