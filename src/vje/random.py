"""Random numbers as a pure function of (seed, step, position in the global batch, purpose).

A counter-based generator (Philox-4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)
written in tensor arithmetic. There is no state to save or to synchronise: a resumed run, N processes instead of one,
another number of loader workers and a replayed CUDA graph all draw the same numbers; a GPU draws those of a CPU
(normal ones up to its rounding of log, sin and cos).
"""

import math
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


class Stream(IntEnum):
    """What a draw is for: streams are independent of each other. Numbers are part of the run format; only append."""

    VIEW_1 = 0
    VIEW_2 = 1
    POSTERIOR = 2
    SLICES = 3


@dataclass(frozen=True)
class Draws:
    """The random numbers of one training step.

    Attributes:
        seed: the run's seed, 0 <= seed < 2**32.
        step: the step, an integer or a 0-dimensional int64 tensor (which may live in a CUDA graph).
        positions: place of each of this process's samples in the global batch, int64, shape ``[B]``.

    Asking for more numbers of a stream gives the same ones first.

    >>> draws = Draws(seed=0, step=3, positions=torch.arange(4))
    >>> other_half = Draws(seed=0, step=3, positions=torch.arange(2, 4))
    >>> torch.equal(draws.uniform(Stream.VIEW_1, 5)[2:], other_half.uniform(Stream.VIEW_1, 5))
    True
    """

    seed: int
    step: Tensor | int
    positions: Tensor

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _MASK:
            raise ValueError(f"a seed is from 0 to {_MASK}, got {self.seed}")

    def uniform(self, stream: int, count: int) -> Tensor:
        """Uniform float32 numbers in [0, 1), shape ``[B, count]``."""
        return _to_unit(self._words(stream, count))[:, :count]

    def normal(self, stream: int, count: int) -> Tensor:
        """Standard normal float32 numbers, shape ``[B, count]`` (Box-Muller)."""
        u = _to_unit(self._words(stream, count)).unflatten(1, (-1, 2))  # [B, pairs, 2]
        radius, angle = torch.sqrt(-2 * torch.log1p(-u[..., 0])), (2 * math.pi) * u[..., 1]
        return torch.stack([radius * angle.cos(), radius * angle.sin()], 2).flatten(1)[:, :count]

    def _words(self, stream: int, count: int) -> Tensor:
        """At least ``count`` 32-bit words a sample, as int64, shape ``[B, 4 * ceil(count / 4)]``."""
        position = self.positions.unsqueeze(1)  # [B, 1]
        block = torch.arange(-(-count // 4), device=position.device)  # [count / 4]
        zero = torch.zeros_like(position * block)
        # The first and third words are multiplied first: a compiler must not take them for small array indices.
        counter = (zero + position, zero + block, zero + (self.step & _MASK), zero + (self.step >> 32))
        return torch.stack(philox(counter, (self.seed & _MASK, stream)), 2).flatten(1)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Philox-4x32-10: four 32-bit words (held in int64 tensors) from a counter and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        hi0, lo0 = _multiply(0xD2511F53, c0)
        hi1, lo1 = _multiply(0xCD9E8D57, c2)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low words of a 32 x 32 bit product; int64 arithmetic wraps, and the bits are still right."""
    product = a * b
    return (product >> 32) & _MASK, product & _MASK


def _to_unit(words: Tensor) -> Tensor:
    return (words >> 8).to(torch.float32) * 2.0**-24
