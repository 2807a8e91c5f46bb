import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vje.data import batches as batches_module
from vje.data.batches import evaluation_batches
from vje.data.folders import scan_folder
from vje.data.sources import ArraySource
from vje.errors import UserError
from vje.preprocessing import Preprocessing
from vje.resize import fit_image

Picture = Callable[..., Path]
PREPARE = Preprocessing(size=10, crop=8, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)


@pytest.mark.parametrize(("height", "width"), [(9, 14), (10, 14), (10, 99)])
def test_arrays(height: int, width: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, height, width), dtype=np.uint8)
    batches = list(evaluation_batches(ArraySource(images), PREPARE, batch_size=3))
    assert [batch.indices.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert all(batch.images.shape[1:] == (3, 8, 8) and not batch.failures for batch in batches)
    whole = torch.cat([batch.images for batch in batches])
    assert torch.equal(whole, PREPARE.fit(torch.from_numpy(images)[:, None]))
    assert np.array_equal(whole, np.stack([fit_image(Image.fromarray(x).convert("RGB"), 10, 8) for x in images]))


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
    images = np.random.default_rng(0).integers(0, 256, (count, 40, 9, 3), dtype=np.uint8)  # 9: they are to be resized
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


# What may happen to processes


@pytest.fixture
def twelve(tmp_path: Path, picture: Picture) -> Path:
    for i in range(12):
        picture(f"{i:02}.png")
    return tmp_path


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.usefixtures("few_are_many")
def test_the_death_of_a_process_is_told_in_words(twelve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArraySource, "fitted", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    images = np.zeros((12, 40, 9, 3), dtype=np.uint8)
    with pytest.raises(UserError, match=r"ended from outside, perhaps for want of memory: try fewer --workers\."):
        list(evaluation_batches(ArraySource(images), PREPARE, 4, workers=2))
    wait_until(lambda: not multiprocessing.active_children())


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("error", [RuntimeError("sizes 3 and 4 do not match"), UserError("the disk is full")])
def test_a_mistake_in_a_process_is_not_its_death(
    twelve: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(ArraySource, "fitted", fail)
    source = ArraySource(np.zeros((12, 40, 9, 3), dtype=np.uint8))
    with pytest.raises(type(error), match=str(error)) as caught:
        list(evaluation_batches(source, PREPARE, 4, workers=2))
    if isinstance(error, UserError):  # for people, who have no use for a traceback
        assert str(caught.value) == str(error)


@pytest.mark.usefixtures("few_are_many")
def test_processes_leave_signals_to_the_parent(twelve: Path) -> None:
    batches = evaluation_batches(scan_folder(twelve), PREPARE, 1, workers=2)
    found = [next(batches)]
    for child in multiprocessing.active_children():
        assert child.pid is not None
        for kind in ("INT", "TERM"):  # from another process, as a terminal or a scheduler would
            subprocess.run(["sh", "-c", f"kill -{kind} {child.pid}"], check=True)
    found += list(batches)
    assert torch.cat([batch.indices for batch in found]).tolist() == list(range(12))


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_without_semaphores_threads_decode(twelve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    batches = evaluation_batches(scan_folder(twelve), PREPARE, 5, workers=2)
    assert [batch.indices.tolist() for batch in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


SCRIPT = """
import multiprocessing, os, sys, threading, time
from vje.data import batches
from vje.data.folders import scan_folder
from vje.preprocessing import Preprocessing

batches.MANY, batches.PART = 10, 1
os.sched_getaffinity = lambda _: {0, 1}
prepare = Preprocessing(size=10, crop=8, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)
stream = batches.evaluation_batches(scan_folder(sys.argv[1]), prepare, 1, 2)
"""
BLOCKED = """
batches._fitted = lambda *_: time.sleep(3600)  # as a file on a lost network drive
threading.Thread(target=next, args=(stream,), daemon=True).start()
while len(workers := multiprocessing.active_children()) < 2:
    time.sleep(0.05)
print(*(worker.pid for worker in workers), flush=True)
time.sleep(3600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="images are decoded by processes on Linux alone")
def test_a_script_that_did_not_take_all_batches_ends(twelve: Path) -> None:
    command = [sys.executable, "-c", SCRIPT + "next(stream)", twelve]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="images are decoded by processes on Linux alone")
def test_processes_end_with_their_parent_whatever_they_wait_for(twelve: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT + BLOCKED, twelve], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    wait_until(lambda: not any(map(lives, workers)))


def lives(pid: int) -> bool:
    """Whether a process still lives; one that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_negative_workers(twelve: Path) -> None:
    with pytest.raises(UserError, match="--workers must be 0 or more, got -1"):
        next(evaluation_batches(scan_folder(twelve), PREPARE, 4, workers=-1))
