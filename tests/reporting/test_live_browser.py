"""The live page in a real Chromium: it asks its own server alone, and its map moves with the run."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vje.reporting.live import LiveServer
from vje.runs import RunFolder

COUNT = 120


@pytest.fixture
def live(reported, tmp_path):
    folder = RunFolder(Path(shutil.copytree(reported.path, tmp_path / "run")))
    server = LiveServer(folder, no_map="The map comes later.").start()
    yield server
    server.stop()


IMPATIENT = "const wait = setTimeout; window.setTimeout = (what, ms, ...rest) => wait(what, ms / 20, ...rest);"
"""The page asks for news every two seconds; a test need not wait that long."""


@pytest.fixture
def opened(browser, live):
    """``opened(width, scheme)``: the page, which must not complain, and asks nobody but the server."""
    trouble, pages = [], []

    def go(width=1200, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: message.type in ("error", "warning") and trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        known = tuple(f"{live.address}/{path}" for path in ("", "data.json", "map.json"))
        page.on("request", lambda request: request.url.startswith("data:") or asked(request.url, known))
        page.add_init_script(IMPATIENT)
        page.goto(live.address)
        page.wait_for_selector("html[data-ready=yes]")
        pages.append(page)
        return page

    def asked(address, known):
        if address not in known:
            trouble.append(address)

    yield go
    assert trouble == []
    for page in pages:
        page.close()


def lonely(atlas):
    """The image whose point is farthest from all others: nothing else is under the pointer there."""
    gaps = np.linalg.norm(atlas.places[:, None] - atlas.places[None], axis=2) + 99 * np.eye(len(atlas.places))
    return int(gaps.min(1).argmax())


def tiles(page, place):
    return [int(tile.get_attribute("data-image")) for tile in page.locator(f"{place} .tile").all()]


def wait_for_epoch(page, epoch, moving=False):
    end = " The images do not have their new places yet." if moving else ""
    words = f"As the model was after epoch {epoch}.{end}"
    page.wait_for_function("(words) => document.getElementById('live-map-when').textContent === words", arg=words)


def test_the_map_comes_while_the_page_is_open_and_works(opened, live, make_atlas, spot):
    atlas = make_atlas(COUNT)
    page = opened()
    assert "The map comes later." in page.locator("#live-map").text_content()
    assert page.locator("#training-panels .plot").count() > 3
    live.show(atlas, 10, False)
    wait_for_epoch(page, 10, moving=True)
    assert f"one of {COUNT} images" in page.locator("#live-map").text_content()
    assert "The map comes later." not in page.locator("#live-map").text_content()
    assert page.evaluate("document.getElementById('map-plot').data[0].type") == "scattergl"
    assert page.evaluate("document.getElementById('map-plot').data[0].x.length") == COUNT
    assert (tiles(page, "#gallery-most"), tiles(page, "#gallery-least")) == atlas.extremes()

    image = lonely(atlas)
    page.mouse.move(*spot(page, image))
    page.wait_for_selector(f"#map-card[data-image='{image}']:visible canvas[data-drawn=yes]")
    assert page.locator("#map-card .what").text_content() == f"class {atlas.classes[atlas.labels[image]]}"
    assert {"NLL", "posterior variance"} <= set(page.locator("#map-card dt").all_text_contents())
    page.mouse.click(*spot(page, image))
    page.wait_for_selector(f"#map-chosen[data-image='{image}']")
    assert tiles(page, "#map-chosen") == atlas.neighbours[image].tolist()
    page.get_by_label("Colour by").select_option(label="NLL")
    values = page.evaluate("Array.from(document.getElementById('map-plot').data[0].marker.color)")
    np.testing.assert_allclose(values, atlas.statistics["nll"])


def test_what_one_was_doing_goes_on_when_the_map_is_renewed(opened, live, make_atlas):
    atlas = make_atlas(COUNT)
    live.show(atlas, 10, True)
    page = opened()
    wait_for_epoch(page, 10)
    page.get_by_label("Colour by").select_option(label="posterior variance")
    page.get_by_label("Image number").fill("7")
    page.locator("#map-plot").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("+")
    page.wait_for_function("document.getElementById('map-plot')._fullLayout.xaxis.autorange === false")
    page.get_by_label("Image number").fill("8")
    page.wait_for_selector("#map-card[data-image='8']:visible")
    zoomed = page.evaluate("document.getElementById('map-plot')._fullLayout.xaxis.range")

    rng = np.random.default_rng(3)
    after = replace(
        atlas,
        places=atlas.places + 0.1,
        neighbours=atlas.neighbours[:, ::-1].copy(),
        statistics={name: rng.permutation(x) for name, x in atlas.statistics.items()},
    )
    live.show(after, 20, True)
    wait_for_epoch(page, 20)
    found = page.evaluate("Array.from(document.getElementById('map-plot').data[0].x)")
    np.testing.assert_allclose(found, after.places[:, 0], rtol=1e-6)
    colours = page.evaluate("Array.from(document.getElementById('map-plot').data[0].marker.color)")
    np.testing.assert_allclose(colours, after.statistics["variance"])
    assert page.locator("#map-colour option").count() == 4  # class and the three statistics, once each
    assert tiles(page, "#map-chosen") == after.neighbours[7].tolist()
    assert (tiles(page, "#gallery-most"), tiles(page, "#gallery-least")) == after.extremes()
    np.testing.assert_allclose(page.evaluate("document.getElementById('map-plot')._fullLayout.xaxis.range"), zoomed)
    assert page.locator("#map-card[data-image='8']").is_visible()  # the keyboard is still there

    page.locator("#gallery-least .tile").nth(3).focus()
    live.show(atlas, 30, True)
    wait_for_epoch(page, 30)
    assert page.locator("#map-card").is_hidden()
    assert int(page.evaluate("document.activeElement.dataset.image")) == atlas.extremes()[1][3]
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#map-chosen[data-image='{atlas.extremes()[1][3]}']")


def test_without_labels_and_likelihood_on_a_phone_in_the_dark(opened, live, make_atlas):
    live.show(make_atlas(COUNT, labelled=False, likelihood=False), 1, True)
    page = opened(390, "dark")
    wait_for_epoch(page, 1)
    assert page.get_by_label("Colour by").locator("option").all_text_contents() == ["distance to neighbours"]
    assert page.locator("#map-legend .scale").count() == 1 and page.locator("#gallery-most .tile").count() == 12
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    red, *_ = page.evaluate("getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)")
    assert red < 60


@pytest.mark.parametrize("finished", [True, False])
def test_the_page_is_shown_the_end_and_then_asks_no_more(opened, live, make_atlas, finished):
    live.show(make_atlas(COUNT), 10, False)
    page = opened()
    wait_for_epoch(page, 10, moving=True)
    assert page.locator("#live-status").text_content() == "in training"
    live.progress = {"epoch": 20, "epochs": 20, "done": 1, "images_per_second": 7.0, "left": "0s"}
    if finished:
        live.folder.model_file.touch()
    live.show(make_atlas(COUNT), 20, True)
    live.finish(3)  # the page asks much more often
    live.stop()
    last = live.folder.read("config")["optimizer"]["epochs"]
    status = "finished" if finished else "stopped, 20 epochs done"
    words = f"Finished after epoch {last}." if finished else f"vje train --resume {live.folder.path}"
    page.wait_for_function("(words) => document.getElementById('live-status').textContent === words", arg=status)
    wait_for_epoch(page, 20)
    assert words in page.locator("#live-words").text_content() and page.title() == f"run: {status}"
    assert page.evaluate("document.getElementById('live-bar').value") == 1
    page.wait_for_timeout(500)  # several times its patience: it would find nobody there, and complain


def test_the_last_state_stays_when_the_server_is_gone(browser, reported, make_atlas):
    server = LiveServer(reported).start()
    server.show(make_atlas(COUNT), 10, True)
    page = browser.new_page()
    page.add_init_script(IMPATIENT)
    page.goto(server.address)
    wait_for_epoch(page, 10)
    server.stop()
    page.wait_for_function("document.getElementById('live-words').textContent.startsWith('Training has ended')")
    assert page.locator("#map-plot canvas").count() > 0
    assert page.locator("#live-status").text_content() == "ended, or stopped"
    page.close()
