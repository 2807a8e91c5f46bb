"""Pages, records and pictures that vje wrote: a report or a comparison replaces these, and no other file."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vje import __version__
from vje.errors import UserError
from vje.runs import Damaged, read_json

GENERATOR = f"vje {__version__}"
"""What a page names as its generator, and a picture as its software."""

OLDER_PAGES = "default-src &#x27;none&#x27;; script-src &#x27;unsafe-inline&#x27; &#x27;unsafe-eval&#x27;; style-src"
"""Part of the policy at the head of the pages that name no generator."""


def check_own(out: Path, own: Callable[[Path], bool], what: str) -> None:
    """Refuse to replace a file that vje did not write.

    Args:
        out: file to write.
        own: tells whether vje wrote the file that is there.
        what: the kind of file, in words.
    """
    if out.exists() and not own(out):
        raise UserError(f"{out} is there, and is no {what} that vje wrote: choose another --out, or move it away.")


def is_page(file: Path) -> bool:
    """Whether a file is a report, of one run or of several."""
    head = _beginning(file).decode(errors="replace").partition("<style>")[0]
    return head.startswith("<!doctype html>") and (' name="generator" content="vje ' in head or OLDER_PAGES in head)


def is_record(file: Path) -> bool:
    """Whether a file is the record of a comparison."""
    try:
        found = read_json(file) if file.is_file() else {}
    except (Damaged, OSError):
        return False
    groups, own = found.get("groups"), {"name", "runs", "values"}
    if not isinstance(groups, list) or not groups:
        return False
    return all(isinstance(group, dict) and own <= group.keys() for group in groups)


def is_picture(file: Path) -> bool:
    """Whether a PNG says that vje drew it; one of an older version is known by the record beside it."""
    head = _beginning(file)
    return head.startswith(b"\x89PNG") and (b"tEXtSoftware\0vje " in head or is_record(file.with_suffix(".json")))


def _beginning(file: Path) -> bytes:
    with suppress(OSError):
        if file.is_file():
            with file.open("rb") as stream:
                return stream.read(4096)
    return b""
