"""The OpenOOD v1.5 benchmarks for small images: which sets, which images of them, and what counts as near and far.

Conventions (Yang et al., "OpenOOD: benchmarking generalized out-of-distribution detection", NeurIPS 2022; v1.5 by
Zhang et al., 2023). OpenOOD's image lists for CIFAR cannot be mapped to the original order of the files, so the
validation images are the first of each class in file order: 100 of each CIFAR-10 class, 10 of each CIFAR-100 class
(where a class has no more than that, a tenth of the smallest). JPEG files are decoded in full, as OpenOOD does.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vje.data.registry import RawSplits, canonical, open_data
from vje.data.sources import ImageSource
from vje.errors import UserError


@dataclass(frozen=True)
class OODSet:
    """One set of out-of-distribution images."""

    name: str  # as in tables and files
    near: bool  # whether it counts as near-OOD
    images: int  # how many the protocol has
    validation_per_class: int = 0  # first images of each class that are left out, as they are someone's validation set
    source: str = ""  # how to get the data


_FAR = (
    OODSet("mnist", False, 70_000, source="downloaded by torchvision (train and test together)"),
    OODSet("svhn", False, 26_032, source="downloaded by torchvision (test)"),
    OODSet("textures", False, 5_640, source="the Describable Textures images, as a folder or .npz"),
    OODSet("places", False, 35_195, source="the Places365 test images of OpenOOD's list, as a folder or .npz"),
)


def _tin(images: int) -> OODSet:
    """Tiny ImageNet's validation images, less those that show a class of the in-distribution set."""
    return OODSet(
        "tin", True, images, source="the Tiny ImageNet validation images of OpenOOD's list, as a folder or .npz"
    )


BENCHMARKS: dict[str, tuple[OODSet, ...]] = {
    "cifar10": (OODSet("cifar100", True, 9_000, 10, "downloaded by torchvision (test)"), _tin(7_793), *_FAR),
    "cifar100": (OODSet("cifar10", True, 9_000, 100, "downloaded by torchvision (test)"), _tin(6_526), *_FAR),
}
ID_VALIDATION = {"cifar10": 100, "cifar100": 10}
ID_IMAGES = 9_000
"""In-distribution test images that the protocol has."""


@dataclass(frozen=True)
class Member:
    """A set as it was found."""

    name: str  # of the set
    near: bool | None  # near-OOD or far-OOD; None for sets of one's own
    sources: tuple[ImageSource, ...]  # its images, in one part or several
    expected: int | None = None  # how many the protocol has; None for sets of one's own

    def partial(self, count: int) -> bool:
        """Whether ``count`` images are not what the protocol says."""
        return self.expected is not None and count != self.expected


def benchmark_name(data: str) -> str | None:
    """The benchmark of runs on a data set, given by name or by path; None if there is none.

    >>> benchmark_name("CIFAR-10"), benchmark_name("data/cifar100.npz"), benchmark_name("cifar-10.1")
    ('cifar10', 'cifar100', None)
    """
    path = Path(data)
    name = canonical(path.stem if path.suffix.lower() == ".npz" else path.name)
    return name if name in BENCHMARKS else None


def without_first(source: ImageSource, count: int) -> tuple[ImageSource, ImageSource]:
    """Split off the first ``count`` images of each class, in file order: (those, the rest)."""
    if source.labels is None:
        raise UserError(f"{source.name} has no labels, and its validation images are the first of each class.")
    first = np.zeros(len(source), dtype=bool)
    for label in np.unique(source.labels):
        first[np.flatnonzero(source.labels == label)[:count]] = True
    return source.subset(np.flatnonzero(first)), source.subset(np.flatnonzero(~first))


def id_images(benchmark: str, test: ImageSource) -> tuple[ImageSource | None, ImageSource]:
    """The in-distribution test set as (validation, test); too few images have no validation part."""
    return _held_out(test, ID_VALIDATION[benchmark])


def _held_out(source: ImageSource, count: int) -> tuple[ImageSource | None, ImageSource]:
    """Split off ``count`` images of each class; where a class has no more than that, a tenth of the smallest."""
    if source.labels is not None:
        smallest = int(np.unique(source.labels, return_counts=True)[1].min())
        count = count if smallest > count else smallest // 10
    return without_first(source, count) if count else (None, source)


def find_sets(benchmark: str, data_dir: Path) -> tuple[list[Member], list[str], ImageSource | None]:
    """The benchmark's sets at hand, what to do about those that are not, and Tiny ImageNet's validation list."""
    members, missing, validation = [], [], None
    for wanted in BENCHMARKS[benchmark]:
        try:
            raw = open_data(wanted.name, data_dir)
            images = _images(wanted, raw)
        except UserError as error:
            missing.append(
                f"{wanted.name} is left out: {str(error).rstrip('.')}. Put {wanted.name}.npz (array test_images) or "
                f"a folder {wanted.name}/ into {data_dir}: {wanted.source}."
            )
            continue
        members.append(Member(wanted.name, wanted.near, tuple(x.undrafted() for x in images), wanted.images))
        if wanted.name == "tin" and raw.val is not None:
            validation = raw.val.undrafted()
    return members, missing, validation


def _images(wanted: OODSet, raw: RawSplits) -> tuple[ImageSource, ...]:
    if wanted.name == "mnist" and raw.train is not None and raw.test is not None:
        return (raw.train, raw.test)
    images = raw.pick()
    return (_held_out(images, wanted.validation_per_class)[1] if wanted.validation_per_class else images,)
