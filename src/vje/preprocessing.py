"""How pixels become encoder input at evaluation: part of a saved model, so that it needs no recipe."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vje.resize import fit_image, middle


@dataclass(frozen=True)
class Preprocessing:
    """Resize the shorter side (bilinear, antialiased), crop the centre, scale to [0, 1], normalise.

    Attributes:
        size: side of the shorter edge after resizing.
        crop: side of the square cut from the centre.
        channels: 1 (grey) or 3 (RGB).
        mean: per-channel mean of the training images, on the [0, 1] scale.
        std: per-channel standard deviation.

    >>> prepare = Preprocessing(size=8, crop=8, channels=1, mean=(0.5,), std=(0.5,))
    >>> prepare.normalize(prepare.fit(torch.full((2, 3, 16, 20), 255, dtype=torch.uint8))).unique()
    tensor([1.])
    """

    size: int
    crop: int
    channels: int
    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 (grey) or 3 (RGB), got {self.channels}")
        if not 0 < self.crop <= self.size:
            raise ValueError(f"crop must be between 1 and size={self.size}, got {self.crop}")
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"mean and std need {self.channels} values each, got {self.mean} and {self.std}")
        for name in ("mean", "std"):  # from tensors and arrays too
            object.__setattr__(self, name, tuple(float(x) for x in getattr(self, name)))
        if not all(0 <= x <= 1 for x in self.mean) or not all(0 < x <= 1 for x in self.std):
            raise ValueError(
                f"mean and std are of pixels from 0 to 1, std above 0, got {self.mean} and {self.std}: divide those of "
                "pixels from 0 to 255 by 255"
            )

    def fit(self, images: Tensor) -> Tensor:
        """Bring uint8 images ``[B, C, H, W]`` of one size to ``[B, channels, crop, crop]``, still uint8.

        The same pixels as from :func:`vje.resize.fit_image`, on the images' own device; those that are to be resized go
        through the CPU on the way.
        """
        if images.dtype != torch.uint8:
            raise ValueError(f"images must be uint8, 0 to 255, got {images.dtype}")
        if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
            raise ValueError(f"images must be [B, C, H, W] with 1 or 3 channels, got {tuple(images.shape)}")
        if images.shape[1] > self.channels:
            images = luminance(images)
        tall, wide = images.shape[-2:]
        if min(tall, wide) == self.size:
            images = images[..., middle(tall, self.crop), middle(wide, self.crop)]
        else:
            images = self._resized(images)
        return images.expand(-1, self.channels, -1, -1).contiguous()

    def _resized(self, images: Tensor) -> Tensor:
        fitted = np.empty((*images.shape[:2], self.crop, self.crop), np.uint8)
        pixels = images.permute(0, 2, 3, 1).squeeze(3).cpu().numpy()  # [B, H, W] or [B, H, W, 3]
        for place, picture in enumerate(pixels):
            fitted[place] = fit_image(Image.fromarray(picture), self.size, self.crop)
        return torch.from_numpy(fitted).to(images.device)

    def normalize(self, images: Tensor) -> Tensor:
        """Uint8 images, or floats in [0, 1], to normalised float32."""
        mean, std = (torch.tensor(x, device=images.device).view(-1, 1, 1) for x in (self.mean, self.std))
        scaled = images.float() / 255 if images.dtype == torch.uint8 else images
        return (scaled - mean) / std

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self) | {"mean": list(self.mean), "std": list(self.std)}


def luminance(images: Tensor) -> Tensor:
    """Grey version of uint8 RGB images ``[B, 3, H, W]``, in Pillow's integer arithmetic (white stays 255)."""
    weights = torch.tensor([19595, 38470, 7471], device=images.device).view(3, 1, 1)
    return (((images * weights).sum(1, keepdim=True) + 0x8000) >> 16).to(torch.uint8)
