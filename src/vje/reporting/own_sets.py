"""What ``vje ood --id`` found on images of someone's own: which sets, and whether two runs had the same images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def own_sets(found: Mapping[str, Any]) -> list[str]:
    """The sets of a result, by name; none if it is a benchmark's.

    >>> own_sets({"summary": {"nll": {"avg": 90.0}}, "counts": {"id": 20, "noise": 15}})
    ['noise']
    """
    benchmark = any({"near", "far"} & means.keys() for means in found.get("summary", {}).values())
    return [] if benchmark else [name for name in found.get("counts", {}) if name != "id"]


def column_title(found: Mapping[str, Any], score: str, name: str) -> str:
    """What a score on a set is called beside others.

    >>> column_title({"data": "mine/inbox"}, "NLL", "noise")
    'OOD NLL (inbox against noise)'
    """
    return f"OOD {score} ({Path(found['data']).name.removesuffix('.npz') or 'images'} against {name})"


def own_images(found: Mapping[str, Any], scores: Sequence[str], unknown: str) -> dict[str, str]:
    """What identifies the images of each column.

    Args:
        found: the result.
        scores: titles of those that have columns.
        unknown: stands for images that were not recorded.
    """
    prints, everything = found.get("images", {}), found.get("inputs", unknown)
    return {
        column_title(found, score, name): f"{prints['id']} {prints[name]}" if name in prints else everything
        for score in scores
        for name in own_sets(found)
    }


def own_options(found: Mapping[str, Any]) -> list[str]:
    """What ``vje ood`` has to be told to make a result again."""
    sets = own_sets(found)
    return ["--id", str(found["data"]), "--ood", *(f"{name}=PATH" for name in sets)] if sets else []
