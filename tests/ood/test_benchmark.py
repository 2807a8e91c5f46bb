from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize

from vje.data.sources import ArraySource
from vje.errors import UserError
from vje.ood.benchmark import BENCHMARKS, benchmark_name, find_sets, id_images, without_first


def numbered(labels: list[int]) -> ArraySource:
    """Images whose pixels are their place in the file."""
    pixels = np.repeat(np.arange(len(labels), dtype=np.uint8), 16).reshape(-1, 4, 4)
    return ArraySource(pixels, labels)


def test_first_images_of_each_class_in_file_order_are_validation() -> None:
    first, rest = without_first(numbered([1, 0, 1, 1, 0, 0, 2]), 2)
    assert [int(first.image(i, 1).getpixel((0, 0))) for i in range(len(first))] == [0, 1, 2, 4, 6]
    assert [int(rest.image(i, 1).getpixel((0, 0))) for i in range(len(rest))] == [3, 5]


def test_class_numbers_may_be_far_apart() -> None:
    source = numbered([10**12, 3, 10**12, 3, 7])
    first, rest = without_first(source, 1)
    assert first.labels.tolist() == [10**12, 3, 7] and rest.labels.tolist() == [10**12, 3]
    validation, test = id_images("cifar10", numbered([10**12, 3] * 12))
    assert validation.labels.tolist() == [10**12, 3] and len(test) == 22


@pytest.mark.parametrize("data", ["cifar10", "CIFAR-10", "Cifar_10", "data/cifar10.npz", "/there/CIFAR10.NPZ"])
def test_a_set_has_its_benchmark_however_it_is_spelled(data: str) -> None:
    assert benchmark_name(data) == "cifar10"
    assert benchmark_name("my-cifar10-photos") is None


def test_cifar10_keeps_nine_thousand_test_images() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 1000))
    source = ArraySource(np.zeros((10_000, 4, 4), np.uint8), labels)
    validation, test = id_images("cifar10", source)
    assert (len(validation), len(test)) == (1000, 9000)
    assert np.bincount(test.labels).tolist() == [900] * 10


@pytest.mark.parametrize(("each", "held"), [(120, 100), (100, 10), (50, 5), (9, 0)])
def test_of_fewer_images_a_tenth_is_held_out(each: int, held: int) -> None:
    source = ArraySource(np.zeros((2 * each, 4, 4), np.uint8), np.arange(2 * each) % 2)
    validation, test = id_images("cifar10", source)
    assert len(test) == 2 * (each - held)
    assert validation is None if held == 0 else len(validation) == 2 * held


def test_a_set_that_cannot_be_used_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vje.data.registry._download", lambda *_: (_ for _ in ()).throw(UserError("no network")))
    np.savez(tmp_path / "cifar100.npz", test_images=np.zeros((24, 4, 4), np.uint8))  # no labels
    np.savez(tmp_path / "svhn.npz", test_images=np.zeros((6, 4, 4), np.uint8))
    members, missing, _ = find_sets("cifar10", tmp_path)
    assert [member.name for member in members] == ["svhn"]
    assert any("cifar100 is left out" in line and "no labels" in line for line in missing)


def test_labels_are_needed_to_find_the_validation_images() -> None:
    with pytest.raises(UserError, match="no labels"):
        without_first(ArraySource(np.zeros((4, 4, 4), np.uint8)), 1)


def test_protocol_counts_and_groups() -> None:
    counts = {s.name: (s.near, s.images) for s in BENCHMARKS["cifar10"]}
    assert counts == {
        "cifar100": (True, 9_000),
        "tin": (True, 7_793),
        "mnist": (False, 70_000),
        "svhn": (False, 26_032),
        "textures": (False, 5_640),
        "places": (False, 35_195),
    }


def test_tiny_imagenet_is_without_the_classes_of_each_in_distribution_set() -> None:
    """OpenOOD's lists have 7,793 and 6,526 of the images (its issue 259), of which one set at hand can be only one."""
    sizes = {name: next(s.images for s in sets if s.name == "tin") for name, sets in BENCHMARKS.items()}
    assert sizes == {"cifar10": 7_793, "cifar100": 6_526}


def test_sets_at_hand_are_used_and_the_others_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise UserError("no network here")

    monkeypatch.setattr("vje.data.registry._download", no_network)
    pixels = np.zeros((6, 4, 4), np.uint8)
    np.savez(tmp_path / "mnist.npz", train_images=pixels, test_images=pixels[:2])
    np.savez(tmp_path / "tin.npz", test_images=pixels, val_images=pixels[:3])
    np.savez(tmp_path / "cifar100.npz", test_images=np.zeros((24, 4, 4), np.uint8), test_labels=[0] * 12 + [1] * 12)
    members, missing, validation = find_sets("cifar10", tmp_path)
    counts = {m.name: sum(map(len, m.sources)) for m in members}
    assert counts == {"cifar100": 4, "tin": 6, "mnist": 8}
    assert all(m.partial(counts[m.name]) for m in members) and not members[0].partial(9_000)
    assert validation is not None and len(validation) == 3
    assert len(missing) == 3
    assert all(f"{name}.npz" in " ".join(missing) for name in ("svhn", "textures", "places"))


def test_photos_are_decoded_in_full_as_the_protocol_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vje.data.registry._download", lambda *_: (_ for _ in ()).throw(UserError("no network")))
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    for name in ("textures/banded/x.jpg", "tin/test/x.jpg", "tin/val/x.jpg"):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / name)
    members, _, validation = find_sets("cifar10", tmp_path)
    assert [member.name for member in members] == ["tin", "textures"] and validation is not None
    protocol = Compose([Resize(32, InterpolationMode.BILINEAR), CenterCrop(32)])
    expected = np.asarray(protocol(Image.open(tmp_path / name).convert("RGB"))).transpose(2, 0, 1)
    for source in (*(source for member in members for source in member.sources), validation):
        assert np.array_equal(source.fitted(0, size=32, crop=32, channels=3), expected)
