"""The target encoder: an exponential moving average of the online one."""

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

    def moving(module: nn.Module) -> list[Tensor]:
        return [*module.parameters(), *(x for x in module.buffers() if buffers and x.is_floating_point())]

    slow, fast = moving(target), moving(online)
    if slow:  # one multi-tensor update: sixty small kernels a step would cost more than the arithmetic
        change = torch._foreach_sub(fast, slow)
        torch._foreach_mul_(change, 1 - momentum)
        torch._foreach_add_(slow, change)
