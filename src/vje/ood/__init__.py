"""Out-of-distribution detection: scores, detectors on features, metrics and the benchmark protocol.

``vje.ood.Detector`` scores images in production; like the other public names it loads on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vje.ood.conformal import p_values as p_values
    from vje.ood.detector import ImageDetector as Detector

    __all__ = ["Detector", "p_values"]

_MODULES = ("conformal", "detectors", "metrics", "scores")
_PUBLIC = {
    "Detector": ("vje.ood.detector", "ImageDetector"),
    "p_values": ("vje.ood.conformal", "p_values"),
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        module, attribute = _PUBLIC[name]
        return getattr(import_module(module), attribute)
    if name in _MODULES:
        return import_module(f"vje.ood.{name}")
    raise AttributeError(f"module 'vje.ood' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_MODULES})
