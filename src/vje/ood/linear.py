"""A linear classifier on frozen features: what the detectors on logits stand on.

It is fitted to convergence, or warns, by a deterministic method, so that equal features give equal scores. The linear
probe of the evaluation protocol is another thing, trained with SGD.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from vje.errors import UserError
from vje.evaluation.sweep import scale_of
from vje.ood.base import Numbers, as_features, as_labels, blocks, check_features, second_moment
from vje.warn import warn

AS_IT_IS = 100
"""Iterations without a change of variables: enough where classes are easy to tell apart, and a start elsewhere."""


@dataclass(frozen=True)
class LinearClassifier:
    """Logits of features: :math:`W x + b`.

    >>> classifier = LinearClassifier(torch.eye(2), torch.tensor([0.0, 1.0]))
    >>> classifier.logits(torch.tensor([[3.0, 5.0]]))
    tensor([[3., 6.]])
    """

    weight: Tensor  # W, shape ``[C, D]``
    bias: Tensor  # b, shape ``[C]``

    def __post_init__(self) -> None:
        if self.weight.dim() != 2 or self.bias.shape != self.weight.shape[:1]:
            raise UserError(
                "a linear classifier has a weight of shape [C, D] and a bias of shape [C], "
                f"got {list(self.weight.shape)} and {list(self.bias.shape)}."
            )

    def logits(self, features: Tensor) -> Tensor:
        """Logits ``[N, C]`` of features ``[N, D]``, in the weight's precision and on its device."""
        return linear(features.to(self.weight), self.weight, self.bias)


def fit_linear(
    features: Numbers, labels: Numbers, weight_decay: float = 1e-4, max_iterations: int = 500
) -> LinearClassifier:
    r"""Multinomial logistic regression, by full-batch L-BFGS in float64.

    .. math:: \min_{V, c} \; -\frac1N \sum_i \log \mathrm{softmax}(V \tilde x_i + c)_{y_i} + \frac\lambda2 |V|^2,
        \quad \tilde x = (x - m) / s

    with m and s the mean and standard deviation of each feature, so that the penalty treats features alike; the
    answer is in terms of x: W = V / s and b = c - W m. scikit-learn calls 1 / (lambda N) C.

    Args:
        features: shape ``[N, D]``, a tensor on any device, an array or a list of rows; chunks of it are brought to
            float64, never the whole.
        labels: class numbers, integers ``[N]``. The rows of the weight are the classes that occur, in order.
        weight_decay: lambda.
        max_iterations: of L-BFGS, which usually stops sooner by itself.

    Returns:
        The classifier, in float64 on the features' device.

    >>> x, y = torch.tensor([[0.0, 1.0], [1.0, 1.0], [4.0, 1.0], [5.0, 1.0]]), torch.tensor([3, 3, 7, 7])
    >>> fit_linear(x, y).logits(torch.tensor([[0.5, 1.0], [4.5, 1.0]])).argmax(1)
    tensor([0, 1])
    """
    name = "the linear classifier"
    features = as_features(features, name)
    labels = as_labels(labels, name).to(features.device)
    check_features(features, labels, name)
    classes, targets = labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise UserError(f"the linear classifier needs at least two classes, got only class {int(classes[0])}.")
    if not weight_decay > 0:
        raise UserError(
            f"weight_decay must be positive (1e-4 is usual) for there to be an optimum, got {weight_decay}."
        )
    mean, std = scale_of(features)
    features, (count, dim) = features.detach(), features.shape
    weight = torch.zeros(len(classes), dim, dtype=torch.float64, device=features.device)  # V
    bias = torch.zeros(len(classes), dtype=torch.float64, device=features.device)  # c

    def slopes() -> tuple[Tensor, Tensor, Tensor]:
        """The objective, and its gradients by V and c."""
        folded = fold(weight, bias, mean, std)
        loss = torch.zeros((), dtype=torch.float64, device=features.device)
        by_weight, by_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        for rows in blocks(features, len(classes)):
            x, y = features[rows].double(), targets[rows, None]
            log_p = folded.logits(x).log_softmax(1)
            loss -= log_p.gather(1, y).sum()
            error = log_p.exp_()  # [rows, C]: probabilities less the truth, the gradient by the logits
            error.scatter_add_(1, y, torch.full_like(error[:, :1], -1))
            by_weight += error.T @ x
            by_bias += error.sum(0)
        slope = (by_weight - by_bias[:, None] * mean) / std / count + weight_decay * weight
        return loss / count + weight_decay / 2 * weight.square().sum(), slope, by_bias / count

    first = min(AS_IT_IS, max_iterations)
    done = _descend(slopes, weight, bias, None, first)
    if done == first < max_iterations:  # not there yet
        done += _descend(slopes, weight, bias, _round_off(features, mean, std, weight_decay), max_iterations - first)
    left = float(slopes()[1].abs().max())
    if left > 1e-5:
        warn(
            f"the linear classifier has not converged after {done} iterations (largest slope {left:.1g}), so scores "
            "that stand on it may depend on the order of the images; fit_linear(..., max_iterations=...) takes more, "
            "and detectors take what it gives as classifier=..."
        )
    return fold(weight, bias, mean, std)


def _descend(
    slopes: Callable[[], tuple[Tensor, Tensor, Tensor]],
    weight: Tensor,
    bias: Tensor,
    round_off: Tensor | None,
    iterations: int,
) -> int:
    """Move ``weight`` and ``bias`` in place to where the slopes vanish; returns the iterations that this took.

    Args:
        slopes: the objective and its gradients, as they are now.
        weight: V, ``[C, D]``.
        bias: c, ``[C]``.
        round_off: symmetric ``[D, D]``; the steps are taken in U, V = V_0 + U round_off, if it is given.
        iterations: at most.
    """
    start, moved = weight.clone(), torch.zeros_like(weight)
    optimizer = torch.optim.LBFGS(
        [moved, bias],
        max_iter=iterations,
        max_eval=2 * iterations,
        history_size=20,
        tolerance_grad=1e-8,
        tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )

    def place() -> None:
        weight.copy_(start + (moved if round_off is None else moved @ round_off))

    def closure() -> Tensor:
        place()
        loss, by_weight, by_bias = slopes()
        moved.grad = by_weight if round_off is None else by_weight @ round_off
        bias.grad = by_bias
        return loss

    optimizer.step(closure)
    place()  # the last that was looked at need not be the best
    return int(optimizer.state[moved]["n_iter"])


def _round_off(features: Tensor, mean: Tensor, std: Tensor, weight_decay: float) -> Tensor:
    r"""A change of variables, symmetric ``[D, D]``, that makes the objective's valleys about as wide as they are long.

    .. math:: (S / 4 + \lambda I)^{-1/2}

    with S the second moment of the scaled features, is the inverse root of about the largest second derivative that
    the objective can have, as it has where classes are hard to tell apart. Features that go together would there take
    L-BFGS thousands of iterations. Where classes are easy to tell apart the objective is round enough as it is.
    """
    moment = second_moment(features, mean[None], torch.zeros_like(features[:, 0], dtype=torch.int64))
    values, directions = torch.linalg.eigh(moment / std / std[:, None])
    inverse_root: Tensor = directions * (values.clamp_min(0) / 4 + weight_decay).rsqrt() @ directions.T
    return inverse_root


def fold(weight: Tensor, bias: Tensor, mean: Tensor, std: Tensor) -> LinearClassifier:
    """The classifier on x that equals (weight, bias) on (x - mean) / std.

    >>> fold(torch.tensor([[4.0]]), torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([2.0]))
    LinearClassifier(weight=tensor([[2.]]), bias=tensor([-5.]))
    """
    scaled = weight / std
    return LinearClassifier(scaled, bias - scaled @ mean)
