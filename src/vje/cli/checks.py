"""Mistakes that the small files of a run tell: found before torch is imported, which takes seconds."""

from pathlib import Path

from vje.errors import UserError
from vje.runs import read_json


def check_vje(path: Path) -> None:
    """Refuse a run folder, or a model's file, of another method where only VJE will do."""
    files = (path / "config.json", path / "model.json") if path.is_dir() else (path.with_suffix(".json"),)
    method = next((read_json(file).get("method", "vje") for file in files if file.is_file()), "vje")
    if method != "vje":
        raise UserError(
            f"{path} was trained with {method}, and this is for VJE models. `vje evaluate`, `vje probe` and `vje ood` "
            "work for every method."
        )
