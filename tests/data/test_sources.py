from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import CenterCrop, InterpolationMode, Resize

from vje.data.sources import ArraySource, FolderSource
from vje.errors import UserError

RNG = np.random.default_rng(0)


def colors(count: int = 4, side: int = 5) -> np.ndarray:
    return RNG.integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def test_array_source() -> None:
    images = colors()
    source = ArraySource(images, labels=np.array([[0], [2], [1], [0]], np.uint8), classes=["a", "b", "c"])
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == [0, 2, 1, 0]
    assert source.channels == 3
    assert np.array_equal(np.asarray(source.image(2, 3)), images[2])
    part = source.subset([3, 1])
    assert part.labels is not None
    assert (list(part.names), part.labels.tolist(), part.classes) == (["3", "1"], [0, 2], ["a", "b", "c"])
    assert list(part.subset([1]).names) == ["1"]
    assert np.array_equal(part.planes([0])[0], images[3].transpose(2, 0, 1))


@pytest.mark.parametrize(("count", "most"), [(10, 10), (10, 9), (11, 3), (50_000, 2048), (9, 1), (3, 60)])
def test_thinned_evenly(count: int, most: int) -> None:
    source = ArraySource(np.zeros((count, 1, 1), np.uint8), labels=np.arange(count) % 7)
    few = source.thinned(most)
    chosen = np.array([int(name) for name in few.names], np.int64)
    assert len(few) == len(set(chosen)) == min(count, most)
    assert few.labels is not None and few.labels.tolist() == (chosen % 7).tolist()
    if most > 1:
        assert chosen[0] == 0 and chosen[-1] == count - 1 and np.ptp(np.diff(chosen)) <= 1


def test_grey_arrays() -> None:
    images = RNG.integers(0, 256, (3, 4, 6), dtype=np.uint8)
    source = ArraySource(images)
    assert (source.channels, source.uniform_shape, source.labels) == (1, (4, 6), None)
    assert np.array_equal(np.asarray(source.image(1, 3))[..., 2], images[1])


def test_rgba_arrays_are_laid_on_white() -> None:
    images = np.zeros((1, 1, 3, 4), np.uint8)
    images[0, 0] = [[10, 20, 30, 255], [9, 9, 9, 0], [0, 0, 0, 51]]
    assert ArraySource(images).images[0, 0].tolist() == [[10, 20, 30], [255] * 3, [204] * 3]


def test_thousands_of_rgba_images_are_laid_on_white() -> None:
    images = RNG.integers(0, 256, (2500, 2, 2, 4), dtype=np.uint8)
    alpha = images[..., 3:] / 255
    assert np.abs(ArraySource(images).images - (images[..., :3] * alpha + 255 * (1 - alpha))).max() <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.full((2, 4, 4), 0.5, np.float32), "float32 with values 0.5..0.5; convert them with (images * 255)"),
        (np.eye(4)[None], "float64 with values 0..1; convert them with (images * 255)"),
        (np.array([[[0, 255]]]), "int64 with values 0..255; convert them with images.round().astype(np.uint8)"),
        (np.full((2, 4, 4), 4000, np.uint16), "scale them to 0..255"),
        (np.full((2, 4, 4), 200, np.int64), "images.round().astype(np.uint8)"),
        (np.ones((2, 4, 4), bool), "* 255"),
        (np.array(["a"]), "plain uint8 array"),
        (np.zeros((2, 3, 8, 8), np.uint8), "transpose(0, 2, 3, 1)"),
        (np.zeros((2, 8, 8, 7), np.uint8), "1, 3 or 4 channels, got (2, 8, 8, 7)"),
        (np.zeros((2, 8), np.uint8), "[N, H, W]"),
        (np.zeros((0, 8, 8), np.uint8), "no images"),
    ],
)
def test_wrong_images_are_refused_with_a_remedy(images: np.ndarray, words: str) -> None:
    with pytest.raises(UserError) as caught:
        ArraySource(images, name="mine.npz")
    assert "mine.npz" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.arange(3), "4 images but 3 labels"),
        (np.zeros((4, 2), int), "shape (4, 2)"),
        (np.array([0.5, 1, 2, 3]), "integers, got float64"),
        (np.array([0, 1, -1, 2]), "got -1"),
    ],
)
def test_wrong_labels_are_refused(labels: np.ndarray, words: str) -> None:
    with pytest.raises(UserError) as caught:
        ArraySource(colors(), labels)
    assert words in str(caught.value)


def test_array_fingerprint_follows_content() -> None:
    images = colors()
    changed = images.copy()
    changed[3, 0, 0, 0] ^= 1
    assert ArraySource(images).fingerprint() == ArraySource(images.copy(), labels=[1, 2, 3, 4]).fingerprint()
    assert ArraySource(images).fingerprint() != ArraySource(changed).fingerprint()
    assert ArraySource(images).fingerprint() != ArraySource(images[::-1]).fingerprint()
    flipped = np.ascontiguousarray(images.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    assert ArraySource(flipped).fingerprint() == ArraySource(images).fingerprint()


@pytest.mark.parametrize("place", [0, 1023, 1024, 2499])
def test_array_fingerprint_follows_every_one_of_thousands_of_images(place: int) -> None:
    images = np.zeros((2500, 2, 2), np.uint8)
    changed = images.copy()
    changed[place, 1, 1] = 1
    assert ArraySource(images).fingerprint() != ArraySource(changed).fingerprint()


def test_folder_fingerprint_follows_files(tmp_path: Path, picture: Callable[..., Path]) -> None:
    picture("a.png"), picture("b.png")
    before = FolderSource(tmp_path, ["a.png", "b.png"]).fingerprint()
    assert FolderSource(tmp_path, ["a.png", "b.png"]).fingerprint() == before
    assert FolderSource(tmp_path, ["b.png", "a.png"]).fingerprint() != before
    picture("b.png", width=30)
    assert FolderSource(tmp_path, ["a.png", "b.png"]).fingerprint() != before
    (tmp_path / "b.png").unlink()
    assert FolderSource(tmp_path, ["a.png", "b.png"]).fingerprint() != before
    assert FolderSource(tmp_path, ["a.png", "b.png"]).fingerprint() != FolderSource(tmp_path, ["a.png"]).fingerprint()


def test_photos_are_decoded_at_no_less_than_twice_the_size_they_are_wanted_in(tmp_path: Path) -> None:
    Image.fromarray(colors(1, side=256)[0]).save(tmp_path / "x.jpg")
    with Image.open(tmp_path / "x.jpg") as photo:
        photo.draft(None, (64, 64))  # a quarter, of which Pillow's decoder is capable
        assert photo.size == (64, 64)
        expected = np.asarray(photo.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(FolderSource(tmp_path, ["x.jpg"]).fitted(0, size=32, crop=32, channels=3), expected)


def test_undrafted_photos_are_resized_from_all_of_their_pixels(tmp_path: Path) -> None:
    Image.fromarray(colors(1, side=256)[0]).save(tmp_path / "x.jpg")
    drafted = FolderSource(tmp_path, ["y.jpg", "x.jpg"], [1, 0], ["a", "b"], ignored=["z"])
    source = drafted.undrafted()
    expected = CenterCrop(32)(Resize(32, InterpolationMode.BILINEAR)(Image.open(tmp_path / "x.jpg")))
    for each, place in ((source, 1), (source.subset([1]), 0), (source.labelled(None), 1)):
        found = each.fitted(place, size=32, crop=32, channels=3)
        assert np.array_equal(found, np.asarray(expected).transpose(2, 0, 1))
        assert not np.array_equal(drafted.fitted(1, size=32, crop=32, channels=3), found)
    assert source.fingerprint() != drafted.fingerprint()  # features of the one are not those of the other
    assert source.subset([0, 1]).fingerprint() == source.fingerprint()
    assert (source.files, source.classes, source.ignored) == (drafted.files, drafted.classes, drafted.ignored)
    assert source.labels is not None and source.labels.tolist() == [1, 0]


def test_colour_is_found_at_the_end_of_a_folder_too(tmp_path: Path, picture: Callable[..., Path]) -> None:
    names = [f"{i:03}.png" for i in range(127)]
    for name in names:
        picture(name, 4, 4, "L" if name < "064" else "RGB")
    assert FolderSource(tmp_path, names).channels == 3


def test_folder_channels_and_subset(tmp_path: Path, picture: Callable[..., Path]) -> None:
    picture("a.png", mode="L"), picture("b.png", mode="L"), picture("c.png")
    (tmp_path / "d.png").write_text("")
    assert FolderSource(tmp_path, ["a.png", "b.png", "d.png"]).channels == 1
    source = FolderSource(tmp_path, ["a.png", "b.png", "c.png"], [0, 1, 1])
    assert (source.channels, source.uniform_shape) == (3, None)
    part = source.subset([2, 0])
    assert part.labels is not None
    assert (part.files, part.labels.tolist()) == (["c.png", "a.png"], [1, 0])
    assert source.fitted(2, size=8, crop=6, channels=3).shape == (3, 6, 6)
    relabelled = source.labelled(None)
    assert relabelled.labels is None
    assert source.labels is not None
