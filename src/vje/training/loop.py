"""The training loop: epochs of steps, with callbacks around them and a checkpoint whenever it may be needed."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from vje.runs import RunFolder
from vje.signals import heeding
from vje.training import checkpoint
from vje.training.alarms import CollapseWatch, non_finite
from vje.training.batches import Batches
from vje.training.distributed import World
from vje.training.step import TrainStep


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    epoch: int  # the current one, from 1
    epochs: int  # of the whole run
    epoch_step: int  # steps done of this epoch
    steps_per_epoch: int  # in an epoch
    images_per_step: int  # over all processes
    images_per_second: float  # over the last stretch
    averages: dict[str, float]  # the epoch's reported numbers so far


class Callback:
    """What the loop tells others, in the process that writes. All methods do nothing by default."""

    def on_progress(self, progress: Progress) -> None:
        """Some steps were taken."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is over; ``record`` may be added to before it is written."""

    def on_recorded(self, record: dict[str, Any]) -> None:
        """The epoch's record is complete and written."""

    def on_warning(self, text: str) -> None:
        """An alarm has something to say."""


class Stopped(Exception):
    """Training was asked to stop, and its state is saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


@dataclass
class Loop:
    """Trains to the end, or to a request to stop."""

    step: TrainStep  # the training step
    batches: Batches  # its images
    epochs: int  # how many in all
    world: World  # the processes
    watch: CollapseWatch  # for collapse
    rank_of: Callable[[Tensor], float]  # effective rank of the embeddings, given the sum of their outer products
    run: RunFolder | None = None  # where records and checkpoints go; None keeps nothing
    callbacks: Sequence[Callback] = ()  # told as training goes
    global_batch: int = 256  # images a step over all processes
    check_every: int = 1  # steps between looks at the device (alarms, progress, requests to stop)
    checkpoint_epochs: int = 10  # epochs between checkpoints
    checkpoint_seconds: float = 300.0  # and at the latest after this long
    steps_done: int = field(default=0, init=False)  # so far, by this process and those before it

    def __post_init__(self) -> None:
        self._stop = False
        self._elapsed = 0.0
        self._last_checkpoint = time.monotonic()

    def resume(self) -> list[str]:
        """Go on from the newest readable checkpoint, if there is one; says what it had to pass over."""
        assert self.run is not None
        found, complaints = checkpoint.newest(self.run.checkpoints)
        if found is not None:
            checkpoint.restore(self.step, found)
            self.steps_done, self._elapsed = found.info["step"], found.info["elapsed"]
            self.watch.load(found.info["watch"])
            self.batches.load(found.info["batches"])
            self.step.state.gram /= self.world.size  # the one saved is of all images; each process takes a share
        if self.world.writes:
            self.run.forget_after(self.steps_done)
        return complaints

    def __call__(self) -> None:
        """Train."""
        self._last_checkpoint = time.monotonic()
        with heeding(self._request), closing(self.batches):
            first_epoch, first_step = divmod(self.steps_done, self.batches.steps_per_epoch)
            for epoch in range(first_epoch, self.epochs):
                self._train_epoch(epoch, first_step)
                first_step = 0
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _train_epoch(self, epoch: int, first_step: int) -> None:
        total = self.batches.steps_per_epoch
        if first_step == 0:
            self.step.state.start_epoch()
        self.step.method.train()
        self.batches.start_epoch(epoch, first_step)
        began = mark = time.monotonic()
        since = 0
        for done in range(first_step + 1, total + 1):
            self.batches.advance()
            self.step()
            self.steps_done, since = self.steps_done + 1, since + 1
            if done == total or done % self.check_every == 0:
                averages = self._look(done)
                now = time.monotonic()
                speed, mark, since = since * self.global_batch / max(now - mark, 1e-9), now, 0
                self._tell(Progress(epoch + 1, self.epochs, done, total, self.global_batch, speed, averages))
                if done < total:  # at the end, the epoch is recorded first
                    self._save_if_needed(now - began)
        seconds = max(time.monotonic() - began, 1e-9)  # some clocks are coarse
        self._elapsed += seconds
        self._end_epoch(epoch + 1, seconds, (total - first_step) * self.global_batch / seconds)

    def _look(self, done: int) -> dict[str, float]:
        """Wait for the device, and stop if something went wrong there."""
        state = self.step.state
        averages = self.step.averages(done)
        bad = int(state.bad_step)
        if bad >= 0:
            parts = dict(zip(self.step.names, state.bad_parts.tolist(), strict=True))
            folder = self.run.path if self.run is not None and self.world.writes else None
            raise non_finite(bad, parts, self.step.rebuild_batch(bad), folder)
        return averages

    def _tell(self, progress: Progress) -> None:
        if self.world.writes:
            for callback in self.callbacks:
                callback.on_progress(progress)

    def _end_epoch(self, epoch: int, seconds: float, speed: float) -> None:
        state, total = self.step.state, self.batches.steps_per_epoch
        sums, gram = self.world.sum(state.sums), self.world.sum(state.gram)
        if self.world.writes:
            record: dict[str, Any] = {"epoch": epoch, "step": self.steps_done}
            record |= dict(zip(self.step.names, (sums / (total * self.world.size)).tolist(), strict=True))
            record["effective_rank"] = self.rank_of(gram)
            record["lr"] = float(self.step.learning_rates[self.steps_done - 1])
            record |= self.batches.notes()
            record |= {"images_per_second": round(speed, 1), "seconds": round(seconds, 3)}
            record["elapsed"] = round(self._elapsed, 3)
            self._record(record)
        self._save_if_needed(due=epoch % self.checkpoint_epochs == 0 or epoch == self.epochs)

    def _record(self, record: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_epoch(record)
        warnings = self.watch(record)
        if self.run is not None:
            self.run.append(self.run.metrics_file, record)
            for text in warnings:
                self.run.append(self.run.warnings_file, {"step": self.steps_done, "text": text})
        for callback in self.callbacks:
            for text in warnings:
                callback.on_warning(text)
            callback.on_recorded(record)

    # Stopping and saving

    def _save_if_needed(self, seconds: float = 0.0, due: bool = False) -> None:
        """All processes agree whether to save, and whether to stop."""
        late = time.monotonic() - self._last_checkpoint > self.checkpoint_seconds
        stop, due = self.world.any(self._stop, due or late)
        if stop or due:
            self._write_checkpoint(seconds)
        if stop and self.steps_done < self.epochs * self.batches.steps_per_epoch:
            raise Stopped(self.steps_done)

    def _write_checkpoint(self, seconds: float = 0.0) -> None:
        """Save the state, with the epoch's sums as one process would have them: any number may go on from it."""
        state = self.step.state
        local = state.sums.clone(), state.gram.clone()
        state.sums.copy_(self.world.sum(local[0]) / self.world.size)
        state.gram.copy_(self.world.sum(local[1]))
        if self.run is not None and self.world.writes:
            info: dict[str, Any] = {"step": self.steps_done, "elapsed": self._elapsed + seconds}
            info |= {"watch": self.watch.state(), "batches": self.batches.state()}
            checkpoint.write(self.run.checkpoints, checkpoint.capture(self.step, info))
        state.sums.copy_(local[0])
        state.gram.copy_(local[1])
        self._last_checkpoint = time.monotonic()

    def _request(self, number: int, frame: FrameType | None) -> None:
        """A signal asks to stop after the present step; a second Ctrl-C is obeyed at once."""
        if self._stop and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        self._stop = True
