"""The paper's tables and figures as declarations: which runs, which number of each, and what the paper has there.

A file of this folder is a table or a figure. A table's cell is where a row and a column meet: each may name a recipe,
options, epochs, seeds and the path of a value, and what the row says goes before what the column says. Words in braces
(``{data}``) stand for what row or column ``set``. ``paper`` has the paper's numbers of a row, from left to right.
Importable without torch.
"""

import difflib
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from vje.errors import UserError
from vje.experiments.check import check, check_line, check_tables
from vje.fields import from_dict
from vje.recipes import load_recipe


@dataclass(frozen=True)
class Line:
    """A row or a column of a table; a line or a column of panels of a figure."""

    name: str
    """What it is called."""
    recipe: str = ""
    """Recipe of its runs."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from the recipe's."""
    value: tuple[str, ...] = ()
    """Where its numbers are, such as evaluation:knn.z; of several, the mean."""
    spread: str = ""
    """Where the number after the ± is, if it is not the standard deviation over seeds."""
    epochs: int = 0
    """Of the paper's runs, if others than the table's."""
    seeds: int = 0
    """Of the paper's runs, if others than the table's."""
    set: dict[str, str] = field(default_factory=dict)
    """What words in braces stand for."""
    paper: tuple[str, ...] = ()
    """The paper's numbers, as it prints them; of rows."""
    quoted: str = ""
    """Where the paper has the numbers from, if it measured nothing itself; such a row has no runs."""


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper."""

    name: str
    """As in ``vje reproduce NAME``."""
    about: str
    """What it shows, in a line."""
    label: str = ""
    """Its label in the paper."""
    kind: Literal["table", "curves", "picture", "scalar"] = "table"
    """A table; numbers over epochs; a picture that a run has already; or the figure that needs no run."""
    epochs: int = 200
    """Of the paper's runs; 0 for each recipe's own."""
    seeds: int = 3
    """Of the paper's runs."""
    source: str = "paper"
    """Whose the numbers beside ours are."""
    corner: str = ""
    """Title of the column of row names."""
    columns: tuple[Line, ...] = ()
    rows: tuple[Line, ...] = ()
    strips: tuple[Line, ...] = ()
    """Of curves: rows of panels, each with a value of its own."""
    picture: str = ""
    """Of a picture: its name in the run folder."""
    notes: tuple[str, ...] = ()
    """What to know when comparing."""

    def cells(self) -> "list[list[Cell]]":
        """The cells, by row."""
        return [[self._cell(row, column, number) for number, column in enumerate(self.columns)] for row in self.rows]

    def every_cell(self) -> "list[Cell]":
        """The same in a line."""
        return [cell for row in self.cells() for cell in row]

    def reads(self, file: str) -> bool:
        """Whether any of its numbers are in that kind of file."""
        return any(file in cell.files() for cell in self.every_cell())

    def _cell(self, row: Line, column: Line, number: int) -> "Cell":
        words = {**column.set, **row.set}
        where = f"{self.name}.toml: row {row.name}, column {column.name}"
        paper = Number.parse(row.paper[number], where) if row.paper and row.paper[number] else None
        if row.quoted:
            return Cell(where, paper=paper, quoted=row.quoted)
        recipe = _filled(row.recipe or column.recipe, words, where)
        return Cell(
            where,
            recipe=recipe,
            options={**column.options, **row.options},
            value=tuple(_filled(path, words, where) for path in row.value or column.value),
            spread=_filled(row.spread or column.spread, words, where),
            epochs=row.epochs or column.epochs or self.epochs or _usual_epochs(recipe, where),
            seeds=row.seeds or column.seeds or self.seeds,
            paper=paper,
        )


@dataclass(frozen=True)
class Number:
    """A number as printed.

    >>> Number.parse("87.3 ± 0.2", "example")
    Number(mean=87.3, std=0.2, digits=1, text='87.3 ± 0.2')
    """

    mean: float  # the number
    std: float | None  # what is after the ±, if anything
    digits: int  # after the decimal point
    text: str  # as it was printed

    @classmethod
    def parse(cls, text: str, where: str) -> "Number":
        """Read "87.3 ± 0.2" or "87.3"."""
        mean, sign, std = (part.strip() for part in text.partition("±"))
        try:
            return cls(float(mean), float(std) if sign else None, len(mean.partition(".")[2]), text)
        except ValueError:
            raise UserError(f"{where}: {text!r} is no number, such as 87.3 or 87.3 ± 0.2.") from None


@dataclass(frozen=True)
class Cell:
    """Where a row and a column meet: the runs, the value to read of each, and the paper's."""

    where: str  # its table, row and column, to name it by
    recipe: str = ""  # of its runs; empty if it needs none
    options: dict[str, Any] = field(default_factory=dict)  # on top of the recipe
    value: tuple[str, ...] = ()  # paths, of which the mean is taken
    spread: str = ""  # path of the number after the ±, if it is not over seeds
    epochs: int = 0  # of the paper's runs
    seeds: int = 0  # of the paper's runs
    paper: Number | None = None  # its number
    quoted: str = ""  # where the paper has it from, if not from runs of its own

    def paths(self) -> list[str]:
        """Where all of its numbers are."""
        return [*self.value, *filter(None, [self.spread])]

    def files(self) -> list[str]:
        """The kinds of file that its numbers are read from."""
        return list(dict.fromkeys(path.partition(":")[0] for path in self.paths()))


def experiment_names() -> list[str]:
    """The tables and figures that come with the package, in the paper's order."""
    found = {f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml")}
    return [*(name for name in ORDER if name in found), *sorted(found - set(ORDER))]


def load_experiment(name: str) -> Experiment:
    """A table or figure by name, with or without "tab:" or "fig:", or from a ``.toml`` file of one's own.

    >>> load_experiment("tab:nu-sweep").rows[-1].paper[0]
    '16.3 ± 11'
    """
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise UserError(f"there is no file {name}.")
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot read {name}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise UserError(f"{name} is not text in UTF-8: save it as that.") from None
        return _read(text, Path(name).stem, {"source": "declared", "epochs": 0})
    plain = name.removeprefix("tab:").removeprefix("fig:").replace("_", "-")
    known = experiment_names()
    if plain not in known:
        close = difflib.get_close_matches(plain, known, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UserError(f"there is no table or figure {name!r}.{hint} There are: {', '.join(known)}; or a .toml file.")
    return _read(_folder().joinpath(f"{plain}.toml").read_text(encoding="utf-8"), plain)


def _read(text: str, name: str, usual: dict[str, Any] | None = None) -> Experiment:
    """A declaration; ``usual`` are settings for those that it leaves out."""
    try:
        values = {**(usual or {}), **tomllib.loads(text)}
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name}.toml is not valid TOML: {error}.") from None
    if "about" not in values:
        raise UserError(f'{name}.toml has no `about = "..."`, the line that says what the table shows.')
    lines = {kind: _lines(values.pop(kind, []), kind, f"{name}.toml") for kind in ("columns", "rows", "strips")}
    plain = from_dict(Experiment, {"name": name, **values}, f"{name}.toml")
    experiment = Experiment(**{**vars(plain), **lines})
    check(experiment)
    return experiment


def _lines(entries: Any, kind: str, file: str) -> tuple[Line, ...]:
    check_tables(entries, kind, file)
    return tuple(_line(entry, f"{file}: {kind.removesuffix('s')} {entry['name']}") for entry in entries)


def _line(entry: dict[str, Any], where: str) -> Line:
    """A row or column; tables inside it are free, the rest is checked like a config."""
    free: dict[str, dict[str, Any]] = {key: dict(entry[key]) for key in ("options", "set") if key in entry}
    given = {key: value for key, value in entry.items() if key not in free}
    if isinstance(given.get("value"), str):
        given["value"] = [given["value"]]
    line = Line(**{**vars(from_dict(Line, given, where)), **free})
    check_line(line, given, where)
    return line


def _usual_epochs(recipe: str, where: str) -> int:
    try:
        return load_recipe(recipe).optimizer.epochs if recipe else 0
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _filled(text: str, words: dict[str, str], where: str) -> str:
    try:
        return text.format(**words)
    except (KeyError, IndexError, ValueError):
        raise UserError(f"{where}: {text!r} has a word in braces that neither row nor column sets.") from None


def _folder() -> Any:
    return resources.files("vje") / "experiments"


ORDER = (
    *("scalar-t-vs-gauss", "imagenet-linear", "comparison", "knn-curves", "geometry", "geometry-margin"),
    *("ood-scoring-datasets", "ood-roc", "ood-nll-density", "ood-nu-sweep", "ood-visimsiam-scores"),
    *("ood-openood-context", "ood-common-bench", "nu-sweep", "loss-ablation", "norm-pathology"),
    *("pathology-imagenet", "pathology-decomp-grid", "mc-ablation", "isotropic", "compute"),
    *("cifar10-methods", "cifar10-methods-ood", "cifar10-ood"),
)
