"""The evaluation of a model: k-NN, its own classifier, posterior statistics, effective rank."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vje.errors import UserError
from vje.evaluation.features import Features
from vje.evaluation.knn import knn_accuracy
from vje.evaluation.rank import effective_rank
from vje.evaluation.usual import USUAL_K
from vje.methods.method import Method

STATISTICS = ("variance", "kl", "nll", "nll_directional", "nll_radial", "anisotropy", "cosine_mean_z")


def evaluate(model: Method, bank: Features | None, test: Features, k: int = USUAL_K) -> dict[str, Any]:
    """Everything that ``evaluation.json`` holds; what needs labels is absent without them.

    Args:
        model: whose features these are.
        bank: features of the training images, for k-NN.
        test: features of the images that were held out.
        k: neighbours.
    """
    if bank is not None and (bank.labels is None or test.labels is None):
        bank = None  # nothing to vote with
    if bank is not None:
        check_neighbours(k, len(bank.z))
    found = {name: float(x.double().mean()) for name, x in in_chunks(model, model.statistics, test.z).items()}
    spaces = {"z": test.z, **in_chunks(model, model.spaces, test.z)}
    norms = {name: float(torch.linalg.vector_norm(x, dim=1).double().mean()) for name, x in spaces.items()}
    result: dict[str, Any] = {"images": len(test.z), "norms": norms, "effective_rank": effective_rank(test.z)}
    if found:
        result["posterior"] = {name: found[name] for name in (*STATISTICS, *found) if name in found}
    if model.linear_classifier() is not None and test.labels is not None:
        result["classifier"] = classifier_accuracy(model, test.z, test.labels)
    if bank is not None:
        result["knn"] = {"k": k, "bank": len(bank.z), **knn_of_features(model, bank, test, k)}
    return result


def check_neighbours(k: int, images: int) -> None:
    """Refuse to have more neighbours vote than there are images."""
    if k > images:
        raise UserError(f"--k {k} is more than the {images:,} training images there are: choose {images} or fewer.")


def knn_of_features(model: Method, bank: Features, test: Features, k: int = USUAL_K) -> dict[str, float]:
    """k-NN accuracy in percent of z, of the method's other spaces (VJE: the mean) and of the EMA encoder's z."""
    assert bank.labels is not None and test.labels is not None
    device = next(model.parameters()).device
    known, new = ({"z": x.z, **in_chunks(model, model.spaces, x.z)} for x in (bank, test))
    if bank.target is not None and test.target is not None:
        known["target"], new["target"] = bank.target, test.target
    classes, truth = bank.labels.to(device), test.labels.to(device)
    return {name: knn_accuracy(x.to(device), classes, new[name].to(device), truth, k) for name, x in known.items()}


def classifier_accuracy(model: Method, z: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy in percent, top-1 and top-5, of the classifier that was trained with the encoder."""
    classifier = model.linear_classifier()
    assert classifier is not None
    best = min(5, classifier.out_features)
    ranked = in_chunks(model, lambda rows: {"classes": classifier(rows).topk(best).indices}, z)["classes"].cpu()
    right = (ranked == labels.cpu()[:, None]).double()
    return {"top1": 100 * float(right[:, 0].mean()), "top5": 100 * float(right.sum(1).mean())}


@torch.no_grad()
def in_chunks(
    model: Method, function: Callable[[Tensor], dict[str, Tensor]], z: Tensor, rows: int = 8192
) -> dict[str, Tensor]:
    """A function of embeddings, some of them at a time, on the model's device."""
    device = next(model.parameters()).device
    chunks = [function(chunk.to(device)) for chunk in z.split(rows)]
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


@torch.no_grad()
def space_names(model: Method) -> list[str]:
    """The spaces that a model has, z first."""
    one = next(model.parameters()).new_zeros(1, model.encoder.dim)
    return ["z", *model.spaces(one), *(["target"] if model.target_encoder is not None else [])]


def stored_spaces(model: Method, features: Features, names: Sequence[str]) -> dict[str, Tensor]:
    """Some spaces of a data set, each ``[N, D]`` on the model's device."""
    device = next(model.parameters()).device
    others = in_chunks(model, model.spaces, features.z) if set(names) - {"z", "target"} else {}
    known = {"z": features.z, "target": features.target, **others}
    return {name: x.to(device) for name in names if (x := known[name]) is not None}


@torch.no_grad()
def encoded_spaces(model: Method, images: Tensor, names: Sequence[str], autocast: bool = False) -> dict[str, Tensor]:
    """Some spaces of images ``[B, C, H, W]`` in [0, 1] that have their final size; no encoder runs in vain."""
    assert model.preprocessing is not None
    x = model.preprocessing.normalize(images).contiguous(memory_format=torch.channels_last)
    found: dict[str, Tensor] = {}
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        if set(names) != {"target"}:
            found["z"] = model.encoder(x).float()
        if "target" in names and model.target_encoder is not None:
            found["target"] = model.target_encoder(x).float()
    if set(names) - {"z", "target"}:
        found |= model.spaces(found["z"])
    return {name: found[name] for name in names}
