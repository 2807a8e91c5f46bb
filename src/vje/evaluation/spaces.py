"""A model's feature spaces: z, what the method makes of it (VJE: the posterior mean), and the EMA encoder's z.

Of features that were computed before, or of augmented training images as they come.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vje.data.augment import Augmentation
from vje.evaluation.evaluate import in_chunks
from vje.evaluation.features import Features
from vje.methods.method import Method
from vje.random import Draws, Stream

if TYPE_CHECKING:
    from vje.training.loop import EpochBatches


@torch.no_grad()
def space_names(model: Method) -> list[str]:
    """The spaces that a model has, z first."""
    one = next(model.parameters()).new_zeros(1, model.encoder.dim)
    return ["z", *model.spaces(one), *(["target"] if model.target_encoder is not None else [])]


def stored_spaces(model: Method, features: Features, names: Sequence[str]) -> dict[str, Tensor]:
    """Some spaces of a data set, each ``[N, D]`` on the model's device."""
    device = next(model.parameters()).device
    others = in_chunks(model, model.spaces, features.z) if set(names) - {"z", "target"} else {}
    known = {"z": features.z, "target": features.target, **others}
    return {name: x.to(device) for name in names if (x := known[name]) is not None}


@torch.no_grad()
def encoded_spaces(model: Method, images: Tensor, names: Sequence[str], autocast: bool = False) -> dict[str, Tensor]:
    """Some spaces of images ``[B, C, H, W]`` in [0, 1] that have their final size; no encoder runs in vain."""
    assert model.preprocessing is not None
    x = model.preprocessing.normalize(images).contiguous(memory_format=torch.channels_last)
    found: dict[str, Tensor] = {}
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        if set(names) != {"target"}:
            found["z"] = model.encoder(x).float()
        if "target" in names and model.target_encoder is not None:
            found["target"] = model.target_encoder(x).float()
    if set(names) - {"z", "target"}:
        found |= model.spaces(found["z"])
    return {name: found[name] for name in names}


class EncodedBatches:
    """Mini-batches of features of augmented images; the encoder, in evaluation mode, runs on each as it comes.

    Args:
        model: whose features they are, with its preprocessing.
        images: batches of raw images, whose "labels" are the images' places in the training set.
        augmentation: of the one view there is.
        names: spaces.
        batch: images a step.
        seed: that ``images`` was made with, of the crops and flips.
        autocast: run the encoder in bfloat16.
    """

    def __init__(
        self,
        model: Method,
        images: "EpochBatches",
        augmentation: Augmentation,
        names: Sequence[str],
        batch: int,
        seed: int,
        autocast: bool = False,
    ) -> None:
        self.model, self.images, self.augmentation = model, images, augmentation
        self.names, self.seed, self.autocast = list(names), seed, autocast
        self.steps_per_epoch = images.steps_per_epoch
        device = next(model.parameters()).device
        self._step = torch.zeros((), dtype=torch.int64, device=device)  # counted there, so that nothing waits for it
        self._positions = torch.arange(batch, device=device)

    def epoch(self, number: int) -> Iterator[tuple[Mapping[str, Tensor], Tensor]]:
        """The mini-batches of an epoch; epochs come in order."""
        self.images.start_epoch(number, 0)
        self._step.fill_(number * self.steps_per_epoch)
        for _ in range(self.steps_per_epoch):
            self.images.advance()
            pixels, places = self.images.fetch(self._step)[0], self.images.labels(self._step)
            assert places is not None
            draws = Draws(self.seed, self._step, self._positions)
            x = self.augmentation(pixels, draws, Stream.VIEW_1, self.images.cropped)
            yield encoded_spaces(self.model, x, self.names, self.autocast), places
            self._step += 1

    def close(self) -> None:
        """End the processes that decode images."""
        self.images.close()
