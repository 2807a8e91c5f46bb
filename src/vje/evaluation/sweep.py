"""Linear classifiers trained together: the same features and mini-batches, a learning rate for each."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

CONSTANT = 1e-6
"""A feature whose standard deviation is under this share of its mean is rounding noise, and is not scaled up."""
_CHUNK = 2**25
"""Logits held in memory at a time."""
_ROWS = 1024
"""Features brought to float64 at a time."""


class LinearSweep:
    r"""R linear classifiers of the same features, each with a learning rate of its own, trained as one.

    Cross-entropy of softmax(W x' + b) with x' = (x - mean) / std, plus :math:`\frac\lambda2 |W|^2`, by SGD with
    momentum from zero weights; the rates follow one cosine to zero. All logits of a mini-batch are one matrix product.

    Args:
        dim: of the features, D.
        classes: C.
        rates: learning rates, R of them.
        steps: of the whole training.
        momentum: of SGD.
        weight_decay: lambda; biases have none.
        mean: of each feature ``[D]``; absent, features are taken as they are.
        std: of each feature ``[D]``.
        device: where to compute.
        dtype: in which.

    Attributes:
        weight: W of each, ``[R, C, D]``.
        bias: b of each, ``[R, C]``.

    >>> sweep = LinearSweep(1, 2, [0.1, 1.0], steps=50)
    >>> for _ in range(50):
    ...     sweep.step(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]))
    >>> sweep.accuracy(torch.tensor([[-2.0], [0.5]]), torch.tensor([0, 1])).tolist()
    [100.0, 100.0]
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        rates: Sequence[float],
        steps: int,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        mean: Tensor | None = None,
        std: Tensor | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        self.weight = torch.zeros(len(rates), classes, dim, device=device, dtype=dtype)
        self.bias = torch.zeros(len(rates), classes, device=device, dtype=dtype)
        self._velocity = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        self._rates = torch.tensor(rates, device=device, dtype=dtype)
        self._schedule = 0.5 * (1 + torch.cos(torch.linspace(0, torch.pi, steps + 1)[:-1])).to(self.weight)
        self._mean = None if mean is None else mean.to(self.weight)
        self._std = None if std is None else std.to(self.weight)
        self._done = 0

    @torch.no_grad()
    def step(self, x: Tensor, labels: Tensor, share: Tensor | None = None) -> None:
        """Learn from a mini-batch. Nothing waits for the device.

        Args:
            x: features ``[B, D]``.
            labels: classes ``[B]``, 0 to C - 1.
            share: whether each classifier learns from each image, 0 or 1, ``[B, R]``; absent, all from all. Each
                takes the mean over its own images.
        """
        x = self._standardized(x)
        error = self._logits(x).softmax(2)  # [B, R, C]: probabilities less the truth, the gradient by the logits
        truth = labels.view(-1, 1, 1).expand(-1, len(self.weight), 1)
        error.scatter_add_(2, truth, torch.full_like(error[..., :1], -1))
        error *= 1 / len(x) if share is None else (share / share.sum(0).clamp_min(1)).unsqueeze(2)
        by_weight = (error.flatten(1).T @ x).view_as(self.weight)
        if self.weight_decay:
            by_weight.add_(self.weight, alpha=self.weight_decay)
        rates = (-self._rates * self._schedule[self._done]).view(-1, 1)
        self.weight.addcmul_(self._velocity[0].mul_(self.momentum).add_(by_weight), rates.unsqueeze(2))
        self.bias.addcmul_(self._velocity[1].mul_(self.momentum).add_(error.sum(0)), rates)
        self._done += 1

    @torch.no_grad()
    def accuracy(self, x: Tensor, labels: Tensor, k: int = 1) -> Tensor:
        """Percentage of rows whose class is among the k likeliest, for each classifier: float64 ``[R]``.

        Args:
            x: features ``[N, D]``, on any device.
            labels: classes ``[N]``; a class that was not trained on, such as -1, is never among them.
            k: how many guesses.
        """
        hits = torch.zeros(len(self.weight), dtype=torch.int64, device=self.weight.device)
        for rows, logits in self._chunks(x):
            truth = labels[rows].to(logits.device).view(-1, 1, 1)
            found = (logits.topk(k, dim=2).indices == truth).any(2)
            hits += (found & logits.isfinite().all(2)).sum(0)  # one that diverged knows nothing
        return 100 * hits.cpu().double() / len(x)

    @torch.no_grad()
    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of each classifier on features ``[N, D]`` of known classes: float64 ``[R]``."""
        total = torch.zeros_like(self.bias[:, 0])
        for rows, logits in self._chunks(x):
            truth = labels[rows].to(logits.device).view(-1, 1, 1).expand(-1, len(total), 1)
            total -= logits.log_softmax(2).gather(2, truth).sum((0, 2))
        return total.cpu().double() / len(x)

    def _chunks(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        rows = max(1, _CHUNK // self.bias.numel())
        for start in range(0, len(x), rows):
            chunk = slice(start, start + rows)
            yield chunk, self._logits(self._standardized(x[chunk].to(self.weight)))

    def _standardized(self, x: Tensor) -> Tensor:
        return x if self._mean is None or self._std is None else (x - self._mean) / self._std

    def _logits(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias.flatten(), x, self.weight.flatten(0, 1).T).view(-1, *self.bias.shape)


def scale_of(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation ``[D]`` of features ``[N, D]``, in float64; the latter 1 for those that do not vary.

    >>> scale_of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    (tensor([2., 5.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """
    precision = torch.float32 if features.device.type == "mps" else torch.float64  # which mps has not
    mean, squares = torch.zeros(2, features.shape[1], dtype=precision, device=features.device)
    for x in features.split(_ROWS):
        mean += x.to(precision).sum(0) / len(features)
    for x in features.split(_ROWS):
        squares += (x.to(precision) - mean).square().sum(0) / len(features)
    std = squares.sqrt()
    return mean, torch.where(std > CONSTANT * mean.abs(), std, 1.0)
