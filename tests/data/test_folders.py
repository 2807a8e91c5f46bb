from collections.abc import Callable
from pathlib import Path

import pytest

from vje.data.folders import scan_folder, scan_paths
from vje.errors import UserError

Picture = Callable[..., Path]


def test_flat_folder_has_no_labels(tmp_path: Path, picture: Picture) -> None:
    picture("b.PNG"), picture("a.jpg"), picture("sub/c.webp")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / ".hidden.png").write_text("")
    (tmp_path / ".git").mkdir()
    picture(".git/x.png")
    (tmp_path / "zero.tif").touch()
    source = scan_folder(tmp_path)
    assert source.files == ["a.jpg", "b.PNG", "sub/c.webp", "zero.tif"]
    assert source.labels is None
    assert source.ignored == [".hidden.png", "notes.txt"]


def test_what_a_system_hides_beside_a_photo_is_no_photo(tmp_path: Path, picture: Picture) -> None:
    picture("cat/a.jpg"), picture("dog/b.jpg")
    (tmp_path / "cat" / "._a.jpg").write_text("")  # as macOS leaves on other file systems
    for every in (False, True):
        assert scan_folder(tmp_path, every).files == ["cat/a.jpg", "dog/b.jpg"]


def test_class_folders_give_labels(tmp_path: Path, picture: Picture) -> None:
    for name in ("dog/1.png", "cat/deep/2.png", "dog/3.png"):
        picture(name)
    source = scan_folder(tmp_path)
    assert source.classes == ["cat", "dog"]
    assert source.labels is not None
    assert dict(zip(source.files, source.labels.tolist(), strict=True)) == {
        "cat/deep/2.png": 0,
        "dog/1.png": 1,
        "dog/3.png": 1,
    }


@pytest.mark.parametrize("names", [("only/1.png", "only/2.png"), ("cat/1.png", "dog/2.png", "stray.png")])
def test_no_labels_unless_every_image_has_one_of_two_classes(
    names: tuple[str, ...], tmp_path: Path, picture: Picture
) -> None:
    for name in names:
        picture(name)
    assert scan_folder(tmp_path).labels is None


def test_links_are_followed_once(tmp_path: Path, picture: Picture) -> None:
    picture("real/a.png"), picture("real/b.png")
    (tmp_path / "real" / "up").symlink_to(tmp_path)  # a loop
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "again").symlink_to(tmp_path / "real")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (tmp_path / "real" / "a.png").rename(outside / "a.png")
    (tmp_path / "linked").symlink_to(outside)
    (tmp_path / "file.png").symlink_to(outside / "a.png")
    assert scan_folder(tmp_path).files == ["file.png", "linked/a.png", "real/b.png"]


def test_runs_that_were_started_in_the_folder_are_no_part_of_it(tmp_path: Path, picture: Picture) -> None:
    picture("cat/a.png"), picture("dog/b.png"), picture("runs/folder/ood-roc.png")
    run = tmp_path / "runs" / "folder"
    for name in ("config.json", "data.json"):
        (run / name).touch()
    assert scan_folder(tmp_path).classes == ["cat", "dog", "runs"]  # no run yet, but someone's pictures
    (run / "environment.json").touch()
    for every in (False, True):
        assert scan_folder(tmp_path, every).files == ["cat/a.png", "dog/b.png"]
    assert scan_folder(tmp_path).classes == ["cat", "dog"]
    assert scan_folder(run).files == ["ood-roc.png"]  # asked for by itself


def test_empty_folder_says_what_counts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.csv").touch()
    with pytest.raises(UserError, match=r"2 other files.*\.jpg.*\.png"):
        scan_folder(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        scan_folder(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is a file"):
        scan_folder(tmp_path / "a.txt")


def test_several_folders_are_all_scanned_and_one_keeps_its_labels(tmp_path: Path, picture: Picture) -> None:
    picture("x/cat/1.png"), picture("x/dog/2.png"), picture("y/3.png")
    both = scan_paths([tmp_path / "x", tmp_path / "y"])
    assert (both.files, both.labels) == (["x/cat/1.png", "x/dog/2.png", "y/3.png"], None)
    alone = scan_paths([tmp_path / "x"])
    assert alone.labels is not None
    assert (alone.classes, alone.labels.tolist()) == (["cat", "dog"], [0, 1])


def test_scan_paths(tmp_path: Path, picture: Picture) -> None:
    one = picture("x/one.png")
    odd = picture("y/picture.png").rename(tmp_path / "y" / "no_extension")
    assert scan_paths([one]).files == ["one.png"]
    both = scan_paths([odd, one, tmp_path / "x"])
    assert both.files == ["y/no_extension", "x/one.png"]
    assert both.image(0, 3).size == (12, 10)
    assert scan_paths([tmp_path / "x"]).files == ["one.png"]
    with pytest.raises(UserError, match="does not exist"):
        scan_paths([one, tmp_path / "gone.png"])
    (tmp_path / "x" / "link.png").symlink_to(tmp_path / "gone.png")  # as "x/*.png" names it, and as "x" does
    assert scan_paths([one, tmp_path / "x" / "link.png"]).files == ["one.png", "link.png"]
    assert scan_paths([tmp_path / "x"]).files == ["link.png", "one.png"]
    with pytest.raises(UserError, match="no images were named"):
        scan_paths([])
