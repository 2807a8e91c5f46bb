"""From what the user typed after ``--data`` to images: a name, a folder or a file of arrays.

A name is looked up in the data folder first (``NAME.npz``, then a folder ``NAME``), then among the sets that are
bundled or can be downloaded. ``./NAME`` means a path.
"""

import difflib
import os
import zipfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vje.data.arrays import load_npz, splits_inside
from vje.data.folders import holds_images, no_images, scan_folder, walk
from vje.data.labels import read_labels
from vje.data.sources import ArraySource, FolderSource, ImageSource
from vje.errors import UserError
from vje.lock import held

DOWNLOADED = ("cifar10", "cifar100", "stl10", "svhn", "mnist", "fashion-mnist", "kmnist", "usps")
BUNDLED = ("digits",)
FOLDERS = ("tiny-imagenet", "imagenet", "imagenet100")
NAMES = (*DOWNLOADED, *BUNDLED, *FOLDERS)
CLASSES: dict[str, tuple[str, ...]] = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "stl10": ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
}
"""Names of the classes, for arrays that have none."""
_ALIASES = {"imagenet1k": "imagenet", "tinyimagenet200": "tiny-imagenet"}
_FOLDER_NAMES = {"imagenet": ("imagenet1k", "ILSVRC2012"), "tiny-imagenet": ("tiny-imagenet-200",)}
_SPLIT_FOLDERS = {"train": ("train",), "test": ("test",), "val": ("val", "valid", "validation")}


@dataclass(frozen=True)
class RawSplits:
    """A data set as it was found."""

    name: str  # what to call it
    train: ImageSource | None = None  # images to train on
    test: ImageSource | None = None  # images to evaluate on
    val: ImageSource | None = None  # validation images
    labelled: ImageSource | None = None  # the labelled part, where most training images have no label (STL-10)

    def parts(self) -> dict[str, ImageSource]:
        """The parts that there are, by name."""
        parts = {"test": self.test, "val": self.val, "train": self.train}
        return {name: part for name, part in parts.items() if part is not None}

    def pick(self, split: str | None = None) -> ImageSource:
        """One part: train, val or test if it is named; else the test images, or what there is."""
        there = self.parts()
        if split is not None and split not in there:
            raise UserError(f"{self.name} has no {split} split; it has {', '.join(there)}.")
        return there[split or next(iter(there))]


def open_data(data: str, data_dir: Path, labels: Path | None = None) -> RawSplits:
    """Open a data set.

    Args:
        data: a name, a path to an image folder, or a path to a ``.npz`` file.
        data_dir: where named sets lie and are downloaded to.
        labels: a label file (:func:`vje.data.labels.read_labels`). For a set with splits it covers all of them, in the
            order train, test, val, and its files are named ``train/...`` and so on.
    """
    name, place = _resolve(data, data_dir)
    if place is None:
        raw = _digits() if name in BUNDLED else _download(name, data_dir)
    elif place.is_dir():
        raw = _open_folder(name, place)
    else:
        raw = RawSplits(name, **load_npz(place))
        raw = _with_known_classes(raw) if canonical(data) == name else raw
    return raw if labels is None else _with_labels(raw, labels)


def check_data(data: str, data_dir: Path, remedy: str = "--data FOLDER or --data-dir", training: bool = False) -> None:
    """Raise the errors that can be known without reading any image: unknown name, missing path, empty folder.

    Args:
        data: a name or a path.
        data_dir: where named sets lie.
        remedy: the options of a command that say where images are.
        training: whether there must be images to train on.
    """
    _, place = _resolve(data, data_dir, remedy)
    if place is not None and place.is_dir() and not holds_images(place):
        raise no_images(place, sum(1 for _ in walk(place)))
    if place is not None and place.is_file() and not zipfile.is_zipfile(place):
        raise UserError(
            f"{place} is not a .npz file; write it with numpy.savez(path, train_images=..., train_labels=...)"
        )
    if place is not None and place.is_file() and "train" not in splits_inside(place) and training:
        raise no_training_images(str(place))


def no_training_images(where: str) -> UserError:
    """What to say of data that has other images only."""
    return UserError(f"{where} has no training images (an array train_images or a folder train); it can only be scored")


def _with_known_classes(raw: RawSplits) -> RawSplits:
    """Names for the classes of a well-known set whose arrays have numbers only."""
    names = CLASSES.get(raw.name, ())

    def named(source: ImageSource | None) -> ImageSource | None:
        if source is None or source.labels is None or source.classes is not None or source.labels.max() >= len(names):
            return source
        return source.labelled(source.labels, names)

    return replace(raw, train=named(raw.train), test=named(raw.test), val=named(raw.val))


def own_path(data: str) -> Path | None:
    """The absolute path of data that is given by its path, not by a name; None if it is a name or not there."""
    path = Path(data).expanduser()
    return path.resolve() if canonical(data) not in NAMES and path.exists() else None


def _resolve(data: str, data_dir: Path, remedy: str = "--data FOLDER or --data-dir") -> tuple[str, Path | None]:
    """The set's name, and the file or folder that holds it (``None``: bundled or to be downloaded)."""
    path = Path(data).expanduser()
    if os.sep not in data and "/" not in data and path.suffix.lower() != ".npz" and data not in ("", ".", ".."):
        name = canonical(data)
        for candidate in dict.fromkeys((data, name, *_FOLDER_NAMES.get(name, ()))):
            place = _in_data_dir(candidate, data_dir, downloadable=name in DOWNLOADED)
            if place is not None:
                return name, place
        if name in FOLDERS:
            raise UserError(
                f"{name} cannot be downloaded: put its images into {data_dir / name}/train/CLASS/ and "
                f"{data_dir / name}/val/CLASS/, or say where they are with {remedy}"
            )
        if name in NAMES:
            return name, None
    if path.is_dir() or (path.is_file() and path.suffix.lower() == ".npz"):
        return path.resolve().stem if path.is_file() else path.resolve().name, path
    if path.exists():
        raise UserError(f"{path} is neither a folder of images nor a .npz file of arrays")
    if path.name != data:
        raise UserError(
            f"the path {path} does not exist; give a folder of images, a .npz file, or a name: {', '.join(NAMES)}"
        )
    near = difflib.get_close_matches(data.lower(), NAMES, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"names are {', '.join(NAMES)}"
    raise UserError(
        f"no data {data!r}: it is no path, no name that is known, and {data_dir} holds neither {path.stem}.npz nor a "
        f"folder {path.stem}; {hint}"
    )


def canonical(data: str) -> str:
    """A known name however it is spelled, anything else unchanged.

    >>> canonical("Fashion_MNIST"), canonical("ImageNet-1k"), canonical("My-Photos")
    ('fashion-mnist', 'imagenet', 'My-Photos')
    """
    plain = data.lower().replace("-", "").replace("_", "")
    return _ALIASES.get(plain) or {name.replace("-", ""): name for name in NAMES}.get(plain, data)


def _in_data_dir(name: str, data_dir: Path, downloadable: bool) -> Path | None:
    """What the data folder holds under a name; compared with the listing, since some disks know no upper case."""
    present = {entry.name for entry in data_dir.iterdir()} if data_dir.is_dir() else set()
    if f"{name}.npz" in present:
        return data_dir / f"{name}.npz"
    folder = data_dir / name
    if name in present and folder.is_dir() and not (downloadable and not holds_images(folder)):
        return folder
    return None


def _open_folder(name: str, root: Path) -> RawSplits:
    inside = {entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    chosen = {
        split: next((root / folder for folder in folders if folder in inside), None)
        for split, folders in _SPLIT_FOLDERS.items()
    }
    known = {folder for folders in _SPLIT_FOLDERS.values() for folder in folders}
    # With other folders beside it, a lone "train" is as likely a class (between "bus" and "tram") as a split.
    if not inside or not (inside <= known or (chosen["train"] and (chosen["test"] or chosen["val"]))):
        return RawSplits(name, train=scan_folder(root))
    splits = {split: _annotated(scan_folder(folder)) for split, folder in chosen.items() if folder is not None}
    splits = _same_classes(splits)
    if "test" in splits and "val" in splits and splits["test"].labels is None and splits["val"].labels is not None:
        del splits["test"]  # ImageNet and Tiny ImageNet keep the labels of their test images to themselves
    return RawSplits(name, **splits)


def _annotated(source: FolderSource) -> FolderSource:
    """Tiny ImageNet's validation images, which have their classes in a text file."""
    table = source.root / "val_annotations.txt"
    if source.labels is not None or not table.is_file():
        return source
    owners = dict(line.split("\t")[:2] for line in table.read_text().splitlines() if "\t" in line)
    names = [owners.get(name.rsplit("/", 1)[-1]) for name in source.files]
    classes = sorted({name for name in names if name is not None})
    if None in names:
        raise UserError(f"{table} has no class for {source.files[names.index(None)]}; restore the original file")
    return source.labelled([classes.index(name) for name in names if name is not None], classes)


def _same_classes(splits: dict[str, FolderSource]) -> dict[str, FolderSource]:
    """Number the classes of all splits alike, though one may lack some."""
    union = sorted({name for source in splits.values() for name in source.classes or ()})
    number = {name: i for i, name in enumerate(union)}

    def renumber(source: FolderSource) -> FolderSource:
        if source.labels is None or source.classes is None:
            return source
        return source.labelled(np.array([number[name] for name in source.classes])[source.labels], union)

    return {split: renumber(source) for split, source in splits.items()}


def _with_labels(raw: RawSplits, path: Path) -> RawSplits:
    splits = [(split, source) for split in _SPLIT_FOLDERS if (source := getattr(raw, split)) is not None]
    alone = len(splits) == 1
    names = [name if alone else f"{split}/{name}" for split, source in splits for name in source.names]
    labels, classes = read_labels(path, names)
    changed: dict[str, Any] = {"labelled": None}
    start = 0
    for split, source in splits:
        changed[split] = source.labelled(labels[start : start + len(source)], classes)
        start += len(source)
    return replace(raw, **changed)


def _digits() -> RawSplits:
    """scikit-learn's 1,797 handwritten digits, 8 x 8, with their 17 levels of grey spread over 0..255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return RawSplits("digits", train=ArraySource(pixels, bunch.target, [str(i) for i in range(10)], "digits"))


def _download(name: str, data_dir: Path) -> RawSplits:
    root = data_dir / name if (data_dir / name).is_dir() else data_dir
    try:
        root.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            with suppress(OSError):  # a folder that cannot be written to may hold all that is needed
                stack.enter_context(held(data_dir / f".{name}.lock", wait=True))  # each would write over the other's
            return RawSplits(name, **_from_torchvision(name, str(root)))
    except Exception as error:
        line = (str(error).splitlines() or [""])[0][:200]
        raise UserError(
            f"could not get {name}: {type(error).__name__}: {line}. Without a network, put {name}.npz (arrays "
            f"train_images, train_labels, test_images, test_labels; images uint8 [N, H, W, C]) into {data_dir}, or the "
            "files that torchvision downloads"
        ) from error


def _from_torchvision(name: str, root: str) -> dict[str, ImageSource]:
    from torchvision import datasets

    def source(dataset: Any, labelled: bool = True) -> ArraySource:
        pixels = np.asarray(dataset.data)
        pixels = pixels.transpose(0, 2, 3, 1) if name in ("stl10", "svhn") else pixels
        labels = np.asarray(dataset.labels if name in ("stl10", "svhn") else dataset.targets) if labelled else None
        return ArraySource(pixels, labels, getattr(dataset, "classes", None) if labelled else None, name)

    if name in ("stl10", "svhn"):
        by_split: Callable[..., Any] = datasets.STL10 if name == "stl10" else datasets.SVHN
        train, test = (source(by_split(root, split=split, download=True)) for split in ("train", "test"))
        if name == "svhn":
            return {"train": train, "test": test}
        unlabelled = source(by_split(root, split="train+unlabeled"), labelled=False)
        return {"train": unlabelled, "test": test, "labelled": train}
    kinds = {
        "cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100, "mnist": datasets.MNIST,
        "fashion-mnist": datasets.FashionMNIST, "kmnist": datasets.KMNIST, "usps": datasets.USPS,
    }  # fmt: skip
    _remove_cut_short(Path(root) / kinds[name].__name__ / "raw")
    return {split: source(kinds[name](root, train=split == "train", download=True)) for split in ("train", "test")}


def _remove_cut_short(folder: Path) -> None:
    """Remove what was being unpacked when a process was killed; torchvision takes what is there for whole (MNIST's)."""
    for archive in folder.glob("*.gz"):
        unpacked = archive.with_suffix("")
        size = int.from_bytes(archive.read_bytes()[-4:], "little")  # gzip ends with it
        if unpacked.exists() and unpacked.stat().st_size != size:
            unpacked.unlink()
