"""Scores averaged over views, against one view at a time."""

import numpy as np
import pytest
import torch
from PIL import Image

from vje.data.folders import scan_paths
from vje.data.sources import ArraySource
from vje.data.views import views
from vje.likelihood import directional_nll, radial_nll
from vje.methods.vje import VJE
from vje.ood import averaged
from vje.ood.averaged import mean_scores
from vje.ood.protocol import build_scorer
from vje.preprocessing import Preprocessing


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return VJE("resnet8", target="ema", preprocessing=Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3)).eval()


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(1).integers(0, 256, (11, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("rows", [1, 50, 10_000])
def test_the_mean_over_views(model, pixels, monkeypatch, rows):
    monkeypatch.setattr(averaged, "ROWS", rows)
    found = mean_scores(model, ArraySource(pixels), build_scorer(model, None), "ten", batch_size=4)
    parts = []
    for y, x in ((1, 1), (0, 0), (0, 2), (2, 0), (2, 2)):  # of 8 pixels 6
        cut = [Image.fromarray(p[y : y + 6, x : x + 6]).resize((8, 8), Image.Resampling.BILINEAR) for p in pixels]
        images = torch.from_numpy(np.stack([np.asarray(image) for image in cut])).permute(0, 3, 1, 2)
        parts += [images, images.flip(-1)]
    with torch.no_grad():
        expected = torch.stack([model.score(part)["nll"] for part in parts]).mean(0)
    np.testing.assert_allclose(found["nll"], expected, rtol=5e-3)  # Pillow rounds pixels twice
    assert found["nll"].shape == (11,)


def test_the_elbo_is_that_of_each_view_under_the_others(model, pixels):
    found = mean_scores(model, ArraySource(pixels), build_scorer(model, None), "ten", batch_size=4)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    with torch.no_grad():
        embedded = [model.embed(view) for view in views(images, "ten")]
        posteriors = [model.inference(z) for z in embedded]
        pairs = [
            directional_nll(z, q.mean, q.variance) + radial_nll(z, q.mean) + q.kl()
            for i, q in enumerate(posteriors)
            for j, z in enumerate(embedded)
            if i != j
        ]
    assert len(pairs) == 90
    np.testing.assert_allclose(found["neg_elbo"], torch.stack(pairs).mean(0), rtol=1e-4)


def test_of_one_view_every_score_is_its_own(model, pixels):
    found = mean_scores(model, ArraySource(pixels), build_scorer(model, None), "one")
    with torch.no_grad():
        expected = model.score(torch.from_numpy(pixels).permute(0, 3, 1, 2))["neg_elbo"]
    np.testing.assert_allclose(found["neg_elbo"], expected, rtol=1e-4)


def test_files_that_cannot_be_read_are_left_out(model, pixels, tmp_path):
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{i:02}.png")
    (tmp_path / "03.png").write_text("no image")
    seen = []
    source, scorer = scan_paths((str(tmp_path),)), build_scorer(model, None)
    found = mean_scores(model, source, scorer, "ten", 4, report=lambda done, count: seen.append((done, count)))
    rest = mean_scores(model, ArraySource(np.delete(pixels, 3, axis=0)), scorer, "ten")
    np.testing.assert_allclose(found["nll"], rest["nll"], rtol=1e-4)
    assert seen == [(4, 11), (8, 11), (11, 11)]
