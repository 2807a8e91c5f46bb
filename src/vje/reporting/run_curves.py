"""A run's training as data: which recorded numbers go into which chart, and what the alarms said."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vje.runs import RunFolder

PANELS = {
    "k-NN accuracy (%)": {"knn.z": "z", "knn.mean": "mean", "knn.target": "EMA encoder's z"},
    "Loss": {"loss": "loss"},
    "Terms of the loss": {
        "nll_directional": "directional NLL",
        "nll_radial": "radial NLL",
        "nll_standard": "NLL",
        "kl": "KL",
    },
    "Posterior variance": {"variance": "mean over features"},
    "Anisotropy of the variance": {"anisotropy": "standard deviation / mean"},
    "Cosine of mean and z": {"cosine_mean_z": "cosine"},
    "Norms": {"norm_z": "z", "norm_mean": "mean"},
    "Effective rank of z": {"effective_rank": "dimensions"},
    "Gradient norm": {"gradient_norm": "norm"},
    "Learning rate": {"lr": "rate"},
    "Images a second": {"images_per_second": "images/s"},
}
FIRST = 8
"""Panels of :data:`PANELS` that come before a method's other numbers; the rest are about the machinery."""

UNSHOWN = ("epoch", "step", "seconds", "elapsed", "unreadable_files")


def curve_panels(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The charts of a run's ``metrics.jsonl``; each has a title and lines with ``name``, ``x`` (epochs) and ``y``.

    A number that is not finite is a gap in its line, and numbers that no panel knows get one each.

    >>> curve_panels([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": "nan"}])
    [{'title': 'Loss', 'lines': [{'name': 'loss', 'x': [1, 2], 'y': [2.0, None]}]}]
    """
    known = {key for keys in PANELS.values() for key in keys}
    others = dict.fromkeys(
        key for record in records for key, value in record.items() if _number(value) and key not in (*known, *UNSHOWN)
    )
    titles = list(PANELS.items())
    titles[FIRST:FIRST] = [(key.replace("_", " ").capitalize(), {key: key.replace("_", " ")}) for key in others]
    panels = []
    for title, keys in titles:
        lines = [line for key, name in keys.items() if (line := _line(records, key, name)) is not None]
        if lines:
            panels.append({"title": title, "lines": lines})
    return panels


def read_warnings(folder: RunFolder) -> list[str]:
    """What the alarms said so far; a line that is being written at this moment is passed over."""
    texts = []
    if folder.warnings_file.exists():
        for line in folder.warnings_file.read_text(encoding="utf-8").splitlines():
            try:
                texts.append(str(json.loads(line)["text"]))
            except (json.JSONDecodeError, KeyError, TypeError):
                break
    return texts


def _line(records: Sequence[Mapping[str, Any]], key: str, name: str) -> dict[str, Any] | None:
    group, dot, inner = key.partition(".")
    values = [(r["epoch"], r.get(group, {}).get(inner) if dot else r.get(key)) for r in records]
    points = [(epoch, value) for epoch, value in values if value is not None]
    heights = [float(f"{value:.6g}") if _number(value) else None for _, value in points]
    if not any(height is not None for height in heights):
        return None
    return {"name": name, "x": [epoch for epoch, _ in points], "y": heights}


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
