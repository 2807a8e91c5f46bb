"""``vje train --watch``: what the training loop tells the live page."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from vje.cli.console import duration
from vje.errors import UserError
from vje.reporting.live import LiveServer
from vje.runs import RunFolder
from vje.training.loop import Callback, Progress


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
def watching(folder: RunFolder, port: int | None, console: Console) -> Iterator[list[Callback]]:
    """Serve the page while the block runs; yields the callbacks that keep it informed.

    Args:
        folder: of the run.
        port: to serve at, 0 for any that is free; None serves nothing.
        console: to print the address on.
    """
    if port is None:
        yield []
        return
    try:
        server = LiveServer(folder, port).start()
    except UserError as error:  # someone took the port in the meantime: no reason to lose the run
        console.print(Text(f"{error} Training goes on without the page.", "yellow"), soft_wrap=True)
        yield []
        return
    console.print(Text(f"Watch it at {server.address}"), soft_wrap=True)
    try:
        yield [LivePage(server)]
    finally:
        server.stop()
