"""What an out-of-distribution result looks like: ROC curves and score densities, for each set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vje.reporting.figures import drawable, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
DPI = 110


def save_roc(file: Path, found: Sequence[Mapping[str, Any]], scores: Sequence[str]) -> None:
    """ROC curves of each score, one panel a set; OOD is the positive class.

    Of several runs the mean is drawn, in a band of one standard deviation.

    Args:
        file: picture to write.
        found: what :func:`ood_curves` gave for each run, with the scores' titles.
        scores: whose curves are drawn, as far as every run has them.
    """
    sets = [data for data in found[0]["sets"] if all(data in run["sets"] for run in found)]
    figure, axes = _panels(len(sets))
    for axis, data in zip(axes, sets, strict=False):
        panels = [run["sets"][data]["roc"] for run in found]
        for score in (name for name in scores if all(name in panel for panel in panels)):
            areas = [panel[score]["auroc"] for panel in panels]
            spread = f" ± {np.std(areas, ddof=1):.1f}" if len(areas) > 1 else ""
            x, mean, std = _mean_curve([panel[score] for panel in panels])
            (line,) = axis.plot(x, mean, label=f"{found[0]['titles'][score]} {np.mean(areas):.1f}{spread}", lw=1.3)
            axis.fill_between(x, mean - std, mean + std, color=line.get_color(), alpha=0.2, lw=0)
        axis.plot([0, 1], [0, 1], color="gray", lw=0.7, ls=":")
        axis.set(title=drawable(data), xlabel="ID images flagged", ylabel="OOD images caught")
        axis.legend(fontsize=7, title="AUROC", title_fontsize=7, loc="lower right")
    save_figure(figure, file, DPI)


def _mean_curve(curves: Sequence[Mapping[str, Any]]) -> tuple[Array, Array, Array]:
    """False alarms, and the mean and standard deviation of the hits there; one curve has its own points and none."""
    x = np.asarray(curves[0]["false_alarms"]) if len(curves) == 1 else np.linspace(0, 1, 501)
    if len(curves) == 1:
        return x, np.asarray(curves[0]["hits"]), np.zeros(len(x))
    hits = np.stack([np.interp(x, curve["false_alarms"], curve["hits"]) for curve in curves])
    return x, hits.mean(0), hits.std(0, ddof=1)


def save_densities(file: Path, inside: Array, outside: Mapping[str, Array], label: str = "NLL") -> None:
    """Histograms of one score, in-distribution against each set.

    Args:
        file: picture to write.
        inside: the in-distribution images' scores.
        outside: each set's.
        label: name of the score.
    """
    figure, axes = _panels(len(outside))
    for axis, (data, scores) in zip(axes, outside.items(), strict=False):
        found = densities(inside, scores, bins=80)
        axis.stairs(found["inside"], found["edges"], fill=True, alpha=0.55, label="in-distribution", color="C0")
        axis.stairs(found["outside"], found["edges"], fill=True, alpha=0.55, label=drawable(data), color="C3")
        axis.set(title=drawable(data), xlabel=label, yticks=[])
        axis.legend(fontsize=7, loc="upper left")
    save_figure(figure, file, DPI)


def _panels(count: int) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    columns = max(1, min(3, count))
    rows = max(1, -(-count // columns))
    figure = Figure(figsize=(4 * columns, 3.2 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.axis("off")
    return figure, axes


def ood_curves(
    inside: Mapping[str, Array], outside: Mapping[str, Mapping[str, Array]], shown: Sequence[str], density: str
) -> dict[str, Any]:
    """What the report draws, as small lists: ROC curves of some scores and the densities of one, for each set.

    Args:
        inside: scores of the in-distribution images, by score.
        outside: scores of each set, by set and score.
        shown: scores whose ROC curves are wanted.
        density: score whose densities are wanted.

    Returns:
        ``sets.<set>.roc.<score>.false_alarms|hits|auroc`` and ``sets.<set>.density.edges|inside|outside``.
    """
    sets = {
        data: {
            "roc": {name: roc_points(inside[name], found[name]) for name in shown},
            "density": densities(inside[density], found[density]),
        }
        for data, found in outside.items()
    }
    return {"density": density, "sets": sets}


def roc_points(inside: Array, outside: Array, most: int = 200) -> dict[str, Any]:
    """A ROC curve, OOD being the positive class, in so few points that no eye sees the difference, and its area."""
    from sklearn.metrics import roc_auc_score, roc_curve

    truth, values = np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside]
    false_alarms, hits, _ = roc_curve(truth, values)
    along = false_alarms + hits  # rises from 0 to 2: equal steps of it are fine where the curve is steep and where not
    chosen = np.unique(np.r_[0, np.searchsorted(along, np.linspace(0, 2, most - 2)), len(along) - 1])
    chosen = chosen[chosen < len(along)]
    return {
        "false_alarms": false_alarms[chosen].round(5).tolist(),
        "hits": hits[chosen].round(5).tolist(),
        "auroc": 100 * float(roc_auc_score(truth, values)),
    }


def densities(inside: Array, outside: Array, bins: int = 60) -> dict[str, list[float]]:
    """Histograms of two groups of scores over the same bins, each of area 1 but for the few values beyond the ends."""
    both = np.r_[inside, outside]
    low, high = (float(x) for x in np.quantile(both, (0.002, 0.998)))
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    width = edges[1] - edges[0]
    heights = [np.histogram(x, edges)[0] / (len(x) * width) for x in (inside, outside)]
    return {"edges": edges.tolist(), "inside": heights[0].tolist(), "outside": heights[1].tolist()}
