"""The evaluation of a model: k-NN, posterior statistics, effective rank."""

from typing import Any

import torch
from torch import Tensor

from vje.evaluation.features import Features
from vje.evaluation.knn import knn_accuracy
from vje.evaluation.rank import effective_rank
from vje.methods.vje import VJE

STATISTICS = ("variance", "kl", "nll", "nll_directional", "nll_radial", "anisotropy", "cosine_mean_z")


def evaluate(model: VJE, bank: Features | None, test: Features, k: int = 20) -> dict[str, Any]:
    """Everything that ``evaluation.json`` holds; what needs labels is absent without them.

    Args:
        model: whose features these are.
        bank: features of the training images, for k-NN.
        test: features of the images that were held out.
        k: neighbours.
    """
    scores = posterior_scores(model, test.z)
    result: dict[str, Any] = {
        "images": len(test.z),
        "posterior": {name: float(scores[name].double().mean()) for name in STATISTICS},
        "norms": {"z": _mean_norm(test.z), "mean": _mean_norm(posterior_means(model, test.z))},
        "effective_rank": effective_rank(test.z),
    }
    if bank is not None and bank.labels is not None and test.labels is not None:
        result["knn"] = {"k": k, "bank": len(bank.z), **knn_of_features(model, bank, test, k)}
    return result


def knn_of_features(model: VJE, bank: Features, test: Features, k: int = 20) -> dict[str, float]:
    """k-NN accuracy in percent of z, of the posterior mean and of the EMA encoder's z."""
    assert bank.labels is not None and test.labels is not None
    device = next(model.parameters()).device
    spaces: dict[str, tuple[Tensor, Tensor]] = {
        "z": (bank.z, test.z),
        "mean": (posterior_means(model, bank.z), posterior_means(model, test.z)),
    }
    if bank.target is not None and test.target is not None:
        spaces["target"] = (bank.target, test.target)
    labels = bank.labels.to(device), test.labels.to(device)
    return {name: knn_accuracy(a.to(device), labels[0], b.to(device), labels[1], k) for name, (a, b) in spaces.items()}


@torch.no_grad()
def posterior_means(model: VJE, z: Tensor, rows: int = 8192) -> Tensor:
    """Posterior means of embeddings, in chunks, on the model's device."""
    device = next(model.parameters()).device
    return torch.cat([model.inference(chunk.to(device)).mean for chunk in z.split(rows)])


def posterior_scores(model: VJE, z: Tensor, rows: int = 8192) -> dict[str, Tensor]:
    """:meth:`VJE.score_embeddings` in chunks; on the CPU."""
    device = next(model.parameters()).device
    chunks = [model.score_embeddings(chunk.to(device)) for chunk in z.split(rows)]
    return {name: torch.cat([chunk[name].cpu() for chunk in chunks]) for name in chunks[0]}


def _mean_norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dim=1).double().mean())
