"""Figures of a posterior's geometry: a map of its means, coloured by class and by each statistic, and its training."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vje.evaluation.geometry import STATISTICS
from vje.methods.vje import VJE
from vje.reporting.figures import drawable, save_figure
from vje.reporting.panels import save_panels


def tsne(
    means: NDArray[np.float32],
    seed: int = 0,
    start: NDArray[np.float32] | None = None,
    threads: int | None = None,
) -> NDArray[np.float32]:
    """t-SNE of the directions of posterior means ``[N, D]``, shape ``[N, 2]``; deterministic given the seed.

    Args:
        means: five or more, not all in one direction.
        seed: of the principal components.
        start: places to go on from, such as those of an earlier model; None for the principal components.
        threads: that it may use; None for one a core.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    unit = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    few = min(50, *unit.shape)  # as is usual: distances hardly change, and neighbours are found much faster
    reduced = PCA(few, random_state=seed).fit_transform(unit)
    perplexity = min(30.0, (len(unit) - 1) / 3)
    method = TSNE(2, perplexity=perplexity, init="pca", random_state=seed)
    if start is not None:  # the fewest steps there are, and no exaggeration, which would undo what is in its place
        method.set_params(init=start, early_exaggeration=1.0, max_iter=250)
    with threadpool_limits(threads, user_api="openmp"):  # of the thread that calls, and of no other
        return np.asarray(method.fit_transform(reduced), dtype=np.float32)


def save_geometry(
    file: Path,
    places: NDArray[np.float32],
    labels: NDArray[np.int64],
    statistics: Mapping[str, NDArray[np.float32]],
    classes: Sequence[str] | None = None,
) -> None:
    """Draw the map once by class and once for each statistic.

    Args:
        file: picture to write.
        places: ``[N, 2]``.
        labels: class numbers ``[N]``.
        statistics: ``[N]`` each, by name.
        classes: their names, for the legend.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    grid = figure.add_gridspec(2, 4)
    axis = figure.add_subplot(grid[:, :2])
    for place, number in enumerate(np.unique(labels)):
        rows = labels == number
        name = str(number) if classes is None else drawable(classes[number])
        shown = name if place < 20 else None  # a legend of more would cover the map
        axis.scatter(places[rows, 0], places[rows, 1], s=2, label=shown, color=f"C{place % 10}", rasterized=True)
    axis.legend(fontsize=7, markerscale=4, loc="best")
    axis.set(title="class", xticks=[], yticks=[])
    spots = [grid[row, column] for row in (0, 1) for column in (2, 3)]
    for spot, name in zip(spots, STATISTICS, strict=True):
        axis, values = figure.add_subplot(spot), statistics[name]
        low, high = np.quantile(values, (0.02, 0.98))
        points = axis.scatter(
            places[:, 0], places[:, 1], s=1, c=values, cmap="viridis", vmin=low, vmax=high, rasterized=True
        )
        axis.set(title=VJE.quantity(name).title, xticks=[], yticks=[])
        figure.colorbar(points, ax=axis, shrink=0.8, format="%.5g")
    save_figure(figure, file, 130)


def save_training(file: Path, training: Mapping[str, Sequence[Any]], run: str, likelihood: str) -> None:
    """Draw each of the numbers of :func:`~vje.evaluation.geometry.training_curves` over epochs.

    Args:
        file: picture to write.
        training: the numbers; those that are missing or not finite are gaps.
        run: its name, for the titles.
        likelihood: that it was trained with, for the legends.
    """
    curves = {}
    for name, values in training.items():
        if name != "epoch":
            points = [(epoch, _height(value), 0.0) for epoch, value in zip(training["epoch"], values, strict=True)]
            curves[VJE.quantity(name).title, run] = {f"{likelihood} likelihood": points}
    save_panels(file, [run], [title for title, _ in curves], curves)


def _height(value: float | str | None) -> float:
    """A recorded number, or NaN for one that is missing or not finite."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan
