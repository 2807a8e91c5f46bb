"""Figures as files."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from vje.runs import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: "Figure", file: Path, dpi: int) -> None:
    """Write a figure, whole or not at all, in the format that the file's ending names; PNG if it has none.

    Args:
        figure: what was drawn.
        file: picture to write; its folder is made if need be.
        dpi: pixels an inch.
    """
    stream = io.BytesIO()
    figure.savefig(stream, format=file.suffix[1:].lower() or "png", dpi=dpi)
    write_atomically(file, stream.getvalue())
