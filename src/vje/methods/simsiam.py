"""SimSiam (Chen and He, "Exploring simple Siamese representation learning", CVPR 2021)."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, StepOutput, step_output, two_views
from vje.networks.encoders import Encoder
from vje.networks.heads import mlp
from vje.preprocessing import Preprocessing
from vje.random import Draws


def simsiam_loss(prediction: Tensor, projection: Tensor) -> Tensor:
    r"""Symmetric negative cosine similarity, with the other view's projection as a constant (Eq. 4).

    .. math:: \frac12 D(p_1, \mathrm{sg}(y_2)) + \frac12 D(p_2, \mathrm{sg}(y_1)), \quad
        D(p, y) = -\frac{p \cdot y}{|p|\,|y|}

    Args:
        prediction: p of both views, one after the other, shape ``[2B, P]``.
        projection: y of both views in the same order, shape ``[2B, P]``.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])  # two views of one image
    >>> simsiam_loss(x, x), simsiam_loss(x, x.flip(0))
    (tensor(-0.), tensor(-1.))
    """
    other = projection.detach().roll(len(projection) // 2, 0)
    return -cosine_similarity(prediction, other, dim=1).mean()


class SimSiam(Method):
    """SimSiam: a predictor of one view's projection must find that of the other, which is held constant.

    Args:
        encoder: to train.
        hidden: Width of the projector, and of its output.
        layers: Linear layers of the projector (2 on CIFAR, 3 on ImageNet).
        bottleneck: Width of the predictor's hidden layer.
        fixed_predictor_rate: The predictor's learning rate does not decay.
        batch_norm: Batch-norm statistics over both views together, or each on its own.
        preprocessing: how pixels become encoder input.
    """

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        hidden: int = 2048,
        layers: int = 3,
        bottleneck: int = 512,
        fixed_predictor_rate: bool = True,
        batch_norm: BatchNormViews = "separate",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        self.hidden, self.layers, self.bottleneck = hidden, layers, bottleneck
        self.fixed_predictor_rate, self.batch_norm = fixed_predictor_rate, batch_norm
        self.projector = mlp([self.encoder.dim, *[hidden] * layers], last_norm="plain")
        self.predictor = mlp([hidden, bottleneck, hidden])

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a pair of views."""
        two_views(self, views)
        z = self.encode(self.encoder, views)  # [2B, D]
        projection = self.apply_head(self.projector, z)
        prediction = self.apply_head(self.predictor, projection)
        with torch.autocast(z.device.type, enabled=False):
            loss = simsiam_loss(at_least_float32(prediction), at_least_float32(projection))
        return step_output(loss, z[: len(views[0])])

    def constant_rate(self) -> Iterable[nn.Parameter]:
        """The predictor's parameters, as the authors found best."""
        return self.predictor.parameters() if self.fixed_predictor_rate else ()
