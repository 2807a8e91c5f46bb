"""Finding the image files of a folder, and their classes."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vje.data.sources import IMAGE_EXTENSIONS, FolderSource
from vje.errors import UserError

_OF_A_RUN = {"config.json", "data.json", "environment.json"}
"""Files of every run folder, which also holds pictures: its figures."""


def scan_folder(root: str | os.PathLike[str], every: bool = False) -> FolderSource:
    """All image files under ``root``, sorted by relative path.

    Files count by extension; hidden folders and run folders are not entered, and hidden and other files go to
    ``ignored``. If every image lies in one of two or more folders directly under ``root``, those are its classes.

    Args:
        root: the folder.
        every: every file that is not hidden counts, whatever it is called.
    """
    root = Path(root)
    if not root.exists():
        raise UserError(f"the folder {root} does not exist; check the path")
    if not root.is_dir():
        raise UserError(f"{root} is a file, and a folder of images was expected")
    files: list[str] = []
    ignored: list[str] = []
    for name in walk(root):
        counts = not _hidden(name) if every else is_image_name(name)
        (files if counts else ignored).append(name)
    files.sort()
    ignored.sort()
    if not files:
        raise no_images(root, len(ignored))
    classes, labels = np.unique([name.rpartition("/")[0].split("/")[0] for name in files], return_inverse=True)
    if len(classes) < 2 or "" in classes:
        return FolderSource(root, files, ignored=ignored)
    return FolderSource(root, files, labels, classes.tolist(), ignored)


def scan_paths(paths: Sequence[str | os.PathLike[str]], every: bool = False) -> FolderSource:
    """Image files named one by one (of any extension), folders of them, or both; without labels unless one folder.

    Args:
        paths: of files and folders.
        every: as for :func:`scan_folder`.
    """
    if not paths:
        raise UserError("no images were named; give image files or folders")
    if len(paths) == 1 and Path(paths[0]).is_dir():
        return scan_folder(paths[0], every)
    found: dict[Path, None] = {}
    ignored: list[str] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = scan_folder(path, every)
            found |= {path.absolute() / name: None for name in inside.files}
            ignored += inside.ignored
        elif os.path.lexists(path):  # also a link to what is gone: that file cannot be read, and the others can
            found[path.absolute()] = None
        else:
            raise UserError(f"{path} does not exist; give image files or folders that do")
    root = Path(os.path.commonpath([file.parent for file in found]))
    return FolderSource(root, [file.relative_to(root).as_posix() for file in found], ignored=ignored)


def is_image_name(name: str) -> bool:
    """Whether a file of this name counts as an image: not hidden, and with a known extension."""
    return not _hidden(name) and name.lower().endswith(IMAGE_EXTENSIONS)


def holds_images(root: Path) -> bool:
    """Whether there is any image file under ``root``; stops at the first."""
    return any(is_image_name(name) for name in walk(root))


def holds_files(root: Path) -> bool:
    """Whether there is any file under ``root`` that is not hidden; stops at the first."""
    return any(not _hidden(name) for name in walk(root))


def no_images(root: Path, seen: int) -> UserError:
    """The error for a folder without images."""
    known = " ".join(IMAGE_EXTENSIONS)
    return UserError(
        f"no images under {root} ({seen} other files were seen); files that end in one of these count: {known}"
    )


def walk(root: Path) -> Iterator[str]:
    """Relative paths of all files under ``root``, each folder once however many links lead to it.

    Real folders come before linked ones, so that a link never takes the place of the folder it points to. Run folders
    under ``root`` are not entered: what trains on the folder that it is started in does not become part of its data.
    """
    folders, links = [""], list[str]()
    seen: set[str] = set()
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        real = os.path.realpath(root / folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            entries = sorted(os.scandir(real), key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(f"cannot look into {root / folder}: {error.strerror}; check its permissions") from error
        if folder and {entry.name for entry in entries} >= _OF_A_RUN:
            continue
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if not _leads_on(entry):
                yield name
            elif not entry.name.startswith("."):
                (links if entry.is_symlink() else folders).append(name)


def _leads_on(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder; a link to itself is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _hidden(name: str) -> bool:
    return name.rsplit("/", 1)[-1].startswith(".")
