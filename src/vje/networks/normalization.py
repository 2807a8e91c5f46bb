"""Batch norm within parts of a batch, as if each part were on a GPU of its own."""

import torch
from torch import Tensor, nn

from vje.likelihood import at_least_float32


class GroupedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that takes statistics, in training, over each of several equal parts of the batch on its own.

    Running statistics follow the mean over the parts. Parameters and buffers have the names of the usual layer's, and
    evaluation is the same.

    Args:
        features: C of the input ``[B, C, H, W]``.
        groups: parts that the batch is divided into, in order.

    >>> layer = GroupedBatchNorm2d(1, groups=2)
    >>> layer(torch.tensor([1.0, 3.0, 10.0, 30.0]).view(4, 1, 1, 1)).round().flatten().tolist()
    [-1.0, 1.0, -1.0, 1.0]
    """

    def __init__(self, features: int, groups: int) -> None:
        super().__init__(features)
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """Normalised input, same shape and type."""
        if not self.training:
            return super().forward(input)
        parts: Tensor = at_least_float32(input).unflatten(0, (self.groups, -1))  # [G, B/G, C, H, W]
        variance, mean = torch.var_mean(parts, dim=(1, 3, 4), correction=0, keepdim=True)
        x = ((parts - mean) * torch.rsqrt(variance + self.eps)).flatten(0, 1)
        x = x * self.weight[:, None, None] + self.bias[:, None, None]
        self._follow(mean.detach(), variance.detach(), parts[0, :, 0].numel())
        return x.to(input.dtype)

    def _follow(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Move the running statistics as the usual layer does; each part has ``count`` values of a feature."""
        assert self.momentum is not None
        unbiased = variance * (count / max(count - 1, 1))
        for running, found in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.lerp_(found.mean(0).flatten().to(running.dtype), self.momentum)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)


def group_batch_norm(network: nn.Module, groups: int) -> int:
    """Make every two-dimensional batch norm in a network a :class:`GroupedBatchNorm2d`, in place; returns how many."""
    count = 0
    for name, child in network.named_children():
        if type(child) is nn.BatchNorm2d:
            grouped = GroupedBatchNorm2d(child.num_features, groups)
            grouped.eps, grouped.momentum = child.eps, child.momentum
            grouped.load_state_dict(child.state_dict())
            setattr(network, name, grouped)
            count += 1
        else:
            count += group_batch_norm(child, groups)
    return count


def interleaved(x: Tensor, groups: int) -> Tensor:
    """A batch in an order in which each of its parts has images of all parts of the batch as it was.

    >>> interleaved(torch.arange(6), 2)
    tensor([0, 3, 1, 4, 2, 5])
    """
    parts: Tensor = x.unflatten(0, (groups, -1))
    return parts.transpose(0, 1).flatten(0, 1)


def restored(x: Tensor, groups: int) -> Tensor:
    """What :func:`interleaved` was given.

    >>> restored(interleaved(torch.arange(6), 2), 2)
    tensor([0, 1, 2, 3, 4, 5])
    """
    return interleaved(x, len(x) // groups)
