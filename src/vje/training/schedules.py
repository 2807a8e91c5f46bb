"""Schedules as tables of one value a step, so that a training step can look them up on the device."""

import math

import torch
from torch import Tensor


def warmup_cosine(base: float, steps: int, warmup: int) -> Tensor:
    """Learning rate: linear warm-up to ``base``, then a cosine to zero, shape ``[steps]``.

    >>> warmup_cosine(1.0, steps=6, warmup=2).tolist()
    [0.5, 1.0, 1.0, 0.8535534143447876, 0.5, 0.1464466154575348]
    """
    t = torch.arange(steps, dtype=torch.float64)
    cosine = 0.5 * (1 + torch.cos(math.pi * (t - warmup) / max(1, steps - warmup)))
    return (base * torch.where(t < warmup, (t + 1) / max(1, warmup), cosine)).float()


def cosine_to_one(start: float, steps: int) -> Tensor:
    """EMA momentum: a cosine from ``start`` to 1, shape ``[steps]``.

    >>> cosine_to_one(0.5, steps=3).tolist()
    [0.5, 0.75, 1.0]
    """
    t = torch.arange(steps, dtype=torch.float64)
    return (1 - (1 - start) * 0.5 * (1 + torch.cos(math.pi * t / max(1, steps - 1)))).float()
