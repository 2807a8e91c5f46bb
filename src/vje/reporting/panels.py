"""Small figures of the paper that need no more than lines: numbers over epochs in a grid, and the scalar Student-t."""

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vje.reporting.figures import drawable, save_figure

Point = tuple[int, float, float]
"""Epoch; mean and sample standard deviation over seeds."""
Array = NDArray[np.float64]
STYLES = (("-", "."), ("--", "s"), (":", "^"), ("-.", "x"))
"""Dashes and marks of the first ten lines, which have as many colours, of the next ten, and so on."""
MANY = 8
"""Lines in a panel from which on their names stand beside it, where they cover none."""
DEGREES = (1.0, 3.0, 7.0, 20.0, 50.0, math.inf)


def over_seeds(tables: Sequence[Mapping[int, float]]) -> list[Point]:
    """A number of several runs as one line, at the epochs that every run has it of.

    Args:
        tables: the number by epoch, of each run.

    >>> over_seeds([{1: 70.0, 2: 80.0, 3: 90.0}, {2: 80.0, 1: 72.0}])
    [(1, 71.0, 1.4142135623730951), (2, 80.0, 0.0)]
    """
    shared = sorted(set.intersection(*map(set, tables))) if tables else []
    points = ((epoch, [table[epoch] for table in tables]) for epoch in shared)
    return [(epoch, statistics.mean(x), statistics.stdev(x) if len(x) > 1 else 0.0) for epoch, x in points]


def save_panels(
    file: Path,
    columns: Sequence[str],
    strips: Sequence[str],
    curves: Mapping[tuple[str, str], Mapping[str, list[Point]]],
    size: tuple[float, float] = (4.2, 3.4),
) -> None:
    """Draw lines over epochs, a panel for each strip (row) and column; with a single column the strips lie abreast.

    Args:
        file: picture to write.
        columns: titles of the columns.
        strips: names of the rows' quantities.
        curves: the lines of each panel by their names, with a band of one standard deviation; by (strip, column). A
            strip whose name ends in "(%)" ends at 100.
        size: of a panel, in inches.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    abreast = len(columns) == 1
    shape = (1, len(strips)) if abreast else (len(strips), len(columns))
    beside = max((len(lines) for lines in curves.values()), default=0) >= MANY
    figure = Figure(figsize=((size[0] + 3.5 * beside) * shape[1], size[1] * shape[0]), layout="constrained")
    axes = list(figure.subplots(*shape, squeeze=False).flat)
    for axis, (strip, column) in zip(axes, [(s, c) for s in strips for c in columns], strict=True):
        for number, (name, points) in enumerate(curves.get((strip, column), {}).items()):
            if points:
                epochs, mean, std = (np.array(x, dtype=float) for x in zip(*points, strict=True))
                color, (dash, mark) = f"C{number % 10}", STYLES[number // 10 % len(STYLES)]
                mark = mark if len(points) < 30 else ""
                label = "\n".join(drawable(line) for line in textwrap.wrap(name, 44))
                axis.plot(epochs, mean, dash, color=color, label=label, marker=mark, markersize=4, clip_on=False)
                axis.fill_between(epochs, mean - std, mean + std, color=color, alpha=0.2, lw=0)
        axis.set(title=drawable(column), xlabel="epoch", ylabel=strip)
        axis.grid(alpha=0.3)
        if axis.has_data():
            if strip.endswith("(%)"):
                axis.set_ylim(top=min(100.0, axis.get_ylim()[1]))
            axis.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
            place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1), "handlelength": 3} if beside else {}
            axis.legend(fontsize=8, **place)
        else:
            axis.text(0.5, 0.5, "none recorded", ha="center", transform=axis.transAxes)
    save_figure(figure, file, 120)


def scalar_nll(residual: Array, nu: float) -> Array:
    r"""Negative log-density of a scalar Student-t of unit scale, less its value at zero; Gaussian at nu = inf.

    .. math:: \ell(r) = \tfrac{\nu+1}{2}\log(1 + r^2/\nu)

    >>> scalar_nll(np.array([2.0]), math.inf)
    array([2.])
    """
    return residual**2 / 2 if math.isinf(nu) else (nu + 1) / 2 * np.log1p(residual**2 / nu)


def scalar_influence(residual: Array, nu: float) -> Array:
    r"""Size of the slope of :func:`scalar_nll`, which is bounded for every finite nu.

    .. math:: |\ell'(r)| = (\nu+1)\,|r|/(\nu + r^2)

    >>> scalar_influence(np.array([-1.0, 3.0]), 1.0)
    array([1. , 0.6])
    """
    size = np.abs(residual)
    return size if math.isinf(nu) else (nu + 1) * size / (nu + residual**2)


def save_scalar(file: Path, degrees: Sequence[float] = DEGREES, reach: float = 8.0) -> None:
    """Draw negative log-density and influence over the residual, a line for each nu."""
    from matplotlib.figure import Figure

    residual = np.linspace(-reach, reach, 801)
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = (("negative log-density", scalar_nll), ("size of the gradient", scalar_influence))
    for axis, (title, function) in zip(figure.subplots(1, 2), panels, strict=True):
        for nu in degrees:
            name = "Gaussian" if math.isinf(nu) else f"nu = {nu:g}"
            axis.plot(residual, function(residual, nu), "k--" if math.isinf(nu) else "-", label=name)
        axis.set(title=title, xlabel="residual r")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    save_figure(figure, file, 120)
