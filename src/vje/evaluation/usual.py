"""How `vje evaluate` and `vje probe` measure unless told otherwise, and the words for it. Importable without torch."""

from collections.abc import Mapping
from typing import Any

SPACES = {"z": "z", "mean": "the posterior mean", "target": "the EMA encoder's z"}
"""What the spaces of features are called, in the order in which they are shown."""

USUAL_K = 20
"""Neighbours of the k-NN in training, and of `vje evaluate` unless told otherwise."""

USUAL_PROBE: Mapping[str, Any] = {
    "epochs": 100,
    "batch": 256,
    "lr": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "weight_decay": 0.0,
    "standardize": True,
    "augment": False,
}
"""How `vje probe` trains its classifiers unless told otherwise; the rates suit standardised features."""

KEPT_BYTES = 8 * 2**30
"""Training features that would take more than this are not kept but computed as they are wanted."""


def probe_differences(
    found: Mapping[str, Any], space: Mapping[str, Any], usual: Mapping[str, Any] = USUAL_PROBE
) -> dict[str, tuple[Any, Any]]:
    """Settings that a probe had otherwise than is usual: as it was, and as it is usually.

    Args:
        found: ``probe.json``; what it does not say was as in :data:`USUAL_PROBE`.
        space: the entry of one of its spaces, which has the learning rates.
        usual: the settings to expect.

    >>> probe_differences({"epochs": 100, "batch": 64}, {"rates": [{"lr": 0.1}]}, {"epochs": 100, "batch": 256})
    {'batch': (64, 256)}
    """
    rates = tuple(rate["lr"] for rate in space.get("rates", ()))
    protocol = {**USUAL_PROBE, **found, "lr": rates or USUAL_PROBE["lr"]}
    return {name: (protocol[name], value) for name, value in usual.items() if protocol[name] != value}


def said(value: Any) -> str:
    """A setting in words.

    >>> said((0.1, 0.3)), said(1e-4), said(True), said(None)
    ('0.1/0.3', '0.0001', 'on', 'None')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return "/".join(map(said, value))
    return f"{value:g}" if isinstance(value, int | float) else str(value)
