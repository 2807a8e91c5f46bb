"""Mistakes that options and the small files of a run tell: found before torch is imported, which takes seconds."""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from vje.errors import UserError
from vje.methods import method_names
from vje.runs import Damaged, RunFolder, distinct, read_json


def at_least(least: int, **options: int | None) -> None:
    """Refuse options that are too small; those that were not given are None.

    >>> at_least(1, batch=500, seeds=None)
    """
    for name, value in options.items():
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")


def check_model(run: Path) -> None:
    """Refuse what is neither a run folder nor the file of a model."""
    if not run.exists():
        raise UserError(f"no run or model at {run}: that path does not exist.")
    if run.is_dir() and not (run / "model.safetensors").exists():
        RunFolder.open(run)
    if run.is_file() and run.suffix != ".safetensors":
        raise UserError(f"{run} is neither a run folder nor a .safetensors file.")


def check_parent(option: str, file: Path) -> None:
    """Refuse a file to write whose folder is not there, or may not be written to."""
    if not file.parent.is_dir():
        raise UserError(f"{option} {file}: there is no folder {file.parent}.")
    if not os.access(file.parent, os.W_OK):
        raise UserError(f"{option} {file}: you may not write to {file.parent}; choose another folder.")


def check_out(
    option: str, file: Path, endings: Sequence[str], replace: bool, otherwise: str = "", further: str = ""
) -> None:
    """Refuse a file to write of another kind, in no folder, or that is there already.

    Args:
        option: that named it.
        file: to write.
        endings: of the kinds that can be written.
        replace: whether it may be there.
        otherwise: what may be given in place of such a file, as the end of the sentence that refuses another.
        further: what may be given in place of --force, likewise.
    """
    if file.suffix not in endings:
        raise UserError(f"{option} {file}: the file must end in {' or '.join(endings)}{otherwise}.")
    check_parent(option, file)
    if file.exists() and not replace:
        raise UserError(f"{file} exists already: choose another {option}, or add{further} --force to replace it.")
    if file.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UserError("writing .parquet needs pyarrow: pip install 'vje[parquet]', or choose another kind of file.")


def check_writable(folder: Path, name: str) -> None:
    """Refuse a run folder that the results of a command cannot go to, for commands that do not print all of them."""
    if not os.access(folder, os.W_OK):
        raise UserError(f"the results of `vje {name}` go to {folder}, which cannot be written to: copy the run.")


def check_vje(path: Path) -> None:
    """Refuse a run folder, or a model's file, of another method where only VJE will do."""
    files = (path / "config.json", path / "model.json") if path.is_dir() else (path.with_suffix(".json"),)
    method = next((read_json(file).get("method", "vje") for file in files if file.is_file()), "vje")
    if method != "vje":
        raise UserError(
            f"{path} was trained with {method}, and this is for VJE models. `vje evaluate`, `probe`, `ood`, `embed`, "
            "`compare` and `report` work for every method."
        )


def open_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """The run folders among several paths, each once; what else a glob found is passed over, and told.

    A path that stands alone, or does not exist, has to be a run.
    """
    others = [path for path in paths if path.exists() and not RunFolder(path).config_file.is_file()]
    others = [] if len(others) == len(paths) else others
    if others:
        print(f"passed over, as they are no run folders: {', '.join(map(str, others))}", file=sys.stderr)
    return distinct(RunFolder.open(path) for path in paths if path not in others)


def of_known_methods(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """The runs that can be compared: those of a method that is not there are passed over, and told.

    If there are no others, that is an error.
    """
    foreign = {folder: method for folder in folders if (method := _foreign_method(folder))}
    if not foreign:
        return list(folders)
    runs = ", ".join(f"{folder.path} ({method})" for folder, method in foreign.items())
    if len(foreign) == len(folders):
        raise UserError(
            f"there is no method of this name here: {runs}. Methods: {', '.join(method_names())}. Use the version of "
            "vje that trained the run, or add the file of the method (CONTRIBUTING.md)."
        )
    print(f"passed over, as there is no method of this name here: {runs}", file=sys.stderr)
    return [folder for folder in folders if folder not in foreign]


def _foreign_method(folder: RunFolder) -> str:
    """The method of a run, if it is none of those that are there; else empty."""
    try:
        method = str(folder.read("config").get("method", "vje"))
    except Damaged:  # whoever reads the rest will tell
        return ""
    return "" if method in method_names() else method
