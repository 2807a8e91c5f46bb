"""Supervised training: softmax cross-entropy, torch's own, as a yardstick for the methods that see no labels."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vje.likelihood import at_least_float32
from vje.methods.method import Method, Quantity, StepOutput, step_output
from vje.networks.encoders import Encoder
from vje.preprocessing import Preprocessing
from vje.random import Draws


class Supervised(Method):
    """A linear classifier on z, trained with the encoder.

    Args:
        encoder: to train.
        classes: Number of classes; those of the data.
        label_smoothing: Share of the target's probability that is spread over all classes.
        preprocessing: how pixels become encoder input.
    """

    needs_labels: ClassVar[bool] = True
    views: ClassVar[int] = 1
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "accuracy": Quantity("accuracy", "of the training batches, augmented", fraction=True)
    }

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        classes: int = 10,
        label_smoothing: float = 0.0,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        if classes < 2:
            raise ValueError(f"classes must be 2 or more for there to be something to learn, got {classes}")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1) (0 for none), got {label_smoothing}")
        self.classes, self.label_smoothing = classes, label_smoothing
        self.classifier = nn.Linear(self.encoder.dim, classes)

    def linear_classifier(self) -> nn.Linear:
        """Its own: logits are judged as the network gives them."""
        return self.classifier

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a view and its labels."""
        if len(views) != 1:
            raise ValueError(f"Supervised looks at one view of each image, got {len(views)}")
        if labels is None:
            raise ValueError("Supervised learns from labels, and got none: pass labels=..., class numbers [B]")
        z = self.encoder(views[0])  # [B, D]
        logits = self.classifier(z)
        with torch.autocast(z.device.type, enabled=False):
            logits = at_least_float32(logits)
            loss = cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
            accuracy = (logits.argmax(1) == labels).float()
        return step_output(loss, z, accuracy=accuracy)
