"""What the report is made of: neighbours, sheets of pictures, curves, and texts that stay texts."""

import io
import json
import re
import shutil

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from sklearn.metrics import auc, roc_auc_score, roc_curve

from vje.methods import find_method
from vje.reporting.atlas import layout, nearest
from vje.reporting.compare_page import compare_page
from vje.reporting.html import Html, as_json, fill, packed, tag
from vje.reporting.ood import densities, ood_curves, roc_points
from vje.reporting.run_curves import curve_panels
from vje.reporting.run_page import run_page
from vje.reporting.sprites import COLUMNS, make_sprites
from vje.runs import RunFolder

NASTY = "</script><b>&\"'`${1}"


def test_neighbours_are_those_of_brute_force(monkeypatch):
    monkeypatch.setattr("vje.reporting.atlas.CHUNK", 70 * 9)  # several chunks, the last one smaller
    x = np.random.default_rng(0).normal(size=(70, 6))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1)[:, :8]
    rows, similarity = nearest(torch.from_numpy(x))
    assert_array_equal(rows, order)
    assert_allclose(similarity, np.take_along_axis(cosines, order, 1), atol=1e-6)


def test_neighbours_are_found_among_nearly_parallel_features():
    x = (1e4 + np.random.default_rng(0).normal(size=(70, 6))).astype(np.float32)
    unit = x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    distances = np.linalg.norm(unit[:, None] - unit, axis=2)
    np.fill_diagonal(distances, np.inf)
    found = np.take_along_axis(distances, nearest(torch.from_numpy(x))[0].numpy(), 1)
    assert_allclose(found, np.sort(distances, axis=1)[:, :8], rtol=0.01)


def test_a_few_images_have_fewer_neighbours():
    rows, similarity = nearest(torch.eye(3))
    assert rows.shape == similarity.shape == (3, 2)
    assert nearest(torch.eye(1))[0].shape == (1, 0)


ONE_DIRECTION = np.outer(2.0 ** (np.arange(40) % 3), [3, 4, 0])  # exactly, so that nothing is left to scale


@pytest.mark.parametrize("features", [np.ones((40, 6)), ONE_DIRECTION, np.full((40, 6), np.nan), np.eye(3)])
def test_what_cannot_be_mapped_is_spread_out(features):
    places = layout(features.astype(np.float32), 0)
    gaps = np.linalg.norm(places[:, None] - places[None], axis=2) + 9 * np.eye(len(places))
    assert np.isfinite(places).all() and gaps.min() > 0.5


def cut(sprites, number):
    """A picture as the page cuts it from its sheet."""
    sheet, place = divmod(number, COLUMNS**2)
    row, column = divmod(place, COLUMNS)
    pixels = np.asarray(Image.open(io.BytesIO(sprites.sheets[sheet])).convert("RGB"))
    y, x = row * sprites.stride, column * sprites.stride
    return pixels[y : y + sprites.side, x : x + sprites.side]


def test_small_pictures_are_kept_exactly():
    images = np.random.default_rng(0).integers(0, 256, (1100, 1, 8, 8), dtype=np.uint8)
    sprites = make_sprites(images)
    assert len(sprites.sheets) == 2 and (sprites.side, sprites.stride) == (8, 8)
    for number in (0, 33, 1023, 1024, 1099):
        assert_array_equal(cut(sprites, number), np.repeat(images[number, 0][..., None], 3, 2))


def test_large_pictures_stay_close_and_apart(pictures):
    images = pictures(1000, 28)
    images[7], images[8] = 0, 255  # neighbours on the sheet, and nothing of one in the other
    sprites = make_sprites(images)
    assert (sprites.side, sprites.stride) == (28, 32)
    assert cut(sprites, 7).max() < 32 and cut(sprites, 8).min() > 223
    error = np.abs(cut(sprites, 500).astype(int) - images[500].transpose(1, 2, 0))
    assert error.mean() < 8


def test_the_budget_is_kept_even_by_noise():
    noise = np.random.default_rng(0).integers(0, 256, (128, 3, 96, 96), dtype=np.uint8)
    sprites = make_sprites(noise, budget=300_000)
    assert sum(map(len, sprites.sheets)) <= 300_000 and sprites.side < 96


def test_ten_thousand_images_fit_into_fifteen_megabytes(reported, make_atlas):
    text = run_page(reported, make_atlas(10_000, side=32))
    assert len(text.encode()) < 15_000_000


def test_roc_points_are_on_the_curve_of_sklearn():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(0, 1, 3000), rng.normal(1, 2, 2000)
    found = roc_points(inside, outside)
    truth, values = np.r_[np.zeros(3000), np.ones(2000)], np.r_[inside, outside]
    x, y, _ = roc_curve(truth, values, drop_intermediate=False)
    assert 100 < len(found["hits"]) <= 200
    assert {(round(a, 5), round(b, 5)) for a, b in zip(x, y, strict=True)} >= set(
        zip(found["false_alarms"], found["hits"], strict=True)
    )
    assert (found["false_alarms"][0], found["hits"][0]) == (0, 0)
    assert (found["false_alarms"][-1], found["hits"][-1]) == (1, 1)
    assert found["auroc"] == pytest.approx(100 * roc_auc_score(truth, values))
    assert 100 * auc(found["false_alarms"], found["hits"]) == pytest.approx(found["auroc"], abs=0.2)


def test_densities_are_those_of_numpy():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(0, 1, 3000), rng.normal(3, 1, 2000)
    found = densities(inside, outside)
    edges = np.array(found["edges"])
    expected, _ = np.histogram(inside, edges, density=True)
    within = ((inside >= edges[0]) & (inside <= edges[-1])).mean()
    assert_allclose(found["inside"], expected * within)
    assert 0.98 < np.sum(found["outside"]) * (edges[1] - edges[0]) <= 1


def test_each_sets_curves_are_of_its_own_scores_beside_those_inside():
    inside = {"a": np.linspace(0, 1, 50), "b": np.linspace(0, 1, 50)}
    outside = {"above": {"a": inside["a"] + 2, "b": inside["b"] - 2}, "below": {"a": inside["a"] - 2, "b": inside["b"]}}
    found = ood_curves(inside, outside, ["a", "b"], "a")
    areas = {name: [found["sets"][name]["roc"][score]["auroc"] for score in "ab"] for name in outside}
    assert areas == {"above": [100, 0], "below": [0, pytest.approx(50)]}
    for name, lower, upper in (("above", "inside", "outside"), ("below", "outside", "inside")):
        heights = found["sets"][name]["density"]
        middles = np.convolve(heights["edges"], [0.5, 0.5], "valid")
        mean = {which: np.average(middles, weights=heights[which]) for which in ("inside", "outside")}
        assert mean[upper] - mean[lower] == pytest.approx(2, abs=0.1)


def test_densities_are_named_after_the_score_that_they_are_of():
    inside, outside = {"a": np.linspace(0, 1, 50), "b": np.linspace(7, 8, 50)}, {"a": np.ones(9), "b": np.full(9, 8.0)}
    found = ood_curves(inside, {"x": outside}, ["a"], "b")
    edges = found["sets"]["x"]["density"]["edges"]
    assert found["density"] == "b" and 7 <= edges[0] < edges[-1] <= 8


def test_scores_that_are_all_alike_have_curves_too():
    found = ood_curves({"a": np.ones(5)}, {"x": {"a": np.ones(4)}}, ["a"], "a")
    assert found["sets"]["x"]["roc"]["a"]["auroc"] == 50
    json.dumps(found, allow_nan=False)


def test_curves_leave_gaps_and_find_a_methods_own_numbers():
    records = [
        {"epoch": 1, "step": 4, "loss": 3.0, "my_part": 1.23456789, "knn": {"z": 50.0}},
        {"epoch": 2, "step": 8, "loss": "nan", "my_part": 2.0},
    ]
    panels = {panel["title"]: panel["lines"] for panel in curve_panels(records)}
    assert panels == {
        "k-NN accuracy (%)": [{"name": "z", "x": [1], "y": [50.0]}],
        "Loss": [{"name": "loss", "x": [1, 2], "y": [3.0, None]}],
        "My part": [{"name": "my part", "x": [1, 2], "y": [1.23457, 2.0]}],
    }


def test_what_a_method_says_is_a_fraction_is_shown_in_percent():
    records = [{"epoch": epoch, "accuracy": share} for epoch, share in ((1, 0.4375), (2, "nan"), (3, 1.0))]
    line = {"name": "accuracy", "x": [1, 2, 3], "y": [43.75, None, 100.0]}
    assert curve_panels(records, find_method("supervised")) == [{"title": "Accuracy (%)", "lines": [line]}]
    assert curve_panels(records)[0]["lines"][0]["y"] == [0.4375, None, 1.0]  # of another method it may be anything


def test_a_warning_that_is_being_written_is_passed_over(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.warnings() == []
    folder.warnings_file.write_text('{"step": 1, "text": "one"}\n{"step": 2, "te')
    assert folder.warnings() == ["one"]


def test_arrays_are_packed_little_endian():
    assert packed(np.array([1, 258], np.uint16))["bytes"] == "AQACAQ=="
    with pytest.raises(ValueError, match="float64"):
        packed(np.zeros(2))


def test_nothing_from_data_becomes_markup(reported, make_atlas):
    text = run_page(reported, make_atlas(40))
    own = text.replace(re.search(r"<script>(.{1000000,}?)</script>", text, re.S).group(1), "")  # without plotly.js
    assert "<b>" not in own and own.count("</script>") == 3
    content = re.search(r'id="data">(.*?)</script>', own, re.S).group(1)
    found = json.loads(content)
    assert found["map"]["names"][3] == f"3{NASTY}.png" and found["map"]["classes"][1] == NASTY
    assert found["ood"]["sets"][0]["name"] == NASTY
    assert "the posterior &lt;/script&gt;&lt;b&gt;" in own


def test_markup_is_escaped_once():
    assert tag("p", "a & b", tag("b", "<")) == "<p>a &amp; b<b>&lt;</b></p>"
    assert tag("a", "x", href='"><i>') == '<a href="&quot;&gt;&lt;i&gt;">x</a>'
    assert json.loads(as_json({"a": NASTY})) == {"a": NASTY}
    filled = fill(
        "report.html",
        **dict.fromkeys(("name", "summary", "origin", "numbers", "notes", "map", "training", "ood", "warnings"), NASTY),
        config=Html("<hr>"),
    )
    assert "<b>" not in filled and "<hr>" in filled


def test_the_page_says_what_was_measured_and_what_makes_the_rest(reported, make_atlas):
    text = run_page(reported, make_atlas(40))
    for words in ("71.00%", "12.2", "\u2212101.5", "88.1%", "95.5%", f"vje probe {reported.path}", "resnet8", "0.006"):
        assert words in text, words
    bare = run_page(reported, None, "There is no model yet.")
    assert "There is no model yet." in bare and 'id="map-plot"' not in bare


def test_numbers_that_are_none_are_dashes(tmp_path, reported):
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config", reported.read("config"))
    folder.write("evaluation", {"effective_rank": np.nan, "posterior": {"kl": np.inf, "nll": -2.0}})
    folder.write("ood", {"summary": {"nll": {"avg": np.nan}}})
    folder.write("geometry", {"margin": np.nan, "spearman": {"margin": {"anisotropy": np.nan, "nll": -0.5}}})
    text = run_page(folder, None)
    assert text.count("<td>\u2013</td>") == 5 and "\u20130" not in text
    assert "<td>\u22122</td>" in text and "<td>\u22120.50</td>" in text


def test_what_is_said_of_vjes_statistics_is_not_said_of_others(tmp_path, reported):
    pages = {}
    for method in ("vje", "vssl"):
        folder = RunFolder.create(tmp_path / method)
        folder.write("config", reported.read("config") | {"method": method})
        folder.write("evaluation", {"effective_rank": 2.0, "posterior": {"variance": 3.0, "kl": 4.0}})
        pages[method] = run_page(folder, None)
        assert "<td>3</td>" in pages[method]
    assert [("the prior" in page) for page in pages.values()] == [True, False]


@pytest.fixture
def extended(tmp_path, reported):
    """A run of five epochs whose results are of its first three."""
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config", reported.read("config"))
    old = {"weights": "old", "finished": True}
    folder.write("evaluation", reported.read("evaluation") | old)
    folder.write("probe", {"spaces": {"z": {"top1": 77.5}}} | old)
    folder.write("geometry", {"margin": 0.123} | old)
    folder.write("ood", reported.read("ood") | old)
    folder.write("ood-curves", reported.read("ood-curves"))
    for epoch, knn in ((3, {"z": 81.0}), (4, {"z": 83.25, "mean": 82.5}), (5, None)):
        folder.append(folder.metrics_file, {"epoch": epoch, "step": epoch} | ({"knn": knn} if knn else {}))
    folder.model_file.touch()
    return folder


def head(page):
    """The page's text above the map."""
    return page.split('id="title-map"')[0].split('id="title-numbers"')[1]


def test_results_of_other_weights_are_left_out(extended):
    page = run_page(extended, None, "", "new")
    for name, command in (("evaluation", "evaluate"), ("probe", "probe"), ("geometry", "geometry")):
        reason = "of other weights than the model"
        assert f"Left out: {name}.json, {reason}; <code>vje {command} {extended.path}</code> makes it anew." in page
    assert "Left out: ood.json" in page and "--id PATH --ood NAME=PATH</code> makes it anew." in page
    values = re.findall(r"<td>([^<]*)</td><td>([^<]*)</td>", head(page))
    how = "in training, after epoch 4; k = 20, cosine"
    assert values == [("83.25%", how), ("82.50%", how)]  # k-NN as it was recorded last, and nothing else
    assert 'id="ood-panels"' not in page
    page = run_page(extended, None, "", "old")
    assert "Left out" not in page and "71.00%" in head(page) and "83.25%" not in head(page)
    assert 'id="ood-panels"' in page


def test_results_from_before_training_went_on_are_left_out(extended):
    for name in ("evaluation", "probe"):
        extended.write(name, extended.read(name) | {"finished": True})
    assert "Left out" not in run_page(extended, None)
    extended.model_file.unlink()
    assert "Left out: evaluation.json, from before training went on." in run_page(extended, None)
    (extended.checkpoints / "step-000000005.safetensors").touch()
    page = run_page(extended, None)
    assert "Left out: evaluation.json, from before training went on; <code>vje evaluate" in page
    extended.write("probe", {"spaces": {"z": {"top1": 79.5}}, "weights": "those"})
    assert "79.50%" in head(run_page(extended, None, "", "those")) and "71.00%" not in head(page)


@pytest.fixture
def diverged(tmp_path, reported):
    """A run that diverged in its first epoch: settings, and what was said at the end."""
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config", reported.read("config"))
    folder.write("failed", {"step": 3, "message": f"training stopped at step 3: loss = nan {NASTY}"})
    return folder


def test_a_run_that_diverged_says_so(diverged):
    page = run_page(diverged, None).split("<script>")[0]
    assert "seed 0; diverged at step 3, in the first epoch" in page and "finished yet" not in page
    assert "<li>Diverged in the first epoch: training stopped at step 3: loss = nan &lt;/script&gt;&lt;b&gt;" in page
    assert "Nothing more can be measured: the run has neither a model nor a checkpoint." in page
    assert "<code>vje" not in page and "makes them" not in page
    diverged.append(diverged.metrics_file, {"epoch": 1, "step": 2, "loss": 1.0})
    (diverged.checkpoints / "step-000000002.safetensors").touch()
    page = run_page(diverged, None).split("<script>")[0]
    assert "diverged at step 3, 1 epochs done" in page and "<li>Diverged after epoch 1: training stopped" in page
    assert f"<code>vje evaluate {diverged.path}</code> makes it." in page and "--id PATH" in page


@pytest.mark.parametrize(
    "line",
    [
        "NaN",
        "[1]",
        '{"step": 3}',
        '{"epoch": 3, "step": 3, "loss": NaN, "images_per_second": Infinity, "my_part": NaN}',
        '{"epoch": 3, "step": 3, "loss": 2.0, "knn": NaN}',
        '{"epoch": 3, "step": 3, "loss": 2.0, "knn": {"z": NaN}}',
    ],
)
def test_unusual_lines_are_passed_over(tmp_path, reported, line):
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config", reported.read("config"))
    folder.append(folder.metrics_file, {"epoch": 2, "step": 2, "loss": 4.0, "knn": {"z": 50.0}})
    with folder.metrics_file.open("a") as stream:
        stream.write(f"{line}\n")
    for page in (run_page(folder, None), compare_page([folder], tmp_path / "both.html")):
        panels = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))["panels"]
        assert panels[0]["lines"][0]["y"][0] == 50 and "epochs done" in page


def test_curves_and_table_call_a_number_the_same(tmp_path, reported):
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config", reported.read("config") | {"method": "vi-simsiam"})
    parts = {"ps_nll": -3.0, "kl": 2.0, "kappa": 9.0, "cosine": 0.5}
    folder.write("evaluation", {"effective_rank": 2.0, "posterior": parts})
    for epoch in (1, 2):
        folder.append(folder.metrics_file, {"epoch": epoch, "step": epoch, "loss": 1.0, **parts})
    page = run_page(folder, None)
    panels = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))["panels"]
    drawn = {line["name"] for panel in panels for line in panel["lines"]}
    rows = re.findall(r'<th scope="row">([^<]*)</th><td>[^<]*</td><td>([^<]+)</td>', head(page))
    named = {title[:1].lower() + title[1:] for title, _ in rows} | {title for title, _ in rows}
    assert drawn - {"loss"} <= named and "Power-Spherical NLL" in drawn
    assert [panel["title"] for panel in panels] == [
        "Loss in units of kappa (may rise)",
        "Terms of the loss",
        "Concentration kappa",
        "Cosine to the prediction",
    ]


def test_a_run_of_a_method_that_is_not_here_has_a_page_too(tmp_path, reported):
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config", reported.read("config") | {"method": "of-a-friend"})
    folder.write("evaluation", {"effective_rank": 2.0, "posterior": {"my_part": 3.0}})
    assert '<th scope="row">My part</th><td>3</td><td></td>' in run_page(folder, None)


def test_typical_and_odd_images(make_atlas):
    atlas = make_atlas(40)
    most, least = atlas.extremes(5)
    order = atlas.statistics["nll"].argsort().tolist()
    assert (most, least) == (order[:5], order[::-1][:5])
    assert make_atlas(40, likelihood=False).typicality == "isolation"
    few = make_atlas(3).extremes(5)
    assert not set(few[0]) & set(few[1])


def test_the_page_says_which_step_the_model_is_of_if_the_curves_go_on(tmp_path, reported):
    shutil.copytree(reported.path, tmp_path / "killed", dirs_exist_ok=True)
    folder = RunFolder(tmp_path / "killed")
    folder.model_file.unlink(missing_ok=True)
    shutil.rmtree(folder.checkpoints)
    folder.checkpoints.mkdir()
    last = folder.metrics()[-1]["step"]
    note = "The model, and so the map, is the one saved after step"
    for step, told in ((last - 1, True), (last, False)):
        (folder.checkpoints / f"step-{step:09d}.safetensors").write_bytes(b"")
        assert (f"{note} {step:,}; the curves go on to step {last:,}." in run_page(folder, None)) == told
