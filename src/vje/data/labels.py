"""Labels kept beside the images: a CSV of file and label, or a .npy array in the order of the images."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from vje.errors import UserError

_EXAMPLES = 3


def read_labels(path: Path, names: Sequence[str]) -> tuple[NDArray[np.int64], list[str] | None]:
    """Labels for the images called ``names``, and the names of the classes where the file has names.

    Args:
        path: a ``.npy`` array of integers in the order of ``names``; or a CSV (tab-separated if ``.tsv``) with the
            columns ``file`` and ``label``, or without a header and with these two columns. A label is a class number
            or a class name.
        names: names of the images.
    """
    if not path.is_file():
        raise UserError(f"the label file {path} does not exist; check the path, or say where it is with --labels FILE")
    if path.suffix.lower() == ".npy":
        return _from_array(path, len(names)), None
    table = _from_csv(path)
    known = set(names)
    unlabelled = [name for name in names if name not in table]
    unknown = [name for name in table if name not in known]
    if unlabelled or unknown:
        if unknown == list(table)[:1] and not unlabelled:
            raise UserError(
                f"the first row of the label file {path} names no image ({unknown[0]}): a header has to read file,label"
            )
        faults = []
        if unlabelled:
            faults.append(f"{len(unlabelled)} of {len(names)} images have no label ({_some(unlabelled)})")
        if unknown:
            faults.append(f"{len(unknown)} of {len(table)} rows name no image ({_some(unknown)})")
        raise UserError(
            f"the label file {path} does not match the images: {'; '.join(faults)}. "
            "It needs one row an image, with the file's path relative to the image folder."
        )
    return _numbered([table[name] for name in names], path)


def _from_array(path: Path, count: int) -> NDArray[np.int64]:
    try:
        labels = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"cannot read the label file {path}: it is no plain .npy array of integers") from error
    if labels.shape not in ((count,), (count, 1)) or labels.dtype.kind not in "iu":
        raise UserError(
            f"the label file {path} does not match the images: expected {count} integers, one an image, "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    return np.asarray(labels.reshape(count), dtype=np.int64)


def _from_csv(path: Path) -> dict[str, str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            lines = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise UserError(f"cannot read the label file {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"cannot read the label file {path}: it is no UTF-8 text with comma-separated columns"
        ) from error
    first = lines[0][1] if lines else []
    header = [cell.strip().lower() for cell in first]
    columns = (0, 1)
    if "file" in header and "label" in header:
        columns = (header.index("file"), header.index("label"))
        lines = lines[1:]
    elif len(header) != 2:
        raise UserError(
            f"the label file {path} must have the columns file,label, or just these two without a header; "
            + (f"its first row is {','.join(first)!r}" if first else "it is empty")
        )
    table: dict[str, str] = {}
    for number, row in lines:
        if len(row) <= max(columns) or not row[columns[1]].strip():
            raise UserError(f"the label file {path} lacks a label in line {number}: {','.join(row)!r}")
        name, label = _normal(row[columns[0]]), row[columns[1]].strip()
        if table.setdefault(name, label) != label:
            raise UserError(f"the label file {path} gives {name} two labels, {table[name]} and {label}; keep one")
    return table


def _numbered(values: Sequence[str], path: Path) -> tuple[NDArray[np.int64], list[str] | None]:
    """Class numbers as they are; class names in sorted order."""
    try:
        labels = np.array([int(value) for value in values], dtype=np.int64)
    except (ValueError, OverflowError):
        classes, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), classes.tolist()
    if len(labels) and labels.min() < 0:
        raise UserError(f"the label file {path} holds the class number {labels.min()}; classes count from 0")
    return labels, None


def _normal(name: str) -> str:
    return PurePosixPath(name.strip().replace("\\", "/")).as_posix()


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_EXAMPLES]) + (", ..." if len(names) > _EXAMPLES else "")
