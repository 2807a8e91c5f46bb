"""A run's training as data: which recorded numbers go into which chart, and what the alarms said."""

from collections.abc import Mapping, Sequence
from typing import Any

from vje.methods import find_method, method_names
from vje.methods.method import Method
from vje.reporting.records import is_number

PANELS = {
    "k-NN accuracy (%)": {"knn.z": "z", "knn.mean": "mean", "knn.target": "EMA encoder's z"},
    "Loss": {"loss": "loss"},
    "Norms": {"norm_z": "z", "norm_mean": "mean"},
    "Effective rank of z": {"effective_rank": "dimensions"},
    "Gradient norm": {"gradient_norm": "norm"},
    "Learning rate": {"lr": "rate"},
    "Images a second": {"images_per_second": "images/s"},
}
FIRST = 2
"""Panels of :data:`PANELS` that come before a method's own numbers; the rest are about z and the machinery."""

TERMS = ("nll", "nll_directional", "nll_radial", "nll_standard", "ps_nll", "kl")
"""A method's numbers that have a chart in common."""

UNSHOWN = ("epoch", "step", "seconds", "elapsed", "unreadable_files")


def method_of(config: Mapping[str, Any]) -> type[Method]:
    """The method of a stored config, for its words; of one that is not here, what all methods have in common."""
    name = config.get("method", "vje")
    return find_method(name) if name in method_names() else Method


def titled(method: type[Method], name: str) -> str:
    """What one of a method's numbers is called at the head of a chart or a row."""
    title = method.quantity(name).title
    return title[:1].upper() + title[1:]


def curve_panels(records: Sequence[Mapping[str, Any]], method: type[Method] = Method) -> list[dict[str, Any]]:
    """The charts of a run's ``metrics.jsonl``; each has a title and lines with ``name``, ``x`` (epochs) and ``y``.

    A number that is not finite is a gap in its line, and numbers that no panel knows get one each.

    Args:
        records: of the epochs.
        method: that was trained, which knows what its numbers are called.

    >>> curve_panels([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": "nan"}])
    [{'title': 'Loss', 'lines': [{'name': 'loss', 'x': [1, 2], 'y': [2.0, None]}]}]
    """
    titles = [(titled(method, "loss") if "loss" in keys else title, keys) for title, keys in PANELS.items()]
    titles[FIRST:FIRST] = _own_panels(records, method)
    panels = []
    for title, keys in titles:
        found = [_line(records, key, name, 100 if method.quantity(key).fraction else 1) for key, name in keys.items()]
        lines = [line for line in found if line is not None]
        if lines:
            panels.append({"title": title, "lines": lines})
    return panels


def _own_panels(records: Sequence[Mapping[str, Any]], method: type[Method]) -> list[tuple[str, dict[str, str]]]:
    """Title and lines of the charts that :data:`PANELS` does not know: the loss's terms together, the rest apart."""
    known = {key for keys in PANELS.values() for key in keys}
    own = dict.fromkeys(
        key for record in records for key, value in record.items() if is_number(value) and key not in (*known, *UNSHOWN)
    )
    terms = [key for key in TERMS if key in own]
    shared = terms if len(terms) > 1 else []
    apart = [(titled(method, key) + " (%)" * method.quantity(key).fraction, [key]) for key in own if key not in shared]
    groups = [("Terms of the loss", shared), *apart]
    return [(title, {key: method.quantity(key).title for key in keys}) for title, keys in groups]


def _line(records: Sequence[Mapping[str, Any]], key: str, name: str, scale: int) -> dict[str, Any] | None:
    group, dot, inner = key.partition(".")
    values = [(r["epoch"], r.get(group, {}).get(inner) if dot else r.get(key)) for r in records]
    points = [(epoch, value) for epoch, value in values if value is not None]
    heights = [float(f"{scale * value:.6g}") if is_number(value) else None for _, value in points]
    if not any(height is not None for height in heights):
        return None
    return {"name": name, "x": [epoch for epoch, _ in points], "y": heights}
