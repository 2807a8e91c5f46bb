"""Which images a run was not trained on, by what it recorded and by its images themselves."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vje.data.folders import scan_folder
from vje.data.registry import open_data
from vje.data.sources import ArraySource
from vje.data.splits import Splits, apply_split
from vje.ood.unseen import unseen

HELD_OUT = ["a/1.png", "b/0.png"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six files in two folders."""
    root, rng = tmp_path / "mine", np.random.default_rng(0)
    for name in (f"{part}/{number}.png" for part in "ab" for number in range(3)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(root / name)
    return root


def opened(folder: Path) -> tuple[dict[str, object], Splits]:
    """What a run on the folder records, and its images."""
    splits = apply_split(open_data(str(folder), folder), HELD_OUT)
    return {"held_out": HELD_OUT, "fingerprint": splits.train.fingerprint()}, splits


def names(source, places) -> list[str]:
    return [source.names[i] for i in places]


@pytest.mark.parametrize("at_hand", [True, False])
def test_of_the_whole_folder_what_was_held_out(folder: Path, at_hand: bool) -> None:
    recorded, splits = opened(folder)
    source = scan_folder(folder)
    assert names(source, unseen(source, recorded, splits if at_hand else None)) == HELD_OUT
    assert len(unseen(splits.train, recorded, splits if at_hand else None)) == 0
    assert names(splits.test, unseen(splits.test, recorded, splits if at_hand else None)) == HELD_OUT


def test_files_are_known_by_whatever_path(folder: Path, tmp_path: Path) -> None:
    recorded, splits = opened(folder)
    part = scan_folder(folder / "a")
    assert names(part, unseen(part, recorded, splits)) == ["1.png"]
    (tmp_path / "link").symlink_to(folder)
    linked = scan_folder(tmp_path / "link")
    assert names(linked, unseen(linked, recorded, splits)) == HELD_OUT
    (tmp_path / "picked").mkdir()
    for number, name in enumerate((*HELD_OUT, "a/2.png")):
        os.link(folder / name, tmp_path / "picked" / f"{number}.png")
    picked = scan_folder(tmp_path / "picked")
    assert names(picked, unseen(picked, recorded, splits)) == ["0.png", "1.png"]


def test_a_folder_that_grew_still_tells_what_it_held_out(folder: Path) -> None:
    recorded, _ = opened(folder)
    Image.new("RGB", (4, 4)).save(folder / "a" / "new.png")
    _, splits = opened(folder)
    source = scan_folder(folder)
    assert names(source, unseen(source, recorded, splits)) == HELD_OUT


def test_arrays_go_by_their_pixels_but_a_test_set_stays_whole() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3), dtype=np.uint8)
    train, others = ArraySource(pixels[:5]), ArraySource(pixels[3:])  # two of them were trained on
    recorded = {"held_out": None, "fingerprint": train.fingerprint()}
    apart = Splits(train, ArraySource(pixels[5:7]), train)
    assert unseen(others, recorded, apart).tolist() == [2, 3, 4, 5]
    assert unseen(others, recorded).tolist() == [0, 1, 2, 3, 4, 5]  # the training images are not at hand
    assert unseen(others, recorded, Splits(train, others, train)).tolist() == [0, 1, 2, 3, 4, 5]
    assert unseen(ArraySource(pixels[:5].copy()), recorded).tolist() == []
