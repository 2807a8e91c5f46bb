"""Data sets in ``.npz`` files: ``train_images``, ``train_labels``, ``test_images``, ... (the MedMNIST convention)."""

import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vje.data.sources import ArraySource, ImageSource
from vje.errors import UserError

_ARRAYS = {
    "train": ("train_images", "train_labels"),
    "test": ("test_images", "test_labels"),
    "val": ("val_images", "val_labels"),
}
_CONVENTION = (
    "train_images, test_images, val_images or, without a split, images (uint8, [N, H, W] or [N, H, W, C]), and "
    "optionally train_labels, test_labels, val_labels or labels, and classes (their names)"
)
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, AttributeError)


def load_npz(path: Path) -> dict[str, ImageSource]:
    """The splits of a ``.npz`` file by name; one without splits gives ``train``.

    Labels may be ``[N]`` or ``[N, 1]``, integers or class names; an array ``classes`` gives integers their names.
    Several labels an image make the set an unlabelled one, with a warning. Nothing is unpickled.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            keys = _choose(list(archive.files), path)
            wanted = [*(key for pair in keys.values() for key in pair), "classes"]
            arrays = {key: _read(archive, key, path) for key in wanted if key in archive.files}
    except UserError:
        raise
    except _DAMAGE as error:
        raise _damaged(path) from error
    labels = {split: _plain(arrays[pair[1]], path) if pair[1] in arrays else None for split, pair in keys.items()}
    labels, classes = _number_names(labels)
    if classes is None and "classes" in arrays:
        classes = _class_names(arrays["classes"], labels)
    return {
        split: ArraySource(arrays[pair[0]], labels[split], classes, f"{path.name}: {pair[0]}")
        for split, pair in keys.items()
    }


def splits_inside(path: Path) -> list[str]:
    """The names of the splits in a ``.npz`` file, without reading any; of a file without usable arrays, the error."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except _DAMAGE as error:
        raise _damaged(path) from error
    return list(_choose(names, path))


def _damaged(path: Path) -> UserError:
    return UserError(f"cannot read {path}: it is not a whole .npz file; write it again with numpy.savez")


def _choose(present: list[str], path: Path) -> dict[str, tuple[str, str]]:
    """Which arrays make which split."""
    chosen = {split: pair for split, pair in _ARRAYS.items() if pair[0] in present}
    if not chosen and "images" in present:
        chosen = {"train": ("images", "labels")}
    if not chosen:
        raise UserError(f"{path} holds {', '.join(present) or 'no arrays'}; expected {_CONVENTION}")
    return chosen


def _read(archive: Any, key: str, path: Path) -> NDArray[Any]:
    try:
        return np.asarray(archive[key])
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise UserError(
            f"{path}: {key} holds Python objects, which are not loaded because they can run code; images of one size "
            "belong in one uint8 array, images of several sizes in a folder"
        ) from error


def _plain(labels: NDArray[Any], path: Path) -> NDArray[Any] | None:
    """Labels as ``[N]``, or none where an image has several."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        warnings.warn(f"{path.name}: {labels.shape[1]} labels an image; it is used without labels", stacklevel=4)
        return None
    return labels[:, 0] if labels.ndim == 2 else labels


def _class_names(names: NDArray[Any], labels: dict[str, NDArray[Any] | None]) -> list[str] | None:
    """The names of classes that are numbers, if that is what ``names`` are: one a class, in the order of the labels."""
    most = max((int(x.max()) for x in labels.values() if x is not None and x.size and x.dtype.kind in "iu"), default=-1)
    usable = names.ndim == 1 and names.dtype.kind in "US" and len(names) > most
    return [str(name) for name in names.astype(str)] if usable else None


def _number_names(
    labels: dict[str, NDArray[Any] | None],
) -> tuple[dict[str, NDArray[Any] | None], list[str] | None]:
    """Class names to numbers that mean the same in every split; numbers stay as they are."""
    named = [values for values in labels.values() if values is not None and values.dtype.kind in "US"]
    if not named:
        return labels, None
    classes = np.unique(np.concatenate([values.astype(str) for values in labels.values() if values is not None]))
    numbered = {
        split: None if values is None else np.searchsorted(classes, values.astype(str))
        for split, values in labels.items()
    }
    return numbered, classes.tolist()
