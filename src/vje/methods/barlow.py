"""Barlow Twins (Zbontar et al., "Self-supervised learning via redundancy reduction", ICML 2021)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import batch_norm as normalize_batch

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, StepOutput, step_output, two_views
from vje.networks.encoders import Encoder
from vje.networks.gather import gather
from vje.networks.heads import mlp
from vje.preprocessing import Preprocessing
from vje.random import Draws

EPSILON = 1e-5
"""Added to the variances that features are divided by, as batch normalisation does: a perfect loss is D / 10^10."""


def barlow_terms(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    r"""Invariance and redundancy: how far two views' cross-correlation is from the identity (Eqs. 1 and 2).

    .. math:: \sum_i (1 - C_{ii})^2, \quad \sum_{i \ne j} C_{ij}^2, \quad
        C_{ij} = \frac1B \sum_b \hat y_{bi} \hat y'_{bj}

    with features standardised over the batch (biased variance).

    Args:
        first: y, shape ``[B, D]``.
        second: y', shape ``[B, D]``.

    >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> invariance, redundancy = barlow_terms(x, -2 * x)  # the views disagree about everything
    >>> round(invariance.item(), 3), redundancy.item()
    (8.0, 0.0)
    """
    ours, theirs = (normalize_batch(x, None, None, training=True, eps=EPSILON) for x in (first, second))
    correlation = ours.T @ theirs / len(first)  # [D, D]
    diagonal = correlation.diagonal()
    return (1 - diagonal).square().sum(), correlation.square().sum() - diagonal.square().sum()


class BarlowTwins(Method):
    """Barlow Twins: each feature agrees with itself in the other view, and with no other feature.

    Args:
        encoder: to train.
        hidden: Width of the projector, and of its output.
        layers: Linear layers of the projector.
        lambd: Lambda, the weight of the redundancy term.
        loss_scale: Factor of the whole loss; with LARS it sets the learning rate of biases and norms alone.
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
        lambd: float = 0.0051,
        loss_scale: float = 1.0,
        batch_norm: BatchNormViews = "separate",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        if not lambd >= 0:
            raise ValueError(f"lambd is the weight of the redundancy term and must be 0 or more, got {lambd}")
        if not loss_scale > 0:
            raise ValueError(f"loss_scale must be positive (1 leaves the loss as it is), got {loss_scale}")
        if hidden < 1 or layers < 1:
            raise ValueError(f"the projector needs hidden and layers of 1 or more, got {hidden} and {layers}")
        self.hidden, self.layers, self.batch_norm = hidden, layers, batch_norm
        self.lambd, self.loss_scale = lambd, loss_scale
        self.projector = mlp([self.encoder.dim, *[hidden] * layers], last_bias=False)  # standardising removes a bias

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a pair of views."""
        two_views(self, views)
        z = self.encode(self.encoder, views)  # [2B, D]
        projection = self.apply_head(self.projector, z)
        with torch.autocast(z.device.type, enabled=False):
            first, second = (gather(x) for x in at_least_float32(projection).chunk(2))
            invariance, redundancy = barlow_terms(first, second)
            loss = self.loss_scale * (invariance + self.lambd * redundancy)
        return step_output(loss, z[: len(views[0])], invariance=invariance, redundancy=redundancy)
