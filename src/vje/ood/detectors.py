"""Detectors of out-of-distribution inputs on the features of any frozen encoder.

``fit`` looks at features of in-distribution images, ``score`` says how far others are from them: larger means more
out-of-distribution. Both take tensors, numpy arrays and lists of rows, and work through them in chunks, on the device
where they are, and in float64 unless said otherwise; a fitted detector can be saved and loaded.
"""

import operator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from vje.errors import UserError
from vje.likelihood import at_least_float32
from vje.ood.base import Detector, blocks, second_moment
from vje.ood.linear import LinearClassifier, fit_linear

__all__ = [
    "DETECTORS",
    "KNN",
    "MSP",
    "Detector",
    "Energy",
    "FeatureNorm",
    "LogitDetector",
    "Mahalanobis",
    "ReAct",
    "ViM",
]


class KNN(Detector):
    r"""Distance to the k-th nearest training direction (Sun et al., "Deep nearest neighbors", ICML 2022).

    .. math:: |\hat x - \hat b_{(k)}|, \quad \hat x = x / |x|

    with b_(k) the k-th nearest of the training features; all of them count if there are fewer than k. Training features
    are kept in float32, or in float64 if they came in it, and that is how neighbours are told apart.

    >>> KNN(k=2).fit(torch.tensor([[1.0, 0.0], [0.0, 3.0]])).score(torch.tensor([[5.0, 0.0]]))
    tensor([1.4142])
    """

    tensors = ("bank",)
    dtype = torch.float32

    def __init__(self, k: int = 50) -> None:
        k = _whole("KNN", "k", k)
        if k < 1:
            raise UserError(f"KNN needs at least one neighbour, got k={k}.")
        super().__init__(k=k)
        self.k = k

    def _fit(self, features: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        return {"bank": normalize(at_least_float32(features), dim=1)}

    def _score(self, x: Tensor) -> Tensor:
        bank, x = self.fitted["bank"], normalize(x, dim=1)
        nearest = (x.to(bank) @ bank.T).topk(min(self.k, len(bank)), dim=1).indices[:, -1]
        return _norm(x - bank[nearest])  # sqrt(2 - 2 cos) loses its digits where neighbours are close


class Mahalanobis(Detector):
    r"""Squared Mahalanobis distance to the training features (Lee et al., NeurIPS 2018).

    .. math:: \min_c \; (x - \mu_c)^\top \Sigma^{-1} (x - \mu_c)

    with one mean and the covariance around it; or, class-conditional, each class's mean and the covariance around the
    mean of the own class. The covariance S divides by N, and a ridge that is relative to its mean variance keeps it
    invertible:

    .. math:: \Sigma = S + r\,\frac{\mathrm{tr}\,S}{D}\,I

    Along a principal direction of variance v, squared distances are v / (v + r tr(S) / D) of what they are without it:
    with the default r, smaller by one part in a million where v is the mean variance, by more where v is less.

    Args:
        class_conditional: a mean for each class.
        ridge: r. 0 is the plain distance, if there are enough images for S to be invertible.
        unit: on the features' directions x / \|x\|. An encoder that gives the unfamiliar short features puts them near
            the mean, where distances in raw features call them typical (Sehwag et al., "SSD", ICLR 2021).

    >>> x = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # variances 2 and 1/2
    >>> Mahalanobis().fit(x).score(torch.tensor([[4.0, 0.0], [0.0, 4.0]])).round()
    tensor([ 8., 32.])
    """

    tensors = ("centre", "whitening", "means")

    def __init__(self, class_conditional: bool = False, ridge: float = 1e-6, unit: bool = False) -> None:
        if not 0 <= ridge < np.inf:
            raise UserError(f"Mahalanobis needs a ridge of 0 or more (1e-6 is usual), got {ridge}.")
        super().__init__(class_conditional=class_conditional, ridge=ridge, unit=unit)
        self.class_conditional, self.ridge, self.unit = class_conditional, ridge, unit

    def _fit(self, features: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        features = normalize(at_least_float32(features), dim=1) if self.unit else features
        group = torch.zeros(len(features), dtype=torch.int64, device=features.device)
        if self.class_conditional:
            if labels is None:
                raise UserError("Mahalanobis(class_conditional=True) needs labels: call fit(features, labels).")
            group = labels.unique(return_inverse=True)[1]
        classes = int(group.max()) + 1
        sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
        for rows in blocks(features, classes):
            sums += one_hot(group[rows], classes).double().T @ features[rows].double()
        centre, means = sums.sum(0) / len(features), sums / group.bincount()[:, None]
        covariance = second_moment(features, means, group)
        variance = covariance.diagonal().mean()
        if not variance > 0:
            raise UserError("Mahalanobis cannot be fitted: the training features do not vary.")
        covariance.diagonal().add_(self.ridge * variance)
        identity = torch.eye(len(covariance), dtype=torch.float64, device=features.device)
        root, failed = torch.linalg.cholesky_ex(covariance)
        if int(failed):
            raise UserError(
                f"Mahalanobis(ridge={self.ridge:g}) cannot be fitted: the training features do not vary in every "
                f"direction ({len(features)} rows of {features.shape[1]}). Give a larger ridge; 1e-6 is usual."
            )
        whitening = torch.linalg.solve_triangular(root, identity, upper=False)
        return {"centre": centre, "whitening": whitening, "means": (means - centre) @ whitening.T}

    def _score(self, x: Tensor) -> Tensor:
        x = normalize(x, dim=1) if self.unit else x
        white = (x - self.fitted["centre"]) @ self.fitted["whitening"].T  # where Sigma is the identity
        return torch.cdist(white, self.fitted["means"]).square().amin(1)


class FeatureNorm(Detector):
    r"""Minus the norm of the features: networks tend to answer the unfamiliar with short ones.

    .. math:: -|x|

    >>> FeatureNorm().fit(torch.ones(1, 2)).score(torch.tensor([[3.0, 4.0]]))
    tensor([-5.])
    """

    def _fit(self, features: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        return {}

    def _score(self, x: Tensor) -> Tensor:
        return -_norm(x)


class LogitDetector(Detector):
    """What the detectors on a linear classifier's logits share: the classifier.

    Args:
        classifier: to use as it is, on one set of features for several detectors; without one, ``fit`` needs labels
            and fits its own.
    """

    tensors: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __init__(self, classifier: LinearClassifier | None = None, **settings: float | None) -> None:
        given = (getattr(classifier, name, None) for name in ("weight", "bias"))
        if classifier is not None and not all(isinstance(x, Tensor) for x in given):
            raise UserError(
                f"the classifier of {type(self).__name__} must have a weight [C, D] and a bias [C], as "
                f"LinearClassifier has, got {type(classifier).__name__}."
            )
        super().__init__(**settings)
        self.classifier = classifier

    def _fit(self, features: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        name, classifier = type(self).__name__, self.classifier
        if classifier is None:
            if labels is None:
                raise UserError(f"{name} needs labels to fit its classifier: call fit(features, labels), or give one.")
            classifier = fit_linear(features, labels)
        if classifier.weight.shape[1] != features.shape[1]:
            raise UserError(
                f"{name} was given a classifier of {classifier.weight.shape[1]} dimensions and features of "
                f"{features.shape[1]}: use those of the same encoder."
            )
        weight, bias = (x.detach().to(features.device, torch.float64) for x in (classifier.weight, classifier.bias))
        return {"weight": weight, "bias": bias}

    def _energy(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        return -temperature * (self._logits(x) / temperature).logsumexp(1)

    def _logits(self, x: Tensor) -> Tensor:
        return LinearClassifier(self.fitted["weight"], self.fitted["bias"]).logits(x)


class MSP(LogitDetector):
    r"""One minus the maximum softmax probability (Hendrycks and Gimpel, ICLR 2017).

    .. math:: 1 - \max_c \mathrm{softmax}(W x + b)_c

    >>> classifier = LinearClassifier(torch.eye(2), torch.zeros(2))
    >>> MSP(classifier).fit(torch.ones(1, 2)).score(torch.tensor([[5.0, 5.0]]))
    tensor([0.5000])
    """

    def _score(self, x: Tensor) -> Tensor:
        return -torch.expm1(self._logits(x).log_softmax(1).amax(1))  # 1 - p keeps its digits where p is nearly 1


class Energy(LogitDetector):
    r"""Free energy of the logits (Liu et al., "Energy-based out-of-distribution detection", NeurIPS 2020).

    .. math:: -T \log \sum_c \exp\bigl((W x + b)_c / T\bigr)

    >>> classifier = LinearClassifier(torch.eye(2), torch.zeros(2))
    >>> Energy(classifier=classifier).fit(torch.ones(1, 2)).score(torch.tensor([[5.0, 5.0]]))  # -(5 + log 2)
    tensor([-5.6931])
    """

    def __init__(self, temperature: float = 1.0, classifier: LinearClassifier | None = None) -> None:
        temperature = _number("Energy", "temperature", temperature)
        if not temperature > 0:
            raise UserError(f"Energy needs a positive temperature, got {temperature}.")
        super().__init__(classifier, temperature=temperature)
        self.temperature = temperature

    def _score(self, x: Tensor) -> Tensor:
        return self._energy(x, self.temperature)


class ReAct(LogitDetector):
    r"""Energy of features that are clipped from above (Sun et al., "ReAct", NeurIPS 2021).

    .. math:: -\log \sum_c \exp\bigl((W \min(x, \tau) + b)_c\bigr)

    with tau the given percentile of all entries of the training features.

    >>> classifier = LinearClassifier(torch.eye(2), torch.zeros(2))
    >>> ReAct(50, classifier).fit(torch.tensor([[1.0, 3.0]])).score(torch.tensor([[5.0, 9.0]]))  # -(2 + log 2)
    tensor([-2.6931])
    """

    tensors = ("weight", "bias", "threshold")

    def __init__(self, percentile: float = 90.0, classifier: LinearClassifier | None = None) -> None:
        percentile = _number("ReAct", "percentile", percentile)
        if not 0 <= percentile <= 100:
            raise UserError(f"ReAct needs a percentile from 0 to 100, got {percentile}.")
        super().__init__(classifier, percentile=percentile)
        self.percentile = percentile

    def _fit(self, features: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        threshold = np.percentile(at_least_float32(features).cpu().numpy(), self.percentile)
        found = super()._fit(features, labels)
        return found | {"threshold": torch.tensor(float(threshold), dtype=self.dtype, device=features.device)}

    def _score(self, x: Tensor) -> Tensor:
        return self._energy(x.minimum(self.fitted["threshold"]))


class ViM(LogitDetector):
    r"""Energy against a virtual logit, the features' part outside the principal subspace (Wang et al., CVPR 2022).

    .. math:: \alpha\,|R^\top (x - o)| - \log \sum_c \exp\bigl((W x + b)_c\bigr), \quad o = -W^+ b

    with R the D - ``dim`` least directions of the training features around o, and alpha such that over them the
    virtual logit has the mean of the largest real one.

    Args:
        dim: of the principal subspace; by default D // 2 for D < 1000, 512 for D < 1500, 1000 beyond.
        classifier: see :class:`LogitDetector`.

    >>> classifier = LinearClassifier(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.zeros(2))
    >>> detector = ViM(1, classifier).fit(torch.tensor([[4.0, 1.0], [-4.0, 1.0]]))  # R is the second axis, alpha 4
    >>> detector.score(torch.tensor([[0.0, 2.0]]))  # 8 - log 2
    tensor([7.3069])
    """

    tensors = ("weight", "bias", "origin", "residual", "alpha")

    def __init__(self, dim: int | None = None, classifier: LinearClassifier | None = None) -> None:
        dim = None if dim is None else _whole("ViM", "dim", dim)
        super().__init__(classifier, dim=dim)
        self.dim = dim

    def _fit(self, features: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        width = features.shape[1]
        dim = self.dim
        if dim is None:
            dim = width // 2 if width < 1000 else 512 if width < 1500 else 1000
        if not 0 <= dim < width:
            raise UserError(f"ViM needs a subspace of fewer dimensions than the features' {width}, got dim={dim}.")
        found = super()._fit(features, labels)
        classifier = LinearClassifier(**found)
        origin = _origin(classifier)
        moment = second_moment(features, origin[None], torch.zeros_like(features[:, 0], dtype=torch.int64))
        if not moment.trace() > 0:
            raise UserError("ViM cannot be fitted: the training features do not vary.")
        residual = torch.linalg.eigh(moment).eigenvectors[:, : width - dim]  # ascending: the least come first
        floor = 1e-12 * moment.trace().sqrt()  # where training features have no residual
        virtual, largest = floor * len(features), torch.zeros_like(floor)
        for rows in blocks(features, len(classifier.bias)):
            x = features[rows].double()
            virtual += _norm((x - origin) @ residual).sum()
            largest += classifier.logits(x).amax(1).sum()
        return found | {"origin": origin, "residual": residual.contiguous(), "alpha": largest / virtual}

    def _score(self, x: Tensor) -> Tensor:
        virtual = _norm((x - self.fitted["origin"]) @ self.fitted["residual"])
        return self.fitted["alpha"] * virtual + self._energy(x)


DETECTORS: dict[str, type[Detector]] = {
    kind.__name__: kind for kind in (KNN, Mahalanobis, FeatureNorm, MSP, Energy, ReAct, ViM)
}
"""Every detector by the name of its class."""


def _whole(detector: str, name: str, value: Any) -> int:
    """A whole number, also numpy's and torch's."""
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{detector}'s {name} is a whole number, got {value!r}.") from None


def _number(detector: str, name: str, value: Any) -> float:
    """A number, also numpy's and torch's; a classifier in its place is refused, as it comes after it."""
    try:
        return float(value)
    except TypeError:
        words = f"{detector}'s {name} is a number, got {type(value).__name__}; a classifier is classifier=..."
        raise UserError(words) from None


def _origin(classifier: LinearClassifier) -> Tensor:
    """Where the logits are all the same: the point nearest to zero that the classifier knows nothing of.

    Softmax does not see what the logits of all classes have in common, and a penalty takes it to zero but for rounding,
    which must not be inverted: where it is that small, only the differences of classes count.
    """
    weight, bias = classifier.weight, classifier.bias
    if weight.mean(0).norm() * len(weight) ** 0.5 <= 1e-4 * torch.linalg.matrix_norm(weight, 2):
        identity = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
        contrasts = torch.linalg.eigh(identity - 1 / len(weight)).eigenvectors[:, 1:].T  # [C - 1, C], each sums to zero
        weight, bias = contrasts @ weight, contrasts @ bias
    origin: Tensor = -torch.linalg.pinv(weight) @ bias
    return origin


def _norm(x: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, dim=1)
    return length
