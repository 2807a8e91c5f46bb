"""Training steps small enough to take by the dozen, and training as the command line does it, interrupted at will."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vje.build import build_loop
from vje.build_data import build_data
from vje.config import Config, to_dict
from vje.data.augment import Augmentation
from vje.methods.vje import VJE
from vje.networks.encoders import Encoder
from vje.preprocessing import Preprocessing
from vje.recipes import load_recipe
from vje.runs import RunFolder
from vje.training.batches import ResidentBatches
from vje.training.distributed import World
from vje.training.loop import Callback, Loop, Progress, Stopped
from vje.training.optimizer import build_optimizer
from vje.training.schedules import cosine_to_one, warmup_cosine
from vje.training.step import StepOptions, TrainStep, Views

IMAGES, BATCH, SEED = 24, 8, 3
NORMS: dict[str, Callable[[], nn.Module]] = {"group": lambda: nn.GroupNorm(2, 8), "batch": lambda: nn.BatchNorm2d(8)}


@pytest.fixture
def make_step() -> Callable[..., TrainStep]:
    """Builds a step over a one-layer encoder (D = 16), batch 8 of 24 images; the same every time."""

    def make(
        norm: str = "group",
        lr: float = 0.05,
        steps: int = 12,
        warmup: int = 3,
        momentum: float = 0.9,
        weight_decay: float = 1e-3,
        target_momentum: float = 0.7,
        initial_seed: int = 0,
        **options: Any,
    ) -> TrainStep:
        torch.manual_seed(initial_seed)
        layers = [nn.Conv2d(3, 8, 3, 2, bias=False), NORMS[norm](), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        method = VJE(Encoder(nn.Sequential(*layers, nn.Linear(8, 16)), 16), target="ema")
        images = torch.randint(0, 256, (IMAGES, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
        augment = Augmentation(size=8, area=(0.5, 1.0))
        return TrainStep(
            method=method,
            optimizer=build_optimizer(method, "sgd", torch.tensor(lr), momentum, weight_decay),
            batches=ResidentBatches(images, BATCH, BATCH, 0, SEED),
            views=Views([augment, augment], Preprocessing(8, 8, 3, (0.5,) * 3, (0.25,) * 3)),
            learning_rates=warmup_cosine(lr, steps, warmup),
            momenta=cosine_to_one(target_momentum, steps),
            seed=SEED,
            options=StepOptions(batch=BATCH, **options),
        )

    return make


@pytest.fixture
def small_config(make_npz: Callable[..., Path], tmp_path: Path) -> Config:
    """Two epochs of four steps of a three-stage ResNet with an EMA target."""
    recipe = load_recipe("digits")
    return replace(
        recipe,
        data=replace(recipe.data, data=str(make_npz(tmp_path / "small.npz", train=32, test=12))),
        settings=replace(recipe.settings, target="ema"),
        optimizer=replace(recipe.optimizer, epochs=2, batch=8, lr=0.01),
        run=replace(recipe.run, device="cpu"),
    )


class Interrupt(Callback):
    """Ctrl-C after a step, counted over the whole run."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_progress(self, progress: Progress) -> None:
        if (progress.epoch - 1) * progress.steps_per_epoch + progress.epoch_step == self.step:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def train() -> Callable[..., Loop]:
    """``train(config, folder, stop_after=None, prepare=None)``: start or resume, as a new process would.

    ``prepare(loop)`` may change the loop before it runs; an interruption is no error.
    """

    def run(
        config: Config, path: Path, stop_after: int | None = None, prepare: Callable[[Loop], None] | None = None
    ) -> Loop:
        folder, resuming = RunFolder(path), (path / "config.json").exists()
        data = build_data(config, folder.read("data") if resuming else None)
        loop = build_loop(config, data, torch.device("cpu"), World(), folder, [Interrupt(stop_after)])
        folder.write("config", to_dict(config))
        folder.write("data", data.record())
        if resuming:
            assert loop.resume() == []
        if prepare is not None:
            prepare(loop)
        try:
            loop()
        except Stopped as stop:
            assert stop.step == stop_after
        return loop

    return run
