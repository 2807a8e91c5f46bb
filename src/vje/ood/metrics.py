"""How well a score tells out-of-distribution (OOD) inputs from in-distribution (ID) ones.

Everywhere in :mod:`vje.ood`, a score is larger for inputs that are more out-of-distribution. Every metric takes the
scores of ID inputs, then those of OOD inputs (numpy arrays, torch tensors on any device, or lists), and is a number
from 0 to 1. The definitions are those of OpenOOD v1.5 (Zhang et al., 2023), computed by scikit-learn.

Only the order of the scores matters, so they are replaced by their dense ranks first: infinities are ordinary values,
and scores tie exactly when they are equal.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import auc, precision_recall_curve, roc_curve

from vje.errors import UserError

Scores = NDArray[np.floating] | torch.Tensor | Sequence[float]
Metric = Callable[[Scores, Scores], float]
Array = NDArray[np.float64]
Truth = NDArray[np.bool_]

RECALL = 0.95
"""Share of the positive class that is found at the threshold of the FPR@95 metrics."""


def auroc(id_scores: Scores, ood_scores: Scores) -> float:
    r"""Area under the ROC curve: how often an OOD input scores higher than an ID input, ties counting half.

    .. math:: P(s_{ood} > s_{id}) + \tfrac12 P(s_{ood} = s_{id})

    Args:
        id_scores: shape ``[N]``.
        ood_scores: shape ``[M]``.

    >>> auroc([0.0, 1.0], [1.0, 2.0])  # of the four pairs three are in order and one is tied
    0.875
    """
    return _roc_area(*_roc(*_ranked(id_scores, ood_scores)))


def aupr_in(id_scores: Scores, ood_scores: Scores) -> float:
    r"""Area under the precision-recall curve of finding ID inputs, those with the lowest scores.

    .. math::
        \sum_i (R_i - R_{i-1}) \frac{P_i + P_{i-1}}{2}, \quad
        R(t) = \frac{\#\{s_{id} \le t\}}{N}, \quad
        P(t) = \frac{\#\{s_{id} \le t\}}{\#\{s_{id} \le t\} + \#\{s_{ood} \le t\}}

    over the distinct scores t, lowest first, from R = 0, P = 1: trapezoidal, so not the step-wise average precision.

    Args:
        id_scores: shape ``[N]``.
        ood_scores: shape ``[M]``.

    >>> aupr_in([0.0, 2.0], [1.0])  # (R, P) = (0, 1), (1/2, 1), (1/2, 1/2), (1, 2/3)
    0.7916666666666666
    """
    return _pr_area(*_mirrored(*_ranked(id_scores, ood_scores)))


def aupr_out(id_scores: Scores, ood_scores: Scores) -> float:
    r"""Area under the precision-recall curve of finding OOD inputs, those with the highest scores.

    As :func:`aupr_in`, with the classes exchanged and >= for <=.

    Args:
        id_scores: shape ``[N]``.
        ood_scores: shape ``[M]``.

    >>> aupr_out([0.0, 2.0], [1.0])  # (R, P) = (0, 1), (0, 0), (1, 1/2), (1, 1/3)
    0.25
    """
    return _pr_area(*_ranked(id_scores, ood_scores))


def fpr95_ood_positive(id_scores: Scores, ood_scores: Scores) -> float:
    r"""Share of ID inputs that are flagged at the threshold that catches 95% of the OOD inputs (OpenOOD v1.5).

    .. math:: \frac{\#\{s_{id} \ge t\}}{N}, \quad t = \max\{t : \#\{s_{ood} \ge t\} \ge 0.95\,M\}

    Args:
        id_scores: shape ``[N]``.
        ood_scores: shape ``[M]``.

    >>> fpr95_ood_positive([0.0, 1.0, 2.0, 3.0], [2.0, 4.0])  # t = 2
    0.5
    """
    return _false_positives(*_roc(*_ranked(id_scores, ood_scores)))


def fpr95_id_positive(id_scores: Scores, ood_scores: Scores) -> float:
    r"""Share of OOD inputs that are accepted at the threshold that accepts 95% of the ID inputs (the older convention).

    .. math:: \frac{\#\{s_{ood} \le t\}}{M}, \quad t = \min\{t : \#\{s_{id} \le t\} \ge 0.95\,N\}

    Args:
        id_scores: shape ``[N]``.
        ood_scores: shape ``[M]``.

    >>> fpr95_id_positive([0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0])  # t = 3
    0.5
    """
    return _false_positives(*_roc(*_mirrored(*_ranked(id_scores, ood_scores))))


METRICS: dict[str, Metric] = {
    "auroc": auroc,
    "aupr_in": aupr_in,
    "aupr_out": aupr_out,
    "fpr95_ood_positive": fpr95_ood_positive,
    "fpr95_id_positive": fpr95_id_positive,
}
"""Every metric by name. The two areas under precision-recall curves and AUROC are better high, the FPRs low."""


def all_metrics(id_scores: Scores, ood_scores: Scores) -> dict[str, float]:
    """The value of every metric in :data:`METRICS`, for less than the sum of their costs.

    Args:
        id_scores: shape ``[N]``.
        ood_scores: shape ``[M]``.

    >>> all_metrics([0.0, 1.0], [2.0, 3.0])["auroc"]
    1.0
    """
    finding_ood = _ranked(id_scores, ood_scores)
    finding_id = _mirrored(*finding_ood)
    curve = _roc(*finding_ood)
    return {
        "auroc": _roc_area(*curve),
        "aupr_in": _pr_area(*finding_id),
        "aupr_out": _pr_area(*finding_ood),
        "fpr95_ood_positive": _false_positives(*curve),
        "fpr95_id_positive": _false_positives(*_roc(*finding_id)),
    }


def bootstrap_interval(
    metric: Metric,
    id_scores: Scores,
    ood_scores: Scores,
    confidence: float = 0.95,
    samples: int = 200,
    seed: int = 0,
) -> tuple[float, float]:
    r"""Percentile bootstrap interval of a metric: what it might have been on other images of the same kind.

    .. math:: \bigl[q_{(1-c)/2},\; q_{(1+c)/2}\bigr]

    the quantiles, for confidence c, of the metric over resamples of the ID scores and, separately, of the OOD scores,
    each drawn with replacement and of the original size.

    Args:
        metric: one of :data:`METRICS`, or any function of (ID scores, OOD scores) that does not mind their order.
        id_scores: shape ``[N]``.
        ood_scores: shape ``[M]``.
        confidence: probability that the interval aims at, between 0 and 1.
        samples: how many resamples.
        seed: the result is a function of it and the scores.

    Returns:
        The lower and the upper end.

    >>> bootstrap_interval(auroc, [0.0, 1.0], [2.0, 3.0])
    (1.0, 1.0)
    """
    if not 0 < confidence < 1:
        raise UserError(f"confidence must lie between 0 and 1 (0.95 is usual), got {confidence}.")
    if samples < 1:
        raise UserError(f"the bootstrap needs at least one sample (200 are usual), got {samples}.")
    generator = np.random.default_rng(seed)
    inside, outside = (np.sort(x) for x in _checked(id_scores, ood_scores))

    def resample(ordered: Array) -> Array:
        # Repeats instead of picks: the resample stays sorted, and sorting it again takes half the time.
        return np.repeat(
            ordered, np.bincount(generator.integers(len(ordered), size=len(ordered)), minlength=len(ordered))
        )

    values = [metric(resample(inside), resample(outside)) for _ in range(samples)]
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _ranked(id_scores: Scores, ood_scores: Scores) -> tuple[Truth, Array]:
    """Which of all inputs are OOD, and the dense rank of each one's score; both ``[N + M]``, by ascending score."""
    inside, outside = _checked(id_scores, ood_scores)
    scores = np.concatenate([inside, outside])
    order = np.argsort(scores, kind="stable")
    scores = scores[order]
    ranks = np.cumsum(np.concatenate([[False], scores[1:] != scores[:-1]]), dtype=np.float64)
    return order >= len(inside), ranks


def _mirrored(is_ood: Truth, ranks: Array) -> tuple[Truth, Array]:
    """The same for finding ID inputs; ascending again, since scikit-learn sorts what is sorted in little time."""
    return ~is_ood[::-1], -ranks[::-1]


def _checked(id_scores: Scores, ood_scores: Scores) -> tuple[Array, Array]:
    """Both in float64 (which holds every narrower float exactly), after checking them."""
    values = {"id_scores": _numbers("id_scores", id_scores), "ood_scores": _numbers("ood_scores", ood_scores)}
    missing = {name: int(np.isnan(x).sum()) for name, x in values.items()}
    if any(missing.values()):
        words = " and ".join(f"{n} of the {len(values[name])} {name}" for name, n in missing.items() if n)
        raise UserError(f"{words} are NaN, which have no order: find the inputs that make them, or leave those out.")
    return values["id_scores"], values["ood_scores"]


def _numbers(name: str, scores: Scores) -> Array:
    if isinstance(scores, torch.Tensor):
        scores = scores.detach().cpu().double().numpy()
    values: Array = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1:
        raise UserError(f"{name} must be one number an input, shape [N], got shape {list(values.shape)}.")
    if not len(values):
        raise UserError(f"{name} is empty: a metric needs at least one in- and one out-of-distribution score.")
    return values


def _roc(positive: Truth, ranks: Array) -> tuple[Array, Array]:
    """False- and true-positive rates at every threshold, the strictest first."""
    # scikit-learn drops points inside straight pieces unless told not to, and one of them can be where recall is 95%.
    fpr, tpr, _ = roc_curve(positive, ranks, drop_intermediate=False)
    return fpr, tpr


def _false_positives(fpr: Array, tpr: Array) -> float:
    return float(fpr[np.argmax(tpr >= RECALL)])  # k/n rounds to the float nearest 0.95 where k/n is 0.95


def _roc_area(fpr: Array, tpr: Array) -> float:
    return min(1.0, float(auc(fpr, tpr)))


def _pr_area(positive: Truth, ranks: Array) -> float:
    precision, recall, _ = precision_recall_curve(positive, ranks)
    return min(1.0, float(auc(recall, precision)))
