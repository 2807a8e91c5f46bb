"""SimCLR (Chen et al., "A simple framework for contrastive learning of visual representations", ICML 2020)."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, StepOutput, step_output, two_views
from vje.networks.encoders import Encoder
from vje.networks.gather import gather
from vje.networks.heads import mlp
from vje.preprocessing import Preprocessing
from vje.random import Draws


def nt_xent_loss(projection: Tensor, temperature: float = 0.5) -> Tensor:
    r"""Normalised temperature-scaled cross-entropy: find the other view among all other rows (Eq. 1).

    .. math:: \ell_i = -\log \frac{\exp(\cos(y_i, y_{j(i)}) / \tau)}{\sum_{k \neq i} \exp(\cos(y_i, y_k) / \tau)}

    averaged over both views of all images; j(i) is the other view of i's image.

    Args:
        projection: y of both views, one after the other, shape ``[2B, P]``.
        temperature: tau.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # two images
    >>> nt_xent_loss(torch.cat([x, x]), temperature=1.0)  # -log(e / (e + 1 + 1))
    tensor(0.5514)
    """
    y = normalize(projection, dim=1)
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    logits = (y @ y.T / temperature).masked_fill(itself, -math.inf)  # [2B, 2B]
    other_view = torch.arange(len(y), device=y.device).roll(len(y) // 2)
    return cross_entropy(logits, other_view)


class SimCLR(Method):
    """SimCLR: the two views of an image must find each other among the views of all images of the batch.

    Args:
        encoder: to train.
        hidden: Width of the projector's hidden layer.
        projection: Width of the projector's output.
        temperature: Of the softmax over similarities.
        batch_norm: Batch-norm statistics over both views together, or each on its own.
        preprocessing: how pixels become encoder input.
    """

    across_images: ClassVar[bool] = True

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        hidden: int = 2048,
        projection: int = 128,
        temperature: float = 0.5,
        batch_norm: BatchNormViews = "joint",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        if not temperature > 0:
            raise ValueError(f"temperature must be positive (0.1 to 0.5 are usual), got {temperature}")
        self.hidden, self.projection, self.temperature, self.batch_norm = hidden, projection, temperature, batch_norm
        self.projector = mlp([self.encoder.dim, hidden, projection], last_norm="batch")  # the authors' has no shift

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a pair of views."""
        two_views(self, views)
        z = self.encode(self.encoder, views)  # [2B, D]
        projected = self.apply_head(self.projector, z)
        with torch.autocast(z.device.type, enabled=False):
            projected = torch.cat([gather(view) for view in at_least_float32(projected).chunk(2)])
            loss = nt_xent_loss(projected, self.temperature)
        return step_output(loss, z[: len(views[0])])
