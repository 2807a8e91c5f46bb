"""The sheet of odd and typical images: the right ones, in order, each over its own score and name."""

import numpy as np
import pytest

from vje.data.decode import UnreadableImage
from vje.data.sources import ArraySource
from vje.preprocessing import Preprocessing
from vje.reporting.figures import save_gallery
from vje.reporting.sheet import Extremes, save_sheet

LEVELS = np.arange(25) * 10


class Greys(ArraySource):
    """Picture i has brightness 10 i; number 7 has gone since it was scored."""

    def __init__(self):
        super().__init__(np.broadcast_to(LEVELS[:, None, None, None], (25, 8, 8, 1)).astype(np.uint8))

    def fitted(self, index, *size):
        assert size == (6, 4, 1)  # as the model sees them
        if index == 7:
            raise UnreadableImage("7", "gone")
        return super().fitted(index, *size)


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """``draw(rows, name)``: how many images there are, and of each row the title, their brightness and the captions."""

    def drawn(rows, name=str):
        strips = []
        monkeypatch.setattr("vje.reporting.sheet.save_gallery", lambda file, sheet, width: strips.extend(sheet))
        count = save_sheet(tmp_path / "x.png", Greys(), Preprocessing(6, 4, 1, [0.5], [0.25]), rows, name)
        assert all(image.shape == (1, 4, 4) for _, images, _ in strips for image in images)
        return count, [(title, [int(image.mean()) for image in images], text) for title, images, text in strips]

    return drawn


def test_each_image_is_over_its_own_score_and_name(draw):
    rows = {"odd": [(9.26, 3), (8.0, 1)], "typical": [(-4.04, 20)]}
    assert draw(rows, lambda place: f"some/folder/{place}.jpg") == (
        3,
        [("odd", [30, 10], ["9.3\n3.jpg", "8.0\n1.jpg"]), ("typical", [200], ["-4.0\n20.jpg"])],
    )


def test_captions_are_names_that_can_be_drawn(draw):
    (_, [(_, _, captions)]) = draw({"odd": [(1.0, 1), (1.0, 2)]}, ["", "from $1 to $2", "\udcff.jpg"].__getitem__)
    assert captions == ["1.0\nfrom \\$1 to \\$2", "1.0\n\ufffd.jpg"]


def test_long_rows_go_on_below_without_a_title(draw):
    count, strips = draw({"odd": [(float(place), place) for place in range(10, 22)]})
    assert count == 12 and [(title, levels) for title, levels, _ in strips] == [
        ("odd", [*range(100, 200, 10)]),
        ("", [200, 210]),
    ]
    assert strips[1][2] == ["20.0\n20", "21.0\n21"]


def test_an_image_that_is_gone_leaves_the_others_their_names(draw):
    assert draw({"odd": [(3.0, 6), (2.0, 7), (1.0, 8)]}) == (2, [("odd", [60, 80], ["3.0\n6", "1.0\n8"])])
    assert draw({"odd": [(2.0, 7)]}) == (0, [])


@pytest.mark.parametrize("images", [1, 2, 5, 7, 8, 9, 40])
def test_extremes_are_those_of_a_sorted_list(images):
    scores = np.random.default_rng(images).permutation(images).astype(float)
    found = Extremes(4)
    for place, score in enumerate(scores):
        found.add(score, place)
    order = [(score, place) for score, place in sorted(zip(scores, range(images), strict=True))]
    high, low = min(4, -(-images // 2)), min(4, images // 2)  # the odd one out counts as odd
    assert found.highest() == order[::-1][:high] and found.lowest() == order[:low]


def test_of_equals_none_is_both_and_thousands_are_as_few():
    found, scores = Extremes(3), np.random.default_rng(0).integers(0, 40, 5000)  # many are equal
    for place, score in enumerate(scores):
        found.add(float(score), place)
    falling = sorted(range(5000), key=lambda place: (-scores[place], place))
    rising = sorted(range(5000), key=lambda place: (scores[place], place))
    assert found.highest() == [(39.0, place) for place in falling[:3]]
    assert found.lowest() == [(0.0, place) for place in rising[:3]]
    same = Extremes(3)
    for place in range(5):
        same.add(1.0, place)
    assert {place for _, place in same.highest()} | {place for _, place in same.lowest()} == set(range(5))


def test_a_gallery_has_its_pictures_where_their_words_are(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr("vje.reporting.figures.save_figure", lambda figure, *_: figures.append(figure))
    slope = np.arange(12, dtype=np.uint8).reshape(1, 3, 4)  # no symmetry, and far from white
    colours = np.arange(36, dtype=np.uint8).reshape(3, 3, 4)
    save_gallery(tmp_path / "x.png", [("above", [slope, slope + 50], ["a", "b"]), ("below", [colours], ["c"])])
    above, below = figures[0].subfigs
    assert [strip.get_suptitle() for strip in (above, below)] == ["above", "below"]
    shown = [(axis.get_title(), axis.images[0]) for strip in (above, below) for axis in strip.axes if axis.images]
    assert [title for title, _ in shown] == ["a", "b", "c"]
    for (_, image), expected in zip(shown, (slope[0], slope[0] + 50, colours.transpose(1, 2, 0)), strict=True):
        np.testing.assert_array_equal(image.get_array(), expected)
    greys = shown[0][1].to_rgba(np.array([[0, 51, 255]], np.uint8))[0]
    assert greys.tolist() == [[0, 0, 0, 1], pytest.approx([0.2, 0.2, 0.2, 1]), [1, 1, 1, 1]]  # dark pictures stay dark
