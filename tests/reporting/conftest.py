"""A run folder and a map that no model was needed for, with names that try to be markup."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from vje.config import to_dict
from vje.methods.vje import VJE
from vje.recipes import load_recipe
from vje.reporting.atlas import TITLES, Atlas, nearest
from vje.reporting.ood import ood_curves
from vje.reporting.sprites import make_sprites
from vje.runs import RunFolder

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NASTY = "</script><b>&\"'`${1}"


def smooth_pictures(count, side, channels=3, seed=0):
    """Pictures that compress about as photographs do (CIFAR's take a sixth less): smooth colours, with grain.

    The grain is of brightness alone, as WebP, like the eye, sees colour less finely.
    """
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.uniform(0, 255, (count, channels, 5, 5)).astype(np.float32))
    fine = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=True).numpy()
    fine = fine + rng.normal(0, 12, (count, 1, side, side))
    return np.clip(fine, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def browser():
    """A real Chromium, with WebGL though there may be no graphics card."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    arguments = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    arguments += ["--no-sandbox", "--disable-dev-shm-usage"]  # containers often have neither, and the page is our own
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@pytest.fixture
def spot():
    """``spot(page, image)``: where an image's point is on the screen."""

    def find(page, image):
        page.locator("#map-plot").scroll_into_view_if_needed()
        return page.evaluate(
            """(image) => {
                const plot = document.getElementById("map-plot"), box = plot.getBoundingClientRect();
                const { xaxis, yaxis } = plot._fullLayout, { x, y } = plot.data[0];
                const share = (value, [low, high]) => (value - low) / (high - low);
                return [box.left + share(x[image], xaxis.range) * box.width,
                        box.top + (1 - share(y[image], yaxis.range)) * box.height];
            }""",
            image,
        )

    return find


@pytest.fixture(scope="session")
def pictures():
    """``pictures(count, side, channels)``: smooth ones."""
    return smooth_pictures


@pytest.fixture(scope="session")
def make_atlas():
    """``make_atlas(count, side=16, labelled=True)``: four clusters of images, and their features."""

    def make(count, side=16, labelled=True, likelihood=True):
        rng = np.random.default_rng(1)
        labels = np.arange(count) % 4
        features = torch.from_numpy(rng.normal(0, 0.4, (count, 8)) + 3 * np.eye(8)[labels])
        neighbours, similarity = nearest(features)
        places = np.stack([labels % 2, labels // 2], 1) * 9 + rng.normal(0, 1.5, (count, 2))
        values = {"nll": rng.normal(-100, 9, count), "variance": rng.uniform(0.5, 0.9, count)} if likelihood else {}
        values["isolation"] = 1 - similarity.mean(1).numpy()
        return Atlas(
            space="posterior means",
            vectors=features.float().numpy(),
            places=places.astype(np.float32),
            statistics={name: x.astype(np.float32) for name, x in values.items()},
            neighbours=neighbours.numpy(),
            similarity=similarity.numpy(),
            names=[f"{i}{NASTY}.png" for i in range(count)],
            pictures=make_sprites(smooth_pictures(count, side)),
            labels=labels if labelled else None,
            classes=["cat", NASTY, "ship", "frog"] if labelled else None,
            total=count,
            titles={name: VJE.quantity(name).title for name in values} | TITLES,
        )

    return make


@pytest.fixture(scope="session")
def reported(tmp_path_factory):
    """A run folder with everything that a report shows; its checkpoint is a file without content."""
    folder = RunFolder.create(tmp_path_factory.mktemp("reported") / "run")
    (folder.checkpoints / "step-000000020.safetensors").touch()
    config = load_recipe("digits")
    folder.write("config", to_dict(replace(config, data=replace(config.data, data=NASTY))))
    folder.write("data", {"train_images": 10, "test_images": 300, "labels": True})
    for epoch in range(1, 21):
        record = {"epoch": epoch, "step": epoch, "loss": 5 / epoch, "kl": 2.0, "variance": 0.7, "effective_rank": 9.0}
        folder.append(folder.metrics_file, record | ({"knn": {"z": 50 + epoch}} if epoch % 5 == 0 else {}))
    folder.append(folder.warnings_file, {"step": 3, "text": f"the posterior {NASTY} collapsed"})
    found = {"images": 300, "effective_rank": 12.25, "posterior": {"nll": -101.5}, "knn": {"k": 20, "z": 71.0}}
    folder.write("evaluation", found)
    rng = np.random.default_rng(2)
    inside, outside = {"nll": rng.normal(0, 1, 300)}, {NASTY: {"nll": rng.normal(2, 1, 200)}}
    curves = ood_curves(inside, outside, ["nll"], "nll")
    folder.write("ood-curves", curves | {"titles": {"nll": "NLL"}})
    summary = {"nll": {"near": 88.125, "far": 95.5, "avg": 91.8}}
    folder.write("ood", {"summary": summary})
    return folder
