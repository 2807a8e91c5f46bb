"""Dataclasses from what JSON and TOML hold, every name and type checked. Importable without torch."""

import dataclasses
import difflib
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar

from vje.errors import UserError

T = TypeVar("T")


def from_dict(cls: type[T], values: dict[str, Any], origin: str) -> T:
    """A dataclass from nested dictionaries, with every name and type checked.

    Args:
        cls: the dataclass.
        values: by field name; what is absent keeps its default.
        origin: where the values come from, for error messages.

    >>> from vje.config import VJEConfig
    >>> from_dict(VJEConfig, {"nu": "inf", "terms": ["kl"]}, "example").terms
    ('kl',)
    """
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            table = next((key for key, hint in hints.items() if name in getattr(hint, "__annotations__", ())), None)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(hints)}."
            hint = f"it belongs below [{table}]." if table and not close else hint
            raise UserError(f"{origin}: unknown setting {name!r}; {hint}")
    return cls(**{name: _convert(value, hints[name], f"{origin}: {name}") for name, value in values.items()})


def _convert(value: Any, hint: Any, where: str) -> Any:
    """A plain value as what a field's type asks for."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise UserError(f"{where} must be a table of settings, got {value!r}.")
        return from_dict(hint, value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _convert(value, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"{where} must be one of {', '.join(map(str, arguments))}, got {value!r}.")
        return value
    if origin is tuple:
        any_length = arguments[-1] is Ellipsis
        if not isinstance(value, list | tuple) or not (any_length or len(value) == len(arguments)):
            raise UserError(
                f"{where} must be a list of {'' if any_length else f'{len(arguments)} '}values, got {value!r}."
            )
        kinds = [arguments[0]] * len(value) if any_length else arguments
        return tuple(_convert(item, kind, where) for item, kind in zip(value, kinds, strict=True))
    return _convert_plain(value, hint, where)


def _convert_plain(value: Any, hint: Any, where: str) -> Any:
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint is float and not isinstance(value, bool):
        if isinstance(value, int | float):
            return float(value)
        if value in ("inf", "-inf", "nan"):
            return float(value)
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise UserError(f"{where} must be of type {hint.__name__}, got {value!r}.")
