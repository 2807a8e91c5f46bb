"""The map of a run's held-out images: places, statistics, neighbours and pictures, and their form in the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vje.evaluation.evaluate import in_chunks
from vje.evaluation.knn import CHUNK, Directions
from vje.methods.method import Method
from vje.methods.vje import VJE
from vje.ood.names import LIKELIHOODS
from vje.reporting.html import packed
from vje.reporting.sprites import Sprites

NEIGHBOURS = 8
GALLERY = 12
TITLES = {"norm": "norm of z", "isolation": "distance to neighbours"}
"""Of the statistics that every method's images have; its own it names itself."""
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Survey:
    """What a model makes of some images, before they have places and pictures."""

    space: str  # what the vectors are, in words
    vectors: Floats  # that places and neighbours are of, ``[N, D]``
    statistics: Mapping[str, Floats]  # numbers of each image, ``[N]``, by name
    neighbours: NDArray[np.int64]  # rows of the nearest other images, ``[N, K]``, the nearest first
    similarity: Floats  # cosine to them, ``[N, K]``
    # of the statistics, by name; a name without one speaks for itself
    titles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Atlas(Survey):
    """Everything that the map and the galleries show: a survey of images that have places and pictures."""

    places: Floats  # of the images on the map, ``[N, 2]``
    names: Sequence[str]  # of the images
    pictures: Sprites  # of the images
    labels: NDArray[np.int64] | None  # class numbers ``[N]``, if known
    classes: Sequence[str] | None  # names of the classes, if they have any
    total: int  # how many images were held out; the map may have fewer

    @property
    def typicality(self) -> str:
        """The statistic whose small values mean typical: a likelihood, else the distance to the neighbours."""
        return next((name for name in LIKELIHOODS if name in self.statistics), "isolation")

    def extremes(self, count: int = GALLERY) -> tuple[list[int], list[int]]:
        """Rows of the most and of the least typical images, the extreme first."""
        values = self.statistics[self.typicality]
        order = [int(row) for row in values.argsort(kind="stable") if np.isfinite(values[row])]
        count = min(count, len(order) // 2 or len(order))
        return order[:count], order[::-1][:count]

    def as_data(self) -> dict[str, Any]:
        """For the page's scripts."""
        most, least = self.extremes()
        index = np.uint16 if len(self.places) <= np.iinfo(np.uint16).max else np.int32
        found: dict[str, Any] = {
            "space": self.space,
            "count": len(self.places),
            "x": packed(self.places[:, 0]),
            "y": packed(self.places[:, 1]),
            "statistics": [
                {"name": name, "title": self.titles.get(name, name), "values": packed(values)}
                for name, values in self.statistics.items()
            ],
            "neighbours": packed(self.neighbours.astype(index)),
            "similarity": packed(self.similarity),
            "each": self.neighbours.shape[1],
            "names": list(self.names),
            "pictures": self.pictures.as_data(),
            "typicality": self.typicality,
            "most": most,
            "least": least,
        }
        if self.labels is not None:
            numbers, places = np.unique(self.labels, return_inverse=True)  # the page counts classes from 0
            found["labels"] = packed(places.astype(np.int32))
            found["classes"] = [self._class(int(number)) for number in numbers]
        return found

    def _class(self, number: int) -> str:
        return self.classes[number] if self.classes is not None and number < len(self.classes) else str(number)


@torch.no_grad()
def survey(model: Method, z: Tensor) -> Survey:
    """Statistics and neighbours of embeddings ``[N, D]``: by posterior means for VJE, by z for other methods."""
    posterior = isinstance(model, VJE)
    space = in_chunks(model, model.spaces, z)["mean"] if posterior else z
    neighbours, similarity = nearest(space.to(next(model.parameters()).device))
    found = in_chunks(model, model.statistics, z)
    found |= {"norm": z.norm(dim=1), "isolation": 1 - similarity.mean(1)}
    return Survey(
        space="posterior means" if posterior else "embeddings z",
        vectors=space.float().cpu().numpy(),
        statistics={key: x.float().cpu().numpy() for key, x in found.items()},
        neighbours=neighbours.cpu().numpy(),
        similarity=similarity.cpu().numpy(),
        titles={key: model.quantity(key).title for key in found} | TITLES,
    )


@torch.no_grad()
def nearest(features: Tensor, count: int = NEIGHBOURS) -> tuple[Tensor, Tensor]:
    """The nearest other rows by cosine, and the cosines, each ``[N, count]``, where the features are.

    Args:
        features: ``[N, D]``.
        count: of neighbours; fewer if there are not so many rows.

    >>> nearest(torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]]), 1)[0].tolist()
    [[1], [0], [1]]
    """
    directions, unit = Directions(features), normalize(features.float(), dim=1)
    count = min(count, len(unit) - 1)
    rows, found = max(1, CHUNK // len(unit)), []
    for start in range(0, len(unit), rows):
        cosines = directions.cosines(features[start : start + rows])
        own = torch.arange(len(cosines), device=unit.device)
        cosines[own, own + start] = -torch.inf
        found.append(cosines.topk(count, dim=1).indices)
    neighbours = torch.cat(found)  # [N, count]
    values = [(unit * unit[column]).sum(1) for column in neighbours.T]
    similarity = torch.stack(values, 1) if values else unit.new_zeros(neighbours.shape)
    return neighbours, similarity.clamp(-1, 1)


def layout(features: Floats, seed: int) -> Floats:
    """Places on a map ``[N, 2]``: t-SNE, or an even spread where there is nothing to map."""
    from vje.reporting.geometry import tsne

    if not mappable(features):
        return spread(len(features))
    places = tsne(features, seed)
    return places if np.isfinite(places).all() else spread(len(features))


def mappable(features: Floats) -> bool:
    """Not so for a handful of images, and for a collapsed model, which puts all images in one direction."""
    if len(features) < 5 or not np.isfinite(features).all():
        return False
    directions = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return float(directions.std(axis=0).max()) >= 1e-6


def spread(count: int) -> Floats:
    """Points evenly over a disc, along a spiral that turns by the golden angle."""
    number = np.arange(count) + 0.5
    angle = number * np.pi * (3 - np.sqrt(5))
    places: Floats = (np.sqrt(number)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)).astype(np.float32)
    return places
