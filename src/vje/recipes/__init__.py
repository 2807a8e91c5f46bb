"""Recipes: every setting of a run in a short file, by name. Importable without torch.

A file of this folder is a recipe for a data set. A file of ``methods/`` says how a method is trained: its heads,
optimiser and augmentation at each scale. ``cifar10-simsiam`` is the one with the other on top.
"""

import difflib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from vje.config import Config, read_config, to_dict
from vje.errors import UserError
from vje.methods import check_method, method_names

SCALES = ("digits", "cifar", "imagenet")


def recipe_names() -> list[str]:
    """The recipes that come with the package, those named DATA-METHOD apart."""
    return sorted(f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml"))


def load_recipe(name: str, method: str | None = None) -> Config:
    """A recipe by name, or from a ``.toml`` file of one's own.

    Args:
        name: such as "cifar10-ema", "cifar10-simsiam" or "mine.toml".
        method: train with this method instead, with its own defaults.

    >>> load_recipe("cifar10-ema").settings.target
    'ema'
    >>> load_recipe("cifar100", method="byol") == load_recipe("cifar100-byol")
    True
    """
    if method is not None:
        check_method(method)
    base, own = split(name)
    settings = _settings(base if method is not None else name, seen=())
    title = Path(name).stem
    if method is not None and method != settings.get("method", "vje"):
        settings, title = _with_method(settings, method), f"{Path(base).stem}-{method}"
    elif own == "vje" or (method is not None and own is not None):
        title = base
    for key in ("about", "scale"):
        settings.pop(key, None)
    own = settings.get("method", "vje")
    origin = f"recipe {name}" if own == "vje" else f"recipe {name} with methods/{own}.toml on top"
    return read_config(settings | {"recipe": title}, origin)


def recipe_about(name: str) -> str:
    """What a recipe is for, in a line."""
    return str(_settings(name, seen=()).get("about", ""))


def method_about(method: str) -> str:
    """What a method is, in a line."""
    return str(_method_settings(method).get("about", ""))


def unheeded(name: str, config: Config) -> list[str]:
    """What a recipe file of one's own says, and a run by it does not do, in words.

    Args:
        name: of the file; for other recipes there is nothing to say.
        config: of the run, whose method may be another than the file's.
    """
    files, below = [], name
    while below.endswith(".toml"):
        own, extended = _read(below)
        files.append(own)
        below = extended or ""
    idle = [method for method in method_names() if files and method in files[0] and method != config.method]
    lines = [f"{name}: settings of {method} do nothing, as the method is {config.method}" for method in idle]
    if not files or (before := load_recipe(name)).method == config.method:
        return lines
    given, brought, used = map(to_dict, (before, load_recipe(name, config.method), config))
    said = {(group, key): None for own in files for group, keys in own.items() if group in used for key in keys}
    gone = [
        f"{group}.{key} is {used[group][key]}, not {given[group][key]}"
        for group, key in said
        if group in given and given[group][key] != brought[group][key] == used[group][key]
    ]
    if gone:
        lines.append(
            f"--method {config.method} comes with settings of its own, in place of those of {name}: {'; '.join(gone)}. "
            f'To keep yours, say method = "{config.method}" in the file.'
        )
    return lines


def _settings(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """A recipe's nested settings, with those of what it extends below them."""
    base, method = split(name)
    if method is not None:
        return _with_method(_settings(base, seen), method)
    own, extended = _read(name)
    below: dict[str, Any] = {}
    if extended is not None:
        if extended in seen:
            raise UserError(f"recipe {name} extends itself, by way of {' -> '.join(seen)}.")
        below = _settings(extended, (*seen, name))
        if own.get("method", below.get("method")) != below.get("method"):
            below = _with_method(below, own["method"])
    return _merge(below, own)


def _read(name: str) -> tuple[dict[str, Any], str | None]:
    """What stands in a recipe's file, and the recipe that it extends; a file is looked for beside this one."""
    try:
        if name.endswith(".toml"):
            text = Path(name).read_text(encoding="utf-8")
        elif name in recipe_names():
            text = _folder().joinpath(f"{name}.toml").read_text(encoding="utf-8")
        else:
            raise UserError(_unknown(name))
    except FileNotFoundError:
        raise UserError(f"there is no recipe file {name}.") from None
    except UnicodeDecodeError:
        raise UserError(f"recipe {name} is not text in UTF-8: save it as that.") from None
    except OSError as error:
        raise UserError(f"recipe {name} cannot be read ({error.strerror}).") from None
    own = _parse(text, f"recipe {name}")
    for key in ("about", "extends", "method"):
        if not isinstance(own.get(key, ""), str):
            raise UserError(f"recipe {name}: {key} must be text, got {own[key]!r}.")
    extended = own.pop("extends", None)
    if extended is not None and extended.endswith(".toml"):
        extended = str(Path(name).parent.joinpath(extended).resolve())
    return own, extended


def _with_method(settings: dict[str, Any], method: str) -> dict[str, Any]:
    """A recipe's settings with a method's on top: those for any scale, for this one, and those said in the recipe."""
    if method == settings.get("method", "vje"):
        return settings
    if method == "vje":
        raise UserError("recipes are for VJE as they are: leave --method out, and name the data set's own recipe.")
    own = _method_settings(method)
    at_scale = own.get(settings.get("scale", "imagenet"), {})
    general = {key: value for key, value in own.items() if key not in (*SCALES, "about")}
    about = f"{settings.get('about', '').split(',')[0]}, {own.get('about', method)}"
    said = {name: table for name, table in settings.items() if name == method}  # in a file of someone's own
    return _merge(_merge(_merge(settings, general), at_scale), said) | {"method": method, "about": about}


def _method_settings(method: str) -> dict[str, Any]:
    file = _folder() / "methods" / f"{method}.toml"
    other = file.with_name(f"{method.replace('-', '_')}.toml")
    if other != file and other.is_file():
        raise UserError(f"{other} has to be called {file.name}, as the method is.")
    return _parse(file.read_text(encoding="utf-8"), f"methods/{method}.toml") if file.is_file() else {}


def split(name: str) -> tuple[str, str | None]:
    """Split "cifar10-simsiam" into ("cifar10", "simsiam"); any other name has no method to it."""
    known = recipe_names()
    for method in method_names():
        base = name.removesuffix(f"-{method}")
        if base != name and base in known and name not in known:
            return base, method
    return name, None


def _unknown(name: str) -> str:
    known = recipe_names()
    close = difflib.get_close_matches(name, [*known, *(f"{r}-{m}" for r in known for m in method_names())], n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return (
        f"there is no recipe {name!r}.{hint} Recipes: {', '.join(known)}; one of these with a method, such as "
        "cifar10-simsiam; or a path ending in .toml. To train on images of your own: vje train folder --data PATH."
    )


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{origin} is not valid TOML: {error}.") from None


def _folder() -> Any:
    return resources.files("vje") / "recipes"


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        under = merged.get(key, {})
        if isinstance(value, dict) and not isinstance(under, dict):
            raise UserError(f"{key} must be a table of settings, got {under!r}.")
        merged[key] = _merge(under, value) if isinstance(value, dict) else value
    return merged
