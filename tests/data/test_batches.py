import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vje.data.batches import evaluation_batches
from vje.data.decode import fit_image
from vje.data.folders import scan_folder
from vje.data.sources import ArraySource
from vje.preprocessing import Preprocessing

Picture = Callable[..., Path]
PREPARE = Preprocessing(size=10, crop=8, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)


def test_arrays() -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 9, 14), dtype=np.uint8)
    batches = list(evaluation_batches(ArraySource(images), PREPARE, batch_size=3))
    assert [batch.indices.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert all(batch.images.shape[1:] == (3, 8, 8) and not batch.failures for batch in batches)
    whole = PREPARE.fit(torch.from_numpy(images)[:, None])
    assert torch.equal(torch.cat([batch.images for batch in batches]), whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_folders_skip_a_corrupt_file(workers: int, tmp_path: Path, picture: Picture) -> None:
    for i in range(11):
        picture(f"{i:02}.png", width=12 + i)
    (tmp_path / "04.png").write_bytes((tmp_path / "04.png").read_bytes()[:60])
    source = scan_folder(tmp_path)
    batches = list(evaluation_batches(source, PREPARE, batch_size=2, workers=workers))
    indices = torch.cat([batch.indices for batch in batches]).tolist()
    assert indices == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert [index for batch in batches for index, _ in batch.failures] == [4]
    for index, image in zip(indices, torch.cat([batch.images for batch in batches]), strict=True):
        assert np.array_equal(image.numpy(), fit_image(source.image(index, 3), 10, 8))


def test_a_batch_with_nothing_readable_is_empty(tmp_path: Path, picture: Picture) -> None:
    (tmp_path / "a.png").touch()
    picture("b.png")
    first, second = evaluation_batches(scan_folder(tmp_path), PREPARE, batch_size=1)
    assert first.images.shape == (0, 3, 8, 8)
    assert first.failures == [(0, "the file is empty")]
    assert second.indices.tolist() == [1]


def test_stopping_early_leaves_no_threads(tmp_path: Path, picture: Picture) -> None:
    for i in range(12):
        picture(f"{i:02}.png")
    before = threading.active_count()
    iterator = evaluation_batches(scan_folder(tmp_path), PREPARE, batch_size=1, workers=2)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
