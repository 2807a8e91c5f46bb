"""The two figures of an out-of-distribution result: ROC curves and score densities, for each set."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]


def save_roc(file: Path, inside: Mapping[str, Array], outside: Mapping[str, Mapping[str, Array]]) -> None:
    """ROC curves of each score, one panel a set; OOD is the positive class.

    Args:
        file: picture to write.
        inside: scores of the in-distribution images, by score.
        outside: scores of each set, by set and score.
    """
    from sklearn.metrics import roc_auc_score, roc_curve

    figure, axes = _panels(len(outside))
    for axis, (data, found) in zip(axes, outside.items(), strict=False):
        for name, id_scores in inside.items():
            truth = np.r_[np.zeros(len(id_scores)), np.ones(len(found[name]))]
            values = np.r_[id_scores, found[name]]
            false_alarms, hits, _ = roc_curve(truth, values)
            axis.plot(false_alarms, hits, label=f"{name} {100 * roc_auc_score(truth, values):.1f}", lw=1.3)
        axis.plot([0, 1], [0, 1], color="gray", lw=0.7, ls=":")
        axis.set(title=data, xlabel="ID images flagged", ylabel="OOD images caught")
        axis.legend(fontsize=7, title="AUROC", title_fontsize=7, loc="lower right")
    _save(figure, file)


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
        low, high = np.quantile(np.r_[inside, scores], (0.002, 0.998))
        bins = np.linspace(low, high, 80).tolist()
        axis.hist(inside, bins, density=True, alpha=0.55, label="in-distribution", color="C0")
        axis.hist(scores, bins, density=True, alpha=0.55, label=data, color="C3")
        axis.set(title=data, xlabel=label, yticks=[])
        axis.legend(fontsize=7, loc="upper left")
    _save(figure, file)


def _panels(count: int) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(4 * columns, 3.2 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.axis("off")
    return figure, axes


def _save(figure: "Figure", file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
