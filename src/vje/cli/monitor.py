"""What the command line adds to training: k-NN every so often, and TensorBoard."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vje.build_data import Data
from vje.data.batches import evaluation_batches
from vje.data.sources import ImageSource
from vje.evaluation.evaluate import knn_of_features
from vje.evaluation.features import Features, embed_batch
from vje.methods.method import Method
from vje.training.loop import Callback

BATCH = 1000
MOST_IMAGES = 60_000
"""Bank or test sets larger than this are thinned for the k-NN during training; `vje evaluate` takes all."""


class KNNMonitor(Callback):
    """k-NN accuracy of z, mean and the EMA's z, every few epochs and at the last.

    Args:
        model: that is being trained.
        data: with a labelled bank and test set; without labels nothing is done.
        every: epochs between evaluations.
        epochs: of the run.
        autocast: bfloat16 for the encoder, as in training.
        workers: that decode files.
    """

    def __init__(self, model: Method, data: Data, every: int, epochs: int, autocast: bool, workers: int) -> None:
        self.model, self.every, self.epochs, self.autocast = model, every, epochs, autocast
        self.splits, self.workers = data.splits, workers
        labelled = self.splits.bank.labels is not None and self.splits.test.labels is not None
        self.active = labelled and every > 0 and len(self.splits.test) > 0
        self._sets: list[tuple[Tensor, Tensor]] = []

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Evaluate if it is time."""
        if not self.active or (record["epoch"] % self.every and record["epoch"] != self.epochs):
            return
        self.active = all(len(labels) for _, labels in self._images())
        if not self.active:
            print("k-NN accuracy is left out: none of the images it needs can be read.", file=sys.stderr)
            return
        self.model.eval()
        bank, test = (self._features(images, labels) for images, labels in self._images())
        record["knn"] = {k: round(v, 3) for k, v in knn_of_features(self.model, bank, test).items()}

    def _images(self) -> list[tuple[Tensor, Tensor]]:
        """Bank and test images in their final size, decoded the first time they are wanted."""
        if not self._sets:
            self._sets = [self._decoded(source) for source in (self.splits.bank, self.splits.test)]
        return self._sets

    def _decoded(self, source: ImageSource) -> tuple[Tensor, Tensor]:
        assert self.model.preprocessing is not None and source.labels is not None
        chosen = np.unique(np.linspace(0, len(source) - 1, min(len(source), MOST_IMAGES)).astype(int))
        few = source.subset(chosen)
        batches = list(evaluation_batches(few, self.model.preprocessing, BATCH, self.workers))
        kept = torch.cat([batch.indices for batch in batches])
        return torch.cat([batch.images for batch in batches]), torch.as_tensor(source.labels[chosen])[kept]

    def _features(self, images: Tensor, labels: Tensor) -> Features:
        z, target = [], []
        device = next(self.model.parameters()).device
        for chunk in images.split(BATCH):  # the rest waits outside: at 224 px all of them would take 17 GB
            online, slow = embed_batch(self.model, chunk.to(device), self.autocast)
            z.append(online)
            target += [] if slow is None else [slow]
        slow_features = torch.cat(target) if target else None
        return Features(torch.cat(z), slow_features, torch.arange(len(labels)), [], labels)


class TensorBoard(Callback):
    """The epochs' records as TensorBoard scalars."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def on_recorded(self, record: dict[str, Any]) -> None:
        """Write one epoch."""
        flat = {k: v for k, v in record.items() if isinstance(v, int | float)}
        flat |= {f"knn/{k}": v for k, v in record.get("knn", {}).items()}
        for name, value in flat.items():
            self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()
