import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vje.data import batches as batches_module
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


# Many images: processes


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes from ten images on, three images at a time, as if on four cores."""
    monkeypatch.setattr(batches_module, "MANY", 10)
    monkeypatch.setattr(batches_module, "PART", 3)
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    else:
        pytest.skip("images are decoded by processes on Linux alone")


class Witness(ArraySource):
    """Says in the first pixel which process decoded an image."""

    def fitted(self, index: int, size: int, crop: int, channels: int) -> np.ndarray:
        pixels = super().fitted(index, size, crop, channels)
        pixels[0, 0, :4] = np.array([os.getpid()], dtype="<u4").view(np.uint8)
        return pixels


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("batch_size", [1, 3, 4, 11])
def test_processes_give_what_decoding_in_place_gives(batch_size: int, tmp_path: Path, picture: Picture) -> None:
    for i in range(11):
        picture(f"{i:02}.png", width=12 + i)
    (tmp_path / "04.png").write_bytes((tmp_path / "04.png").read_bytes()[:60])
    (tmp_path / "05.png").touch()
    source, state = scan_folder(tmp_path), torch.get_rng_state()
    found = list(evaluation_batches(source, PREPARE, batch_size, workers=3))
    expected = list(evaluation_batches(source, PREPARE, batch_size))
    assert [batch.failures for batch in found] == [batch.failures for batch in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.indices, theirs.indices)
        assert torch.equal(ours.images, theirs.images)
        assert ours.images.dtype == torch.uint8
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize(("count", "workers", "processes"), [(9, 3, 1), (12, 1, 1), (12, 3, 3), (12, 64, 4)])
def test_processes_are_for_many_images_and_one_a_core(count: int, workers: int, processes: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (count, 40, 9, 3), dtype=np.uint8)  # too long for the quick way
    batches = evaluation_batches(Witness(images), PREPARE, 5, workers)
    seen = {int(np.ascontiguousarray(x[0, 0, :4]).view("<u4")[0]) for batch in batches for x in batch.images.numpy()}
    assert len(seen) == processes
    assert (os.getpid() in seen) == (processes == 1)


@pytest.mark.usefixtures("few_are_many")
def test_stopping_early_leaves_no_processes(tmp_path: Path, picture: Picture) -> None:
    for i in range(12):
        picture(f"{i:02}.png")
    iterator = evaluation_batches(scan_folder(tmp_path), PREPARE, batch_size=1, workers=2)
    next(iterator)
    assert len(multiprocessing.active_children()) == 2
    iterator.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []
