"""Training methods: one file each, and the contract they share (``method.py``)."""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from vje.errors import UserError

if TYPE_CHECKING:
    from vje.methods.method import Method


def method_names() -> list[str]:
    """Every method: a file of this folder is one, ``vi_simsiam.py`` being called vi-simsiam."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in files if name != "method")


def check_method(name: str) -> None:
    """Refuse a method that is not there, without importing any."""
    if name not in method_names():
        raise UserError(f"there is no method {name!r}; methods: {', '.join(method_names())}.")


def find_method(name: str) -> "type[Method]":
    """The class of a method by its name.

    >>> find_method("vje").__name__
    'VJE'
    """
    from vje.methods.method import Method

    check_method(name)
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    own = [x for x in vars(module).values() if isinstance(x, type) and issubclass(x, Method)]
    return next(x for x in own if x.__module__ == module.__name__)
