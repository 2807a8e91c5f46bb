"""Mistakes that a run's small files tell are answered at once, before torch is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vje as package

MISTAKES = {
    "a set without a name": (
        ["ood", "{}/vje", "--id", "{}/set.npz", "--ood", "mixed"],
        "--ood mixed: write it as NAME=",
    ),
    "a set that is not there": (
        ["ood", "{}/simsiam", "--id", "{}/nowhere", "--ood", "a={}/set.npz"],
        "nowhere does not",
    ),
    "no benchmark": (
        ["ood", "{}/simsiam"],
        "there is no benchmark for a run on {}/set.npz (there are cifar10, cifar100)",
    ),
    "geometry of another method": (
        ["geometry", "{}/simsiam"],
        "{}/simsiam was trained with simsiam, and this is for VJE",
    ),
    "calibrating another method": (
        ["calibrate", "{}/simsiam"],
        "{}/simsiam was trained with simsiam, and this is for VJE",
    ),
    "scores of another method": (
        ["score", "{}/simsiam", "digits"],
        "`vje evaluate`, `probe`, `ood`, `embed`, `compare` and `report` work for every method",
    ),
    "another method's model": (
        ["calibrate", "{}/simsiam/model.safetensors", "--data", "{}/set.npz"],
        "model.safetensors was trained with simsiam, and this is for VJE",
    ),
    "geometry without labels": (["geometry", "{}/vje"], "geometry is between classes, and {}/set.npz has no labels"),
    "geometry of nothing": (["geometry", "{}/vje", "--data", "{}/gone.npz"], "gone.npz does not exist"),
    "a folder of labels": (["evaluate", "{}/vje", "--labels", "{}"], "--labels {} is a folder, or does not exist"),
    "what is no model": (["score", "{}/set.npz", "{}"], "{}/set.npz is neither a run folder nor a .safetensors file"),
    "a part of no data": (
        ["calibrate", "{}/vje", "--split", "train"],
        "--split train says which part of --data is taken, which was not given",
    ),
    "negative seed": (["probe", "{}/vje", "--seed", "-1"], "--seed must be at least 0, got -1"),
}
FEW = {"score": ["digits"], "embed": ["digits", "--out", "{}/x.npz"], "ood": ["--id", "digits", "--ood", "x=digits"]}
for command in ("evaluate", "probe", "geometry", "report", "ood", "embed", "calibrate", "score"):
    words = [command, "{}/vje", *FEW.get(command, []), "--workers", "-1"]
    MISTAKES[f"{command} by fewer than none"] = (words, "--workers must be at least 0, got -1")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(package.__file__).resolve().parents[1])}
ASK = """
import contextlib, io, json, sys
from vje.cli.main import main
for arguments in json.load(sys.stdin):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        status = main(arguments)
    print(json.dumps([status, err.getvalue(), "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of two methods on an unlabelled set, as far as their small files go."""
    root = tmp_path_factory.mktemp("place")
    np.savez(root / "set.npz", train_images=np.zeros((3, 4, 4), np.uint8), test_images=np.ones((2, 4, 4), np.uint8))
    for method in ("vje", "simsiam"):
        (root / method).mkdir()
        config = {"recipe": "digits", "method": method, "data": {"data": str(root / "set.npz")}}
        (root / method / "config.json").write_text(json.dumps(config))
        (root / method / "data.json").write_text(json.dumps({"held_out": None, "fingerprint": "", "labels": False}))
        (root / method / "model.json").write_text(json.dumps({"format": "vje-model", "method": method}))
        (root / method / "model.safetensors").touch()
    return root


@pytest.fixture(scope="module")
def answers(place):
    """All mistakes made in one process; by name: status, standard error, whether torch was loaded."""
    asked = [[word.replace("{}", str(place)) for word in words] for words, _ in MISTAKES.values()]
    done = subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(asked), capture_output=True, text=True, check=True, cwd=place,
        env=ENVIRONMENT,
    )  # fmt: skip
    return dict(zip(MISTAKES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", MISTAKES)
def test_answers_come_before_torch(name, answers, place):
    status, told, heavy = answers[name]
    assert status == 2 and told.startswith("vje: ") and told.count("\n") == 1
    assert MISTAKES[name][1].replace("{}", str(place)) in told
    assert not heavy


def test_labels_of_the_test_images_are_enough(vje, run, make_pixels):
    """The training images may do without: geometry is of the others."""
    data = json.loads((run / "config.json").read_text())["data"]["data"]
    images = {"train_images": make_pixels(50, 1), "test_images": make_pixels(60, 2)}
    np.savez(data, **images, test_labels=np.arange(60) % 3)
    recorded = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(recorded | {"labels": False}))
    answer = vje("geometry", run, "--device", "cpu", "--points", 0)
    assert answer.status == 0, answer.err


@pytest.mark.parametrize("command", ["geometry", "calibrate", "ood"])
def test_a_run_that_cannot_be_written_to_is_refused_before_it_is_measured(vje, run, monkeypatch, snapshot, command):
    before = snapshot(run)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    answer = vje(command, run, *(["--id", "digits", "--ood", "x=digits"] if command == "ood" else []))
    assert answer.status == 2 and f"of `vje {command}` go to {run}, which cannot be written to" in answer.err
    assert snapshot(run) == before


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["embed", "{}", "digits"], "z.npz"),
        (["score", "{}", "digits"], "s.csv"),
        (["report", "{}", "--points", "0"], "r.html"),
        (["compare", "{}"], "c.png"),
    ],
)
def test_a_folder_that_cannot_be_written_to_is_told_at_once(vje, run, tmp_path, monkeypatch, words, file):
    words = [word.replace("{}", str(run)) for word in words]
    answer = vje(*words, "--out", tmp_path / "nowhere" / file)
    assert answer.status == 2 and f"nowhere/{file}: there is no folder {tmp_path / 'nowhere'}." in answer.err
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    answer = vje(*words, "--out", tmp_path / file)
    assert answer.status == 2 and f"{file}: you may not write to {tmp_path}; choose another folder." in answer.err
    assert not (tmp_path / file).exists()
