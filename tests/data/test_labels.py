from pathlib import Path

import numpy as np
import pytest

from vje.data.labels import read_labels
from vje.data.sources import ArraySource, FolderSource
from vje.errors import UserError

NAMES = ["a.png", "b/c.png", "d.png"]


def written(tmp_path: Path, text: str, name: str = "labels.csv") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


@pytest.mark.parametrize(
    "text",
    [
        "file,label\nd.png,2\na.png,0\nb/c.png,1\n",
        "a.png,0\nb/c.png,1\nd.png,2\n",
        "\ufefflabel,id,file\n0,x,./a.png\n1,y,b\\c.png\n\n2,z, d.png\n",
    ],
)
def test_numbers(text: str, tmp_path: Path) -> None:
    labels, classes = read_labels(written(tmp_path, text), NAMES)
    assert (labels.tolist(), classes) == ([0, 1, 2], None)


def test_class_names(tmp_path: Path) -> None:
    file = written(tmp_path, "a.png,dog\nd.png,cat\nb/c.png,dog\n")
    source = FolderSource(tmp_path, NAMES).labelled(*read_labels(file, NAMES))
    assert source.labels is not None
    assert (source.labels.tolist(), source.classes) == ([1, 1, 0], ["cat", "dog"])
    tabbed = written(tmp_path, "file\tlabel\na.png\tx\nd.png\ty\nb/c.png\tz\n", "labels.tsv")
    assert read_labels(tabbed, NAMES)[1] == ["x", "y", "z"]


def test_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.array([2, 0, 1], np.uint8))
    images = ArraySource(np.zeros((3, 2, 2), np.uint8))
    source = images.labelled(*read_labels(tmp_path / "labels.npy", images.names))
    assert source.labels is not None
    assert source.labels.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,label\na.png,0\n", ["2 of 3 images have no label", "b/c.png, d.png"]),
        ("a.png,0\nb/c.png,1\nd.png,2\nx.png,1\n", ["1 of 4 rows name no image", "x.png"]),
        ("a.png,0\nb/c.png,1\nd.png,2\na.png,1\n", ["a.png two labels, 0 and 1"]),
        ("a.png,0\nb/c.png,\nd.png,2\n", ["lacks a label in line 2"]),
        ('file,label,note\n\na.png,0,"two\nlines"\nb/c.png, ,x\n', ["lacks a label in line 5", "b/c.png"]),
        ("a.png,0\nb/c.png,-1\nd.png,2\n", ["-1"]),
        ("filename,class\na.png,0\nb/c.png,1\nd.png,2\n", ["first row", "(filename)", "read file,label"]),
        ("name,kind,id\na.png,0,1\n", ["file,label", "name,kind,id"]),
        ("", ["it is empty"]),
    ],
)
def test_mismatches_are_counted_with_examples(text: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_labels(written(tmp_path, text), NAMES)
    assert all(word in str(caught.value) for word in [*words, "labels.csv"])


def test_many_mismatches_are_abbreviated(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"50 of 50 images have no label \(0, 1, 2, \.\.\.\)"):
        read_labels(written(tmp_path, "x,0\n"), [str(i) for i in range(50)])


def test_wrong_arrays(tmp_path: Path) -> None:
    path = tmp_path / "labels.npy"
    np.save(path, np.arange(5))
    with pytest.raises(UserError, match=r"expected 3 integers.*\(5,\)"):
        read_labels(path, NAMES)
    np.save(path, np.array([{}, {}, {}], object), allow_pickle=True)
    with pytest.raises(UserError, match="no plain"):
        read_labels(path, NAMES)
    with pytest.raises(UserError, match="does not exist"):
        read_labels(tmp_path / "gone.csv", NAMES)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(UserError, match="UTF-8"):
        read_labels(tmp_path / "binary.csv", NAMES)


def test_a_header_without_rows(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"labels\.csv"):
        read_labels(written(tmp_path, "file,label\n"), NAMES)
