"""Augmentation as batched tensor operations: the same on CPU and GPU, per-image parameters, no hidden randomness.

Every operation takes its per-image parameters as tensors, so that each can be compared with torchvision or Pillow;
:class:`Augmentation` draws the parameters and applies them in torchvision's order: random resized crop, flip, colour
jitter, grayscale, blur, solarise. Images are float32 ``[B, C, H, W]`` in [0, 1]. Resizing and blurring are
separable and linear, so both are a pair of small matrix products with per-image matrices.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vje.random import Draws

CROP_TRIES = 10
CROP_DRAWS = 2 * CROP_TRIES + 2
_DRAWS = {
    "crop": CROP_DRAWS, "flip": 1, "jitter": 1, "factors": 3, "hue": 1, "order": 4, "grayscale": 1,
    "blur": 1, "sigma": 1, "solarize": 1,
}  # fmt: skip
"""How many uniform numbers an image takes for what, in the order in which they are drawn."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of one view.

    Attributes:
        size: side of the output.
        area: range of the crop's area, as a fraction of the image's.
        ratio: range of the crop's aspect ratio.
        flip: probability of a horizontal flip.
        jitter: probability of colour jitter.
        brightness: strength b: the factor is uniform in [max(0, 1 - b), 1 + b].
        contrast: likewise.
        saturation: likewise.
        hue: strength h: the shift is uniform in [-h, h] turns.
        grayscale: probability of losing all colour.
        blur: probability of a Gaussian blur.
        blur_sigma: range of its standard deviation, in pixels.
        blur_kernel: its width in pixels, odd.
        solarize: probability of inverting the pixels above one half.

    >>> augment = Augmentation(size=8, blur=1.0)
    >>> draws = Draws(seed=0, step=0, positions=torch.arange(2))
    >>> augment(torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8), draws, stream=0).shape
    torch.Size([2, 3, 8, 8])
    """

    size: int
    area: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1
    grayscale: float = 0.2
    blur: float = 0.0
    blur_sigma: Range = (0.1, 2.0)
    blur_kernel: int = 3
    solarize: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flip", "jitter", "grayscale", "blur", "solarize"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, from 0 to 1, got {getattr(self, name)}")
        if self.blur_kernel < 1 or self.blur_kernel % 2 == 0:
            raise ValueError(f"blur_kernel must be odd, so that a pixel is in its middle, got {self.blur_kernel}")

    def __call__(self, images: Tensor, draws: Draws, stream: int, cropped: bool = False) -> Tensor:
        """Augment a batch.

        Args:
            images: uint8 ``[B, C, H, W]``.
            draws: source of the parameters.
            stream: which of its streams; a view has its own.
            cropped: the images were cropped (from the same draws) when they were decoded.

        Returns:
            float32 ``[B, C, size, size]`` in [0, 1].
        """
        if images.dtype != torch.uint8:
            raise ValueError(
                f"images must be uint8, 0 to 255, as they are augmented before anything else; got {images.dtype}"
            )
        if images.dim() != 4 or images.shape[1] not in (1, 3):
            raise ValueError(f"images must be [B, C, H, W] with 1 or 3 channels, got {list(images.shape)}")
        numbers = draws.uniform(stream, sum(_DRAWS.values())).split(list(_DRAWS.values()), 1)
        u = dict(zip(_DRAWS, numbers, strict=True))  # [B, count] each
        x = images.float() / 255
        flip = u["flip"].squeeze(1) < self.flip
        if cropped:
            x = torch.where(_per_image(flip), x.flip(-1), x)
        else:
            boxes = crop_boxes(u["crop"], x.shape[-2], x.shape[-1], self.area, self.ratio)
            x = resized_crop(x, boxes, flip, self.size)
        x = self._color(x, u)
        if self.blur > 0:
            sigma = torch.where(u["blur"] < self.blur, _between(u["sigma"], self.blur_sigma), 0.0)
            x = gaussian_blur(x, sigma.squeeze(1), self.blur_kernel)
        if self.solarize > 0:
            x = torch.where(_per_image(u["solarize"] < self.solarize) & (x >= 0.5), 1 - x, x)
        return x

    def _color(self, x: Tensor, u: dict[str, Tensor]) -> Tensor:
        if self.jitter > 0:
            limits = [(max(0.0, 1 - s), 1 + s) for s in (self.brightness, self.contrast, self.saturation)]
            factors = [_between(v, limit) for v, limit in zip(u["factors"].split(1, 1), limits, strict=True)]
            shift = _between(u["hue"], (-self.hue, self.hue))
            x = color_jitter(x, torch.cat([*factors, shift], 1), u["order"], u["jitter"].squeeze(1) < self.jitter)
        if self.grayscale > 0 and x.shape[1] == 3:
            x = torch.where(_per_image(u["grayscale"] < self.grayscale), luma(x), x)
        return x


def crop_boxes(u: Tensor, height: int, width: int, area: Range, ratio: Range) -> Tensor:
    """Random crops as torchvision's ``RandomResizedCrop`` draws them: the first of ten tries that fits.

    Args:
        u: uniform numbers, shape ``[B, CROP_DRAWS]``.
        height: of the images.
        width: of the images.
        area: range of the crop's area, as a fraction of the image's.
        ratio: range of width / height; its logarithm is uniform.

    Returns:
        (top, left, height, width) for each image, int64, shape ``[B, 4]``.
    """
    target = (height * width) * _between(u[:, :CROP_TRIES], area)  # [B, tries]
    aspect = torch.exp(_between(u[:, CROP_TRIES : 2 * CROP_TRIES], (math.log(ratio[0]), math.log(ratio[1]))))
    w, h = torch.round(torch.sqrt(target * aspect)).long(), torch.round(torch.sqrt(target / aspect)).long()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits & (fits.cumsum(1) == 1)
    fallback_h, fallback_w = _largest_crop(height, width, ratio)
    found = fits.any(1)
    h = torch.where(found, (h * first).sum(1), fallback_h)
    w = torch.where(found, (w * first).sum(1), fallback_w)
    top = torch.where(found, (u[:, -2] * (height - h + 1)).long(), (height - h) // 2)
    left = torch.where(found, (u[:, -1] * (width - w + 1)).long(), (width - w) // 2)
    return torch.stack([top, left, h, w], 1)


def _largest_crop(height: int, width: int, ratio: Range) -> tuple[int, int]:
    """Largest central crop of an aspect ratio in range, for images too narrow for ten tries to fit."""
    if width / height < ratio[0]:
        return round(width / ratio[0]), width
    if width / height > ratio[1]:
        return height, round(height * ratio[1])
    return height, width


def resized_crop(images: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """Cut a box out of each image, resize it to a square (bilinear, antialiased as Pillow does), and flip some.

    Args:
        images: ``[B, C, H, W]``.
        boxes: (top, left, height, width), shape ``[B, 4]``.
        flip: which images to flip horizontally, bool, shape ``[B]``.
        size: side of the output.
    """
    top, left, height, width = boxes.unbind(1)
    rows = _resampling(top, height, size, images.shape[-2], torch.zeros_like(flip))
    columns = _resampling(left, width, size, images.shape[-1], flip)
    return _separable(images, rows, columns)


def _resampling(start: Tensor, length: Tensor, size: int, full: int, reverse: Tensor) -> Tensor:
    """Weights ``[B, size, full]`` that resample pixels [start, start + length) to ``size``: triangle filter."""
    out = torch.arange(size, device=start.device)
    out = torch.where(reverse.unsqueeze(1), size - 1 - out, out)  # [B, size]
    scale = (length / size).unsqueeze(1)
    center = start.unsqueeze(1) + (out + 0.5) * scale
    pixel = torch.arange(full, device=start.device)
    inside = (pixel >= start.unsqueeze(1)) & (pixel < (start + length).unsqueeze(1))  # [B, full]
    distance = (pixel + 0.5 - center.unsqueeze(2)).abs() / scale.clamp_min(1.0).unsqueeze(2)
    weights = (1 - distance).clamp_min(0) * inside.unsqueeze(1)
    return weights / weights.sum(2, keepdim=True)


def _separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Rows @ image @ columns' for each image and channel."""
    return rows.unsqueeze(1) @ images @ columns.unsqueeze(1).transpose(2, 3)


def color_jitter(images: Tensor, amounts: Tensor, order: Tensor, apply: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, in a random order for each image.

    Args:
        images: ``[B, C, H, W]`` with 1 or 3 channels; one channel has no saturation or hue.
        amounts: factors for brightness, contrast and saturation, and the hue shift in turns, shape ``[B, 4]``.
        order: sort keys, shape ``[B, 4]``; the operation with the smallest key comes first.
        apply: which images to change, bool, shape ``[B]``.
    """
    place = (order.unsqueeze(1) < order.unsqueeze(2)).sum(2)  # [B, 4]: when each operation's turn comes
    grey = images.shape[1] == 1
    for turn in range(4):
        now = (place == turn) & apply.unsqueeze(1)
        brightness, contrast, saturation, hue = (_per_image(x) for x in now.unbind(1))
        f_brightness, f_contrast, f_saturation, shift = (_per_image(x) for x in amounts.unbind(1))
        light = images if grey else luma(images)
        # All three blend the image with something: black, its mean grey, its grey version.
        other = torch.where(contrast, light.mean((1, 2, 3), keepdim=True), torch.where(saturation, light, 0.0))
        factor = torch.where(brightness, f_brightness, torch.where(contrast, f_contrast, f_saturation))
        blended = (factor * images + (1 - factor) * other).clamp(0, 1)
        blends = brightness | contrast if grey else brightness | contrast | saturation
        images = torch.where(blends, blended, images)
        if not grey:
            images = torch.where(hue, shift_hue(images, shift), images)
    return images


def luma(images: Tensor) -> Tensor:
    """Grey version of RGB images (ITU-R 601), shape ``[B, 1, H, W]``."""
    r, g, b = images.unbind(1)
    return (0.2989 * r + 0.587 * g + 0.114 * b).unsqueeze(1)


def shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of RGB images by ``shift`` turns, keeping HSV saturation and value; shift ``[B, 1, 1, 1]``."""
    r, g, b = images.unbind(1)
    value, low = images.amax(1), images.amin(1)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, 1.0)
    sextant = torch.where(
        value == r, (g - b) / safe, torch.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
    )  # hue times six
    sextant = sextant + 6 * shift.squeeze(1)
    channels = []
    for offset in (5, 3, 1):
        k = torch.remainder(sextant + offset, 6)
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur with a standard deviation for each image (0: none) and reflected borders.

    Args:
        images: ``[B, C, H, W]``.
        sigma: in pixels, shape ``[B]``.
        kernel: width of the kernel, odd.
    """
    radius = kernel // 2
    offset = torch.arange(-radius, radius + 1, device=images.device)
    weights = torch.exp(-0.5 * (offset / sigma.clamp_min(1e-3).unsqueeze(1)).square())
    weights = torch.where(sigma.unsqueeze(1) > 0, weights, (offset == 0).float())
    weights = weights / weights.sum(1, keepdim=True)  # [B, kernel]
    rows, columns = (_blur_matrix(weights, offset, side) for side in images.shape[-2:])
    return _separable(images, rows, columns)


def _blur_matrix(weights: Tensor, offset: Tensor, side: int) -> Tensor:
    """Band matrix ``[B, side, side]`` of a kernel, with reflection at the borders."""
    period = max(1, 2 * (side - 1))  # there and back again
    source = torch.remainder(torch.arange(side, device=offset.device).unsqueeze(1) + offset, period)
    source = torch.minimum(source, period - source)  # [side, kernel]
    chosen = (source.unsqueeze(2) == torch.arange(side, device=offset.device)).to(weights.dtype)
    return torch.einsum("bk,skt->bst", weights, chosen)


def _between(u: Tensor, limits: Range) -> Tensor:
    return limits[0] + (limits[1] - limits[0]) * u


def _per_image(x: Tensor) -> Tensor:
    return x.view(-1, 1, 1, 1)
