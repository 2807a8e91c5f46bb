"""The contract between a training method and the trainer, which knows nothing else about it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from vje.networks.encoders import Encoder
from vje.random import Draws


class StepOutput(NamedTuple):
    """What one forward pass of a method gives.

    Attributes:
        loss: scalar to minimise, already averaged over the local batch.
        parts: named scalars to report (loss terms, posterior statistics); detached, same keys every step.
        embeddings: detached encoder outputs of the first view, shape ``[B, D]``, for diagnostics.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    embeddings: Tensor


class Method(nn.Module, ABC):
    """A self-supervised method: an encoder, whatever heads it needs, and a loss on augmented views.

    ``forward`` is called once a step (it is what DistributedDataParallel wraps), with the encoder's precision set by
    the caller's autocast; ``after_step`` once after the optimiser.
    """

    encoder: Encoder

    @abstractmethod
    def forward(self, views: Sequence[Tensor], draws: Draws | None = None) -> StepOutput:
        """Loss of a batch of views, each ``[B, C, H, W]``; ``draws`` is the source of randomness, if any is needed."""

    def after_step(self, momentum: float | Tensor) -> None:
        """Update what follows the parameters, such as an EMA target; ``momentum`` is that of the schedule."""

    @property
    def target_encoder(self) -> nn.Module | None:
        """The moving-average encoder, for methods that have one."""
        return None
