"""What ``vje ood`` found as columns of a comparison: the scores that are shown, and the images that they are of.

A result is a benchmark's, or of sets of someone's own (``vje ood --id``).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vje.ood.benchmark import BENCHMARKS
from vje.ood.names import LIKELIHOODS

NEAR = frozenset(each.name for sets in BENCHMARKS.values() for each in sets if each.near)
"""Sets that count as near-OOD in any benchmark; all others are far."""


class Images(NamedTuple):
    """The images that a column of a benchmark is of."""

    # what identifies the in-distribution images and each set; empty if that was not recorded
    prints: Mapping[str, str]
    counts: Mapping[str, int]  # how many there are of each; empty likewise
    partial: tuple[str, ...]  # names of those that are not the protocol's own image lists


HELD_OUT = "held out"
"""Stands for the in-distribution images of a run that was measured on those it held out itself."""


def ood_columns(found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(title, AUROC) of a result: the means over near and far sets that lack none, or each set of one's own."""
    for title, score in ood_scores(found):
        for part in _parts(found, score):
            yield f"{part} OOD {title}", found["summary"][score][part]
        for name in own_sets(found):
            yield column_title(found, title, name), found["scores"][score][name]["auroc"]


def ood_scores(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(title, score) of those that are shown: the likelihood, of methods that have one, and k-NN distance."""
    there = found.get("summary", {})
    own = next((name for name in LIKELIHOODS if name in there), "")
    return [(title, score) for title, score in (("NLL", own), ("k-NN", "knn")) if score in there]


def benchmark_images(found: Mapping[str, Any]) -> dict[str, Images]:
    """The images of each column of a benchmark's result; none if it is of sets of one's own."""
    return {
        f"{part} OOD {title}": _images(found, part)
        for title, score in ood_scores(found)
        for part in _parts(found, score)
    }


def differ(images: Sequence[Images]) -> bool:
    """Whether columns are of different images: by what identifies them, or by how many, where not all say more.

    >>> differ([Images({}, {"id": 9}, ()), Images({"id": "a"}, {"id": 9}, ())])
    False
    """
    prints = [each.prints for each in images]
    known: Sequence[Mapping[str, object]] = prints if all(prints) else [each.counts for each in images if each.counts]
    return any(each != known[0] for each in known)


def absent_sets(found: Mapping[str, Any], part: str) -> list[str]:
    """The sets of the protocol that a mean (near, far or avg) is without.

    >>> absent_sets({"missing": {"near": ["tin"], "far": []}}, "avg")
    ['tin']
    """
    missing = found.get("missing") or {}
    return [name for group, names in missing.items() if part in (group, "avg") for name in names]


def partial_sets(found: Mapping[str, Any], part: str = "avg") -> dict[str, str]:
    """The sets of a mean that are not the protocol's own image lists, and what they are called; ``id`` by its data.

    >>> partial_sets({"partial": ["id", "tin", "svhn"], "data": "cifar10"}, "near")
    {'id': 'cifar10', 'tin': 'tin'}
    """
    names = [name for name in found.get("partial", ()) if _belongs(name, part)]
    return {name: str(found.get("data", name)) if name == "id" else name for name in names}


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


def own_images(found: Mapping[str, Any], unknown: str) -> dict[str, str]:
    """What identifies the images of each column on sets of someone's own.

    Args:
        found: the result.
        unknown: stands for images that were not recorded.
    """
    prints, everything = found.get("images", {}), found.get("inputs", unknown)
    if found.get("held_out"):  # which seeds draw differently, as for k-NN
        prints = prints | {"id": f"{HELD_OUT} of {found['data']}"}
    return {
        column_title(found, title, name): f"{prints['id']} {prints[name]}" if name in prints else everything
        for title, _ in ood_scores(found)
        for name in own_sets(found)
    }


def own_options(found: Mapping[str, Any]) -> list[str]:
    """What ``vje ood`` has to be told to make a result again."""
    sets = own_sets(found)
    return ["--id", str(found["data"]), "--ood", *(f"{name}=PATH" for name in sets)] if sets else []


def _parts(found: Mapping[str, Any], score: str) -> list[str]:
    return [part for part in ("near", "far") if part in found["summary"][score] and not absent_sets(found, part)]


def _belongs(name: str, part: str) -> bool:
    """Whether a mean (near, far or avg) is of a set; each is of the in-distribution images."""
    return name == "id" or part == "avg" or (name in NEAR) == (part == "near")


def _images(found: Mapping[str, Any], part: str) -> Images:
    prints, counts = (
        {name: value for name, value in found.get(key, {}).items() if _belongs(name, part)}
        for key in ("images", "counts")
    )
    return Images(prints, counts, tuple(partial_sets(found, part).values()))
