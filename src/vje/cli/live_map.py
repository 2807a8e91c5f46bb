"""The map of ``vje train --watch``: held-out images as the model in training sees them, each time it is evaluated."""

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vje.cli.report import LARGEST_PICTURE
from vje.data.resident import NothingReadable, load_resident
from vje.data.sources import ImageSource
from vje.evaluation.features import embed_pixels
from vje.methods.method import Method
from vje.reporting.atlas import Atlas, Floats, Survey, mappable, spread, survey
from vje.reporting.geometry import tsne
from vje.reporting.sprites import Sprites, at_most, make_sprites
from vje.training.loop import Callback

MOST_IMAGES = 1000
BATCH = 500

Show = Callable[[Atlas, int, bool], None]
"""Is given a map, the epoch it is of, and whether the images have their final places."""


class MapMonitor(Callback):
    """Has a map made every few epochs and at the last, when k-NN accuracy is measured too.

    Training waits for the embeddings of at most :data:`MOST_IMAGES` images; the rest is done beside it.

    Args:
        model: that is being trained.
        test: the images that were held out; always the same ones, evenly spaced, are on the map.
        every: epochs between maps; 0 for none.
        epochs: of the run.
        autocast: bfloat16 for the encoder, as in training.
        workers: that decode files.
        show: is given each map, from another thread.
    """

    def __init__(
        self, model: Method, test: ImageSource, every: int, epochs: int, autocast: bool, workers: int, show: Show
    ) -> None:
        self.model, self.test, self.every, self.epochs = model, test, every, epochs
        self.autocast, self.workers, self.show = autocast, workers, show
        self._images: Tensor
        self._maker: MapMaker | None = None

    def on_recorded(self, record: dict[str, Any]) -> None:
        """Look at the images if it is time."""
        epoch = record["epoch"]
        if not self.every or not len(self.test) or (epoch % self.every and epoch != self.epochs):
            return
        if self._maker is None:
            few, how = self.test.thinned(MOST_IMAGES), self.model.preprocessing
            assert how is not None
            try:
                found = load_resident(few, how.size, how.crop, how.channels, self.workers)
            except NothingReadable:
                self.every = 0
                return
            self._images = found.images
            self._maker = MapMaker(few.subset(found.kept), found.images.numpy(), len(self.test), self.show)
        self._maker.draw(epoch, survey(self.model, self._embedded()))

    def close(self, patience: float = 0.0) -> None:
        """Make no more maps; the last may take some seconds yet."""
        if self._maker is not None:
            self._maker.close(patience)

    def _embedded(self) -> Tensor:
        """Embeddings ``[N, D]`` by the model in evaluation mode; it is left in the mode that it was in."""
        training = self.model.training
        self.model.eval()
        z, _ = embed_pixels(self.model, self._images, BATCH, self.autocast, target=False)
        self.model.train(training)
        return z


class MapMaker:
    """Gives images their places on the map, in a thread that touches neither the model nor torch.

    A survey is shown at once, at the places of the one before it, and again when t-SNE has gone on from there. A newer
    survey has to wait for that, but the end waits no longer than told.

    Args:
        source: of the images, for their names and classes.
        pixels: of the images, uint8 ``[N, C, H, H]``.
        total: how many images were held out.
        show: is given each map.
    """

    def __init__(self, source: ImageSource, pixels: NDArray[np.uint8], total: int, show: Show) -> None:
        self.source, self.pixels, self.total, self.show = source, pixels, total, show
        self._surveys: SimpleQueue[tuple[int, Survey] | None] = SimpleQueue()
        self._newest = 0
        self._thread = threading.Thread(target=self._work, name="vje-map", daemon=True)
        self._thread.start()

    def draw(self, epoch: int, found: Survey) -> None:
        """Have a map made; one that is still being made is not shown any more."""
        self._newest = epoch
        self._surveys.put((epoch, found))

    def close(self, patience: float = 0.0) -> None:
        """Make no more maps, and wait some seconds at most for the newest."""
        self._surveys.put(None)
        self._thread.join(patience)

    def _work(self) -> None:
        pictures = make_sprites(at_most(self.pixels, LARGEST_PICTURE))
        last: Floats | None = None  # there is nothing to go on from, at first and after a collapse
        while (asked := self._surveys.get()) is not None:
            epoch, found = asked
            if epoch != self._newest:
                continue
            atlas = self._spread_out(found, pictures)
            if mappable(found.vectors):
                self.show(atlas if last is None else replace(atlas, places=last), epoch, False)
                last = tsne(found.vectors, start=last, threads=1)  # training wants the other cores
                atlas = replace(atlas, places=last)
            else:
                last = None
            if epoch == self._newest:
                self.show(atlas, epoch, True)

    def _spread_out(self, found: Survey, pictures: Sprites) -> Atlas:
        """The map before the images have their places."""
        return Atlas(
            **vars(found),
            places=spread(len(found.vectors)),
            names=[str(name) for name in self.source.names],
            pictures=pictures,
            labels=self.source.labels,
            classes=self.source.classes,
            total=self.total,
        )
