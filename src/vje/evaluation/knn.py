"""Weighted k-nearest-neighbour classification, the yardstick of frozen representations."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vje.errors import UserError
from vje.evaluation.usual import USUAL_K

Numbers = Tensor | NDArray[Any]
CHUNK = 2**26
"""Similarities held in memory at a time."""


class NotFinite(UserError):
    """Features that have no neighbours, as some are NaN or infinite."""


def knn_accuracy(
    bank: Numbers,
    bank_labels: Numbers,
    queries: Numbers,
    query_labels: Numbers,
    k: int = USUAL_K,
    temperature: float = 0.07,
) -> float:
    """Percentage of queries whose nearest neighbours vote for the right class.

    Neighbours are nearest in cosine similarity, and each votes with weight exp(similarity / temperature).

    Args:
        bank: features of the training images, ``[N, D]``; a tensor or an array, as the others.
        bank_labels: their classes, int64 ``[N]``.
        queries: features of the test images, ``[M, D]``.
        query_labels: their classes, int64 ``[M]``.
        k: neighbours.
        temperature: of the votes.

    >>> bank = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> knn_accuracy(bank, torch.tensor([0, 1]), torch.tensor([[2.0, 0.1]]), torch.tensor([0]), k=1)
    100.0
    """
    queries, query_labels = _checked("test", queries, query_labels)
    predicted = knn_predict(bank, bank_labels, queries, k, temperature)
    return 100.0 * float((predicted == query_labels).double().mean())


def knn_predict(bank: Numbers, bank_labels: Numbers, queries: Tensor, k: int, temperature: float) -> Tensor:
    """Predicted classes ``[M]``; arguments as for :func:`knn_accuracy`. Memory does not grow with the data set."""
    if not k > 0:
        raise UserError(f"k-NN needs at least one neighbour, got k={k}.")
    if not temperature > 0:
        raise UserError(f"k-NN needs a positive temperature, got {temperature}.")
    bank, bank_labels = _checked("training", bank, bank_labels)
    if queries.shape[1:] != bank.shape[1:]:
        raise UserError(f"k-NN compares features of one width, got {queries.shape[1]} and {bank.shape[1]} dimensions.")
    k = min(k, len(bank))
    classes, bank_labels = bank_labels.unique(return_inverse=True)  # class numbers may be far apart
    directions = Directions(bank)
    rows = max(1, CHUNK // len(bank))
    predictions = []
    for chunk in queries.split(rows):
        similarity, nearest = directions.cosines(chunk).topk(k, dim=1)  # [rows, k]
        votes = torch.zeros(len(chunk), len(classes), device=bank.device)
        weights = ((similarity - similarity[:, :1]) / temperature).exp()  # the shift cancels, and keeps exp in range
        votes.scatter_add_(1, bank_labels[nearest], weights)
        predictions.append(classes[votes.argmax(1)])
    return torch.cat(predictions)


def _checked(which: str, features: Numbers, labels: Numbers) -> tuple[Tensor, Tensor]:
    """Features ``[N, D]`` and classes ``[N]`` as tensors; what would be compared wrongly is refused."""
    features, labels = torch.as_tensor(features), torch.as_tensor(labels)
    if not len(features):
        raise UserError(f"k-NN needs at least one {which} image.")
    if features.dim() != 2 or labels.shape != features.shape[:1]:
        raise UserError(
            f"k-NN needs {which} features [N, D] and as many classes [N], got {list(features.shape)} and "
            f"{list(labels.shape)}."
        )
    least, most = features.aminmax(dim=1)  # NaN if any is; no copy of what may fill the memory
    broken = int((~(least.isfinite() & most.isfinite())).sum())
    if broken:
        raise NotFinite(f"k-NN cannot compare NaN or infinite features: {broken} of {len(features)} {which} images.")
    return features, labels


class Directions:
    r"""Features to compare by cosine, in digits that are left where all of them point nearly the same way.

    Posterior means do, early in training and in models that fail: their cosines differ by less than float32 rounds a
    cosine by. Distances between unit vectors do not depend on what these have in common, and it is left out:

    .. math:: 2 \hat x \cdot \hat b = |\hat x|^2 + |\hat b|^2 - |(\hat x - c) - (\hat b - c)|^2

    with c the middle of the bank; what is the same for all of the bank is left out too.

    Args:
        bank: ``[N, D]``.

    >>> bank = torch.tensor([[1.0, 2e-4], [1.0, 3e-4]])
    >>> nearer, farther = Directions(bank).cosines(torch.tensor([[1.0, 0.0]]))[0]
    >>> round((nearer - farther).item() * 1e8, 3)  # (3e-4)^2 / 2 - (2e-4)^2 / 2; in float32 both cosines are 1
    2.5
    """

    def __init__(self, bank: Tensor) -> None:
        unit = normalize(bank.float(), dim=1)
        self._centre, is_zero = unit.mean(0), ~unit.any(1)
        self._apart = unit.sub_(self._centre)
        self._along = -(torch.linalg.vector_norm(self._apart, dim=1).square() + is_zero) / 2

    def cosines(self, queries: Tensor) -> Tensor:
        """Cosines of ``[M, D]`` with the bank, less a number that is each query's own: float32 ``[M, N]``."""
        return torch.addmm(self._along, normalize(queries.float(), dim=1) - self._centre, self._apart.T)
