"""Projectors and predictors: the small networks that methods put on an encoder and throw away after training."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

LastNorm = Literal["none", "batch", "plain"]


def mlp(widths: Sequence[int], last_norm: LastNorm = "none", last_bias: bool = True) -> nn.Sequential:
    """Linear layers with batch normalisation and ReLU between them.

    Hidden layers have no bias, which their batch normalisation would absorb.

    Args:
        widths: of the input, the hidden layers and the output.
        last_norm: what follows the last layer: nothing, "batch" normalisation, or "plain" batch normalisation without
            learnt scale and shift.
        last_bias: of the last layer; without effect before a normalisation, where there is none.

    >>> [type(layer).__name__ for layer in mlp([512, 2048, 256])]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(
            "a head needs a layer at least, and widths (such as hidden, projection or bottleneck) of 1 or more, "
            f"got widths {list(widths)}"
        )
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last_bias and last_norm == "none"))
    if last_norm != "none":
        layers.append(nn.BatchNorm1d(widths[-1], affine=last_norm == "batch"))
    return nn.Sequential(*layers)
