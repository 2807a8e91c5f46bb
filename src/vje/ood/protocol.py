"""Run an out-of-distribution benchmark: every score on every set, from features that are computed once.

Scores with a hyper-parameter choose it on validation images (some in-distribution ones, and Tiny ImageNet's validation
list), which are in no test set.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vje.evaluation.features import Features
from vje.methods.method import Method
from vje.ood.detectors import KNN, MSP, Detector, Energy, FeatureNorm, Mahalanobis, ReAct, ViM
from vje.ood.linear import LinearClassifier, fit_linear
from vje.ood.metrics import all_metrics, auroc
from vje.ood.scores import model_scores

Scores = dict[str, NDArray[np.float64]]
K_CHOICES = (1, 5, 10, 20, 50, 100, 200)
PERCENTILE_CHOICES = (80.0, 85.0, 90.0, 95.0, 99.0)
UNIT_CHOICES = (0, 1)
"""Raw features, or their directions."""


@dataclass(frozen=True)
class Scorer:
    """Everything that gives an image a score."""

    model: Method  # for its own scores
    detectors: Mapping[str, Detector]  # on features, fitted, by name
    chosen: Mapping[str, float]  # hyper-parameters that were tuned on validation images, by detector
    samples: int = 0  # Monte-Carlo samples of the sampled NLL; 0 leaves it out
    # whether the detectors that need one had the model's "own", trained with the encoder, or one "fitted" to the
    # training features; None if there is none
    classifier: Literal["own", "fitted"] | None = None
    usual: Mapping[str, float] = field(default_factory=dict)  # hyper-parameters that nothing was there to choose on

    def __call__(self, z: Tensor) -> Scores:
        """Each score of embeddings ``[N, D]``; larger means more out-of-distribution."""
        device = next(self.model.parameters()).device
        scores = model_scores(self.model, z, self.samples)
        for name, detector in self.detectors.items():
            scores[name] = detector.score(z.to(device)).cpu()
        return {name: x.double().numpy() for name, x in scores.items()}


def build_scorer(
    model: Method, bank: Features | None, validation: tuple[Tensor, Tensor] | None = None, samples: int = 0
) -> Scorer:
    """Fit the feature-space detectors.

    Args:
        model: in evaluation mode.
        bank: features of the training images, with labels where there are any; None leaves the detectors out.
        validation: (in-distribution, out-of-distribution) embeddings to choose hyper-parameters on; else defaults.
        samples: Monte-Carlo samples of the sampled NLL.
    """
    if bank is None:
        return Scorer(model, {}, {}, samples)
    device = next(model.parameters()).device
    features = bank.z.to(device)
    chosen: dict[str, float] = {}
    usual: dict[str, float] = {}

    def tuned(name: str, choices: Iterable[float], default: float, build: Callable[[float], Detector]) -> Detector:
        """The detector that tells the validation images apart best; without any, the one of the usual value."""
        if validation is None:
            usual[name] = default
            return build(default)
        inside, outside = (x.to(device) for x in validation)
        built = {choice: build(choice) for choice in choices}
        values = {choice: auroc(d.score(inside).cpu(), d.score(outside).cpu()) for choice, d in built.items()}
        chosen[name] = max(values, key=lambda choice: values[choice])
        return built[chosen[name]]

    detectors: dict[str, Detector] = {
        "knn": tuned("knn", K_CHOICES, 50, lambda k: KNN(int(k)).fit(features)),
        "mahalanobis": tuned("mahalanobis", UNIT_CHOICES, 1, lambda u: Mahalanobis(unit=bool(u)).fit(features)),
        "feature_norm": FeatureNorm().fit(features),
    }
    own = model.linear_classifier()
    if bank.labels is not None:
        labels = bank.labels.to(device)
        classifier = fit_linear(features, labels) if own is None else LinearClassifier(own.weight, own.bias)
        detectors |= {
            "mahalanobis_class": tuned(
                "mahalanobis_class",
                UNIT_CHOICES,
                1,
                lambda u: Mahalanobis(class_conditional=True, unit=bool(u)).fit(features, labels),
            ),
            "msp": MSP(classifier=classifier).fit(features, labels),
            "energy": Energy(classifier=classifier).fit(features, labels),
            "react": tuned(
                "react",
                PERCENTILE_CHOICES,
                90.0,
                lambda p: ReAct(percentile=p, classifier=classifier).fit(features, labels),
            ),
            "vim": ViM(classifier=classifier).fit(features, labels),
        }
    origin: Literal["own", "fitted"] | None = None if bank.labels is None else "fitted" if own is None else "own"
    return Scorer(model, detectors, chosen, samples, origin, usual)


def joined(parts: Sequence[Scores]) -> Scores:
    """Scores of several groups of images, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def compare(inside: Scores, outside: Mapping[str, Scores], near: Mapping[str, bool | None]) -> dict[str, Any]:
    """Metrics of every score on every set, in percent, and their means.

    Args:
        inside: scores of the in-distribution test images.
        outside: scores of each out-of-distribution set.
        near: whether each set counts as near (True), far (False) or neither (None).

    Returns:
        ``scores.<score>.<set>.<metric>`` and ``summary.<score>.near|far|avg``, the unweighted mean AUROC of the near
        sets, of the far ones, and the mean of the two (of all sets, where there are no such groups).
    """
    scores = {
        name: {
            data: {metric: 100.0 * value for metric, value in all_metrics(inside[name], found[name]).items()}
            for data, found in outside.items()
        }
        for name in inside
    }
    summary = {name: summarize({data: m["auroc"] for data, m in sets.items()}, near) for name, sets in scores.items()}
    return {"scores": scores, "summary": summary}


def summarize(values: Mapping[str, float], near: Mapping[str, bool | None]) -> dict[str, float]:
    """Means over near and far sets, and the mean of the two.

    >>> summarize({"a": 80.0, "b": 90.0, "c": 95.0}, {"a": True, "b": True, "c": False})
    {'near': 85.0, 'far': 95.0, 'avg': 90.0}
    """
    groups = {
        name: [value for data, value in values.items() if near[data] is wanted]
        for name, wanted in (("near", True), ("far", False))
    }
    means = {name: float(np.mean(group)) for name, group in groups.items() if group}
    return means | {"avg": float(np.mean(list((means or values).values())))}


def mean_and_std(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation of the same numbers over several runs, leaf by leaf.

    >>> mean_and_std([{"nll": {"near": 1.0}}, {"nll": {"near": 3.0}}])
    {'nll': {'near': {'mean': 2.0, 'std': 1.4142135623730951}}}
    """
    merged: dict[str, Any] = {}
    for key in results[0]:
        values = [result[key] for result in results if key in result]
        if isinstance(values[0], Mapping):
            merged[key] = mean_and_std(values)
        else:
            std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            merged[key] = {"mean": float(np.mean(values)), "std": std}
    return merged
