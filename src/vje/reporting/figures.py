"""Figures as files."""

import io
import unicodedata
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from vje.reporting.written import GENERATOR
from vje.runs import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawable(name: str) -> str:
    r"""A name from outside as text of a figure: no formula, no control character, and no legend leaves it out.

    >>> print(drawable("a$b$.jpg"), drawable("two\nlines.jpg"), drawable("not-unicode-\udcff.jpg"))
    a\$b\$.jpg two�lines.jpg not-unicode-�.jpg
    """
    shown = "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs") else c for c in name).replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown  # a label that begins so is hidden


def save_figure(figure: "Figure", file: Path, dpi: int) -> None:
    """Write a figure, whole or not at all, in the format that the file's ending names; PNG if it has none.

    Args:
        figure: what was drawn.
        file: picture to write; its folder is made if need be.
        dpi: pixels an inch.
    """
    stream, form = io.BytesIO(), file.suffix[1:].lower() or "png"
    metadata = {"Software": GENERATOR} if form == "png" else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box stands for it
        figure.savefig(stream, format=form, dpi=dpi, metadata=metadata)
    write_atomically(file, stream.getvalue())
