"""The target encoder: an exponential moving average of the online one."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


@torch.no_grad()
def moving_average(target: nn.Module, online: nn.Module, momentum: float | Tensor, buffers: bool = False) -> None:
    """Update ``target <- momentum * target + (1 - momentum) * online`` in place.

    Args:
        target: module that follows; same architecture as ``online``.
        online: module that leads.
        momentum: in [0, 1]; a 0-dimensional tensor keeps the whole step on the device.
        buffers: average floating-point buffers (batch-norm statistics) too.

    >>> slow, fast = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(slow.weight), nn.init.ones_(fast.weight)
    >>> moving_average(slow, fast, 0.75)
    >>> slow.weight.item()
    0.25
    """
    _lerp(target.parameters(), online.parameters(), momentum)
    if buffers:
        _lerp(_floating(target.buffers()), _floating(online.buffers()), momentum)


def _floating(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [x for x in tensors if x.is_floating_point()]


def _lerp(target: Iterable[Tensor], online: Iterable[Tensor], momentum: float | Tensor) -> None:
    """One multi-tensor update: sixty small kernels a step would cost more than the arithmetic."""
    slow, fast = list(target), list(online)
    if slow:
        change = torch._foreach_sub(fast, slow)
        torch._foreach_mul_(change, 1 - momentum)
        torch._foreach_add_(slow, change)
