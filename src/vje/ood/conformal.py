r"""Split-conformal p-values: how rare a score is among held-out images, with a guarantee and no distribution assumed.

Larger scores mean more out-of-distribution, as everywhere in :mod:`vje.ood`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from vje.errors import UserError
from vje.runs import write_atomically

FORMAT = "vje-calibration"
CALIBRATE_AGAIN = "calibrate again with `vje calibrate RUN`, or delete the file to score without p-values."


def p_values(calibration: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    r"""Split-conformal p-values of scores.

    .. math:: p(s) = \frac{1 + \#\{i : c_i \ge s\}}{n + 1}

    If a score is exchangeable with the calibration scores (the same kind of image, none of them trained on), then
    P(p <= alpha) <= alpha for every alpha. The guarantee is marginal: over the draw of calibration images and new
    image together, not for one calibration set or one kind of image. No p-value is under 1 / (n + 1).

    Args:
        calibration: scores of held-out images, ``[n]``, in any order.
        scores: any shape; infinities are compared like other numbers.

    Returns:
        The p-values, in the shape of ``scores``.

    Raises:
        UserError: there are no calibration scores, or NaN among either.

    >>> p_values([1.0, 2.0, 2.0, 3.0], [0.0, 2.0, 2.5, np.inf])
    array([1. , 0.8, 0.4, 0.2])
    """
    ordered = sorted_scores(calibration)
    new = _numbers(scores, "scores")
    at_least = len(ordered) - np.searchsorted(ordered, new, side="left")
    p: NDArray[np.float64] = (1 + at_least) / (len(ordered) + 1)
    return p


def outliers(p: ArrayLike, alpha: float) -> NDArray[np.bool_]:
    """Which p-values are outliers at a false-alarm rate: ``p <= alpha``.

    >>> outliers([0.2, 0.05, 0.01], 0.05)
    array([False,  True,  True])
    """
    check_alpha(alpha)
    return np.asarray(_numbers(p, "p-values") <= alpha)


def threshold(calibration: ArrayLike, alpha: float) -> float:
    """The score above which an image is an outlier: ``score > threshold`` says the same as ``p <= alpha``.

    Args:
        calibration: scores of held-out images, ``[n]``, in any order.
        alpha: false-alarm rate.

    Returns:
        One of the calibration scores, or infinity where ``alpha < 1 / (n + 1)`` and no score can be an outlier.

    >>> threshold(range(1, 100), 0.05), threshold(range(1, 100), 0.001)
    (95.0, inf)
    """
    check_alpha(alpha)
    ordered = sorted_scores(calibration)
    n = len(ordered)
    rank = int(alpha * (n + 1))  # the largest with rank / (n + 1) <= alpha, once rounding is put right
    rank += (rank + 1) / (n + 1) <= alpha
    rank -= rank / (n + 1) > alpha
    return float(ordered[n - rank]) if rank else float("inf")


@dataclass(frozen=True)
class Calibration:
    """Scores of held-out images, and what they belong to.

    Attributes:
        scores: ascending, float64 ``[n]``; larger means more out-of-distribution.
        score: the name of the score.
        data: the name of the images.
        fingerprint: of the images; empty if unknown.
        weights: fingerprint of the model.
        views: of each image, over which its score is the mean.
    """

    scores: NDArray[np.float64]
    score: str
    data: str
    fingerprint: str
    weights: str
    views: str = "one"

    @property
    def resolution(self) -> float:
        """The smallest p-value there can be, 1 / (n + 1); nothing is an outlier at an alpha below it."""
        return 1 / (len(self.scores) + 1)

    def save(self, file: Path) -> None:
        """Write to a safetensors file, whole or not at all."""
        about = {name: value for name, value in vars(self).items() if name != "scores"} | {"n": len(self.scores)}
        metadata = {"format": FORMAT, "calibration": json.dumps(about)}
        write_atomically(file, save({"scores": self.scores}, metadata))

    @classmethod
    def read(cls, file: Path) -> "Calibration":
        """The calibration in a file that :meth:`save` wrote."""
        try:
            with safe_open(file, framework="numpy") as content:
                about = json.loads((content.metadata() or {})["calibration"])
                scores = sorted_scores(content.get_tensor("scores"))
            known = {name: str(about[name]) for name in ("score", "data", "fingerprint", "weights")}
            return cls(scores, **known, views=str(about.get("views", "one")))
        except (SafetensorError, OSError, LookupError, ValueError) as error:
            raise UserError(f"{file} cannot be read as a calibration ({error}): {CALIBRATE_AGAIN}") from None


def sorted_scores(calibration: ArrayLike) -> NDArray[np.float64]:
    """Calibration scores in ascending order, checked."""
    ordered = np.sort(_numbers(calibration, "calibration scores"))
    if ordered.ndim != 1 or not len(ordered):
        raise UserError(f"calibration needs one score an image and at least one image, got shape {ordered.shape}")
    return ordered


def check_alpha(alpha: float) -> None:
    """Refuse what is no false-alarm rate."""
    if not 0 < alpha < 1:
        raise UserError(f"alpha, the false-alarm rate, must be between 0 and 1, got {alpha}")


def _numbers(values: ArrayLike, what: str) -> NDArray[np.float64]:
    if hasattr(values, "detach"):  # a tensor of any precision and device
        values = values.detach().double().cpu().numpy()
    array = np.asarray(values, dtype=np.float64)
    missing = int(np.isnan(array).sum())
    if missing:
        raise UserError(f"{missing} of {array.size} {what} are NaN and cannot be ranked; find out why, or drop them")
    return array
