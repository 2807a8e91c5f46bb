"""The report in a real Chromium: it asks nobody for anything, and pointer, keyboard, colours and themes work."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vje.config import to_dict
from vje.recipes import load_recipe
from vje.reporting.run_page import run_page
from vje.runs import RunFolder

NASTY = "</script><b>&\"'`${1}"
COUNT = 300


@pytest.fixture(scope="module")
def atlas(make_atlas):
    return make_atlas(COUNT)


@pytest.fixture(scope="module")
def file(reported, atlas, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(run_page(reported, atlas), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def watched(browser, file):
    """The page, and everything that it complained about or asked for."""
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
    trouble = []
    page.on("console", lambda message: message.type in ("error", "warning") and trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: request.url.startswith("data:") or trouble.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    assert trouble.pop(0) == file.as_uri()  # the one request there is
    return page, trouble


@pytest.fixture
def page(watched):
    """The page, which must have nothing to complain about after each test either."""
    found, trouble = watched
    yield found
    assert trouble == []


def lonely(atlas):
    """The image whose point is farthest from all others: nothing else is under the pointer there."""
    gaps = np.linalg.norm(atlas.places[:, None] - atlas.places[None], axis=2) + 99 * np.eye(COUNT)
    return int(gaps.min(1).argmax())


def shown(page, selector):
    """Whether the picture there has been drawn, and is of the right colours rather than blank."""
    page.wait_for_selector(f"{selector} canvas[data-drawn=yes]")
    return page.evaluate(
        """(selector) => {
            const canvas = document.querySelector(selector + " canvas");
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return new Set(data).size > 20;
        }""",
        selector,
    )


def test_the_map_is_drawn_by_webgl(page):
    assert page.evaluate("document.getElementById('map-plot').data[0].type") == "scattergl"
    assert page.locator("#map-plot .no-webgl").count() == 0
    assert page.locator("#map-plot canvas").count() > 0


def test_hover_shows_picture_class_and_statistics(page, atlas, spot):
    image = lonely(atlas)
    page.mouse.move(*spot(page, image))
    page.wait_for_selector(f"#map-card[data-image='{image}']:visible")
    card = page.locator("#map-card")
    name = atlas.classes[atlas.labels[image]]
    assert card.locator(".what").text_content() == f"class {name}"
    assert f"image {image} ({image}{NASTY}.png)" in card.text_content()
    assert f"\u2212{abs(atlas.statistics['nll'][image]):.1f}"[:5] in card.text_content()
    assert {"NLL", "posterior variance"} <= set(card.locator("dt").all_text_contents())
    assert shown(page, "#map-card")
    page.mouse.move(2, 2)


def test_click_shows_the_neighbours_that_were_computed(page, atlas, spot):
    image = lonely(atlas)
    page.mouse.click(*spot(page, image))
    page.wait_for_selector(f"#map-chosen[data-image='{image}']")
    assert page.locator("#map-card").is_hidden()  # it would lie over the rings, and says the same
    tiles = page.locator("#map-chosen .tile")
    assert [int(tile.get_attribute("data-image")) for tile in tiles.all()] == atlas.neighbours[image].tolist()
    for tile, other, cosine in zip(tiles.all(), atlas.neighbours[image], atlas.similarity[image], strict=True):
        assert tile.locator("span").all_text_contents() == [atlas.classes[atlas.labels[other]], f"{cosine:.3f}"]
    assert shown(page, "#map-chosen .tile")
    tiles.nth(0).click()  # a neighbour is a way to go on
    page.wait_for_selector(f"#map-chosen[data-image='{atlas.neighbours[image][0]}']")


def test_colours_follow_the_choice(page, atlas):
    colours = "JSON.stringify(Array.from(document.getElementById('map-plot').data[0].marker.color).slice(0, 9))"
    by_class = page.evaluate(colours)
    assert page.locator("#map-legend button").all_text_contents() == atlas.classes
    page.get_by_role("button", name="frog", exact=True).click()
    assert page.evaluate(colours) != by_class  # the other classes step back
    page.get_by_role("button", name="frog", exact=True).click()
    assert page.evaluate(colours) == by_class
    page.get_by_label("Colour by").select_option(label="posterior variance")
    values = page.evaluate("Array.from(document.getElementById('map-plot').data[0].marker.color)")
    np.testing.assert_allclose(values, atlas.statistics["variance"])
    assert page.locator("#map-legend .scale").count() == 1
    page.get_by_label("Colour by").select_option(label="class")


def test_the_keyboard_reaches_everything(page, atlas):
    page.locator("#map-in").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "map-plot"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    start = 5
    page.get_by_label("Image number").fill(str(start))
    page.wait_for_selector(f"#map-card[data-image='{start}']:visible")
    page.locator("#map-plot").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"document.getElementById('map-card').dataset.image != '{start}'")
    image = int(page.locator("#map-card").get_attribute("data-image"))
    assert atlas.places[image, 0] > atlas.places[start, 0]
    assert page.locator("#map-said").text_content().startswith(f"image {image}, class ")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#map-chosen[data-image='{image}']")
    whole = page.evaluate("document.getElementById('map-plot')._fullLayout.xaxis.range")
    page.keyboard.press("+")
    page.wait_for_function(f"document.getElementById('map-plot')._fullLayout.xaxis.range[0] > {whole[0]}")
    page.keyboard.press("0")
    page.wait_for_function("document.getElementById('map-plot')._fullLayout.xaxis.autorange === true")
    page.keyboard.press("Escape")
    assert page.locator("#map-card").is_hidden()


def test_zoom_stays_while_colours_change(page, spot):
    page.mouse.move(*spot(page, 0))
    zoomed = "document.getElementById('map-plot')._fullLayout.xaxis"
    for _ in range(100):  # a page that is still busy loses a turn of the wheel
        page.mouse.wheel(0, -400)
        page.wait_for_timeout(300)
        if page.evaluate(f"{zoomed}.autorange === false"):
            break
    else:
        pytest.fail("the wheel does not zoom")
    page.wait_for_timeout(300)  # the wheel's own delay
    before = page.evaluate(f"{zoomed}.range")
    page.get_by_label("Colour by").select_option(label="NLL")
    np.testing.assert_allclose(page.evaluate(f"{zoomed}.range"), before, rtol=1e-6)
    page.get_by_label("Colour by").select_option(label="class")
    page.get_by_role("button", name="Whole map").click()


def test_dark_mode_changes_page_and_charts(page):
    ink = "document.querySelector('#training-panels .plot')._fullLayout.font.color"
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ink), page.evaluate(paper)
    page.locator("#theme").click()
    dark = page.evaluate(ink), page.evaluate(paper)
    assert light[0] != dark[0] and light[1] != dark[1]
    page.locator("#theme").click()
    assert (page.evaluate(ink), page.evaluate(paper)) == light
    page.emulate_media(color_scheme="dark")  # the button was pressed, so it has the last word
    assert page.evaluate(paper) == light[1]
    page.emulate_media(color_scheme="light")


def test_drawing_again_and_again_takes_no_more_contexts(page):
    """Browsers have sixteen WebGL contexts a page, and take the oldest away for another."""
    page.evaluate(
        """() => {
            window.asked = 0;
            const before = HTMLCanvasElement.prototype.getContext;
            HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
                window.asked += kind.startsWith("webgl") && !this.isConnected;
                return before.call(this, kind, ...rest);
            };
        }"""
    )
    for image in range(20):
        page.locator("#map-number").fill(str(image))
        page.locator("#map-number").press("Enter")
    assert page.locator("#map-chosen").get_attribute("data-image") == "19"
    assert page.evaluate("window.asked") == 0


def test_everything_has_a_name_and_its_place(page):
    assert page.locator("h1").count() == 1
    assert page.locator("figure .plot:not([aria-label])").count() == 0
    assert page.locator("canvas.picture:not([aria-label])").count() == 0
    assert page.locator("#ood-panels .plot").count() == 2
    assert page.locator("#gallery-most .tile").count() == page.locator("#gallery-least .tile").count() == 12
    assert NASTY in page.locator(".warnings li").text_content()
    assert page.locator("main b").count() == 0


def test_percentages_end_at_a_hundred(browser, reported, tmp_path):
    folder = RunFolder(Path(shutil.copytree(reported.path, tmp_path / "run")))
    folder.metrics_file.unlink()
    for epoch, share in ((1, 0.9), (2, 0.995), (3, 1.0)):
        record = {"epoch": epoch, "loss": 100 * share, "accuracy": share, "knn": {"z": 60 + 10 * share}}
        folder.append(folder.metrics_file, record)
    folder.write("config", to_dict(load_recipe("digits", "supervised")))
    (tmp_path / "report.html").write_text(run_page(folder, None), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    ends = page.evaluate(
        """Object.fromEntries([...document.querySelectorAll("#training-panels figure")].map(
            (one) => [one.dataset.key, one.querySelector(".plot")._fullLayout.yaxis.range[1]]))"""
    )
    page.close()
    assert ends["Accuracy (%)"] == 100 and 70 < ends["k-NN accuracy (%)"] < 71 and ends["Loss"] > 100.2


def test_names_in_charts_stay_names(page):
    names = page.locator("#ood-panels [data-key=density] .legendtext").all_text_contents()
    assert names == ["in-distribution", NASTY]


def test_a_long_name_without_spaces_fits_a_phone(browser, reported, make_atlas, tmp_path):
    name = "x" * 120
    path = tmp_path / "report.html"
    path.write_text(
        run_page(reported, replace(make_atlas(40), classes=["cat", name, "ship", "frog"])), encoding="utf-8"
    )
    page = browser.new_page(viewport={"width": 360, "height": 780})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("#map-legend button").all_text_contents()[1] == name
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()


def test_on_a_phone_the_card_leaves_its_point_free(browser, file, atlas, spot):
    page = browser.new_page(viewport={"width": 360, "height": 780})
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    for image in [*atlas.places.argmin(axis=0), *atlas.places.argmax(axis=0), lonely(atlas), 0, 1, 2, 3]:
        page.get_by_label("Image number").fill(str(image))
        page.wait_for_selector(f"#map-card[data-image='{image}']:visible")
        (x, y), box = spot(page, int(image)), page.locator("#map-card").bounding_box()
        assert not (box["x"] < x < box["x"] + box["width"] and box["y"] < y < box["y"] + box["height"])
    page.keyboard.press("Enter")
    assert page.locator("#map-card").is_hidden()
    page.close()


def test_an_image_that_is_not_there_is_said(page, atlas):
    number = page.get_by_label("Image number")
    number.fill("9999")
    assert number.evaluate("(input) => input.validationMessage") == f"The images are 0 to {len(atlas.places) - 1}."
    page.keyboard.press("Enter")
    number.fill("5")
    assert number.evaluate("(input) => input.validationMessage") == ""


def test_it_fits_a_phone_and_follows_the_system(browser, file):
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    red, *_ = page.evaluate("getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)")
    assert red < 60
    page.close()
