"""``vje evaluate``: what it prints, in which order, and what it refuses."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import vje as package
from vje.evaluation import evaluate as evaluation
from vje.evaluation import features
from vje.experiments.usual import unusual
from vje.runs import RunFolder


@pytest.fixture
def mine(trained, tmp_path):
    """A copy of a finished run, to write into."""
    shutil.copytree(trained[0], tmp_path / "run")
    (tmp_path / "run" / "evaluation.json").unlink(missing_ok=True)
    return tmp_path / "run"


def test_the_table_is_printed_even_if_it_cannot_be_written(vje, mine):
    (mine / "evaluation.json").mkdir()
    answer = vje("evaluate", mine, "--device", "cpu")
    assert answer.status == 2 and "k-NN accuracy of z" in answer.out and "Written to" not in answer.out
    assert answer.err.strip().splitlines()[-1].startswith(f"vje: cannot write {mine / 'evaluation.json'}")


def test_more_neighbours_than_images_are_refused_before_anything_is_computed(vje, mine):
    shutil.rmtree(mine / "cache", ignore_errors=True)
    answer = vje("evaluate", mine, "--device", "cpu", "--k", 97)
    assert answer.status == 2
    assert answer.err.strip() == "vje: --k 97 is more than the 96 training images there are: choose 96 or fewer."
    assert not (mine / "cache").exists() and not (mine / "evaluation.json").exists()
    assert vje("evaluate", mine, "--device", "cpu", "--k", 96).status == 0
    assert json.loads((mine / "evaluation.json").read_text())["knn"]["k"] == 96


def test_without_labels_the_number_of_neighbours_does_not_matter(vje, run):
    assert vje("evaluate", run, "--device", "cpu", "--k", 1000).status == 0


def test_labels_may_come_later(vje, run, tmp_path):
    answer = vje("evaluate", run, "--device", "cpu", "--k", 5)
    assert answer.status == 0 and "this data has none: --labels FILE gives them" in answer.out
    assert "knn" not in json.loads((run / "evaluation.json").read_text())
    np.save(tmp_path / "labels.npy", np.arange(110) % 3)  # of the training images, then of the others
    assert vje("evaluate", run, "--device", "cpu", "--k", 5, "--labels", tmp_path / "labels.npy").status == 0
    assert "z" in json.loads((run / "evaluation.json").read_text())["knn"]
    for command in ("geometry", "report"):
        answer = vje(command, run, "--device", "cpu", "--points", 40, "--labels", tmp_path / "labels.npy")
        assert answer.status == 0, answer.err
    before = json.loads((run / "evaluation.json").read_text())
    answer = vje("evaluate", run, "--device", "cpu", "--k", 5)  # without labels again
    (kept,) = (run / "evaluation-earlier").glob("*/evaluation.json")
    assert f"What was measured before, with k = 5, is in {kept.parent} now." in answer.out
    assert json.loads(kept.read_text()) == before and "knn" not in json.loads((run / "evaluation.json").read_text())


def test_accuracies_with_another_k_are_kept(vje, run, tmp_path):
    np.save(tmp_path / "labels.npy", np.arange(110) % 3)
    again = ("evaluate", run, "--device", "cpu", "--labels", tmp_path / "labels.npy", "--k")
    for k in (5, 5, 7):  # the same once more needs no keeping
        assert not (run / "evaluation-earlier").exists()
        answer = vje(*again, k)
    (kept,) = (run / "evaluation-earlier").glob("*/evaluation.json")
    assert f"with k = 5, is in {kept.parent} now." in answer.out
    assert json.loads(kept.read_text())["knn"]["k"] == 5


@pytest.mark.parametrize("what", ["images", "labels"])
def test_what_was_measured_on_other_images_or_labels_is_kept_apart(vje, trained, mine, tmp_path, what):
    data = dict(np.load(trained[1]))
    vje("evaluate", mine, "--device", "cpu")
    own = (mine / "evaluation.json").read_text()
    assert "foreign" not in json.loads(own)
    data |= (
        {"test_images": 255 - data["test_images"]} if what == "images" else {"test_labels": data["test_labels"][::-1]}
    )
    np.savez(tmp_path / "others.npz", **data)
    with pytest.warns(
        UserWarning, match="the images of .* those of training|the labels of .* are not those of training"
    ):
        answer = vje("evaluate", mine, "--device", "cpu", "--data", tmp_path / "others.npz")
    (kept,) = (mine / "evaluation-earlier").glob("*/evaluation.json")
    assert answer.status == 0 and f"What was measured before, on other {what}, is in {kept.parent} now." in answer.out
    assert kept.read_text() == own and json.loads((mine / "evaluation.json").read_text())["foreign"] == what
    assert unusual(RunFolder(mine), "evaluation") == f"{what} that are not those of training"
    shutil.copy(trained[1], tmp_path / "again.npz")
    vje("evaluate", mine, "--device", "cpu", "--data", tmp_path / "again.npz")  # the own ones, elsewhere
    assert "foreign" not in json.loads((mine / "evaluation.json").read_text())
    assert not unusual(RunFolder(mine), "evaluation")


def test_a_collapsed_encoder_is_told(vje, run):
    assert "collapsed" not in vje("evaluate", run, "--device", "cpu").err
    model = package.load(run)
    with torch.no_grad():
        for weights in model.encoder.parameters():
            weights.zero_()
    model.save(run)
    answer = vje("evaluate", run, "--device", "cpu")
    assert answer.status == 0 and "the encoder has collapsed: to it, all images are the same" in answer.err


def test_a_classifier_of_two_classes_has_not_collapsed(vje, run, monkeypatch):
    """Its embeddings may lie along two directions alone, an effective rank under 2."""
    two = torch.zeros(60, 2).scatter_(1, (torch.arange(60) % 2)[:, None], 1.0) @ torch.randn(2, 256)
    original = features.cached_features
    monkeypatch.setattr(features, "cached_features", lambda *a, **k: replace(original(*a, **k), z=two))
    answer = vje("evaluate", run, "--device", "cpu")
    assert answer.status == 0 and "collapsed" not in answer.err
    assert json.loads((run / "evaluation.json").read_text())["effective_rank"] < 2.0


def test_images_of_classes_that_training_did_not_have_are_told(vje, trained, mine, tmp_path, tiny):
    with np.load(trained[1]) as arrays:
        content = dict(arrays)
    content["test_labels"] = np.where(np.arange(32) % 4 == 3, 77, content["test_labels"])
    np.savez(tmp_path / "odd.npz", **content)
    said = "8 of 32 test images count as wrong: no training image is of their class (77)"
    assert said in vje("train", "folder", "--data", tmp_path / "odd.npz", "--out", tmp_path / "odd", *tiny).err
    assert said in vje("evaluate", tmp_path / "odd", "--device", "cpu").err
    assert said in vje("probe", tmp_path / "odd", "--device", "cpu", "--epochs", 1, "--batch", 8).err
    assert "count as wrong" not in vje("probe", mine, "--device", "cpu", "--epochs", 1, "--batch", 8).err


@pytest.mark.parametrize("method", ["vi-simsiam", "vssl", "vje"])
def test_every_row_says_what_it_means(vje, trained, tmp_path, tiny, method):
    run = tmp_path / "run"
    widths = () if method == "vje" else ("--hidden", 32)
    train = vje("train", "folder", "--method", method, "--data", trained[1], "--out", run, *tiny, *widths)
    assert train.status == 0, train.err
    answer = vje("evaluate", run, "--device", "cpu")
    assert answer.status == 0, answer.err
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in answer.out.splitlines() if "│" in line]
    statistics = json.loads((run / "evaluation.json").read_text())["posterior"]
    assert len(rows) > len(statistics) >= evaluation_rows(method)
    assert all(len(row) == 3 and all(row) for row in rows), rows


def evaluation_rows(method):
    return {"vi-simsiam": 4, "vssl": 1, "vje": len(evaluation.STATISTICS)}[method]


def test_a_supervised_run_is_told_how_often_it_is_right(vje, trained, tmp_path, tiny):
    run = tmp_path / "run"
    train = vje("train", "folder", "--method", "supervised", "--data", trained[1], "--out", run, *tiny)
    assert train.status == 0, train.err
    answer = vje("evaluate", run, "--device", "cpu")
    found = json.loads((run / "evaluation.json").read_text())["classifier"]
    assert 0 <= found["top1"] <= found["top5"] <= 100
    assert re.search(rf"Accuracy\s*│\s*{found['top1']:.2f}%\s*│ of the classifier it was trained with", answer.out)
    assert "accuracy" in vje("compare", run, "--out", tmp_path / "compared").out
