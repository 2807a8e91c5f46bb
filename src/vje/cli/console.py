"""What a person sees while something runs: rich on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.text import Text

from vje.methods.method import Quantity
from vje.terminal import duration, say
from vje.training.loop import Callback
from vje.training.loop import Progress as Position

PARTS = {"loss": "loss", "nll_directional": "dir", "nll_radial": "rad", "nll_standard": "nll", "kl": "KL"}

EVERY = 60.0
"""Seconds between lines on how far something long is, where there is no terminal for a bar."""


class TrainingDisplay(Callback):
    """A progress bar over the run: loss parts, speed, time left for the epoch and the run, k-NN so far.

    Args:
        console: where to show it; without a terminal, a line an epoch, and a minute, is printed instead.
        steps: of the whole run, and those done before it was resumed.
        quantities: of the method; those with a short name are in the line of an epoch.
    """

    def __init__(
        self, console: Console, total_steps: int, done_steps: int, quantities: Mapping[str, Quantity] | None = None
    ) -> None:
        self.console = console
        self._short = {name: quantity.short for name, quantity in (quantities or {}).items() if quantity.short}
        self._knn = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=total_steps, completed=done_steps, left="")
        self._speed = 0.0
        self._said = time.monotonic()

    def __enter__(self) -> "TrainingDisplay":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_progress(self, progress: Position) -> None:
        """Move the bar; without a terminal, say now and then how far it is."""
        batch_steps = (progress.epoch - 1) * progress.steps_per_epoch + progress.epoch_step
        self._speed = (
            progress.images_per_second if not self._speed else 0.9 * self._speed + 0.1 * progress.images_per_second
        )
        step_seconds = progress.images_per_step / max(self._speed, 1e-9)
        epoch_left = duration((progress.steps_per_epoch - progress.epoch_step) * step_seconds)
        run_left = duration((progress.epochs * progress.steps_per_epoch - batch_steps) * step_seconds)
        parts = "  ".join(f"{PARTS[k]} {v:.1f}" for k, v in progress.averages.items() if k in PARTS)
        description = f"epoch {progress.epoch}/{progress.epochs}  {parts}  {self._speed:,.0f} img/s{self._knn}"
        left = f"epoch {epoch_left}, run {run_left} left"
        self._progress.update(self._task, completed=batch_steps, description=description, left=left)
        if not self.console.is_terminal and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            say(self.console, f"{description}  {left}")

    def on_recorded(self, record: dict[str, Any]) -> None:
        """Remember k-NN; without a terminal, print the epoch."""
        if "knn" in record:
            self._knn = "  k-NN " + " / ".join(f"{v:.1f}" for v in record["knn"].values())
        if not self.console.is_terminal:
            self._said = time.monotonic()
            parts = "  ".join(f"{PARTS[k]} {record[k]:.2f}" for k in PARTS if k in record)
            knn = "".join(f"  knn.{k} {v:.2f}" for k, v in record.get("knn", {}).items())
            own = "".join(f"{short} {record[k]:.3f}  " for k, short in self._short.items() if k in record)
            print(
                f"epoch {record['epoch']}  {parts}  {own}"
                f"rank {record['effective_rank']:.0f}  {record['images_per_second']:,.0f} img/s{knn}",
                flush=True,
            )

    def on_warning(self, text: str) -> None:
        """Say it, in colour."""
        self.console.print(Text(f"warning: {text}", style="yellow"))


@contextmanager
def counting(what: str, console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for something that counts images; yields the function to report (done, total) to.

    Without a terminal it is a line a minute; both on standard error, unless another console is given.
    """
    console = console or Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task, said = progress.add_task(what, total=None), time.monotonic()

        def report(done: int, total: int) -> None:
            nonlocal said
            progress.update(task, completed=done, total=total)
            if not console.is_terminal and time.monotonic() - said >= EVERY:
                said = time.monotonic()
                say(console, f"{what}: {done:,} of {total:,}")

        yield report
