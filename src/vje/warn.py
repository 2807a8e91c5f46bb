"""Warnings that name the line of the caller's code, however deep inside the package they come up."""

import sys
import warnings

_INSIDE = ("vje", "torch", "contextlib")  # torch wraps functions without gradients in one of its own


def warn(message: str) -> None:
    """Warn at the innermost line outside this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
