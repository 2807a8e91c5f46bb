"""What vje wrote is known again, also what older versions wrote; other people's files are not taken for it."""

import json

import pytest
from matplotlib.figure import Figure

from vje.errors import UserError
from vje.reporting.figures import save_figure
from vje.reporting.html import Html, page
from vje.reporting.written import check_own, is_page, is_picture, is_record
from vje.runs import write_json

GROUPS = [{"name": "cifar10", "runs": ["a"], "values": {}}]


@pytest.fixture
def picture(tmp_path):
    """A picture of matplotlib's own, as anybody may have one."""
    Figure(figsize=(1, 1)).savefig(tmp_path / "x.png")
    return tmp_path / "x.png"


def test_pages_are_known_whatever_their_title(tmp_path):
    file = tmp_path / "x.html"
    text = page("</title>" * 9, Html("<p>"), {}, ())
    file.write_text(text, encoding="utf-8")
    assert is_page(file) and text.count('<meta name="generator" content="vje ') == 1
    older = [line for line in text.splitlines() if 'name="generator"' not in line]
    file.write_text("\n".join(older), encoding="utf-8")
    assert is_page(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "here",
        '<!doctype html><meta name="generator" content="Hugo 0.1">',
        '<!doctype html><style></style><p> name="generator" content="vje 0.1.0">',
        '# A note on <meta name="generator" content="vje 0.1.0">',
    ],
)
def test_other_pages_are_not_taken_for_ours(tmp_path, text):
    file = tmp_path / "x.html"
    file.write_text(text)
    assert not is_page(file) and not is_page(tmp_path)


@pytest.mark.parametrize(
    ("value", "own"),
    [
        ({"groups": GROUPS}, True),
        ({"groups": []}, False),
        ({"groups": 3}, False),
        ({"groups": [*GROUPS, {"name": "b"}]}, False),
        ({"rows": GROUPS}, False),
    ],
)
def test_records_are_known_by_their_shape(tmp_path, value, own):
    write_json(tmp_path / "x.json", value)
    assert is_record(tmp_path / "x.json") == own


@pytest.mark.parametrize("text", ["", "[1]", "{", json.dumps(GROUPS)])
def test_other_json_is_no_record(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    assert not is_record(tmp_path / "x.json") and not is_record(tmp_path)


def test_pictures_are_known_by_what_drew_them(tmp_path, picture):
    assert not is_picture(picture)
    save_figure(Figure(figsize=(1, 1)), picture, 30)
    assert is_picture(picture) and not (tmp_path / "x.json").exists()


def test_pictures_of_older_versions_belong_to_the_record_beside_them(picture):
    write_json(picture.with_suffix(".json"), {"groups": GROUPS})
    assert is_picture(picture)
    write_json(picture.with_suffix(".json"), {"rows": []})
    assert not is_picture(picture)


def test_only_what_is_there_and_another_s_is_refused(tmp_path):
    check_own(tmp_path / "x.html", is_page, "page")
    (tmp_path / "x.html").write_text("<!doctype html>")
    with pytest.raises(UserError, match=r"x\.html is there, and is no page that vje wrote"):
        check_own(tmp_path / "x.html", is_page, "page")
