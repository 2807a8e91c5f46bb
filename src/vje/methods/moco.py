"""MoCo v2 (Chen et al., "Improved baselines with momentum contrastive learning", 2020; He et al., CVPR 2020)."""

import copy
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, StepOutput, step_output, two_views
from vje.networks.encoders import Encoder
from vje.networks.gather import gathered
from vje.networks.normalization import group_batch_norm, interleaved, restored
from vje.networks.target import moving_average
from vje.preprocessing import Preprocessing
from vje.random import Draws


def info_nce_loss(query: Tensor, key: Tensor, negatives: Tensor, temperature: float = 0.2) -> Tensor:
    r"""InfoNCE: find a query's key among the negatives (He et al., Eq. 1).

    .. math:: -\log \frac{\exp(\hat q \cdot k / \tau)}{\exp(\hat q \cdot k / \tau) + \sum_n \exp(\hat q \cdot n / \tau)}

    averaged over queries.

    Args:
        query: q, of any length, shape ``[B, P]``.
        key: k of the same images, unit vectors, shape ``[B, P]``.
        negatives: n, unit vectors, shape ``[Q, P]``.
        temperature: tau.

    >>> query, negatives = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> info_nce_loss(query, torch.tensor([[1.0, 0.0]]), negatives, temperature=1.0)  # -log(e / (e + 1))
    tensor(0.3133)
    """
    query = normalize(query, dim=1)
    positive = (query * key).sum(1, keepdim=True)
    logits = torch.cat([positive, query @ negatives.T], 1) / temperature  # [B, 1 + Q]
    return (logits.logsumexp(1) - logits[:, 0]).mean()


class MoCo(Method):
    """MoCo: a query must find the key of the other view, from an EMA encoder, in a queue of keys of earlier batches.

    The symmetric loss is the sum of both directions, not their mean, as in the authors' CIFAR demo. The authors shuffle
    keys among GPUs, lest queries know their keys by the batch-norm statistics that they share. With ``groups`` a
    process does so among parts of its batch; across GPUs there is no shuffling, and statistics should be of the whole
    batch (sync_batch_norm, without groups), which give little away.

    Args:
        encoder: to train.
        hidden: Width of the projector's hidden layer.
        projection: Width of the projector's output.
        queue: Keys of earlier batches that serve as negatives.
        temperature: Of the softmax over similarities.
        symmetric: Both views are queries, and both are keys; else the first is the query and the second the key.
        target_momentum: EMA momentum of the key encoder, constant.
        groups: Parts of a batch that the encoders' batch norm keeps apart; keys are dealt out to others than queries.
        batch_norm: Batch-norm statistics over both views together, or each on its own.
        preprocessing: how pixels become encoder input.
    """

    across_images: ClassVar[bool] = True
    momentum_rises: ClassVar[bool] = False
    negatives: Tensor

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        hidden: int = 2048,
        projection: int = 128,
        queue: int = 65536,
        temperature: float = 0.2,
        symmetric: bool = True,
        target_momentum: float = 0.999,
        groups: int = 1,
        batch_norm: BatchNormViews = "separate",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        if not temperature > 0:
            raise ValueError(f"temperature must be positive (0.1 to 0.2 are usual), got {temperature}")
        if min(hidden, projection) < 1:
            raise ValueError(f"hidden and projection must be 1 or more, got {hidden} and {projection}")
        if queue < 1:
            raise ValueError(f"queue must be at least 1 (4096 or more are usual), got {queue}")
        if groups < 1:
            raise ValueError(f"groups must be 1 (the whole batch) or more, got {groups}")
        self.hidden, self.projection, self.queue, self.temperature = hidden, projection, queue, temperature
        self.symmetric, self.target_momentum = symmetric, target_momentum
        self.groups, self.batch_norm = groups, batch_norm
        if groups > 1 and not group_batch_norm(self.encoder, groups):
            raise ValueError(
                f"groups {groups}: the encoder has no plain batch norm that parts could be kept apart in; use 1"
            )
        dim = self.encoder.dim
        self.projector = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, projection))
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.target_projector = copy.deepcopy(self.projector).requires_grad_(False)
        self.register_buffer("negatives", normalize(torch.randn(queue, projection), dim=1))  # newest first

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a pair of views; in training mode their keys go into the queue."""
        two_views(self, views)
        asked, answers = (views, views[::-1]) if self.symmetric else (views[:1], views[1:])
        with torch.no_grad():  # first, while no activations are kept: less memory in all
            key = self.target_projector(self._encode_keys(answers))
        z = self.encode(self.encoder, asked)  # [2B, D], or [B, D]
        query = self.projector(z)
        with torch.autocast(z.device.type, enabled=False):
            key = normalize(at_least_float32(key), dim=1)
            fresh = torch.cat([gathered(view) for view in key.chunk(len(answers))])
            bank = torch.cat([fresh, self.negatives])  # a copy, so that the queue may move before the backward pass
            negatives = bank[len(fresh) :]
            loss = len(asked) * info_nce_loss(at_least_float32(query), key, negatives, self.temperature)
            if self.training:
                self.negatives.copy_(bank[: self.queue])
        return step_output(loss, z[: len(views[0])])

    def _encode_keys(self, views: Sequence[Tensor]) -> Tensor:
        """Embeddings by the key encoder, whose batch norm sees each image among others than the query's."""
        if self.groups == 1:
            return self.encode(self.target, views)
        z = self.encode(self.target, [interleaved(view, self.groups) for view in views])
        return torch.cat([restored(part, self.groups) for part in z.chunk(len(views))])

    def after_step(self, momentum: float | Tensor) -> None:
        """Move the key encoder and its projector towards the trained ones."""
        moving_average(self.target, self.encoder, momentum)
        moving_average(self.target_projector, self.projector, momentum)
