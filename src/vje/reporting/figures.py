"""Figures as files, and sheets of images with a line of text under each."""

import io
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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


def save_gallery(
    file: Path, rows: Sequence[tuple[str, Sequence[NDArray[np.uint8]], Sequence[str]]], width: float = 1.1
) -> None:
    """Draw rows of images.

    Args:
        file: picture to write.
        rows: (title, images ``[C, H, W]``, captions) of each row.
        width: of one image, in inches.
    """
    from matplotlib.figure import Figure

    columns = max(len(images) for _, images, _ in rows)
    figure = Figure(figsize=(columns * width, len(rows) * (width + 0.75)), layout="constrained")
    strips = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for strip, (title, images, captions) in zip(strips, rows, strict=True):
        strip.suptitle(title, fontsize=10, x=0.01, ha="left")
        axes = np.atleast_1d(strip.subplots(1, columns))
        for axis in axes:
            axis.axis("off")
        for axis, image, caption in zip(axes, images, captions, strict=False):
            picture = np.moveaxis(image, 0, -1)
            axis.imshow(picture.squeeze(-1) if picture.shape[-1] == 1 else picture, cmap="gray", vmin=0, vmax=255)
            axis.set_title(caption, fontsize=8, y=-0.28)
    save_figure(figure, file, 140)
