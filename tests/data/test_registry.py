import gzip
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vje.data import registry
from vje.data.registry import check_data, open_data
from vje.data.sources import ArraySource, FolderSource, ImageSource
from vje.errors import UserError

Picture = Callable[..., Path]


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)


def labels_of(source: object) -> list[int]:
    assert isinstance(source, (ArraySource, FolderSource))
    assert source.labels is not None
    return [int(label) for label in source.labels]


def test_npz_with_splits(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "train_images": images(4),
        "train_labels": np.zeros((4, 1), np.uint8),
        "test_images": images(3),
        "val_images": images(2),
    }
    np.savez(tmp_path / "mine.npz", **arrays, val_labels=np.array([1, 0]))
    raw = open_data(str(tmp_path / "mine.npz"), tmp_path)
    assert raw.name == "mine"
    assert raw.train is not None and raw.test is not None and raw.val is not None
    assert (len(raw.train), len(raw.test), len(raw.val)) == (4, 3, 2)
    assert (labels_of(raw.train), raw.test.labels, labels_of(raw.val)) == ([0] * 4, None, [1, 0])
    assert np.array_equal(np.asarray(raw.test.image(1, 3)), arrays["test_images"][1])


def test_classes_that_are_numbers_have_names_where_they_are_known(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"train_images": images(4), "train_labels": np.array([0, 9, 1, 3])}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    named, path = (open_data(data, tmp_path).train for data in ("cifar10", str(tmp_path / "cifar10.npz")))
    assert named is not None and named.classes is not None and path is not None
    assert (named.classes[0], named.classes[9], path.classes) == ("airplane", "truck", None)  # a path is anybody's file
    assert named.fingerprint() == path.fingerprint()
    np.savez(tmp_path / "mine.npz", **arrays, classes=[f"kind {i}" for i in range(10)])
    mine = open_data(str(tmp_path / "mine.npz"), tmp_path).train
    assert mine is not None and mine.classes is not None and mine.classes[3] == "kind 3"
    for odd in (np.arange(10), np.array(["too", "few"])):
        np.savez(tmp_path / "odd.npz", **arrays, classes=odd)
        source = open_data(str(tmp_path / "odd.npz"), tmp_path).train
        assert source is not None and source.classes is None


def test_npz_without_splits_and_with_only_a_test_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", images=images(3), labels=np.array(["b", "a", "b"]))
    plain = open_data("plain", tmp_path)
    assert plain.train is not None
    assert (labels_of(plain.train), plain.train.classes, plain.test) == ([1, 0, 1], ["a", "b"], None)
    np.savez_compressed(tmp_path / "ood.npz", test_images=images(3))
    ood = open_data("ood", tmp_path)
    assert ood.train is None
    assert ood.test is not None


def test_the_part_that_is_picked_is_the_one_named_else_the_test_images(tmp_path: Path) -> None:
    parts = {"train": images(4), "test": images(3), "val": images(2)}
    np.savez(tmp_path / "all.npz", **{f"{split}_images": pixels for split, pixels in parts.items()})
    everything = open_data("all", tmp_path)
    assert {split: len(everything.pick(split)) for split in parts} == {"train": 4, "test": 3, "val": 2}
    assert len(everything.pick()) == 3
    for lacking, used in ((("test",), 2), (("test", "val"), 4)):
        some = {f"{split}_images": pixels for split, pixels in parts.items() if split not in lacking}
        np.savez(tmp_path / "some.npz", **some)
        assert len(open_data("some", tmp_path).pick()) == used
    with pytest.raises(UserError, match="some has no test split; it has train"):
        open_data("some", tmp_path).pick("test")


def test_npz_class_names_mean_the_same_in_every_split(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz",
        train_images=images(3), train_labels=np.array(["a", "b", "c"]),
        test_images=images(2), test_labels=np.array(["c", "b"]),
    )  # fmt: skip
    raw = open_data("x", tmp_path)
    assert (labels_of(raw.train), labels_of(raw.test)) == ([0, 1, 2], [2, 1])


def test_npz_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"

    def refused(words: str, **arrays: np.ndarray) -> None:
        np.savez(path, allow_pickle=True, **arrays)
        with pytest.raises(UserError, match=words):
            open_data(str(path), tmp_path)

    refused("holds x_train; expected train_images", x_train=images(2))
    refused("train_images holds Python objects", train_images=np.array([images(1), None], object))
    refused("4 images but 3 labels", train_images=images(4), train_labels=np.arange(3))
    refused("bad.npz: train_images.*float64", train_images=images(4) / 255)
    np.savez(path, train_images=images(40))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match="not a whole"):
        open_data(str(path), tmp_path)
    path.write_text("hello")
    with pytest.raises(UserError, match="not a whole"):
        open_data(str(path), tmp_path)
    with pytest.raises(UserError, match=r"not a \.npz file"):
        check_data(str(path), tmp_path)


def test_several_labels_an_image_count_as_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "chest.npz", train_images=images(4), train_labels=np.zeros((4, 14), int))
    with pytest.warns(UserWarning, match="14 labels an image"):
        raw = open_data("chest", tmp_path)
    assert raw.train is not None
    assert raw.train.labels is None


def test_a_file_in_the_data_folder_wins(tmp_path: Path, picture: Picture) -> None:
    picture("CIFAR10/a.png"), picture("cifar10/a.png"), picture("cifar10/b.png")
    folder = open_data("cifar10", tmp_path)
    assert isinstance(folder.train, FolderSource)
    assert len(folder.train) == 2
    np.savez(tmp_path / "cifar10.npz", train_images=images(5))
    assert isinstance(open_data("CIFAR-10", tmp_path).train, ArraySource)


def test_digits(tmp_path: Path) -> None:
    raw = open_data("digits", tmp_path / "nowhere")
    assert isinstance(raw.train, ArraySource)
    assert raw.train.images.shape == (1797, 8, 8, 1)
    assert (raw.train.images.min(), raw.train.images.max()) == (0, 255)
    assert raw.test is None
    assert sorted(set(labels_of(raw.train))) == list(range(10))


def test_folder_with_splits_numbers_classes_alike(tmp_path: Path, picture: Picture) -> None:
    for name in ("train/a/1.png", "train/b/2.png", "train/c/3.png", "valid/b/4.png", "valid/c/5.png"):
        picture(f"set/{name}")
    raw = open_data(str(tmp_path / "set"), tmp_path)
    assert (raw.name, labels_of(raw.train), labels_of(raw.val), raw.test) == ("set", [0, 1, 2], [1, 2], None)


def test_a_class_called_train_is_no_split(tmp_path: Path, picture: Picture) -> None:
    for name in ("bus", "train", "tram"):
        picture(f"set/{name}/1.png")
    raw = open_data(str(tmp_path / "set"), tmp_path)
    assert raw.train is not None
    assert raw.train.classes == ["bus", "train", "tram"]


def test_tiny_imagenet_layout(tmp_path: Path, picture: Picture) -> None:
    root = "tiny-imagenet-200"
    for name in ("train/n01/images/a.jpeg", "train/n02/images/b.jpeg", "val/images/v0.jpeg", "val/images/v1.jpeg"):
        picture(f"{root}/{name}")
    picture(f"{root}/test/images/t0.jpeg")
    (tmp_path / root / "wnids.txt").write_text("n01\nn02\n")
    (tmp_path / root / "val" / "val_annotations.txt").write_text("v0.jpeg\tn02\t0\t0\nv1.jpeg\tn01\t0\t0\n")
    raw = open_data("tiny-imagenet", tmp_path)
    assert (raw.name, labels_of(raw.train), labels_of(raw.val)) == ("tiny-imagenet", [0, 1], [1, 0])
    assert raw.test is None  # its labels are not published


def test_label_files(tmp_path: Path, picture: Picture) -> None:
    for name in ("train/1.png", "train/2.png", "test/3.png"):
        picture(f"set/{name}")
    table = tmp_path / "labels.csv"
    table.write_text("train/1.png,x\ntrain/2.png,y\ntest/3.png,y\n")
    raw = open_data(str(tmp_path / "set"), tmp_path, labels=table)
    assert (labels_of(raw.train), labels_of(raw.test)) == ([0, 1], [1])
    table.write_text("1.png,4\n2.png,5\n")
    assert labels_of(open_data(str(tmp_path / "set" / "train"), tmp_path, labels=table).train) == [4, 5]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("cifra10", "did you mean cifar10"),
        ("qqqqqqqq", "names are cifar10"),
        ("./nowhere", "the path nowhere does not exist"),
        ("imagenet1k", "cannot be downloaded.* --data FOLDER or --data-dir"),
        ("{}/empty", "no images under"),
        ("{}/notes.txt", "neither a folder of images nor a .npz"),
    ],
)
def test_what_can_be_known_is_said_at_once(data: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()
    for attempt in (check_data, open_data):
        with pytest.raises(UserError, match=words):
            attempt(data.format(tmp_path), tmp_path)


def test_check_passes_what_is_there(tmp_path: Path, picture: Picture) -> None:
    picture("set/a.png")
    start = time.perf_counter()
    for data in ("cifar10", "digits", "Fashion-MNIST", str(tmp_path / "set")):
        check_data(data, tmp_path)
    assert time.perf_counter() - start < 0.5


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, root: str) -> None:
        raise OSError("Name or service not known\nmore")

    monkeypatch.setattr(registry, "_from_torchvision", fail)
    with pytest.raises(UserError, match=r"OSError: Name or service not known\. .*put svhn\.npz \(arrays") as caught:
        open_data("svhn", tmp_path / "data")
    assert "\n" not in str(caught.value)


def test_processes_that_want_the_same_set_download_it_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun's do, and `vje reproduce --jobs 2`; locks are of open files, so threads stand for processes."""
    at_work: list[str] = []
    most = 0

    def download(name: str, root: str) -> dict[str, ImageSource]:
        nonlocal most
        at_work.append(name)
        most = max(most, at_work.count(name))
        time.sleep(0.1)
        at_work.remove(name)
        return {"train": ArraySource(images(3))}

    monkeypatch.setattr(registry, "_from_torchvision", download)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: open_data("cifar10", tmp_path / "data"), range(4)))
    assert most == 1
    assert all(raw.train is not None for raw in found)
    assert list((tmp_path / "data").iterdir()) == []


def test_what_a_kill_cut_short_in_unpacking_is_unpacked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pictures, labels = images(3)[..., 0], np.array([7, 0, 4], np.uint8)
    for part in ("train", "t10k"):
        for kind, x in (("images-idx3", pictures), ("labels-idx1", labels)):
            content = bytes([0, 0, 8, x.ndim]) + np.array(x.shape, ">i4").tobytes() + x.tobytes()
            (raw / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
            (raw / f"{part}-{kind}-ubyte").write_bytes(content[:20] if kind == "images-idx3" else content)
    known = [(archive.name, None) for archive in raw.glob("*.gz")]
    monkeypatch.setattr(datasets.MNIST, "resources", known)  # without checksums, and so without a network
    found = open_data("mnist", tmp_path).test
    assert isinstance(found, ArraySource)
    assert np.array_equal(found.images[..., 0], pictures)
    assert labels_of(found) == [7, 0, 4]


def test_torchvision_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    class Fake:
        classes = ("zero", "one")

        def __init__(self, root: str, split: str = "", train: bool | None = None, download: bool = False) -> None:
            count = {"train+unlabeled": 5, "train": 2, "test": 3}.get(split, 2 if train else 3)
            self.data = images(count).transpose(0, 3, 1, 2) if split else images(count)
            self.labels = np.arange(count) % 2 - (split == "train+unlabeled")
            self.targets = [0, 1, 0][:count]

    for name in ("STL10", "SVHN", "CIFAR10"):
        monkeypatch.setattr(datasets, name, Fake)
    stl10 = open_data("stl10", tmp_path)
    assert stl10.train is not None and stl10.labelled is not None and stl10.test is not None
    assert (len(stl10.train), stl10.train.labels, len(stl10.labelled), len(stl10.test)) == (5, None, 2, 3)
    assert labels_of(stl10.labelled) == [0, 1]
    for name in ("svhn", "cifar10"):
        raw = open_data(name, tmp_path)
        assert raw.train is not None
        assert np.array_equal(np.asarray(raw.train.image(1, 3)), images(2)[1])
        assert (labels_of(raw.test), raw.train.classes) == ([0, 1, 0], ["zero", "one"])


def test_a_zip_file_with_a_broken_directory_is_told_without_reading_images(tmp_path):
    np.savez(tmp_path / "data.npz", train_images=np.zeros((3, 4, 4, 3), np.uint8))
    whole = bytearray((tmp_path / "data.npz").read_bytes())
    whole[whole.rindex(b"PK\x01\x02")] = 0  # the directory's first entry; the end record, which says "zip", is whole
    (tmp_path / "data.npz").write_bytes(whole)
    with pytest.raises(UserError, match="not a whole"):
        check_data(str(tmp_path / "data.npz"), tmp_path)


def test_what_is_trained_on_needs_training_images_and_what_is_scored_does_not(tmp_path):
    np.savez(tmp_path / "data.npz", test_images=np.zeros((3, 4, 4, 3), np.uint8))
    check_data(str(tmp_path / "data.npz"), tmp_path)
    with pytest.raises(UserError, match="no training images"):
        check_data(str(tmp_path / "data.npz"), tmp_path, training=True)
