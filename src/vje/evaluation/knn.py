"""Weighted k-nearest-neighbour classification, the yardstick of frozen representations."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vje.errors import UserError
from vje.evaluation.usual import USUAL_K

CHUNK = 2**26
"""Similarities held in memory at a time."""


def knn_accuracy(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    k: int = USUAL_K,
    temperature: float = 0.07,
) -> float:
    """Percentage of queries whose nearest neighbours vote for the right class.

    Neighbours are nearest in cosine similarity, and each votes with weight exp(similarity / temperature).

    Args:
        bank: features of the training images, ``[N, D]``.
        bank_labels: their classes, int64 ``[N]``.
        queries: features of the test images, ``[M, D]``.
        query_labels: their classes, int64 ``[M]``.
        k: neighbours.
        temperature: of the votes.

    >>> bank = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> knn_accuracy(bank, torch.tensor([0, 1]), torch.tensor([[2.0, 0.1]]), torch.tensor([0]), k=1)
    100.0
    """
    if not len(queries):
        raise UserError("k-NN needs at least one test image.")
    if len(queries) != len(query_labels):
        raise ValueError(f"{len(queries)} queries and {len(query_labels)} labels")
    predicted = knn_predict(bank, bank_labels, queries, k, temperature)
    return 100.0 * float((predicted == query_labels).double().mean())


def knn_predict(bank: Tensor, bank_labels: Tensor, queries: Tensor, k: int, temperature: float) -> Tensor:
    """Predicted classes ``[M]``; arguments as for :func:`knn_accuracy`. Memory does not grow with the data set."""
    if not k > 0:
        raise UserError(f"k-NN needs at least one neighbour, got k={k}.")
    if not len(bank):
        raise UserError("k-NN needs at least one training image.")
    if len(bank) != len(bank_labels):
        raise ValueError(f"{len(bank)} features and {len(bank_labels)} labels in the bank")
    k = min(k, len(bank))
    classes, bank_labels = bank_labels.unique(return_inverse=True)  # class numbers may be far apart
    bank = normalize(bank.float(), dim=1)
    rows = max(1, CHUNK // len(bank))
    predictions = []
    for chunk in queries.split(rows):
        similarity, nearest = (normalize(chunk.float(), dim=1) @ bank.T).topk(k, dim=1)  # [rows, k]
        votes = torch.zeros(len(chunk), len(classes), device=bank.device)
        weights = ((similarity - similarity[:, :1]) / temperature).exp()  # the shift cancels, and keeps exp in range
        votes.scatter_add_(1, bank_labels[nearest], weights)
        predictions.append(classes[votes.argmax(1)])
    return torch.cat(predictions)
