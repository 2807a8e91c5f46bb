"""The runs of a table: how many of them are wanted, what each is called, and the command that makes it.

Importable without torch, as long as recipes are VJE's; those of other methods are looked at closely only before
something is run.
"""

import dataclasses
import difflib
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vje.config import Config, read_config, to_dict
from vje.errors import UserError, command
from vje.experiments import Cell, Experiment
from vje.recipes import load_recipe, split
from vje.runs import RunFolder


@dataclass(frozen=True)
class Scale:
    """How far the paper's experiments are scaled down."""

    epochs: int | None = None  # of a run, at most; None for the paper's
    seeds: int | None = None  # of a cell, at most; None for the paper's
    only: tuple[str, ...] = ()  # data sets whose runs are made; empty for all

    def runs(self, cell: Cell) -> "list[Run]":
        """The runs of a cell, one a seed; none if it needs none."""
        if not cell.recipe:
            return []
        epochs = min(cell.epochs, self.epochs or cell.epochs)
        chosen = dict(cell.options)
        if "schedule_epochs" in chosen:  # the same part of a schedule that is as much shorter
            chosen["schedule_epochs"] = round(chosen["schedule_epochs"] * epochs / cell.epochs)
        options = changed_options(cell.recipe, chosen)
        return [Run(cell.recipe, options, epochs, seed) for seed in range(min(cell.seeds, self.seeds or cell.seeds))]

    def label(self, experiment: Experiment) -> str:
        """What is less than the paper's, in words; empty if nothing is."""
        whose = "the paper's" if experiment.source == "paper" else f"the {experiment.source}"
        limits = self._limits(experiment).items()
        return ", ".join(filter(None, (_less(limit, declared, whose, what) for what, (limit, declared) in limits)))

    def file_name(self, experiment: Experiment) -> str:
        """What its table's files are called, less the ending: a smaller one does not overwrite the whole one."""
        limits = self._limits(experiment).items()
        cut = [f"{what[0]}{limit}" for what, (limit, declared) in limits if _above(limit, declared)]
        return "_".join([experiment.name, *cut])

    def _limits(self, experiment: Experiment) -> dict[str, tuple[int | None, list[int]]]:
        """Each limit, and what cells have of it in the paper."""
        cells = [cell for cell in experiment.every_cell() if cell.recipe]
        return {
            "epochs": (self.epochs, [cell.epochs for cell in cells]),
            "seeds": (self.seeds, [cell.seeds for cell in cells]),
        }


def _above(limit: int | None, declared: list[int]) -> list[int]:
    return sorted({count for count in declared if limit is not None and count > limit})


def _less(limit: int | None, declared: list[int], whose: str, what: str) -> str:
    """How a limit falls short of the paper.

    >>> _less(200, [200, 400, 800], "the paper's", "epochs")
    "200 of the paper's 400 or 800 epochs in some cells"
    """
    cut = _above(limit, declared)
    some = " in some cells" if cut and any(count not in cut for count in declared) else ""
    return f"{limit} of {whose} {' or '.join(map(str, cut))} {what}{some}" if cut else ""


@dataclass(frozen=True)
class Run:
    """A run: everything that decides what it computes."""

    recipe: str  # that it follows
    options: tuple[tuple[str, Any], ...]  # (name, value) where it differs from the recipe, sorted
    epochs: int  # its length
    seed: int  # of everything random

    @property
    def name(self) -> str:
        """Name of its folder.

        >>> Run("cifar10-ema", (("nu", 3.0), ("terms", ("directional", "kl"))), 200, 0).name
        'cifar10-ema_nu-3_terms-directional+kl_e200_s0'
        """
        marks = [_mark(name, value) for name, value in self.options]
        return "_".join([Path(self.recipe).stem, *marks, f"e{self.epochs}", f"s{self.seed}"])

    def config(self) -> Config:
        """Its settings; imports torch if the method is not VJE."""
        values = to_dict(_recipe(self.recipe))
        for name, value in (*self.options, ("epochs", self.epochs), ("seed", self.seed)):
            groups = [group for group in values.values() if isinstance(group, dict) and name in group]
            if not groups:
                raise UserError(f"recipe {self.recipe} has no setting {name!r}; {_close(name, self.recipe, values)}")
            groups[0][name] = value
        config = read_config(values, f"recipe {self.recipe}")
        config.check()
        return config

    def data(self) -> str:
        """Name of its images."""
        return str(dict(self.options).get("data", _base_config(self.recipe).data.data))

    def data_dir(self, given: Path | None) -> Path:
        """Where its images are: the folder given, or the recipe's own."""
        return given or _base_config(self.recipe).data.data_dir

    def train(self, folder: Path, data_dir: Path | None) -> list[str]:
        """The command that starts it, or goes on with it."""
        where = data_option(data_dir)
        if RunFolder(folder).config_file.exists():
            return [*PYTHON, "train", "--resume", str(folder), *where]
        words = ["--out", str(folder), "--epochs", str(self.epochs), "--seed", str(self.seed), *where]
        for name, value in self.options:
            words += _words(name.replace("_", "-"), value)
        return [*PYTHON, "train", self.recipe, *words]


PYTHON = (sys.executable, "-m", "vje")


def data_option(data_dir: Path | None) -> list[str]:
    """The option that says where data sets are, wherever the command is given."""
    return [] if data_dir is None else ["--data-dir", str(data_dir.absolute())]


@functools.cache
def method_of(recipe: str) -> str:
    """A recipe's method, without importing it.

    >>> method_of("cifar10-ema"), method_of("cifar10-vi-simsiam")
    ('vje', 'vi-simsiam')
    """
    if recipe.endswith(".toml"):
        return load_recipe(recipe).method
    return split(recipe)[1] or "vje"


_recipe = functools.cache(load_recipe)


def _base_config(recipe: str) -> Config:
    """The data set's recipe below one that has a method on top."""
    return _recipe(split(recipe)[0])


def _close(name: str, recipe: str, values: dict[str, Any]) -> str:
    """What to do about a setting that there is not."""
    known = [key for group in values.values() if isinstance(group, dict) for key in group]
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"`{command('vje', 'train', recipe, '--help')}` lists them."


def changed_options(recipe: str, options: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Options less those that say what the recipe says anyway, so that one run has one name.

    >>> changed_options("cifar10", {"nu": 1.0, "samples": 4})
    (('samples', 4),)
    """
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    if plain and method_of(recipe) == "vje":
        config = _base_config(recipe)
        groups = [getattr(config, f.name) for f in dataclasses.fields(config)]
        defaults = {k: v for group in groups if dataclasses.is_dataclass(group) for k, v in vars(group).items()}
        plain = {name: value for name, value in plain.items() if name not in defaults or defaults[name] != value}
    return tuple(sorted(plain.items()))


def _mark(name: str, value: Any) -> str:
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    if isinstance(value, tuple):
        return f"{name}-{'+'.join(map(str, value))}"
    text = f"{value:g}" if isinstance(value, int | float) else str(value)
    return f"{name}-{Path(text).stem if '/' in text else text}"  # of a path, enough to read; the config has the rest


def _words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
