"""The rows of every process, for losses that look across samples."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_gather


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
    return torch.cat(all_gather(x.contiguous()))


def gathered(x: Tensor) -> Tensor:
    """:func:`gather` without gradients."""
    with torch.no_grad():
        return gather(x.detach())
