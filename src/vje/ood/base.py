"""What detectors on features share: the contract, saving and loading, and work in chunks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vje.errors import UserError
from vje.runs import write_atomically

FORMAT = "vje-detector"
SETTING = "setting."

CHUNK = 2**25
"""Numbers that an intermediate result may hold; this and BLOCK set how many rows are worked on at a time."""

BLOCK = 2**19
"""Numbers of the features that are brought to float64 at a time: 4 MiB, faster on a CPU than larger blocks."""

Numbers = Tensor | NDArray[Any] | Sequence[Any]
"""What features and labels may be given as: a tensor, an array, or a list of numbers or rows."""


class Detector(ABC):
    """A score learnt from features of in-distribution images; see :mod:`vje.ood.detectors`.

    Attributes:
        settings: the constructor's numbers, by name; None stands for a choice that is made when fitting.
        fitted: what fitting found, by name; empty before. ``width`` is D.
        tensors: the names in ``fitted``, apart from ``width``.
        dtype: in which chunks are scored, apart from those of float64 features, which stay what they are.

    A new one says what it learns and how it scores a chunk:

    >>> class Loudness(Detector):
    ...     tensors = ("mean",)
    ...     def _fit(self, features, labels):
    ...         return {"mean": features.double().mean(0)}
    ...     def _score(self, x):
    ...         return (x - self.fitted["mean"]).abs().sum(1)
    >>> Loudness().fit(torch.eye(2)).score(torch.tensor([[0.5, 0.5], [3.0, 0.0]]))
    tensor([0., 3.])
    """

    tensors: ClassVar[tuple[str, ...]] = ()
    dtype: ClassVar[torch.dtype] = torch.float64

    def __init__(self, **settings: float | None) -> None:
        self.settings = settings
        self.fitted: dict[str, Tensor] = {}

    @torch.no_grad()
    def fit(self, features: Numbers, labels: Numbers | None = None) -> Self:
        """Learn what is in-distribution.

        Args:
            features: of training images, shape ``[N, D]``, a tensor, an array or a list of rows; a tensor's device
                becomes the detector's.
            labels: class numbers ``[N]``, for the detectors that need them.
        """
        name = type(self).__name__
        features = as_features(features, name)
        labels = None if labels is None else as_labels(labels, name).to(features.device)
        check_features(features, labels, name)
        found = self._fit(features, labels)
        self.fitted = {"width": torch.tensor(features.shape[1]), **found}
        return self

    @torch.no_grad()
    def score(self, features: Numbers) -> Tensor:
        """Scores of features ``[N, D]``, a tensor, an array or a list of rows: larger for more out-of-distribution.

        They are a tensor ``[N]`` on the features' device: float64 for float64 features, float32 for all others. A list
        of Python's numbers counts as float32, as everywhere in torch.
        """
        self._require_fitted()
        features, width = as_features(features, type(self).__name__), int(self.fitted["width"])
        if features.dim() != 2 or features.shape[1] != width:
            raise UserError(
                f"this {type(self).__name__} was fitted on features of {width} dimensions, and was given features of "
                f"shape {list(features.shape)}: use those of the same encoder."
            )
        device = next((self.fitted[name].device for name in self.tensors), features.device)
        largest = max(size for x in self.fitted.values() for size in (1, *x.shape))
        precision = torch.float64 if features.dtype == torch.float64 else torch.float32
        scores = torch.empty(len(features), dtype=precision, device=features.device)
        for rows in blocks(features, largest):
            x = features[rows].to(device, torch.promote_types(precision, self.dtype))
            scores[rows] = self._score(x).to(scores)
        return scores

    @abstractmethod
    def _fit(self, features: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """The tensors named by the class."""

    @abstractmethod
    def _score(self, x: Tensor) -> Tensor:
        """Scores ``[rows]`` of one chunk ``[rows, D]``, which has the class's dtype, or float64."""

    def _require_fitted(self) -> None:
        if not self.fitted:
            name = type(self).__name__
            raise UserError(f"this {name} has not been fitted: call fit with training features, or load one that was.")

    def state(self) -> dict[str, Tensor]:
        """Everything that :meth:`from_state` needs, as tensors."""
        self._require_fitted()
        settings = {name: value for name, value in self.settings.items() if value is not None}
        return {SETTING + name: torch.from_numpy(np.asarray(x)) for name, x in settings.items()} | self.fitted

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Self:
        """The detector whose :meth:`state` this is."""
        settings = {name.removeprefix(SETTING): x.item() for name, x in state.items() if name.startswith(SETTING)}
        fitted = {name: x for name, x in state.items() if not name.startswith(SETTING)}
        wrong = ({"width", *cls.tensors} ^ fitted.keys()) | (settings.keys() - cls().settings.keys())
        if wrong:
            raise UserError(f"not the state of a {cls.__name__}: missing or unknown are {', '.join(sorted(wrong))}.")
        detector = cls(**settings)
        detector.fitted = fitted
        return detector

    def save(self, path: str | Path) -> None:
        """Write the detector to a safetensors file."""
        state = {name: x.detach().cpu().contiguous() for name, x in self.state().items()}
        metadata = {"format": FORMAT, "detector": type(self).__name__}
        write_atomically(Path(path), save(state, metadata=metadata))

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> Self:
        """Read what :meth:`save` wrote; ``Detector.load`` takes any class, another class only its own kind."""
        from vje.ood.detectors import DETECTORS

        try:
            with safe_open(path, framework="pt") as content:
                metadata = content.metadata() or {}
                state = {name: content.get_tensor(name).to(device) for name in content.keys()}
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} cannot be read as a detector: missing, cut short or foreign ({error}).") from None
        kind = DETECTORS.get(metadata.get("detector", "")) if metadata.get("format") == FORMAT else None
        if kind is None:
            raise UserError(f"{path} is not a detector that this version knows ({', '.join(DETECTORS)}).")
        if not issubclass(kind, cls):
            raise UserError(f"{path} holds a {kind.__name__}, not a {cls.__name__}: use {kind.__name__}.load.")
        return kind.from_state(state)


def blocks(features: Tensor, width: int = 1) -> Iterator[slice]:
    """Ranges of rows of BLOCK numbers, or fewer where there will be ``width`` numbers for each row.

    >>> list(blocks(torch.zeros(5, 2), width=2**24))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    rows = max(1, min(CHUNK // width, BLOCK // max(1, features.shape[1])))
    return (slice(start, start + rows) for start in range(0, len(features), rows))


def as_features(values: Numbers, user: str) -> Tensor:
    """Features as a tensor, in the precision that they have; whole numbers become float32.

    >>> as_features([[1, 2]], "KNN"), as_features(np.zeros((1, 2)), "KNN").dtype
    (tensor([[1., 2.]]), torch.float64)
    """
    features = _as_tensor(values, "features", user)
    if features.is_complex():
        raise UserError(f"{user} needs features that are real numbers, got {features.dtype}.")
    return features if features.is_floating_point() else features.float()


def as_labels(values: Numbers, user: str) -> Tensor:
    """Class numbers as an int64 tensor.

    >>> as_labels([0, 2.5], "MSP")
    Traceback (most recent call last):
    vje.errors.UserError: MSP needs labels that are whole numbers, one a class: 0, 1, 2, ...
    """
    labels = _as_tensor(values, "labels", user)
    if labels.is_complex() or (labels.is_floating_point() and not bool((labels % 1 == 0).all())):
        raise UserError(f"{user} needs labels that are whole numbers, one a class: 0, 1, 2, ...")
    return labels.long()


def _as_tensor(values: Numbers, what: str, user: str) -> Tensor:
    """A tensor, sharing the memory of an array where it can."""
    try:
        if isinstance(values, list | tuple):
            if any(isinstance(row, Tensor) for row in values):
                return torch.stack([torch.as_tensor(row) for row in values])
            if not any(isinstance(row, np.ndarray) for row in values):
                return torch.as_tensor(values)
        if not isinstance(values, Tensor):
            array = np.asarray(values)
            values = torch.as_tensor(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
        return values
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = (str(error).splitlines() or [""])[0][:200].rstrip(".")
        raise UserError(
            f"{user} cannot use these {what}: give numbers in a tensor, an array or a list of rows of one length "
            f"({reason})."
        ) from None


def check_features(features: Tensor, labels: Tensor | None, user: str) -> None:
    """Say what is wrong with features ``[N, D]`` and labels ``[N]`` that ``user`` is to be fitted on.

    >>> check_features(torch.eye(3), torch.tensor([0, 1]), "KNN")
    Traceback (most recent call last):
    vje.errors.UserError: KNN needs one label a row of features: 3 rows, but labels of shape [2].
    """
    if features.dim() != 2 or not features.numel():
        raise UserError(f"{user} needs features of shape [N, D], one row an image, got {list(features.shape)}.")
    broken = sum(int((~features[rows].isfinite()).any(1).sum()) for rows in blocks(features))
    if broken:
        raise UserError(
            f"{broken} of the {len(features)} rows of features that {user} was to be fitted on have NaN or infinite "
            "values: leave them out."
        )
    if labels is not None and labels.shape != features.shape[:1]:
        raise UserError(
            f"{user} needs one label a row of features: {len(features)} rows, but labels of shape {list(labels.shape)}."
        )


def second_moment(features: Tensor, centres: Tensor, group: Tensor) -> Tensor:
    """Mean of (x - c)(x - c)' with c each row's centre, ``centres[group]``; float64 ``[D, D]``.

    Args:
        features: shape ``[N, D]``.
        centres: shape ``[C, D]``.
        group: int64 ``[N]``, from 0 to C - 1.

    >>> second_moment(torch.tensor([[3.0, 1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([0, 0]))
    tensor([[2., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    total = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64, device=features.device)
    for rows in blocks(features):
        x = features[rows].double() - centres[group[rows]]
        total.addmm_(x.T, x, alpha=1 / len(features))
    return total
