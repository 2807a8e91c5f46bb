from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vje.data.folders import scan_folder
from vje.data.resident import channel_statistics, load_resident
from vje.data.sources import ArraySource
from vje.errors import UserError
from vje.resize import fit_image

Picture = Callable[..., Path]


def test_arrays_of_the_right_size_are_only_permuted() -> None:
    images = np.random.default_rng(0).integers(0, 256, (600, 8, 8, 3), dtype=np.uint8)
    resident = load_resident(ArraySource(images, labels=np.arange(600) % 7), size=8, crop=8, channels=3)
    assert np.array_equal(resident.images.numpy(), images.transpose(0, 3, 1, 2))
    assert resident.images.is_contiguous()
    assert resident.labels is not None
    assert resident.labels.tolist() == (np.arange(600) % 7).tolist()
    assert resident.kept.tolist() == list(range(600))
    assert resident.skipped == []


@pytest.mark.parametrize("channels", [1, 3])
def test_other_arrays_agree_with_pillow(channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 20, 26, 3), dtype=np.uint8)
    source = ArraySource(images)
    resident = load_resident(source, size=12, crop=10, channels=channels)
    expected = np.stack([fit_image(source.image(i, channels), 12, 10) for i in range(5)])
    assert np.abs(resident.images.numpy().astype(int) - expected).max() <= 2


@pytest.mark.parametrize("workers", [0, 2])
def test_folders_equal_pillow_and_skip_what_cannot_be_read(workers: int, tmp_path: Path, picture: Picture) -> None:
    for i in range(6):
        picture(f"{'cat' if i % 2 else 'dog'}/{i}.png", width=12 + i, height=15)
    (tmp_path / "cat" / "2.png").write_text("not an image")
    source = scan_folder(tmp_path)
    resident = load_resident(source, size=10, crop=8, channels=3, workers=workers)
    assert [name for name, _ in resident.skipped] == ["cat/2.png"]
    assert resident.labels is not None
    assert source.labels is not None
    assert resident.labels.tolist() == source.labels[resident.kept].tolist()
    assert len(resident.images) == 6
    for row, index in enumerate(resident.kept):
        assert np.array_equal(resident.images[row].numpy(), fit_image(source.image(index, 3), 10, 8))


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no")
    with pytest.raises(UserError, match=r"none of the 1 images.*a\.png: not an image"):
        load_resident(scan_folder(tmp_path), size=8, crop=8, channels=3)


def test_statistics_equal_numpy() -> None:
    images = torch.randint(0, 256, (5000, 3, 3, 2), dtype=torch.uint8)
    images[:, 2] = 9
    mean, std = channel_statistics(images)
    scaled = images.numpy().astype(np.float64) / 255
    assert np.allclose(mean, scaled.mean((0, 2, 3)), rtol=1e-12)
    assert np.allclose(std[:2], scaled.std((0, 2, 3))[:2], rtol=1e-12)
    with pytest.raises(ValueError, match="uint8"):
        channel_statistics(images.float())


def test_a_constant_channel_can_be_divided_by() -> None:
    assert channel_statistics(torch.zeros(2, 1, 3, 3, dtype=torch.uint8)) == ((0.0,), (1.0,))
