"""What the command line adds to training: k-NN every so often, and TensorBoard."""

import sys
from pathlib import Path
from typing import Any

import torch

from vje.build_data import Data
from vje.data.resident import NothingReadable, Resident, load_resident
from vje.evaluation.evaluate import knn_of_features
from vje.evaluation.features import Features, embed_pixels
from vje.evaluation.knn import NotFinite
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
        self._sets: list[Resident] = []

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Evaluate if it is time."""
        if not self.active or (record["epoch"] % self.every and record["epoch"] != self.epochs):
            return
        if not self._sets and not self._decode():
            return
        self.model.eval()
        bank, test = map(self._features, self._sets)
        try:
            record["knn"] = {k: round(v, 3) for k, v in knn_of_features(self.model, bank, test).items()}
        except NotFinite:  # the loss will say so too
            print(f"epoch {record['epoch']}: k-NN is left out, as embeddings are NaN or infinite.", file=sys.stderr)

    def _decode(self) -> bool:
        """Bank and test images in their final size; without one that can be read there is no more to do."""
        how = self.model.preprocessing
        assert how is not None
        sources = self.splits.bank.thinned(MOST_IMAGES), self.splits.test.thinned(MOST_IMAGES)
        try:
            self._sets = [load_resident(few, how.size, how.crop, how.channels, self.workers) for few in sources]
        except NothingReadable:
            print("k-NN accuracy is left out: none of the images it needs can be read.", file=sys.stderr)
            self.active = False
        return self.active

    def _features(self, found: Resident) -> Features:
        z, slow = embed_pixels(self.model, found.images, BATCH, self.autocast)
        return Features(z, slow, torch.arange(len(z)), [], found.labels)


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
