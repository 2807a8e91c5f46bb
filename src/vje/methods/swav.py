"""SwAV (Caron et al., "Unsupervised learning of visual features by contrasting cluster assignments", NeurIPS 2020).

Two views only: the paper's multi-crop and its queue for small batches are left out.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, StepOutput, step_output, two_views
from vje.networks.encoders import Encoder
from vje.networks.gather import gather
from vje.networks.heads import mlp
from vje.preprocessing import Preprocessing
from vje.random import Draws


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    r"""Soft assignments of samples to prototypes that use all prototypes alike (Eq. 3 to 5), without gradients.

    .. math:: Q = \mathrm{diag}(u) \exp(C / \epsilon)\, \mathrm{diag}(v), \quad
        \sum_k Q_{nk} = 1, \quad \sum_n Q_{nk} \approx N / K

    The scalings u and v are found by normalising columns and rows in turn, rows last; that is a softmax each, here of
    logarithms, so that no epsilon is too small.

    Args:
        scores: C, similarities of all samples to all prototypes, shape ``[N, K]``.
        epsilon: smoothness of the assignments.
        iterations: of the Sinkhorn-Knopp algorithm.

    Returns:
        Assignments Q, shape ``[N, K]``.

    >>> sinkhorn(torch.tensor([[0.9, 0.0], [0.8, 0.0]]), epsilon=0.1, iterations=100)  # each sample its own prototype
    tensor([[0.6225, 0.3775],
            [0.3775, 0.6225]])
    """
    assignments = scores / epsilon
    for _ in range(iterations):
        assignments = assignments.log_softmax(0).log_softmax(1)
    return assignments.exp()


def swapped_prediction_loss(scores: Tensor, assignments: Tensor, temperature: float = 0.1) -> Tensor:
    r"""Cross-entropy of each view's softmax under the other view's assignments (Eq. 1 and 2).

    .. math:: -\frac12 \sum_k q_{2k} \log p_{1k} - \frac12 \sum_k q_{1k} \log p_{2k}, \quad
        p = \mathrm{softmax}(c / \tau)

    averaged over images (the paper's is the sum of the two terms, its code takes the mean).

    Args:
        scores: c of both views, one after the other, shape ``[2B, K]``.
        assignments: q in the same order, shape ``[2B, K]``.
        temperature: tau.

    >>> scores = torch.zeros(2, 4)
    >>> swapped_prediction_loss(scores, torch.eye(4)[:2])  # log 4
    tensor(1.3863)
    """
    other = assignments.roll(len(assignments) // 2, 0)
    return -(other * (scores / temperature).log_softmax(1)).sum(1).mean()


class SwAV(Method):
    """SwAV: a view must predict which prototypes the other view of its image is assigned to.

    Prototypes are unit vectors: the weights' rows are normalised where they are used, and are free otherwise.

    Args:
        encoder: to train.
        hidden: Width of the projector's hidden layer.
        projection: Width of the projector's output, and of the prototypes.
        prototypes: Number of prototypes.
        temperature: Of the softmax over prototypes.
        epsilon: Smoothness of the assignments.
        iterations: Iterations of the Sinkhorn-Knopp algorithm.
        frozen_steps: Steps at the start in which the prototypes do not move; the authors take an epoch.
        batch_norm: Batch-norm statistics over both views together, or each on its own.
        preprocessing: how pixels become encoder input.
    """

    steps: Tensor
    held: Tensor

    across_images: ClassVar[bool] = True

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        hidden: int = 2048,
        projection: int = 128,
        prototypes: int = 3000,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        frozen_steps: int = 313,
        batch_norm: BatchNormViews = "joint",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        for name, value in (("temperature", temperature), ("epsilon", epsilon)):
            if not value > 0:
                raise ValueError(f"{name} must be positive (0.05 to 0.1 are usual), got {value}")
        if prototypes < 2 or iterations < 1:
            raise ValueError(
                f"prototypes must be 2 or more and iterations 1 or more, got {prototypes} and {iterations}"
            )
        self.hidden, self.projection, self.prototypes, self.temperature = hidden, projection, prototypes, temperature
        self.epsilon, self.iterations, self.frozen_steps = epsilon, iterations, frozen_steps
        self.batch_norm = batch_norm
        self.projector = mlp([self.encoder.dim, hidden, projection])
        self.prototype_weights = nn.Parameter(normalize(torch.randn(prototypes, projection), dim=1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("held", self.prototype_weights.detach().clone(), persistent=False)  # as before the step

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a pair of views."""
        two_views(self, views)
        if self.training:
            self.held.copy_(self.prototype_weights.detach())
        z = self.encode(self.encoder, views)  # [2B, D]
        projected = self.apply_head(self.projector, z)
        with torch.autocast(z.device.type, enabled=False):
            projected = torch.cat([gather(view) for view in at_least_float32(projected).chunk(2)])
            scores = normalize(projected, dim=1) @ self._directions().T  # [2B, K], of all processes
            assignments = torch.cat([sinkhorn(view, self.epsilon, self.iterations) for view in scores.chunk(2)])
            loss = swapped_prediction_loss(scores, assignments, self.temperature)
        return step_output(loss, z[: len(views[0])])

    def after_step(self, momentum: float | Tensor) -> None:
        """Put frozen prototypes back, and count.

        Without a gradient they still move: by weight decay, which Adam divides by its own size coordinate by coordinate
        and so turns them, and by what momentum has left.
        """
        with torch.no_grad():
            weights = self.prototype_weights
            weights.copy_(torch.where(self._frozen(), self.held, weights))
        self.steps.add_(1)

    def _frozen(self) -> Tensor:
        return self.steps < self.frozen_steps

    def _directions(self) -> Tensor:
        """Unit prototypes ``[K, P]``, without gradients while they are frozen."""
        weights = self.prototype_weights
        return normalize(torch.where(self._frozen(), weights.detach(), weights), dim=1)
