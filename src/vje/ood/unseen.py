"""Which of some images a run was not trained on: those that it was look more typical to it than new ones."""

from collections.abc import Hashable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vje.data.sources import ArraySource, FolderSource, ImageSource
from vje.data.splits import Splits


def unseen(source: ImageSource, recorded: Mapping[str, Any], own: Splits | None = None) -> NDArray[np.int64]:
    """Places of the images that a run was not trained on.

    Args:
        source: the images.
        recorded: the run's ``data.json``. It tells the whole of the training images, with and without those held out.
        own: the run's images, where they are at hand. They tell single ones: the same file, by whatever path or link,
            or the same pixels of an array.
    """
    everything: NDArray[np.int64] = np.arange(len(source))
    trained = recorded.get("fingerprint")
    if source.fingerprint() == trained:
        return everything[:0]
    names = set(recorded.get("held_out") or ())
    held_out: NDArray[np.bool_] = np.array([name in names for name in source.names])
    if 0 < held_out.sum() < len(source) and source.subset(everything[~held_out]).fingerprint() == trained:
        return everything[held_out]
    if own is None or source.fingerprint() == own.test.fingerprint():  # a test set may well repeat a training image
        return everything
    known = set(_identities(own.train))
    return everything[[identity not in known for identity in _identities(source)]]


def _identities(source: ImageSource) -> Iterator[Hashable]:
    """What tells each image from any other of its kind."""
    if isinstance(source, FolderSource):
        for name in source.files:
            try:
                status = (source.root / name).stat()
                yield status.st_dev, status.st_ino
            except OSError:  # it is gone
                yield source.root / name
    elif isinstance(source, ArraySource):
        for image in source.images:
            yield image.shape, blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()
    else:
        yield from ((source.name, name) for name in source.names)
