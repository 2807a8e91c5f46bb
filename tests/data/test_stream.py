import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from vje.data.augment import Augmentation
from vje.data.folders import scan_folder
from vje.data.order import global_batch
from vje.data.sources import FolderSource
from vje.data.stream import Crops, StreamBatch, stream_batches
from vje.data.workers import death_in_words
from vje.errors import UserError
from vje.random import Draws, Stream

Picture = Callable[..., Path]


@pytest.fixture
def source(tmp_path: Path, picture: Picture) -> FolderSource:
    for i in range(11):
        picture(f"{i:02}.png", width=20 + i, height=24 - i)
    return scan_folder(tmp_path)


def batches(
    source: FolderSource, steps: range = range(5), positions: range = range(4), seed: int = 7, workers: int = 0
) -> list[StreamBatch]:
    return list(stream_batches(Crops(source, size=8, channels=3, seed=seed), steps, 4, positions, workers))


def same(first: Sequence[StreamBatch], second: Sequence[StreamBatch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(x, y) for a, b in zip(first, second, strict=True) for x, y in zip(a[:3], b[:3], strict=True)
    )


def test_batches_follow_the_order_and_have_two_views(source: FolderSource) -> None:
    for step, batch in enumerate(batches(source)):
        assert torch.equal(batch.indices, global_batch(11, 4, seed=7, step=step))
        assert batch.view_1.shape == (4, 3, 8, 8)
        assert batch.view_1.dtype == torch.uint8
        assert not torch.equal(batch.view_1, batch.view_2)
        assert batch.failures == []


def test_any_number_of_workers_gives_the_same(source: FolderSource) -> None:
    before = torch.get_rng_state()
    assert same(batches(source, workers=2), batches(source, workers=0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(sys.platform != "linux", reason="workers look for their parent on Linux alone")
def test_workers_are_children_of_this_process_whatever_python_starts_by_default(
    source: FolderSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "_default_context", multiprocessing.get_context("forkserver"), raising=False)
    rows = stream_batches(Crops(source, size=8, channels=3, seed=7), range(5), 4, range(4), workers=1)
    (worker,) = rows._workers
    assert os.getpid() == int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert len(list(rows)) == 5


def test_resuming_gives_the_tail(source: FolderSource) -> None:
    assert same(batches(source, range(3, 5)), batches(source)[3:])


def test_two_ranks_make_one_batch(source: FolderSource) -> None:
    parts = [batches(source, positions=half) for half in (range(2), range(2, 4))]
    joined = [
        StreamBatch(*(torch.cat([x, y]) for x, y in zip(a[:3], b[:3], strict=True)), [])
        for a, b in zip(*parts, strict=True)
    ]
    assert same(joined, batches(source))


def test_the_seed_changes_the_crops(source: FolderSource) -> None:
    assert not same(batches(source), batches(source, seed=8))


def test_crops_are_those_of_the_augmentation_on_the_device(source: FolderSource) -> None:
    only_crop = Augmentation(size=8, flip=0, jitter=0, grayscale=0)
    for step, batch in enumerate(batches(source)):
        for row in range(4):
            image = np.asarray(source.image(int(batch.indices[row]), 3)).copy()
            draws = Draws(7, step, torch.tensor([row]))
            for view, stream in ((batch.view_1, Stream.VIEW_1), (batch.view_2, Stream.VIEW_2)):
                expected = only_crop(torch.from_numpy(image).permute(2, 0, 1)[None], draws, stream)[0] * 255
                assert (expected - view[row].float()).abs().max() < 1.6  # Pillow rounds twice


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_file_is_replaced_by_the_next(workers: int, source: FolderSource, tmp_path: Path) -> None:
    whole = batches(source)
    (tmp_path / "03.png").write_text("no longer an image")
    (tmp_path / "04.png").write_bytes(b"")
    damaged = batches(source, workers=workers)
    names = [name for batch in damaged for name, _ in batch.failures]
    assert set(names) == {"03.png", "04.png"}
    for before, after in zip(whole, damaged, strict=True):
        expected = [5 if index in (3, 4) else index for index in before.indices.tolist()]
        assert after.indices.tolist() == expected


def test_nothing_readable_is_told_by_a_worker_without_its_traceback(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.png").write_text("no image")
    crops = Crops(scan_folder(tmp_path), size=8, channels=3, seed=7)
    with pytest.raises(UserError) as direct:
        list(stream_batches(crops, range(2), 2, range(2)))
    with pytest.raises(UserError) as passed_on, death_in_words():
        list(stream_batches(crops, range(2), 2, range(2), workers=1))
    assert str(passed_on.value) == str(direct.value)


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.png").touch()
    with pytest.raises(UserError, match=r"4 files of .* in a row cannot be read.*the file is empty"):
        batches(scan_folder(tmp_path))
