"""Training on files that worker processes decode: as exact as training on images in memory."""

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vje.runs import RunFolder
from vje.training import checkpoint
from vje.training.batches import StreamBatches

CLOCK = ("images_per_second", "seconds", "elapsed")


@pytest.fixture
def photos(tmp_path):
    """Forty-one files of different sizes, one of them damaged."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(41):
        pixels = rng.integers(0, 200, (10 + i % 5, 12 - i % 4, 3), dtype=np.uint8) + np.uint8(i)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    broken = folder / "07.png"
    broken.write_bytes(broken.read_bytes()[:60])
    return folder


@pytest.fixture
def streamed(small_config, photos):
    data = replace(small_config.data, data=str(photos), resident="never", workers=0, held_out=0.2)
    return replace(small_config, data=data)


def untimed(run):
    return [{key: value for key, value in record.items() if key not in CLOCK} for record in RunFolder(run).metrics()]


def last_state(run):
    found, complaints = checkpoint.newest(RunFolder(run).checkpoints)
    assert complaints == []
    return found


def test_a_streamed_run_learns_counts_bad_files_and_resumes_exactly(train, streamed, tmp_path):
    loop = train(streamed, tmp_path / "whole")
    assert isinstance(loop.batches, StreamBatches)
    for stop in (1, 6):  # in the first epoch, in the second; then with workers
        train(streamed, tmp_path / "pieces", stop_after=stop)
    with_workers = replace(streamed, data=replace(streamed.data, workers=1))
    train(with_workers, tmp_path / "pieces")
    assert multiprocessing.active_children() == []

    whole, pieces = last_state(tmp_path / "whole"), last_state(tmp_path / "pieces")
    assert whole.info["step"] == 8
    assert whole.tensors.keys() == pieces.tensors.keys()
    assert [name for name, x in whole.tensors.items() if not torch.equal(x, pieces.tensors[name])] == []
    records = untimed(tmp_path / "pieces")
    assert records == untimed(tmp_path / "whole")
    assert records[-1]["unreadable_files"] == 1
    assert records[1]["loss"] < records[0]["loss"]
    assert records[-1]["effective_rank"] > 2


def test_bad_files_are_remembered_over_an_interruption(train, streamed, tmp_path):
    loop = train(streamed, tmp_path / "run", stop_after=4)
    assert loop.batches.notes() == {"unreadable_files": 1}
    seen = []
    train(streamed, tmp_path / "run", stop_after=5, prepare=lambda loop: seen.append(loop.batches.notes()))
    assert seen == [{"unreadable_files": 1}]


def test_without_bad_files_nothing_is_noted(train, streamed, photos, tmp_path):
    (photos / "07.png").unlink()
    train(streamed, tmp_path / "run", stop_after=4)
    [record] = untimed(tmp_path / "run")
    assert "unreadable_files" not in record
