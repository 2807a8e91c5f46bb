"""``vje train --watch``: what the training loop tells the live page."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from vje.build_data import Data
from vje.cli.live_map import MapMonitor
from vje.config import Config
from vje.errors import UserError
from vje.reporting.live import LiveServer
from vje.runs import RunFolder
from vje.terminal import duration, say
from vje.training.loop import Callback, Loop, Progress

PATIENCE = 4.0
"""Seconds that the last map may take at the end, and that open pages have to fetch it; with none open, nobody waits."""


class LivePage(Callback):
    """Keeps the page's progress line up to date; its curves are read from the run folder."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server

    def on_progress(self, progress: Progress) -> None:
        """Note where training is."""
        total = progress.epochs * progress.steps_per_epoch
        done = (progress.epoch - 1) * progress.steps_per_epoch + progress.epoch_step
        left = (total - done) * progress.images_per_step / max(progress.images_per_second, 1e-9)
        self.server.progress = {
            "epoch": progress.epoch,
            "epochs": progress.epochs,
            "done": done / total,
            "images_per_second": progress.images_per_second,
            "left": duration(left),
        }


@contextmanager
def watching(
    folder: RunFolder, port: int | None, console: Console, config: Config, data: Data, loop: Loop
) -> Iterator[list[Callback]]:
    """Serve the page while the block runs; yields the callbacks that keep it informed.

    Args:
        folder: of the run.
        port: to serve at, 0 for any that is free; None serves nothing.
        console: to print the address on.
        config: of the run.
        data: whose held-out images are on the map.
        loop: that trains.
    """
    if port is None:
        yield []
        return
    try:
        server = LiveServer(folder, port, _no_map(config, len(data.splits.test))).start()
    except UserError as error:  # someone took the port in the meantime: no reason to lose the run
        say(console, f"{error} Training goes on without the page.", "yellow")
        yield []
        return
    say(console, f"Watch it at {server.address}")
    monitor = MapMonitor(
        loop.step.method,
        data.splits.test,
        config.run.knn_every,
        config.optimizer.epochs,
        loop.step.options.autocast,
        config.data.workers,
        server.show,
    )
    patience = PATIENCE
    try:
        yield [LivePage(server), monitor]
    except KeyboardInterrupt:
        patience = 0.0
        raise
    finally:
        try:
            monitor.close(patience if server.watched else 0.0)
            server.finish(patience)
        finally:
            server.stop()


def _no_map(config: Config, images: int) -> str:
    """What the page says while there is no map."""
    every, epochs = config.run.knn_every, config.optimizer.epochs
    if not images:
        return "There is no map: no images were held out (--held-out)."
    if not every:
        return "There is no map: it would be made with each k-NN evaluation, and --knn-every 0 turns those off."
    often = f"every {every} epochs (--knn-every) and " if every < epochs else ""
    return f"The map comes with the next evaluation: there is one {often}after the last epoch."
