import numpy as np
import pytest
import torch
from torch import nn

from vje import VJE, Encoder, Preprocessing
from vje.data.sources import ArraySource

PREPARE = Preprocessing(size=10, crop=8, channels=3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


@pytest.fixture
def make_model():
    """A small model in evaluation mode whose statistics, target and inference network are none of the defaults."""

    def make(target="ema", seed=0, **options):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 24)
        )
        model = VJE(Encoder(network, 24), target=target, **{"preprocessing": PREPARE} | options)
        for _ in range(3):
            model([torch.randn(16, 3, 8, 8) * 2 + 0.5, torch.randn(16, 3, 8, 8)])
        for module in (model.target, model.inference):
            for p in () if module is None else module.parameters():
                nn.init.normal_(p, std=0.3)
        return model.eval()

    return make


@pytest.fixture
def make_source():
    """Random images of four classes that differ in brightness; they are cropped, and need no resizing."""

    def make(count=20, seed=0, labelled=True):
        rng = np.random.default_rng(seed)
        labels = np.arange(count) % 4
        images = rng.integers(0, 100, (count, 12, 10, 3)) + 50 * labels[:, None, None, None]
        return ArraySource(images.astype(np.uint8), labels if labelled else None)

    return make
