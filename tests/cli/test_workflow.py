"""From images to results, the way a person would: train, evaluate, embed; and the demo."""

import csv
import json
import math
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vje as package
from vje.data import registry
from vje.data.sources import FolderSource

PARTS = ("loss", "nll_directional", "nll_radial", "kl", "variance", "anisotropy", "norm_z", "norm_mean")
RECORD = {"epoch", "step", "lr", *PARTS, "cosine_mean_z", "effective_rank", "images_per_second", "seconds", "knn"}
STATISTICS = {"variance", "kl", "nll", "nll_directional", "nll_radial", "anisotropy", "cosine_mean_z"}
COLUMNS = {"name", "mean_variance"} | STATISTICS - {"variance"}


def read(file):
    return json.loads(file.read_text())


def numbers_are_finite(values):
    return all(math.isfinite(x) for x in values if isinstance(x, int | float))


def test_the_run_folder(trained):
    run, _ = trained
    files = {path.name for path in run.iterdir()}
    assert files >= {"config.json", "environment.json", "data.json", "metrics.jsonl", "checkpoints"}
    assert files >= {"model.safetensors", "model.json"}
    config, environment, data = (read(run / f"{name}.json") for name in ("config", "environment", "data"))
    assert (config["recipe"], config["optimizer"]["epochs"], config["data"]["size"]) == ("folder", 2, 8)
    assert {"vje", "commit", "python", "packages", "device", "threads"} <= set(environment)
    assert (data["train_images"], data["test_images"], data["held_out"], data["skipped"]) == (96, 32, None, [])


def test_an_epoch_records_everything(trained):
    run, _ = trained
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(record["epoch"], record["step"]) for record in records] == [(1, 6), (2, 12)]
    for record in records:
        assert set(record) >= RECORD
        assert set(record["knn"]) == {"z", "mean", "target"}
        assert numbers_are_finite(record.values())
        assert all(0 <= value <= 100 for value in record["knn"].values())
        assert record["loss"] == pytest.approx(
            record["nll_directional"] + record["nll_radial"] + record["kl"], rel=1e-3
        )


def test_evaluate_twice(vje, trained, snapshot):
    run, data = trained
    status, out, _ = vje("evaluate", run, "--device", "cpu")
    assert status == 0
    result = read(run / "evaluation.json")
    assert set(result["knn"]) >= {"z", "mean", "target"}
    assert set(result["posterior"]) == STATISTICS
    assert result["images"] == 32
    for words in (
        "k-NN accuracy of z",
        f"{result['knn']['z']:.2f}%",
        "k-NN accuracy of the EMA",
        "Effective rank",
        "Cosine of mean and z",
    ):
        assert words in out
    assert str(run / "evaluation.json") in out.replace("\n", "")

    model = package.load(run)
    images = torch.from_numpy(np.load(data)["test_images"]).permute(0, 3, 1, 2)
    scores = model.score(images)
    for name, value in result["posterior"].items():
        assert value == pytest.approx(scores[name].double().mean().item(), rel=1e-3, abs=1e-4), name

    cached = {path: path.stat().st_mtime_ns for path in (run / "cache").iterdir()}
    assert len(cached) == 2  # test and training images
    before = snapshot(run)
    assert vje("evaluate", run, "--device", "cpu").status == 0
    assert {path: path.stat().st_mtime_ns for path in (run / "cache").iterdir()} == cached
    assert snapshot(run) == before
    assert vje("evaluate", run, "--device", "cpu", "--k", "1").status == 0
    assert read(run / "evaluation.json")["knn"]["k"] == 1


def test_embed_arrays(vje, trained, tmp_path):
    run, data = trained
    status, out, _ = vje("embed", run, data, "--out", tmp_path / "test.npz", "--device", "cpu")
    assert status == 0
    assert "32 images embedded" in out
    found = np.load(tmp_path / "test.npz")
    assert set(found.files) == COLUMNS | {"z", "mean", "variance", "unreadable"}
    assert found["name"].tolist() == [str(i) for i in range(32)]
    assert {found[name].shape for name in ("z", "mean", "variance")} == {(32, 256)}
    assert all(found[name].shape == (32,) for name in COLUMNS)
    assert len(found["unreadable"]) == 0
    model = package.load(run)
    images = torch.from_numpy(np.load(data)["test_images"]).permute(0, 3, 1, 2)
    with torch.no_grad():
        posterior, scores = model.posterior(images), model.score(images)
        assert np.allclose(found["z"], model.embed(images), atol=1e-4)
    assert np.allclose(found["mean"], posterior.mean, atol=1e-4)
    assert np.allclose(found["variance"], posterior.variance, atol=1e-4)
    assert np.allclose(found["mean_variance"], scores["variance"], atol=1e-4)
    assert np.allclose(found["nll"], scores["nll"], rtol=1e-3, atol=1e-2)

    assert vje("embed", run, data, "--split", "train", "--out", tmp_path / "train.csv", "--device", "cpu").status == 0
    with (tmp_path / "train.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == COLUMNS
    assert [row["name"] for row in rows] == [str(i) for i in range(96)]
    assert all(math.isfinite(float(row["nll"])) for row in rows)


def test_embed_with_another_method_has_its_mean(vje, trained, tmp_path, tiny):
    run, out = tmp_path / "run", tmp_path / "o.npz"
    train = vje("train", "folder", "--method", "vssl", "--data", trained[1], "--out", run, *tiny, "--hidden", 32)
    assert train.status == 0, train.err
    assert vje("embed", run, trained[1], "--out", out, "--device", "cpu").status == 0
    found = np.load(out)
    assert set(found.files) == {"name", "z", "mean", "mean_variance", "unreadable"}
    model, images = package.load(run), torch.from_numpy(np.load(trained[1])["test_images"]).permute(0, 3, 1, 2)
    with torch.no_grad():
        mean, variance = model.head(model.embed(images)).chunk(2, 1)
    assert np.allclose(found["mean"], mean, atol=1e-4)
    assert np.allclose(found["mean_variance"], variance.mean(1), atol=1e-4)


def test_embed_to_parquet(vje, trained, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run, data = trained
    assert vje("embed", run, data, "--out", tmp_path / "o.parquet", "--device", "cpu").status == 0
    table = parquet.read_table(tmp_path / "o.parquet").to_pydict()
    assert set(table) == COLUMNS | {"z", "mean", "variance"}
    assert table["name"] == [str(i) for i in range(32)]
    assert np.asarray(table["z"]).shape == (32, 256)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, file names are text")
@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_file_names_that_are_no_text(run_cli, run, make_pixels, tmp_path, encoding):
    """They are any bytes, and the terminal may show ASCII alone."""
    pytest.importorskip("pyarrow")
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.fromarray(make_pixels(1, 0)[0]).save(folder / "\udcff.png", "PNG")
    (folder / "\udcfe\u732b.png").write_bytes(b"no picture")
    for ending in ("csv", "parquet", "npz"):
        done = run_cli(
            *("embed", run, folder, "--out", tmp_path / f"o.{ending}", "--device", "cpu"),
            env={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
        )
        assert done.returncode == 0, done.stderr
        assert "such as \\udcfe" in done.stdout
    assert (tmp_path / "o.csv").read_bytes().splitlines()[1].startswith(b"\xff.png,")
    from pyarrow import parquet

    assert parquet.read_table(tmp_path / "o.parquet")["name"].to_pylist() == ["?.png"]
    assert np.load(tmp_path / "o.npz")["name"].tolist() == ["\udcff.png"]


def test_embed_replaces_a_file_only_when_told(vje, trained, tmp_path):
    run, data = trained
    file = tmp_path / "o.csv"
    file.write_text("precious")
    assert vje("embed", run, data, "--out", file, "--device", "cpu").status == 2
    assert file.read_text() == "precious"
    assert vje("embed", run, data, "--out", file, "--force", "--device", "cpu").status == 0
    assert file.read_text().startswith("name,nll")
    assert list(tmp_path.iterdir()) == [file]


def test_a_table_of_statistics_of_a_method_that_has_none(vje, tmp_path, trained, tiny):
    run, out = tmp_path / "run", tmp_path / "e.csv"
    assert vje("train", "digits", "--method", "simsiam", "--data", trained[1], *tiny, "--out", run).status == 0
    answer = vje("embed", run, trained[1], "--out", out)
    assert answer.status == 2 and "simsiam has none: use .npz" in answer.err and not out.exists()


def test_a_run_finds_its_images_from_another_folder(vje, photos, tmp_path, tiny, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert vje("train", "folder", "--data", "photos", *tiny, "--out", "run").status == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert vje("evaluate", "../run", "--workers", 0).status == 0
    photos.rename(tmp_path / "moved")
    answer = vje("evaluate", "../run")
    assert answer.status == 2 and "photos, which is not there" in answer.err and "--data PATH" in answer.err
    assert vje("evaluate", "../run", "--workers", 0, "--data", "../moved").status == 0


def test_embed_with_a_model_file_and_single_images(vje, trained, tmp_path):
    run, _ = trained
    for name in ("b.png", "a.jpg"):
        Image.new("RGB", (20, 14), "orange").save(tmp_path / name)
    files = [tmp_path / "b.png", tmp_path / "a.jpg"]
    model = run / "model.safetensors"
    assert vje("embed", model, *files, "--out", tmp_path / "o.npz", "--device", "cpu").status == 0
    assert np.load(tmp_path / "o.npz")["name"].tolist() == ["b.png", "a.jpg"]


def test_without_labels(vje, tiny, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)  # grey, and without a test split
    np.savez(tmp_path / "plain.npz", images=pixels)
    run = tmp_path / "run"
    assert vje("train", "digits", "--data", tmp_path / "plain.npz", "--out", run, *tiny, "--epochs", "1").status == 0
    data = read(run / "data.json")
    assert (data["train_images"], data["test_images"], data["labels"]) == (32, 8, False)
    assert len(data["held_out"]) == 8
    assert "knn" not in json.loads((run / "metrics.jsonl").read_text())
    status, out, _ = vje("evaluate", run, "--device", "cpu")
    assert status == 0
    assert "k-NN accuracy needs labels, and this data has none: --labels FILE gives them." in out
    result = read(run / "evaluation.json")
    assert "knn" not in result
    assert set(result["posterior"]) == STATISTICS
    assert result["images"] == 8
    assert result["effective_rank"] >= 1


def test_a_folder_of_photos(vje, photos, tmp_path):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    status, out, _ = vje(
        "train", "folder", "--data", photos, "--out", run, "--epochs", "1", "--batch", "8", "--size", "32",
        "--encoder", "resnet8", "--device", "cpu", "--workers", "2", "--tensorboard",
    )  # fmt: skip
    assert status == 0
    assert "does not suit a run of 1" in out  # the warm-up
    data, bad = read(run / "data.json"), {"c/cut.png", "notes.jpg"}
    assert len(data["held_out"]) == 4
    assert {name for name, _ in data["skipped"]} == bad - set(data["held_out"])
    assert data["train_images"] == 40 - len(data["held_out"]) - len(data["skipped"])
    used = 38 - len(set(data["held_out"]) - bad)
    assert f": {used} images (on the device), 4 held out for evaluation" in out
    assert f"{len(data['skipped'])} unreadable files are left out" in out
    assert [path.name.split(".")[1] for path in (run / "tensorboard").iterdir()] == ["out"]
    assert json.loads((run / "metrics.jsonl").read_text())["step"] == data["train_images"] // 8

    status, _, err = vje("evaluate", run, "--device", "cpu")
    assert status == 0 and ("cannot be read" in err) == bool(bad & set(data["held_out"]))
    result = read(run / "evaluation.json")
    assert "knn" not in result  # some of the files lie in no folder of their own, so there are no classes
    assert result["images"] == 4 - len(bad & set(data["held_out"]))

    status, out, _ = vje("embed", run, photos, "--out", tmp_path / "o.npz", "--device", "cpu", "--batch", "7")
    assert status == 0
    assert "38 images embedded" in out
    assert "2 files could not be read" in out
    found = np.load(tmp_path / "o.npz")
    expected = {path.relative_to(photos).as_posix() for path in photos.rglob("*.??g")} - bad
    assert len(expected) == 38
    assert set(found["name"].tolist()) == expected
    assert len(found["z"]) == 38
    assert {line.split(":")[0] for line in found["unreadable"].tolist()} == bad
    assert np.isfinite(found["nll"]).all()


def test_streaming_a_folder_counts_what_it_cannot_read(vje, photos, tmp_path):
    run = tmp_path / "run"
    status, _, _ = vje(
        "train", "folder", "--data", photos, "--out", run, "--epochs", "1", "--batch", "12", "--size", "16",
        "--encoder", "resnet8", "--device", "cpu", "--workers", "0", "--resident", "never",
    )  # fmt: skip
    assert status == 0
    held_out = set(read(run / "data.json")["held_out"])
    expected = len({"c/cut.png", "notes.jpg"} - held_out)
    assert json.loads((run / "metrics.jsonl").read_text()).get("unreadable_files", 0) == expected


@pytest.fixture
def few_digits(monkeypatch):
    """The demo with the first 400 of its 1,797 digits."""
    digits = registry._digits().train
    few = registry.RawSplits("digits", train=digits.subset(range(400)))
    monkeypatch.setattr(registry, "_digits", lambda: few)


@pytest.mark.usefixtures("few_digits")
def test_the_demo(vje, tmp_path):
    out_folder = tmp_path / "demo [1]"
    status, out, _ = vje("demo", "--epochs", "1", "--out", out_folder)
    assert status == 0
    for words in ("raw pixels", "z, the encoder's embedding", "mean of the posterior", "untrained", "trained"):
        assert words in out
    assert f"The most and least typical digits: {out_folder / 'typical.png'}\n" in out
    assert f"vje calibrate {shlex.quote(str(out_folder))}" in out
    assert "What to run next" in out
    result = read(out_folder / "evaluation.json")
    assert result["images"] == 80
    assert result["knn_pixels"] > 85
    assert set(result["knn_untrained"]) == {"z", "mean"}
    assert f"{result['knn']['z']:.1f}%" in out
    assert result["ood"].keys() == result["ood_untrained"].keys() == {"patches of photographs", "noise"}
    assert all(
        f"{name} {x:.1f}% (untrained {result['ood_untrained'][name]:.1f}%)" in out for name, x in result["ood"].items()
    )
    with Image.open(out_folder / "typical.png") as picture:
        assert picture.width > 1000


@pytest.mark.usefixtures("few_digits")
def test_a_second_demo_is_the_same_beside_the_first(vje, tmp_path, monkeypatch, snapshot):
    monkeypatch.chdir(tmp_path)
    assert vje("demo", "--epochs", "1").status == 0
    (tmp_path / "runs" / "demo" / "notes.txt").write_text("mine")
    first = snapshot(tmp_path / "runs" / "demo")
    status, out, _ = vje("demo", "--epochs", "1")
    assert (status, snapshot(tmp_path / "runs" / "demo")) == (0, first)
    second = snapshot(tmp_path / "runs" / "demo-2")
    assert str(Path("runs", "demo-2", "report.html")) in out
    assert set(second) == set(first) - {"notes.txt"}
    assert second["model.safetensors"] == first["model.safetensors"]


def test_the_demo_replaces_nothing(vje, trained, tmp_path, snapshot):
    run, _ = trained
    before = snapshot(run)
    status, _, err = vje("demo", "--out", run, "--epochs", "1")
    assert (status, snapshot(run)) == (2, before)
    assert "already holds a run" in err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert vje("demo", "--out", tmp_path / "mine", "--epochs", "1").status == 2
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_run_that_diverges_says_so_in_its_folder(vje, tmp_path, tiny):
    data, run = tmp_path / "set.npz", tmp_path / "run"
    np.savez(data, train_images=np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8))
    answer = vje("train", "folder", "--data", data, "--out", run, *tiny, "--lr", "1e30", "--warmup-epochs", "0")
    assert answer.status == 2
    failed = json.loads((run / "failed.json").read_text())
    assert f"stopped at step {failed['step']}" in answer.err and failed["message"] in answer.err


def test_broken_embeddings_do_not_end_training_before_its_loss_says_why(vje, tmp_path):
    options = ("--epochs", 3, "--warmup-epochs", 0, "--lr", 1e15, "--knn-every", 1, "--batch", 1024, "--device", "cpu")
    answer = vje("train", "digits-simsiam", *options, "--out", tmp_path / "run")
    assert answer.status == 2 and "training stopped at step 2" in answer.err
    assert "epoch 1: k-NN is left out, as embeddings are NaN or infinite." in answer.err
    assert (tmp_path / "run" / "failed.json").exists()
    assert "knn" not in json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])


def test_a_network_keeps_its_channels_when_it_is_resumed(vje, tmp_path, tiny, monkeypatch):
    """Whatever a later version, or another sample of the files, makes of a folder of grey and colour images."""
    for i in range(40):
        file = tmp_path / "set" / f"{i:02}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 6 * i, np.uint8)).convert("L" if i < 30 else "RGB").save(file)
    train = ("train", "folder", "--data", tmp_path / "set", *tiny, "--epochs", 1, "--schedule-epochs", 2)
    with monkeypatch.context() as before:
        before.setattr(FolderSource, "channels", 1)
        assert vje(*train, "--out", tmp_path / "run").status == 0
    assert FolderSource(tmp_path / "set", ["00.png", "39.png"]).channels == 3
    assert vje("train", "--resume", tmp_path / "run", "--epochs", 2).status == 0
    assert json.loads((tmp_path / "run" / "model.json").read_text())["preprocessing"]["channels"] == 1


def test_the_labels_of_a_run_are_its_own_wherever_one_stands(vje, tmp_path, tiny, monkeypatch):
    rng, here, elsewhere = np.random.default_rng(0), tmp_path / "here", tmp_path / "elsewhere"
    for i in range(40):
        file = here / "set" / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(file)
    elsewhere.mkdir()
    rows = [f"{i:02}.png,{i % 2}" for i in range(40)]
    (here / "labels.csv").write_text("\n".join(["file,label", *rows]))
    (elsewhere / "labels.csv").write_text("\n".join(["file,label", *reversed([row + "9" for row in rows])]))
    monkeypatch.chdir(here)
    train = ("train", "folder", "--data", "set", "--labels", "labels.csv", "--out", "run", *tiny, "--epochs", 1)
    assert vje(*train, "--schedule-epochs", 2).status == 0
    assert vje("evaluate", "run", "--device", "cpu").status == 0
    found = json.loads((here / "run" / "evaluation.json").read_text())["knn"]
    monkeypatch.chdir(elsewhere)
    assert vje("evaluate", here / "run", "--device", "cpu").status == 0
    assert json.loads((here / "run" / "evaluation.json").read_text())["knn"] == found
    (here / "labels.csv").rename(here / "moved.csv")
    lost = vje("evaluate", here / "run", "--device", "cpu")
    assert lost.status == 2 and str(here / "labels.csv") in lost.err and "--labels FILE" in lost.err
    again = vje("train", "--resume", here / "run", "--epochs", 2, "--labels", here / "moved.csv")
    assert again.status == 0 and "k-NN is told by these from here on" in again.out
    assert json.loads((here / "run" / "data.json").read_text())["classes"] is None


def test_a_run_goes_on_without_what_it_began_from(vje, tmp_path, trained):
    shutil.copytree(trained[0], tmp_path / "first")
    stored = json.loads((trained[0] / "config.json").read_text())["encoder"]
    words = ["--encoder", stored["encoder"], "--size", 8, "--device", "cpu", "--batch", 16, "--workers", 0]
    train = ("train", "folder", "--data", trained[1], *words, "--init", tmp_path / "first", "--schedule-epochs", 2)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert vje(*train, "--epochs", 2, "--out", whole).status == 0
    assert vje(*train, "--epochs", 1, "--out", parts).status == 0
    shutil.rmtree(tmp_path / "first")
    assert vje("train", "--resume", parts, "--epochs", 2).status == 0
    assert (parts / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
