"""Sheets of images with a line of text under each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vje.reporting.figures import save_figure


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
