"""The optimiser, set up so that a whole step can stay on the device."""

import torch
from torch import Tensor, nn


def sgd(module: nn.Module, lr: Tensor, momentum: float, weight_decay: float) -> torch.optim.SGD:
    """SGD with weight decay on matrices and convolutions only, not on normalisation layers and biases.

    Args:
        module: its parameters that require gradients are optimised.
        lr: 0-dimensional tensor on the module's device; writing to it changes the learning rate.
        momentum: of the optimiser.
        weight_decay: L2 penalty.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD([g for g in groups if g["params"]], lr=lr, momentum=momentum, fused=True)
    if momentum:
        for p in parameters:  # a zero buffer is what SGD starts from; without it the first step would be special
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer
