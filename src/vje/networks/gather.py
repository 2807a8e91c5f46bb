"""The rows of every process, for losses that look across samples."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather(x: Tensor) -> Tensor:
    """Rows of all processes in order of rank, with gradients; without other processes, ``x`` itself.

    Every process then computes the loss of the whole batch. In the backward pass each sends the others the gradients of
    their rows, and these add up to W times the true gradient (W processes hold the same loss); averaging over W
    processes, as DistributedDataParallel does, leaves it exact.

    Args:
        x: shape ``[B, ...]``, the same in every process.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return x
    rows: Tensor = _Gather.apply(x)
    return rows


def gathered(x: Tensor) -> Tensor:
    """:func:`gather` without gradients."""
    with torch.no_grad():
        return gather(x.detach())


class _Gather(torch.autograd.Function):
    """The collective and its adjoint: rows go to all, and all processes' gradients of them come back summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]
