"""Variational Joint Embedding: self-supervised image representations with uncertainty.

The public names load on first use, so that ``import vje`` and the command line's help cost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vje import likelihood as likelihood
    from vje import ood as ood
    from vje.data.augment import Augmentation as Augmentation
    from vje.evaluation.knn import knn_accuracy as knn_accuracy
    from vje.methods.vje import VJE as VJE
    from vje.models import load as load
    from vje.networks.encoders import Encoder as Encoder
    from vje.networks.encoders import build_encoder as build_encoder
    from vje.posterior import DiagonalGaussian as DiagonalGaussian
    from vje.preprocessing import Preprocessing as Preprocessing
    from vje.random import Draws as Draws

__version__ = "0.1.0"

_PUBLIC = {
    "VJE": "vje.methods.vje",
    "Augmentation": "vje.data.augment",
    "Draws": "vje.random",
    "knn_accuracy": "vje.evaluation.knn",
    "load": "vje.models",
    "Encoder": "vje.networks.encoders",
    "build_encoder": "vje.networks.encoders",
    "DiagonalGaussian": "vje.posterior",
    "Preprocessing": "vje.preprocessing",
}
_MODULES = ("likelihood", "ood")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"vje.{name}")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'vje' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_MODULES})
