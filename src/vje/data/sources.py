"""Where images come from: arrays in memory or files on disk, with or without labels.

A source is a numbered collection of images that knows their names and labels and decodes one on demand. It holds no
tensors, so that the command line can check its arguments before anything heavy is loaded.
"""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vje.data.decode import is_grey, read_image
from vje.errors import UserError
from vje.resize import fit_image

IMAGE_EXTENSIONS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jp2", ".j2k", ".avif",
    ".heic", ".heif", ".ppm", ".pgm", ".pbm",
)  # fmt: skip
_HEADER_SAMPLE = 64
_HASH_BYTES = 16
_CHUNK = 1024


class ImageSource(ABC):
    """A numbered collection of images.

    Attributes:
        name: what to call it in messages.
        names: name of each image: its path relative to the folder, or its place in the array.
        labels: class of each image, int64 ``[N]``, or ``None``.
        classes: name of each class, or ``None``.
    """

    def __init__(self, name: str, names: list[str], labels: ArrayLike | None, classes: Sequence[str] | None) -> None:
        self.name, self.names = name, names
        self.labels = None if labels is None else _check_labels(np.asarray(labels), len(names), name)
        self.classes = None if classes is None else list(classes)

    @abstractmethod
    def image(self, index: int, channels: int, draft: int | None = None) -> Image.Image:
        """One image in mode ``L`` or ``RGB``; for ``draft`` see :func:`vje.data.decode.read_image`."""

    @abstractmethod
    def subset(self, indices: ArrayLike) -> Self:
        """The images at ``indices``, in that order, under their old names."""

    def thinned(self, most: int) -> Self:
        """``most`` of the images, evenly spaced from the first to the last; all if there are no more."""
        return self if len(self) <= most else self.subset(np.linspace(0, len(self) - 1, most).astype(int))

    @property
    @abstractmethod
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""

    @property
    def uniform_shape(self) -> tuple[int, int] | None:
        """Height and width, where all images are known to share them."""
        return None

    def fingerprint(self) -> str:
        """Identifies the images and their order, not their labels: equal means that features can be reused."""
        return self._fingerprint

    @cached_property
    @abstractmethod
    def _fingerprint(self) -> str: ...

    def __len__(self) -> int:
        return len(self.names)

    def labelled(self, labels: ArrayLike | None, classes: Sequence[str] | None = None) -> Self:
        """The same images with other labels."""
        other = copy.copy(self)
        ImageSource.__init__(other, self.name, self.names, labels, classes)
        return other

    def undrafted(self) -> Self:
        """The same images, of which none is decoded at less than its own size."""
        return self

    def fitted(self, index: int, size: int, crop: int, channels: int) -> NDArray[np.uint8]:
        """One image as evaluation sees it: uint8 ``[channels, crop, crop]``."""
        # Twice the final size leaves the antialiasing filter enough to work on (the gap Pillow's thumbnails keep).
        return fit_image(self.image(index, channels, draft=2 * size), size, crop)


class ArraySource(ImageSource):
    """Images of one size in memory.

    Args:
        images: uint8, ``[N, H, W]`` or ``[N, H, W, C]`` with 1 (grey), 3 (RGB) or 4 (RGBA, laid on white) channels.
        labels: one class an image, ``[N]`` or ``[N, 1]``.
        classes: name of each class.
        name: what to call it in messages.
        names: name of each image, by default its place in the array.

    >>> digits = ArraySource(np.zeros((3, 8, 8), np.uint8), labels=[0, 1, 1])
    >>> len(digits), digits.channels, digits.uniform_shape, digits.subset([2]).names
    (3, 1, (8, 8), ['2'])
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        name: str = "array",
        names: Sequence[str] | None = None,
    ) -> None:
        _check_pixels(images, name)
        images = images[..., None] if images.ndim == 3 else images  # [N, H, W, C]
        self.images = _on_white(images) if images.shape[3] == 4 else images
        names = [str(i) for i in range(len(images))] if names is None else list(names)
        super().__init__(name, names, labels, classes)

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return int(self.images.shape[3])

    @property
    def uniform_shape(self) -> tuple[int, int]:
        """Height and width of every image."""
        return int(self.images.shape[1]), int(self.images.shape[2])

    def image(self, index: int, channels: int, draft: int | None = None) -> Image.Image:
        """One image in mode ``L`` or ``RGB``; there is nothing to draft."""
        pixels = self.images[index]
        return Image.fromarray(pixels[..., 0] if self.channels == 1 else pixels).convert(
            "L" if channels == 1 else "RGB"
        )

    def planes(self, indices: ArrayLike) -> NDArray[np.uint8]:
        """A copy of the images at ``indices``: uint8 ``[B, C, H, W]``."""
        return np.ascontiguousarray(self.images[np.asarray(indices, dtype=np.int64)].transpose(0, 3, 1, 2))

    def subset(self, indices: ArrayLike) -> Self:
        """The images at ``indices``, under their old names."""
        index = np.asarray(indices, dtype=np.int64)
        labels = None if self.labels is None else self.labels[index]
        return type(self)(self.images[index], labels, self.classes, self.name, [self.names[i] for i in index])

    @cached_property
    def _fingerprint(self) -> str:
        digest = blake2b(repr(self.images.shape).encode(), digest_size=_HASH_BYTES)
        for start in range(0, len(self), _CHUNK):
            digest.update(np.ascontiguousarray(self.images[start : start + _CHUNK]).data)
        return digest.hexdigest()


class FolderSource(ImageSource):
    """Image files under a folder.

    Args:
        root: the folder.
        files: paths relative to it, with forward slashes.
        labels: one class a file.
        classes: name of each class.
        ignored: what else was found there, and left out.
        drafts: large JPEGs may be decoded at a reduced size, which is faster and changes pixels by a level or so.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        files: Sequence[str],
        labels: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        ignored: Sequence[str] = (),
        drafts: bool = True,
    ) -> None:
        self.root = Path(root)
        self.files = list(files)
        self.ignored = list(ignored)
        self.drafts = drafts
        super().__init__(str(root), self.files, labels, classes)

    @cached_property
    def channels(self) -> int:
        """1 if every file of an evenly spaced sample declares itself grey."""
        found = [is_grey(self.root / name) for name in self.thinned(_HEADER_SAMPLE).files]
        known = [grey for grey in found if grey is not None]
        return 1 if known and all(known) else 3

    def image(self, index: int, channels: int, draft: int | None = None) -> Image.Image:
        """One image, decoded to mode ``L`` or ``RGB``."""
        return read_image(self.root / self.files[index], channels, draft if self.drafts else None)

    def undrafted(self) -> Self:
        """The same images, of which none is decoded at less than its own size."""
        return type(self)(self.root, self.files, self.labels, self.classes, self.ignored, drafts=False)

    def subset(self, indices: ArrayLike) -> Self:
        """The images at ``indices``, under their old names."""
        index = np.asarray(indices, dtype=np.int64)
        labels = None if self.labels is None else self.labels[index]
        files = [self.files[i] for i in index]
        return type(self)(self.root, files, labels, self.classes, self.ignored, self.drafts)

    @cached_property
    def _fingerprint(self) -> str:
        digest = blake2b(b"" if self.drafts else b"undrafted", digest_size=_HASH_BYTES)  # other pixels, other features
        for name in self.files:
            try:
                status = (self.root / name).stat()
                digest.update(repr((name, status.st_size, status.st_mtime_ns)).encode())
            except OSError:
                digest.update(repr((name, "gone")).encode())
        return digest.hexdigest()


def _check_pixels(images: NDArray[Any], name: str) -> None:
    if images.dtype != np.uint8:
        values, remedy = _diagnose(images)
        raise UserError(f"{name}: images must be uint8 (0..255), got {images.dtype}{values}; {remedy}")
    shape = tuple(images.shape)
    if images.ndim == 4 and shape[3] not in (1, 3, 4) and shape[1] in (1, 3, 4):
        raise UserError(f"{name}: images look like [N, C, H, W], got {shape}; use images.transpose(0, 2, 3, 1)")
    if images.ndim not in (3, 4) or (images.ndim == 4 and shape[3] not in (1, 3, 4)):
        raise UserError(f"{name}: images must be [N, H, W] or [N, H, W, C] with 1, 3 or 4 channels, got {shape}")
    if 0 in shape:
        raise UserError(f"{name}: there are no images in an array of shape {shape}")


def _diagnose(images: NDArray[Any]) -> tuple[str, str]:
    """What range the values of a wrong type have, and how to make them right."""
    if images.dtype.kind == "b":
        return "", "convert them with images.astype(np.uint8) * 255"
    if images.dtype.kind not in "iuf" or not images.size:
        return "", "save them as a plain uint8 array"
    low, high = float(images.min()), float(images.max())
    values = f" with values {low:g}..{high:g}"
    if images.dtype.kind == "f" and low >= 0 and high <= 1:
        return values, "convert them with (images * 255).round().astype(np.uint8)"
    if low >= 0 and high <= 255:
        return values, "convert them with images.round().astype(np.uint8)"
    return values, "scale them to 0..255 and convert them with images.round().astype(np.uint8)"


def _check_labels(labels: NDArray[Any], count: int, name: str) -> NDArray[np.int64]:
    if labels.shape not in ((count,), (count, 1)):
        what = f"{len(labels)} labels" if labels.ndim == 1 else f"labels of shape {labels.shape}"
        raise UserError(
            f"{name}: {count} images but {what}; give one class an image, in the order of the images, or no labels"
        )
    if labels.dtype.kind not in "iu":
        raise UserError(f"{name}: labels must be integers, got {labels.dtype}; use class numbers 0, 1, 2, ...")
    if count and labels.min() < 0:
        raise UserError(
            f"{name}: labels must be 0 or more, got {labels.min()}: number the classes from 0 or give them names, "
            "and leave labels out where there are none"
        )
    return labels.reshape(count).astype(np.int64)


def _on_white(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """RGBA ``[N, H, W, 4]`` over a white ground, ``[N, H, W, 3]``."""
    out = np.empty((*images.shape[:3], 3), np.uint8)
    for start in range(0, len(images), _CHUNK):
        part = images[start : start + _CHUNK].astype(np.uint32)
        color, alpha = part[..., :3], part[..., 3:]
        out[start : start + _CHUNK] = (color * alpha + 255 * (255 - alpha) + 127) // 255
    return out
