"""LARS: layer-wise adaptive rates (You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017).

Neither torch nor torchvision has it; timm's cannot skip a step on the device, which our alarms need.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class LARS(torch.optim.Optimizer):
    r"""SGD whose gradients are scaled, weight by weight, to a fixed share of the weight's own norm.

    .. math:: g' = g + \lambda w, \quad v \leftarrow m v + \eta \frac{|w|}{|g'|} g', \quad w \leftarrow w - \gamma v

    With ``limit`` that share is the most a step may be instead of what it is: the factor of :math:`g'` is
    :math:`\min(1, \eta |w| / (\gamma |g'|))`, so small gradients take steps of plain SGD.

    Groups with ``adapt=False`` (normalisation layers and biases) are plain SGD with momentum. If the attribute
    ``found_inf`` is a tensor that is not zero, a step changes nothing, as with torch's own fused optimisers.

    Args:
        params: parameters or groups of them.
        lr: gamma, a tensor that may be written to.
        momentum: m.
        weight_decay: lambda.
        trust: eta.
        limit: only limit steps.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        params: Iterable[Any],
        lr: Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        limit: bool = False,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "adapt": True}
        super().__init__(params, defaults | {"trust": trust, "limit": limit})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)

    def _update(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        velocity = gradient + group["weight_decay"] * p
        if group["adapt"]:
            weight_norm, norm = torch.linalg.vector_norm(p), torch.linalg.vector_norm(velocity)
            ratio = group["trust"] * weight_norm / norm
            if group["limit"]:
                ratio = (ratio / group["lr"]).clamp(max=1.0)  # a rate of zero gives infinity, and so 1
            velocity = velocity * torch.where((weight_norm > 0) & (norm > 0), ratio, 1.0)
        if group["momentum"]:  # without it there is nothing to remember, and nothing for a checkpoint to hold
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            buffer = self.state[p]["momentum_buffer"]
            velocity = group["momentum"] * buffer + velocity
            buffer.copy_(self._unless_stopped(velocity, buffer))
        p.copy_(self._unless_stopped(p - group["lr"] * velocity, p))

    def _unless_stopped(self, new: Tensor, old: Tensor) -> Tensor:
        return new if self.found_inf is None else torch.where(self.found_inf > 0, old, new)
