"""VICReg (Bardes, Ponce and LeCun, "Variance-invariance-covariance regularization", ICLR 2022)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, relu

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, StepOutput, step_output, two_views
from vje.networks.encoders import Encoder
from vje.networks.gather import gather
from vje.networks.heads import mlp
from vje.preprocessing import Preprocessing
from vje.random import Draws

EPSILON = 1e-4
"""Added to a variance before its root is taken, so that a collapsed feature still has a gradient."""


def vicreg_terms(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Invariance, variance and covariance of two views' projections y and y' (Eqs. 1 to 5), not yet weighted.

    .. math:: s = \frac{1}{BD} |y - y'|^2, \quad
        v = \frac12 \sum_{x \in \{y, y'\}} \frac1D \sum_i \max(0, 1 - \sqrt{C(x)_{ii} + \epsilon}), \quad
        c = \sum_{x \in \{y, y'\}} \frac1D \sum_{i \ne j} C(x)_{ij}^2

    with C(x) the unbiased covariance matrix of the batch. The halving in v and the division by D in s are not in the
    paper's formulas, but in the authors' code, and the weights 25, 25 and 1 are meant for them.

    Args:
        first: y, shape ``[B, D]``.
        second: y', shape ``[B, D]``.

    >>> x = 0.75**0.5 * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> vicreg_terms(x, x)  # uncorrelated, of unit variance
    (tensor(0.), tensor(0.), tensor(0.))
    >>> vicreg_terms(x, 0 * x)  # the second view has collapsed
    (tensor(0.7500), tensor(0.4950), tensor(0.))
    """
    views = torch.stack([first, second])  # [2, B, D]
    centred = views - views.mean(1, keepdim=True)
    covariances = centred.mT @ centred / (len(first) - 1)  # [2, D, D]
    variances = covariances.diagonal(dim1=1, dim2=2)  # [2, D]
    variance = relu(1 - (variances + EPSILON).sqrt()).mean()
    covariance = (covariances.square().sum() - variances.square().sum()) / first.shape[1]
    return mse_loss(first, second), variance, covariance


class VICReg(Method):
    """VICReg: views agree, features vary, and no two features say the same.

    Args:
        encoder: to train.
        hidden: Width of the expander, and of its output.
        layers: Linear layers of the expander.
        invariance: Weight of the distance between views.
        variance: Weight of the hinge that keeps standard deviations from falling below 1.
        covariance: Weight of the squared covariances.
        batch_norm: Batch-norm statistics over both views together, or each on its own.
        preprocessing: how pixels become encoder input.
    """

    across_images: ClassVar[bool] = True

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        hidden: int = 8192,
        layers: int = 3,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        batch_norm: BatchNormViews = "separate",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        for name, weight in {"invariance": invariance, "variance": variance, "covariance": covariance}.items():
            if not weight >= 0:
                raise ValueError(f"{name} is a weight in the loss and must be 0 or more, got {weight}")
        if hidden < 1 or layers < 1:
            raise ValueError(f"the expander needs hidden and layers of 1 or more, got {hidden} and {layers}")
        self.hidden, self.layers, self.batch_norm = hidden, layers, batch_norm
        self.invariance, self.variance, self.covariance = invariance, variance, covariance
        self.expander = mlp([self.encoder.dim, *[hidden] * layers], last_bias=False)  # the loss would not see a bias

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a pair of views."""
        two_views(self, views)
        z = self.encode(self.encoder, views)  # [2B, D]
        projection = self.apply_head(self.expander, z)
        with torch.autocast(z.device.type, enabled=False):
            first, second = (gather(x) for x in at_least_float32(projection).chunk(2))
            invariance, variance, covariance = vicreg_terms(first, second)
            loss = self.invariance * invariance + self.variance * variance + self.covariance * covariance
        parts = {"invariance_loss": invariance, "variance_loss": variance, "covariance_loss": covariance}
        return step_output(loss, z[: len(views[0])], **parts)
