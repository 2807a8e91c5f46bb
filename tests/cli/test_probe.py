"""``vje probe``: from a run folder to probe.json, and what stands in its way."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vje.build_data import open_splits
from vje.config import to_dict
from vje.data import registry
from vje.data.splits import prepare_splits
from vje.evaluation.features import cached_features
from vje.evaluation.probe import Split, linear_probe, stored_training
from vje.methods import find_method
from vje.models import load
from vje.networks.encoders import build_encoder
from vje.preprocessing import Preprocessing
from vje.recipes import load_recipe
from vje.runs import RunFolder


def make_run(path, data="digits", method="vje", channels=1, size=8, **settings):
    """The folder of a run that has not been trained, on data that is split as for training."""
    recipe = load_recipe("digits", None if method == "vje" else method)
    config = replace(recipe, data=replace(recipe.data, data=str(data), size=size))
    splits = prepare_splits(registry.open_data(str(data), config.data.data_dir, None), seed=0, held_out=0.2)
    folder = RunFolder.create(path)
    folder.write("config", to_dict(config))
    folder.write("data", {"held_out": splits.held_out_names, "fingerprint": ""})
    torch.manual_seed(0)
    network = build_encoder(config.encoder.encoder, channels=channels, small_images=True)
    prepare = Preprocessing(size, size, channels, [0.3] * channels, [0.3] * channels)
    find_method(method)(network, **settings, preprocessing=prepare).eval().save(path)
    return path


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a run with labels and an EMA target: 96 training and 32 test images of four classes."""
    return shutil.copytree(trained[0], tmp_path / "run")


def read(run):
    return json.loads((run / "probe.json").read_text())


@pytest.fixture
def few_digits(monkeypatch):
    """The first 500 of the 1,797 digits."""
    few = registry.RawSplits("digits", train=registry._digits().train.subset(range(500)))
    monkeypatch.setattr(registry, "_digits", lambda: few)


@pytest.mark.usefixtures("few_digits")
def test_digits(vje, tmp_path):
    run = make_run(tmp_path / "run", target="ema")
    status, out, _ = vje("probe", run, "--epochs", "20", "--batch", "64", "--device", "cpu", "--lr", "0.1", "0.01")
    assert status == 0
    result = read(run)
    assert set(result["spaces"]) == {"z"}
    found = result["spaces"]["z"]
    assert [rate["lr"] for rate in found["rates"]] == [0.01, 0.1]
    assert found["top1"] > 75  # of ten classes, and with a random encoder
    assert found["top1"] <= found["top5"] <= 100
    assert (result["epochs"], result["batch"], result["seed"], result["classes"]) == (20, 64, 0, 10)
    assert result["images"] == {"train": 400, "held_out": 40, "test": 100}
    assert (result["augment"], result["standardize"]) == (False, True)
    assert {"packages", "device", "vje"} <= set(result["environment"])
    assert f"z: {found['top1']:.2f}% top-1, {found['top5']:.2f}% top-5 at the rate {found['lr']:g}" in out
    assert "chosen on 40 training images held out" in out
    assert str(run / "probe.json") in out.replace("\n", "")

    model = load(run)  # the same from the library
    splits = open_splits(load_recipe("digits").data, 0, json.loads((run / "data.json").read_text()))
    train, test = (cached_features(model, source, run / "cache") for source in (splits.bank, splits.test))
    training = stored_training({"z": train.z}, train.labels, batch=64)
    again = linear_probe(training, Split({"z": test.z}, test.labels), rates=(0.01, 0.1), epochs=20)
    assert again["z"].as_dict() == found


def test_every_space_and_every_time_the_same(vje, run):
    words = ("probe", run, "--space", "all", "--batch", "32", "--epochs", "3", "--device", "cpu")
    assert vje(*words).status == 0
    first = read(run)
    assert list(first["spaces"]) == ["z", "mean", "target"]
    assert all(found["top5"] is None for found in first["spaces"].values())  # of four classes
    assert len({json.dumps(found["rates"]) for found in first["spaces"].values()}) == 3
    assert vje(*words).status == 0
    assert read(run) == first
    for space in ("mean", "target"):
        assert vje(*words, "--space", space).status == 0
        assert read(run)["spaces"] == {space: first["spaces"][space]}


def test_augmented_arrays(vje, run):
    words = ("probe", run, "--augment", "--batch", "32", "--epochs", "3", "--device", "cpu")
    assert vje(*words, "--space", "all").status == 0
    first = read(run)
    assert first["augment"] is True
    assert first["images"] == {"train": 96, "held_out": 10, "test": 32}
    assert first["spaces"]["z"]["top1"] > 60  # four classes, told apart by their brightness
    assert vje(*words).status == 0
    for name in ("top1", "lr"):
        assert read(run)["spaces"]["z"][name] == first["spaces"]["z"][name]
    assert vje(*words, "--no-augment").status == 0
    assert read(run)["spaces"]["z"]["rates"] != first["spaces"]["z"]["rates"]


@pytest.fixture
def photos_of_two_kinds(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(60):
        path = tmp_path / "photos" / ("dark", "light")[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 80, (9 + i % 3, 11, 3)) + 150 * (i % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    (tmp_path / "photos" / "dark" / "00.png").write_text("no picture")
    return tmp_path / "photos"


def test_a_folder_that_is_streamed(vje, photos_of_two_kinds, tmp_path):
    run = make_run(tmp_path / "run", photos_of_two_kinds, channels=3)
    words = ("--augment", "--batch", "8", "--epochs", "4", "--device", "cpu", "--workers", "0")
    assert vje("probe", run, *words).status == 0
    result = read(run)
    assert result["spaces"]["z"]["top1"] == 100
    assert result["images"]["train"] == 48
    assert result["classes"] == 2


def test_features_that_would_fill_the_memory_are_not_kept(vje, run, monkeypatch):
    monkeypatch.setattr("vje.cli.probe.KEPT_BYTES", 1000)
    status, out, _ = vje("probe", run, "--batch", "32", "--epochs", "1", "--device", "cpu")
    assert status == 0
    assert "features of 96 images would take" in out
    assert read(run)["augment"] is True


@pytest.mark.usefixtures("few_digits")
def test_another_method(vje, tmp_path):
    run = make_run(tmp_path / "simsiam", method="simsiam", hidden=16, bottleneck=8)
    assert vje("probe", run, "--space", "all", "--epochs", "1", "--batch", "64", "--device", "cpu").status == 0
    assert set(read(run)["spaces"]) == {"z"}
    status, _, err = vje("probe", run, "--space", "mean", "--batch", "64", "--device", "cpu")
    assert status == 2
    assert "--space mean: this simsiam run has z; use one of them" in err


def test_fewer_images_than_the_usual_batch(vje, run):
    assert vje("probe", run, "--epochs", "1", "--device", "cpu").status == 0
    assert read(run)["batch"] == 48  # half of the 96


MISTAKES = {
    "space": (["--space", "mu"], ["--space mu", "z, mean, target"]),
    "batch": (["--batch", "97"], ["--batch 97 is more than the 96 training images", "--batch 48"]),
    "no batch": (["--batch", "0"], ["--batch must be at least 1, got 0"]),
    "epochs": (["--epochs", "0"], ["--epochs must be at least 1, got 0"]),
    "rate": (["--lr", "0.1", "-1"], ["--lr must be positive"]),
    "decay": (["--weight-decay", "-1"], ["--weight-decay must be a number, 0 or more, got -1"]),
    "no decay": (["--weight-decay", "nan"], ["--weight-decay must be a number, 0 or more, got nan"]),
    "held out": (["--held-out", "1"], ["--held-out must be between 0 and 1, got 1"]),
    "data": (["--data", "nowhere"], ["no data 'nowhere'"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, vje, trained):
    words, answers = MISTAKES[name]
    status, _, err = vje("probe", trained[0], "--device", "cpu", "--batch", "32", *words)
    assert status == 2
    for answer in answers:
        assert answer in err
    assert "Traceback" not in err


def test_without_labels(vje, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "plain.npz", images=pixels)
    run = make_run(tmp_path / "run", tmp_path / "plain.npz")
    words = ("probe", run, "--device", "cpu", "--batch", "8", "--epochs", "1")
    status, _, err = vje(*words)
    assert status == 2
    assert "the linear probe needs labels" in err and "--labels FILE" in err
    np.save(tmp_path / "labels.npy", np.arange(40) % 3)
    assert vje(*words, "--labels", tmp_path / "labels.npy").status == 0
    assert read(run)["classes"] == 3
    np.save(tmp_path / "labels.npy", np.zeros(40, int))
    status, _, err = vje(*words, "--labels", tmp_path / "labels.npy")
    assert status == 2
    assert "at least two classes" in err


def test_help_is_quick(cli_env):
    ask = "import sys, vje.cli.main as m\ntry: m.main(['probe', '-h'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=cli_env(), check=True)
    assert "--space" in done.stdout
    assert done.stdout.strip().endswith("False")
