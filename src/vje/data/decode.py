"""One image file to 8-bit pixels, whatever its mode, depth or orientation.

Everything a folder of pictures is likely to hold comes out as grey (``L``) or ``RGB``; everything else is refused with
:class:`UnreadableImage`, which names the file and gives a short reason.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from vje.errors import UserError

_DEEP_MODES = {"I", "F", "I;16", "I;16B", "I;16L", "I;16N"}
_GREY_MODES = {"1", "L", "LA", "La", *_DEEP_MODES}
_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}


class UnreadableImage(UserError):
    """A file that is no image, or not all of one."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both, so that it survives the way back from a worker process
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot read {self.path}: {self.reason}"


def read_image(file: str | os.PathLike[str] | IO[bytes], channels: int, draft: int | None = None) -> Image.Image:
    """Decode an image to mode ``L`` (``channels=1``) or ``RGB`` (``channels=3``).

    The EXIF orientation is applied, deep greys are scaled to 8 bits, transparency is laid on white, and an animation
    gives its first frame.

    Args:
        file: a path, or a seekable binary file.
        channels: 1 or 3.
        draft: a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size as long as its shorter side keeps this many pixels.

    Raises:
        UnreadableImage: it cannot be decoded.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB), got {channels}")
    name = str(getattr(file, "name", file))
    try:
        with _open(file, name) as image:
            if draft is not None:
                image.draft("L" if channels == 1 else None, (draft, draft))
            image.load()
            with suppress(Exception):  # a picture with damaged EXIF data is still a picture
                ImageOps.exif_transpose(image, in_place=True)
            return to_mode(image, channels)
    except UnreadableImage:
        raise
    except Exception as error:  # decoders raise nearly anything on damaged bytes
        raise UnreadableImage(name, _reason(error, file)) from error


def is_grey(path: str | os.PathLike[str]) -> bool | None:
    """Whether the file's header declares a grey image; ``None`` where it cannot be read."""
    try:
        with _open(path, str(path)) as image:
            return image.mode in _GREY_MODES
    except Exception:
        return None


def _open(file: str | os.PathLike[str] | IO[bytes], name: str) -> Image.Image:
    kinds = (stat.S_IFREG, stat.S_IFDIR)
    if isinstance(file, (str, os.PathLike)) and stat.S_IFMT(Path(file).stat().st_mode) not in kinds:
        raise UnreadableImage(name, "not a file but a pipe, a socket or a device")  # reading one may never end
    try:
        return Image.open(file)
    except UnidentifiedImageError:
        head = _head(file)
        if head[4:8] != b"ftyp" or head[8:12] not in _HEIC_BRANDS:
            raise
    try:
        from pillow_heif import register_heif_opener
    except ImportError as error:
        raise UnreadableImage(name, "HEIC needs pillow-heif: pip install 'vje[heic]'") from error
    register_heif_opener()
    return Image.open(file)


def _head(file: str | os.PathLike[str] | IO[bytes]) -> bytes:
    if isinstance(file, (str, os.PathLike)):
        with Path(file).open("rb") as opened:
            return opened.read(12)
    file.seek(0)
    head = file.read(12)
    file.seek(0)
    return head


def to_mode(image: Image.Image, channels: int) -> Image.Image:
    """An image of any mode as ``L`` (1 channel) or ``RGB`` (3): deep ones scaled, transparent ones laid on white."""
    mode = "L" if channels == 1 else "RGB"
    if image.mode in _DEEP_MODES:
        image = Image.fromarray(_to_eight_bits(np.asarray(image), always_deep=image.mode.startswith("I;16")))
    elif image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        straight = {"La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode)
        image = image.convert(straight).convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    elif image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _to_eight_bits(values: NDArray[Any], always_deep: bool) -> NDArray[np.uint8]:
    """Scale by the range the values fit in: [0, 1] (floats only), [0, 255], [0, 65535], else their own.

    >>> _to_eight_bits(np.array([0, 257, 65535]), always_deep=False)
    array([  0,   1, 255], dtype=uint8)
    >>> _to_eight_bits(np.array([-1000.0, 0.0, 1000.0]), always_deep=False)
    array([  0, 128, 255], dtype=uint8)
    """
    fractional = values.dtype.kind == "f"
    values = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 65535:
        values, top = values - low, (high - low) or 1.0
    elif always_deep or high > 255:
        top = 65535.0
    else:
        top = 1.0 if fractional and high <= 1 else 255.0
    return np.rint(values * (255.0 / top)).astype(np.uint8)


def _reason(error: Exception, file: str | os.PathLike[str] | IO[bytes]) -> str:
    """The error in a few words."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels, which may be an attack on memory"
    if isinstance(error, UnidentifiedImageError):
        with suppress(OSError):
            if not _head(file):
                return "the file is empty"
        return "not an image, or of a kind that Pillow does not know"
    line = (str(error).splitlines() or [""])[0][:120]
    return line if isinstance(error, OSError) and line else f"{type(error).__name__}: {line}"
