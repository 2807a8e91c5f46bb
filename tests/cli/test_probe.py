"""``vje probe``: from a run folder to probe.json, and what stands in its way."""

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image

from vje.build_data import open_splits
from vje.cli.probe import COMPARED, with_earlier
from vje.config import to_dict
from vje.data import registry
from vje.data.splits import prepare_splits
from vje.evaluation.features import cached_features
from vje.evaluation.probe import Split, linear_probe, stored_training
from vje.evaluation.usual import USUAL_PROBE
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
    assert (result["top1"], result["top5"]) == (found["top1"], found["top5"])
    assert f"z: {found['top1']:.2f}% top-1, {found['top5']:.2f}% top-5 at the rate {found['lr']:g}" in out
    assert "chosen on 40 training images held out" in out
    assert str(run / "probe.json") in out.replace("\n", "")

    model = load(run)  # the same from the library
    splits = open_splits(load_recipe("digits").data, json.loads((run / "data.json").read_text()))
    train, test = (cached_features(model, source, run / "cache") for source in (splits.bank, splits.test))
    training = stored_training({"z": train.z}, train.labels, batch=64)
    again = linear_probe(training, Split({"z": test.z}, test.labels), rates=(0.01, 0.1), epochs=20)
    assert asdict(again["z"]) == found


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
        (run / "probe.json").unlink()
        answer = vje(*words, "--space", space)
        assert answer.status == 0 and "Kept" not in answer.out and "Replaced" not in answer.out
        assert read(run)["spaces"] == {space: first["spaces"][space]}


QUICK = ("--batch", "32", "--epochs", "3", "--device", "cpu")


def test_later_calls_add_spaces(vje, run):
    assert vje("probe", run, *QUICK, "--space", "all").status == 0
    together = read(run)
    (run / "probe.json").unlink()
    answer = vje("probe", run, *QUICK, "--space", "ema")
    assert answer.status == 0 and "EMA encoder's z: " in answer.out
    assert list(read(run)["spaces"]) == ["target"]
    assert "top1" not in read(run)  # it is that of z
    assert vje("probe", run, *QUICK).status == 0
    answer = vje("probe", run, *QUICK, "--space", "mean")
    assert answer.status == 0
    z, target = (together["spaces"][space]["top1"] for space in ("z", "target"))
    kept = f"same weights, images and settings (z {z:.2f}% top-1, the EMA encoder's z {target:.2f}% top-1)"
    assert kept in answer.out and "\nz: " not in answer.out  # what is not new has no rows
    assert read(run) == together
    assert list(read(run)["spaces"]) == list(together["spaces"])
    assert (together["top1"], together["top5"]) == (z, None)


def test_the_same_images_elsewhere(vje, run, trained, tmp_path):
    assert vje("probe", run, *QUICK).status == 0
    moved = shutil.copy(trained[1], tmp_path / "moved.npz")
    assert "Kept" in vje("probe", run, *QUICK, "--space", "mean", "--data", moved).out
    assert list(read(run)["spaces"]) == ["z", "mean"]


OTHERS = {
    "epochs": (["--epochs", "2"], "settings differ: epochs 3 then, 2 now"),
    "rates": (["--lr", "0.3", "0.1"], "settings differ: rates 0.001/0.003/0.01/0.03/0.1/0.3/1/3 then, 0.1/0.3 now"),
    "two": (["--weight-decay", "1", "--seed", "1"], "settings differ: weight decay 0 then, 1 now; seed 0 then, 1"),
    "held out": (["--held-out", "0.1001"], "settings differ: held out 0.1 then, 0.1001 now"),  # as many images
    "augment": (["--augment"], "settings differ: augment off then, on now"),
    "labels": (["--data", "{}/other.npz"], "the images or their labels differ"),
}


@pytest.mark.filterwarnings("ignore:the labels of .* are not those of training")
@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_stand_beside_the_new_is_named(vje, run, trained, name):
    words, reason = OTHERS[name]
    assert vje("probe", run, *QUICK, "--space", "all").status == 0
    whole = (run / "probe.json").read_bytes()
    before = read(run)["spaces"]
    with np.load(trained[1]) as arrays:
        np.savez(run / "other.npz", **dict(arrays) | {"test_labels": arrays["test_labels"][::-1]})
    answer = vje("probe", run, *QUICK, *(word.format(run) for word in words), "--space", "mean")
    assert answer.status == 0, answer.err
    assert f"Replaced: what earlier calls found (z {before['z']['top1']:.2f}% top-1, the posterior mean" in answer.out
    (earlier,) = (run / "probe-earlier").glob("*/*")
    assert f"; now in {earlier}), as {reason}" in answer.out
    assert earlier.read_bytes() == whole and earlier.name == "probe.json"
    assert list(read(run)["spaces"]) == ["mean"] and "top1" not in read(run)


def test_results_of_other_settings_are_kept_however_often_these_change(vje, run):
    found = []
    for space, epochs in (("z", 3), ("mean", 2), ("mean", 3), ("mean", 2)):
        assert vje("probe", run, *QUICK, "--epochs", epochs, "--space", space).status == 0
        found.append((run / "probe.json").read_bytes())
    assert {file.read_bytes() for file in (run / "probe-earlier").glob("*/probe.json")} == set(found[:3])
    (run / "probe-earlier").rename(run / "away")
    (run / "probe-earlier").touch()
    answer = vje("probe", run, *QUICK)
    assert answer.status == 2 and "move probe.json away yourself" in answer.err
    assert (run / "probe.json").read_bytes() == found[3]


@pytest.mark.parametrize(
    ("change", "reason"), [({"weights": "others"}, "the weights differ"), ({"inputs": ...}, "an older vje wrote it")]
)
def test_results_of_another_model_or_version_are_replaced(vje, run, change, reason):
    assert vje("probe", run, *QUICK).status == 0
    earlier = {key: value for key, value in (read(run) | change).items() if value is not ...}
    (run / "probe.json").write_text(json.dumps(earlier))
    answer = vje("probe", run, *QUICK, "--space", "mean")
    assert answer.status == 0 and "Replaced" in answer.out and reason in answer.out
    assert list(read(run)["spaces"]) == ["mean"]


def test_a_kept_space_says_what_it_was_made_with():
    now = {"data": "x", "weights": "w", "inputs": "i", "images": {}, "environment": {"device": "b"}}
    now |= dict.fromkeys(COMPARED, 1)
    z, mean = {"top1": 50.0, "top5": None}, {"top1": 40.0, "top5": None}
    first, note = with_earlier(now | {"spaces": {"z": z}, "environment": {"device": "a"}}, {})
    assert note == "" and first["top1"] == 50.0
    second, _ = with_earlier(now | {"spaces": {"mean": mean}}, first)
    assert second["spaces"] == {"z": z | {"environment": {"device": "a"}}, "mean": mean}
    third, _ = with_earlier(now | {"spaces": {"mean": mean}, "environment": {"device": "a"}}, second)
    assert third["spaces"] == {"z": z, "mean": mean}


def test_a_damaged_file_is_put_aside(vje, run):
    (run / "probe.json").write_text("{")
    with pytest.warns(UserWarning, match=r"probe\.json is damaged: .* and made anew"):
        assert vje("probe", run, *QUICK).status == 0
    (kept,) = (run / "probe-earlier").glob("damaged-*/probe.json")
    assert kept.read_text() == "{" and read(run)["spaces"]


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


@pytest.mark.parametrize(("reference", "what"), [(20_000, "reference"), (1, "training")])
def test_a_folder_that_is_streamed(vje, photos_of_two_kinds, tmp_path, monkeypatch, reference, what):
    """A file that cannot be read is told once, known before training or not, and is no training image."""
    monkeypatch.setattr("vje.cli.probe_images.REFERENCE", reference)
    run = make_run(tmp_path / "run", photos_of_two_kinds, channels=3)
    (photos_of_two_kinds / "dark" / "04.png").write_text("no picture")
    words = ("--augment", "--batch", "8", "--epochs", "4", "--device", "cpu", "--workers", "0")
    answer = vje("probe", run, *words)
    assert answer.status == 0
    result = read(run)
    assert result["spaces"]["z"]["top1"] == 100
    held_out = json.loads((run / "data.json").read_text())["held_out"]
    assert (len(held_out), "dark/00.png" in held_out, "dark/04.png" in held_out) == (12, True, False)
    assert (result["images"]["train"], result["images"]["test"]) == (60 - 12 - 1, 12 - 1)
    assert "47 training and 11 test images" in " ".join(answer.out.split())
    assert f"{what} images: left out, as they cannot be read: dark/04.png (" in answer.err
    assert answer.err.count("dark/04.png") == 1
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
    assert "--space ema: this simsiam run has z" in vje("probe", run, "--space", "ema", "--device", "cpu").err


def test_fewer_images_than_the_usual_batch(vje, run):
    assert vje("probe", run, "--epochs", "1", "--device", "cpu").status == 0
    assert read(run)["batch"] == 48  # half of the 96


def test_the_usual_batch_is_of_what_can_be_read(vje, tmp_path, monkeypatch):
    folder = tmp_path / "set"
    for i in range(40):
        file = folder / "ab"[i % 2] / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 6 * i, np.uint8)).save(file)
    run = make_run(tmp_path / "run", folder)
    held_out = set(RunFolder(run).read("data")["held_out"])
    names = [f"{'ab'[i % 2]}/{i:02}.png" for i in range(40)]
    (folder / next(name for name in names if name not in held_out)).write_text("no picture")
    monkeypatch.setitem(USUAL_PROBE, "batch", 40 - len(held_out))
    answer = vje("probe", run, "--epochs", "1", "--device", "cpu")
    assert answer.status == 0 and read(run)["batch"] == (40 - len(held_out) - 1) // 2


MISTAKES = {
    "space": (["--space", "mu"], ["--space mu", "z, mean, target"]),
    "batch": (["--batch", "97"], ["--batch 97 is more than the 96 training images", "--batch 48"]),
    "no batch": (["--batch", "0"], ["--batch must be at least 1, got 0"]),
    "seed": (["--seed", "4294967296"], ["--seed must be between 0 and 2**32 - 1"]),
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
