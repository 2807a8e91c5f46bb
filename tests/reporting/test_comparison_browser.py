"""The comparison of several runs in a real Chromium: figures stay whole, however narrow the window."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from vje.config import to_dict
from vje.recipes import load_recipe
from vje.reporting.compare_page import compare_page
from vje.runs import RunFolder

WRAPPED = """() => [...document.querySelectorAll(".figures td")].filter((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1;
}).map((cell) => cell.textContent)"""
BOX = "(() => { const box = document.querySelector('.figures .scroll'); return [box.scrollWidth, box.clientWidth]; })()"


@pytest.fixture(scope="module")
def file(reported, tmp_path_factory):
    """Two seeds of one recipe, and one of another, with every column there is."""
    place, folders = tmp_path_factory.mktemp("compared"), []
    for number, recipe in enumerate(("cifar10-ema", "cifar10-ema", "cifar10-vi-simsiam")):
        config = load_recipe(recipe)
        folder = RunFolder(Path(shutil.copytree(reported.path, place / f"run{number}")))
        folder.write("config", to_dict(replace(config, run=replace(config.run, seed=number))))
        folder.metrics_file.unlink()
        for epoch in (100, 200):
            record = {"epoch": epoch, "step": epoch, "images_per_second": 39821.0, "knn": {"z": 80 + epoch / 20}}
            folder.append(folder.metrics_file, record)
        folder.write("evaluation", {"knn": {"k": 20, "z": 92.48 + number, "mean": 91.37, "target": 90.26}})
        folder.write("probe", {"spaces": {space: {"top1": 93.15} for space in ("z", "mean")}})
        summary = {score: {"near": 88.125, "far": 95.5, "avg": 91.8} for score in ("nll", "knn")}
        folder.write("ood", {"summary": summary})
        folders.append(folder)
    page = place / "comparison.html"
    page.write_text(compare_page(folders, page), encoding="utf-8")
    return page


def test_figures_are_never_broken_and_only_the_table_scrolls(browser, file):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(file.as_uri())
    page.wait_for_selector(".figures td")
    assert "92.98 ± 0.71" in page.locator(".figures").text_content()
    for width in (1200, 768, 375):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("(width) => window.innerWidth === width", arg=width)
        page.wait_for_timeout(300)  # figures follow the window a little later
        assert page.evaluate(WRAPPED) == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        content, box = page.evaluate(BOX)
        assert box <= width and (content > box or width == 1200)
    page.close()
