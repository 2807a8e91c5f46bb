"""The optimiser, set up so that a whole step can stay on the device."""

import warnings
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vje.training.lars import LARS

Kind = Literal["sgd", "lars", "adam", "adamw"]


def build_optimizer(
    module: nn.Module,
    kind: Kind,
    lr: Tensor,
    momentum: float,
    weight_decay: float,
    constant: Iterable[nn.Parameter] = (),
    trust: float = 1e-3,
    limit: bool = False,
) -> torch.optim.Optimizer:
    """An optimiser with weight decay on matrices and convolutions only, not on normalisation layers and biases.

    Args:
        module: its parameters that require gradients are optimised.
        kind: "sgd", "lars", "adam" or "adamw".
        lr: 0-dimensional tensor on the module's device; writing to it changes the learning rate.
        momentum: of SGD and LARS.
        weight_decay: L2 penalty, part of the gradient; of AdamW, decoupled from it.
        constant: parameters whose learning rate stays at what ``lr`` is now.
        trust: of LARS, the share of a weight's norm.
        limit: of LARS, whether that share only limits a step.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    fixed = {id(p) for p in constant}
    groups: list[dict[str, Any]] = []
    for rate, chosen in (
        (lr, [p for p in parameters if id(p) not in fixed]),
        (lr.clone(), [p for p in parameters if id(p) in fixed]),
    ):
        groups.append({"params": [p for p in chosen if p.ndim > 1], "lr": rate, "weight_decay": weight_decay})
        groups.append({"params": [p for p in chosen if p.ndim <= 1], "lr": rate, "weight_decay": 0.0, "adapt": False})
    groups = [group for group in groups if group["params"]]
    if kind == "lars":
        optimizer: torch.optim.Optimizer = LARS(groups, lr=lr, momentum=momentum, trust=trust, limit=limit)
    elif kind in ("adam", "adamw"):
        warnings.filterwarnings("ignore", message=".*capturable=True.*")  # steps that warm up a graph are not captured
        adam = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
        optimizer = adam(groups, lr=lr, fused=True, capturable=lr.is_cuda)
    else:
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=True)
    for p in parameters:  # zeros are what each starts from; without them the first step would be special
        if kind in ("adam", "adamw"):
            optimizer.state[p]["step"] = torch.zeros((), device=p.device)
            optimizer.state[p] |= {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
        elif momentum:
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer
