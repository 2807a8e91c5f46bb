"""The variational posterior q(s|z) = N(mean, diag(variance)) and what can be read off it for each image."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vje.likelihood import gaussian_kl


@dataclass(frozen=True)
class DiagonalGaussian:
    """A batch of diagonal Gaussians.

    Attributes:
        mean: shape ``[..., D]``.
        variance: per-feature variance, shape ``[..., D]``.

    >>> q = DiagonalGaussian(torch.zeros(2, 3), torch.ones(2, 3))
    >>> q.sample().shape, q.kl().tolist(), q.anisotropy().tolist()
    (torch.Size([2, 3]), [0.0, 0.0], [0.0, 0.0])
    """

    mean: Tensor
    variance: Tensor

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Reparameterised sample ``mean + sqrt(variance) * noise``.

        Args:
            noise: standard normal draws that broadcast against the mean (``[K, B, D]`` gives K samples each);
                drawn from torch's global generator if absent.
        """
        return self.mean + self.variance.sqrt() * (torch.randn_like(self.mean) if noise is None else noise)

    def kl(self) -> Tensor:
        """KL divergence to the standard normal prior, shape ``[...]``."""
        return gaussian_kl(self.mean, self.variance)

    def mean_variance(self) -> Tensor:
        """Variance averaged over features, shape ``[...]``."""
        return self.variance.mean(-1)

    def anisotropy(self) -> Tensor:
        """Coefficient of variation of the variance over features (std / mean), shape ``[...]``."""
        mean = self.variance.mean(-1)
        if not mean.numel():  # torch would warn of the spread of nothing
            return mean
        return self.variance.std(-1, correction=0) / mean
