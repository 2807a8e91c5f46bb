"""How `vje evaluate` and `vje probe` measure unless told otherwise. Importable without torch."""

from collections.abc import Mapping
from typing import Any

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
"""How `vje probe` trains its classifiers unless told otherwise."""

KEPT_BYTES = 8 * 2**30
"""Training features that would take more than this are not kept but computed as they are wanted."""
