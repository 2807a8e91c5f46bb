"""BYOL (Grill et al., "Bootstrap your own latent: a new approach to self-supervised learning", NeurIPS 2020)."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, StepOutput, step_output, two_views
from vje.networks.encoders import Encoder
from vje.networks.heads import mlp
from vje.networks.target import moving_average
from vje.preprocessing import Preprocessing
from vje.random import Draws


def byol_loss(prediction: Tensor, target: Tensor) -> Tensor:
    r"""Squared distance of unit vectors, summed over the two directions and averaged over images (Eq. 2, symmetrised).

    .. math:: \mathcal L(q_1, y_2') + \mathcal L(q_2, y_1'), \quad
        \mathcal L(q, y') = \Bigl|\frac{q}{|q|} - \frac{y'}{|y'|}\Bigr|^2 = 2 - 2\,\frac{q \cdot y'}{|q|\,|y'|}

    Some libraries take the mean of two negative cosines instead: the same gradient, four times smaller.

    Args:
        prediction: q of both views, one after the other, shape ``[2B, P]``.
        target: projection y' by the moving average, of both views in the same order, shape ``[2B, P]``; a constant.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])  # two views of one image
    >>> byol_loss(x, x), byol_loss(x, x.flip(0))
    (tensor(4.), tensor(0.))
    """
    other = target.detach().roll(len(target) // 2, 0)
    return 2 * (2 - 2 * cosine_similarity(prediction, other, dim=1)).mean()


class BYOL(Method):
    """BYOL: a predictor of one view's projection must find that of the other by a moving average of the network.

    Args:
        encoder: to train.
        hidden: Width of the hidden layer of projector and predictor.
        projection: Width of what they give.
        target_momentum: EMA momentum at the start; it rises to 1 on a cosine.
        batch_norm: Batch-norm statistics over both views together, or each on its own.
        preprocessing: how pixels become encoder input.
    """

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        hidden: int = 4096,
        projection: int = 256,
        target_momentum: float = 0.996,
        batch_norm: BatchNormViews = "separate",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        self.hidden, self.projection = hidden, projection
        self.target_momentum, self.batch_norm = target_momentum, batch_norm
        # The authors' last layers have no bias either.
        self.projector = mlp([self.encoder.dim, hidden, projection], last_bias=False)
        self.predictor = mlp([projection, hidden, projection], last_bias=False)
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.target_projector = copy.deepcopy(self.projector).requires_grad_(False)

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a pair of views."""
        two_views(self, views)
        with torch.no_grad():  # first, while no activations are kept: less memory in all
            target = self.apply_head(self.target_projector, self.encode(self.target, views))
        z = self.encode(self.encoder, views)  # [2B, D]
        prediction = self.apply_head(self.predictor, self.apply_head(self.projector, z))
        with torch.autocast(z.device.type, enabled=False):
            loss = byol_loss(at_least_float32(prediction), at_least_float32(target))
        return step_output(loss, z[: len(views[0])])

    def after_step(self, momentum: float | Tensor) -> None:
        """Move the target encoder and projector towards the trained ones."""
        moving_average(self.target, self.encoder, momentum)
        moving_average(self.target_projector, self.projector, momentum)
