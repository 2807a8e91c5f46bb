"""``vje geometry``: the table and the map of a run, and what it cannot be made of."""

import json
import math
import shutil

import pytest
import torch
from PIL import Image

import vje as package
from vje.data.arrays import load_npz
from vje.evaluation.geometry import place
from vje.methods.vje import VJE
from vje.reporting.geometry import save_training
from vje.runs import RunFolder

DIAGNOSTICS = ["effective_rank", "nll_directional", "nll_radial", "variance", "kl"]


def test_geometry_is_of_the_held_out_images(vje, trained, tmp_path):
    run, data = trained
    mine = tmp_path / "run"
    shutil.copytree(run, mine)
    answer = vje("geometry", mine, "--device", "cpu")
    assert answer.status == 0, answer.err
    assert "Spearman with margin" in answer.out
    found = json.loads((mine / "geometry.json").read_text())
    test = load_npz(data)["test"]
    model = package.load(mine)
    means = model.posterior(torch.from_numpy(test.planes(range(len(test))))).mean
    expected = place(means, torch.as_tensor(test.labels))
    assert abs(found["margin"] - float(expected.margin.double().mean())) < 1e-4
    assert sum(found["tertiles"][t]["images"] for t in ("low", "mid", "high")) == len(test)
    assert (mine / "geometry.png").stat().st_size > 5000


@pytest.mark.parametrize("likelihood", ["factorized", "standard"])
def test_training_is_as_it_was_recorded(vje, trained, tmp_path, tiny, likelihood):
    mine = tmp_path / "costs $1 or $_"
    if likelihood == "factorized":
        shutil.copytree(trained[0], mine)
    else:
        words = ("--data", trained[1], "--out", mine, "--likelihood", likelihood)
        assert vje("train", "folder", *words, *tiny).status == 0
    answer = vje("geometry", mine, "--device", "cpu", "--points", 0)
    assert answer.status == 0, answer.err
    records = RunFolder.open(mine).metrics()
    found = json.loads((mine / "geometry.json").read_text())["training"]
    own = ["nll_standard"] if likelihood == "standard" else []
    assert sorted(found) == sorted(["epoch", *DIAGNOSTICS, *own])
    assert found == {name: [record[name] for record in records] for name in found}
    assert found["epoch"] == [1, 2]
    rank, direction, radius = (f"{found[name][-1]:.{n}f}" for name, n in zip(DIAGNOSTICS[:3], (1, 2, 2), strict=True))
    line = f"Training, epoch 2: effective rank {rank}; NLL, directional {direction}; NLL, radial {radius}"
    assert line in answer.out and ("; NLL, standard" in answer.out) == bool(own)
    assert str(mine / "geometry-training.png") in answer.out
    with Image.open(mine / "geometry-training.png") as picture:
        assert picture.format == "PNG" and picture.width > 4 * picture.height  # panels abreast


def test_a_run_without_records_has_no_curves(vje, trained, tmp_path):
    mine = tmp_path / "run"
    shutil.copytree(trained[0], mine, ignore=shutil.ignore_patterns("metrics.jsonl", "geometry*"))
    answer = vje("geometry", mine, "--device", "cpu", "--points", 0)
    assert answer.status == 0, answer.err
    assert f"Nothing on training: {mine / 'metrics.jsonl'} has no epochs." in answer.out
    assert json.loads((mine / "geometry.json").read_text())["training"] == {}
    assert not (mine / "geometry-training.png").exists()


def test_numbers_that_are_missing_or_not_finite_are_gaps(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("vje.reporting.geometry.save_panels", lambda *parts: drawn.update(parts[-1]))
    training = {"epoch": [1, 2, 3, 4], "kl": [5.0, None, "nan", "inf"]}
    save_training(tmp_path / "x.png", training, "run", "standard")
    points = drawn["KL (nats)", "run"]["standard likelihood"]
    assert points[0] == (1, 5.0, 0.0)
    assert [epoch for epoch, height, _ in points if math.isnan(height)] == [2, 3, 4]


def test_a_statistic_that_is_constant_has_no_correlation(vje, trained, tmp_path):
    mine = tmp_path / "run"
    shutil.copytree(trained[0], mine)
    model = package.load(mine)
    VJE("resnet8", isotropic=True, preprocessing=model.preprocessing).eval().save(mine)
    answer = vje("geometry", mine, "--device", "cpu", "--points", 0)
    assert answer.status == 0, answer.err
    assert json.loads((mine / "geometry.json").read_text())["spearman"]["margin"]["anisotropy"] == "nan"
    line = next(line for line in answer.out.splitlines() if "Spearman with margin" in line)
    assert line.split()[-1] == "\u2013" and "nan" not in answer.out
    answer = vje("report", mine, "--points", 0)
    assert answer.status == 0, answer.err
    assert "<td>\u2013</td><td>Spearman" in (mine / "report.html").read_text(encoding="utf-8")


def test_the_table_is_whole_in_a_narrow_window(vje, trained, tmp_path, monkeypatch):
    mine = tmp_path / "[bold]"
    shutil.copytree(trained[0], mine)
    monkeypatch.setenv("COLUMNS", "40")
    lines = vje("geometry", mine, "--device", "cpu", "--points", 0).out.splitlines()
    assert f"{trained[1]}: 32 images, 4 classes" in lines
    assert sum(line.count("±") == 4 for line in lines) == sum("±" in line for line in lines) == 3


def test_data_that_has_moved(vje, trained, tmp_path):
    mine, data = tmp_path / "run", tmp_path / "moved.npz"
    shutil.copytree(trained[0], mine)
    shutil.copy(trained[1], data)
    answer = vje("geometry", mine, "--data", data, "--device", "cpu", "--points", 0)
    assert answer.status == 0, answer.err
    assert json.loads((mine / "geometry.json").read_text())["data"] == str(data)


def test_what_it_needs_is_said(vje, run):
    answer = vje("geometry", run, "--device", "cpu")
    assert answer.status == 2 and "has no labels" in answer.err


@pytest.mark.parametrize(("option", "value", "least"), [("--points", -5, 0), ("--batch", 0, 1)])
def test_mistakes(vje, trained, option, value, least):
    before = (trained[0] / "geometry.json").exists()
    answer = vje("geometry", trained[0], option, value, "--device", "cpu")
    assert answer.status == 2 and f"{option} must be at least {least}, got {value}" in answer.err
    assert (trained[0] / "geometry.json").exists() == before
