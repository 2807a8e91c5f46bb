"""The schedules' tables against their closed forms, one step at a time."""

import math
from dataclasses import replace

import pytest
import torch

from vje.build import build_loop
from vje.build_data import build_data
from vje.recipes import load_recipe
from vje.training.distributed import World
from vje.training.schedules import cosine_to_one, warmup_cosine


@pytest.mark.parametrize(("steps", "warmup"), [(10, 3), (7, 0), (1, 0), (5, 1), (4, 4), (1000, 50)])
def test_learning_rate_rises_linearly_and_falls_on_a_cosine(steps, warmup):
    base = 0.3
    expected = [
        base * (t + 1) / warmup if t < warmup else base * (1 + math.cos(math.pi * (t - warmup) / (steps - warmup))) / 2
        for t in range(steps)
    ]
    table = warmup_cosine(base, steps, warmup)
    assert table.dtype == torch.float32
    assert table.tolist() == pytest.approx(expected, rel=1e-6)
    assert table.min() > 0  # no step is wasted
    assert table.max().item() == pytest.approx(base)


@pytest.mark.parametrize("start", [0.0, 0.9, 0.996, 1.0])
def test_momentum_rises_to_one_on_a_cosine(start):
    steps = 9
    expected = [1 - (1 - start) * (math.cos(math.pi * t / (steps - 1)) + 1) / 2 for t in range(steps)]
    table = cosine_to_one(start, steps)
    assert table.dtype == torch.float32
    assert table.tolist() == pytest.approx(expected, rel=1e-6)
    assert table[-1] == 1


def test_a_run_of_one_step_has_the_first_momentum():
    assert cosine_to_one(0.9, 1).tolist() == pytest.approx([0.9])


@pytest.mark.parametrize(("epochs", "warmup", "warmup_steps"), [(3, 10.0, 1), (4, 1.0, 4), (2, 0.0, 0)])
def test_a_run_follows_its_config_with_a_warm_up_that_fits(small_config, epochs, warmup, warmup_steps):
    optimizer = replace(small_config.optimizer, epochs=epochs, warmup_epochs=warmup, lr=0.2)
    settings = replace(small_config.settings, target_momentum=0.8)
    config = replace(small_config, optimizer=optimizer, settings=settings)
    step = build_loop(config, build_data(config), torch.device("cpu"), World()).step
    assert torch.equal(step.learning_rates, warmup_cosine(0.2, 4 * epochs, warmup_steps))
    assert torch.equal(step.momenta, cosine_to_one(0.8, 4 * epochs))


@pytest.mark.parametrize(("method", "rises"), [("moco", False), ("byol", True)])
def test_the_momentum_of_moco_stays_and_that_of_byol_rises(small_config, method, rises):
    """As in the papers: a constant 0.99 there, and a cosine from 0.99 to 1 here."""
    recipe = load_recipe("digits", method)
    settings, optimizer = replace(recipe.settings, target_momentum=0.99), replace(recipe.optimizer, epochs=2, batch=8)
    config = replace(recipe, settings=settings, optimizer=optimizer, data=small_config.data, run=small_config.run)
    momenta = build_loop(config, build_data(config), torch.device("cpu"), World()).step.momenta
    expected = [1 - 0.005 * (1 + math.cos(math.pi * t / 7)) if rises else 0.99 for t in range(8)]
    assert momenta.tolist() == pytest.approx(expected, rel=1e-6)
