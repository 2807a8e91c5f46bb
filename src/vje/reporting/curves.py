"""Training curves of one or several runs: python -m vje.reporting.curves RUN [RUN ...] --out curves.png."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vje.reporting.figures import save_figure
from vje.runs import RunFolder

PANELS = {
    "k-NN accuracy (%)": ("knn.z", "knn.mean", "knn.target"),
    "loss": ("loss",),
    "loss parts": ("nll_directional", "nll_radial", "kl"),
    "posterior variance": ("variance",),
    "anisotropy": ("anisotropy",),
    "cosine of mean and z": ("cosine_mean_z",),
    "norms": ("norm_z", "norm_mean"),
    "effective rank": ("effective_rank",),
}
STYLES = ("-", "--", ":")


def save_curves(file: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw the recorded numbers over epochs.

    Args:
        file: picture to write.
        runs: the records of ``metrics.jsonl``, by the run's name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6.5), layout="constrained")
    for axis, (title, keys) in zip(figure.subplots(2, 4).flat, PANELS.items(), strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("epoch", fontsize=8)
        axis.grid(alpha=0.3)
        for number, (name, records) in enumerate(runs.items()):
            for key, style in zip(keys, STYLES, strict=False):
                points = [(r["epoch"], value) for r in records if (value := _get(r, key)) is not None]
                if points:
                    label = name if len(keys) == 1 else f"{name}: {key.removeprefix('knn.')}"
                    axis.plot(*zip(*points, strict=True), style, color=f"C{number}", label=label)
        if axis.has_data():
            axis.legend(fontsize=7)
    save_figure(figure, file, 110)


def _get(record: Mapping[str, Any], key: str) -> Any:
    group, dot, name = key.partition(".")
    return record.get(group, {}).get(name) if dot else record.get(key)


def main() -> None:
    """Draw the runs named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    folders = [RunFolder.open(path) for path in arguments.runs]
    save_curves(arguments.out, {folder.path.name: folder.metrics() for folder in folders})


if __name__ == "__main__":
    main()
