"""The amortised inference network g: embedding -> parameters of the posterior (paper, Appendix inference-arch)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from vje.posterior import DiagonalGaussian

VARIANCE_FLOOR = 1e-5


class InferenceNetwork(nn.Module):
    """Two-layer bottleneck with layer normalisation, then one linear head each for mean and variance.

    Args:
        dim: embedding dimension D.
        ratio: bottleneck width as a fraction of D; H = floor(ratio * D).
        isotropic: one variance shared by all features, instead of one each.

    >>> network = InferenceNetwork(2048)
    >>> round(sum(p.numel() for p in network.parameters()) / 1e6, 1)  # the paper's head for ResNet-50
    3.4
    """

    def __init__(self, dim: int, ratio: float = 0.25, isotropic: bool = False) -> None:
        super().__init__()
        hidden = int(ratio * dim)
        if hidden < 1:
            raise ValueError(f"a bottleneck of ratio {ratio} leaves no unit of {dim} features; use a larger ratio")
        self.bottleneck = nn.Sequential(
            nn.Linear(dim, hidden, bias=False),  # layer normalisation would absorb a bias
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden, bias=False),
            nn.LayerNorm(hidden),
            nn.ReLU(),
        )
        self.mean = nn.Linear(hidden, dim)
        self.variance = nn.Linear(hidden, 1 if isotropic else dim)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, z: Tensor) -> DiagonalGaussian:
        """Posterior of embeddings z, shape ``[..., D]``."""
        with torch.autocast(z.device.type, enabled=False):  # the posterior is never computed in half precision
            hidden = self.bottleneck(z)
            mean = self.mean(hidden)
            variance = softplus(self.variance(hidden)) + VARIANCE_FLOOR
        return DiagonalGaussian(mean, variance.expand_as(mean))
