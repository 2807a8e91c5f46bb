"""Mistakes that show only when the data is opened: one line, status 2, nothing overwritten, and nothing in the way."""

import os
import sys

import numpy as np
import pytest


@pytest.fixture
def refused(vje, tmp_path, snapshot):
    """Runs a command that must fail in one line of these words and leave every file as it was."""

    def check(*arguments, words):
        before = snapshot(tmp_path)
        status, _, err = vje(*arguments)
        assert status == 2
        last = err.strip().splitlines()[-1]
        assert last.startswith("vje: ")
        for word in words:
            assert word in last
        assert "Traceback" not in err
        after = snapshot(tmp_path)
        assert {name: after[name] for name in before} == before
        assert not any(content for name, content in after.items() if name not in before)  # at most an empty folder

    return check


def images(count=40, **_):
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


ARRAYS = {
    "fractions": ({"train_images": images() / 255}, ["train_images", "uint8", "float64", "(images * 255)"]),
    "sixteen bits": ({"train_images": images().astype(np.uint16) * 100}, ["uint8", "uint16"]),
    "channels first": ({"train_images": images().transpose(0, 3, 1, 2)}, ["[N, C, H, W]", "transpose"]),
    "flat": ({"train_images": images().reshape(40, -1)}, ["[N, H, W] or [N, H, W, C]", "(40, 192)"]),
    "none": ({"train_images": images()[:0]}, ["no images"]),
    "other names": ({"x_train": images()}, ["holds x_train", "expected train_images"]),
    "only a test split": ({"test_images": images()}, ["no training images"]),
    "too few labels": ({"train_images": images(), "train_labels": np.arange(39)}, ["40 images but 39 labels"]),
    "fractional labels": ({"train_images": images(), "train_labels": np.ones(40)}, ["labels must be integers"]),
    "negative labels": ({"train_images": images(), "train_labels": -np.ones(40, int)}, ["images: labels must be 0 or"]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name, refused, tmp_path, tiny):
    arrays, words = ARRAYS[name]
    np.savez(tmp_path / "data.npz", **arrays)
    refused("train", "folder", "--data", tmp_path / "data.npz", "--out", tmp_path / "run", *tiny, words=words)


def test_a_file_cut_short(refused, tmp_path, tiny):
    np.savez(tmp_path / "data.npz", train_images=images())
    whole = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "data.npz").write_bytes(whole[: len(whole) // 2])
    refused("train", "folder", "--data", tmp_path / "data.npz", "--out", tmp_path / "run", *tiny, words=["data.npz"])


def test_a_batch_larger_than_the_data_and_then_a_smaller_one(refused, vje, tiny_npz, tmp_path, tiny):
    train = ("train", "folder", "--data", tiny_npz, "--out", tmp_path / "run", *tiny)
    refused(*train, "--batch", "97", words=["a batch of 97 needs at least 97 training images", "has 96", "--batch"])
    assert vje(*train, "--batch", "96", "--epochs", "1").status == 0  # in the same folder


def test_fewer_readable_images_than_a_batch(refused, photos, tmp_path, tiny):
    refused(
        "train", "folder", "--data", photos, "--out", tmp_path / "run", *tiny, "--batch", "38",
        words=["a batch of 38 needs at least 38 training images"],
    )  # fmt: skip


def test_nothing_readable(refused, tmp_path, tiny):
    (tmp_path / "data").mkdir()
    for i in range(4):
        (tmp_path / "data" / f"{i}.png").write_text("no picture")
    refused("train", "folder", "--data", tmp_path / "data", "--out", tmp_path / "run", *tiny, words=["can be read"])


LABELS = {
    "labels.csv": "0.png,1\n1.png,0\n",
    "more.csv": "file,label\n" + "".join(f"{i:02}.png,{i % 2}\n" for i in range(41)),
    "headless.csv": "a,b,c\n",
}


@pytest.mark.parametrize("name", LABELS)
def test_a_label_file_that_does_not_match(name, refused, photos, tmp_path, tiny):
    (tmp_path / name).write_text(LABELS[name])
    refused(
        "train", "folder", "--data", photos, "--labels", tmp_path / name, "--out", tmp_path / "run", *tiny,
        words=[f"the label file {tmp_path / name}"],
    )  # fmt: skip


def test_a_label_array_that_does_not_match(refused, tiny_npz, tmp_path, tiny):
    np.save(tmp_path / "labels.npy", np.arange(3))
    refused(
        "train", "folder", "--data", tiny_npz, "--labels", tmp_path / "labels.npy", "--out", tmp_path / "run", *tiny,
        words=["does not match the images: expected 128 integers", "(3,)"],
    )  # fmt: skip


def test_a_run_is_never_trained_over(refused, trained, tmp_path, tiny):
    run, data = trained
    (tmp_path / "run").symlink_to(run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    refused(
        "train", "folder", "--data", data, "--out", tmp_path / "run", *tiny,
        words=["already holds a run (finished)", "--out"],
    )  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_no_write_permission(refused, trained, tiny_npz, tmp_path, tiny):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    if os.access(locked, os.W_OK):
        pytest.skip("whoever runs this may write anywhere, as root may")
    try:
        refused(
            "train", "folder", "--data", tiny_npz, "--out", locked / "run", *tiny,
            words=[f"cannot write to {locked / 'run'} (Permission denied)"],
        )  # fmt: skip
        refused("embed", trained[0], trained[1], "--out", locked / "o.npz", words=["you may not write"])
    finally:
        locked.chmod(0o700)


def test_a_disk_that_is_full(refused, trained, tmp_path, monkeypatch):
    def fail(stream, **_):
        stream.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    run, data = trained
    refused("embed", run, data, "--out", tmp_path / "o.npz", words=["cannot write", "No space left on device"])


def test_an_extra_that_is_not_installed(refused, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    run, data = trained
    refused("embed", run, data, "--out", tmp_path / "o.parquet", words=["pip install 'vje[parquet]'"])


def test_other_data_than_it_was_trained_on(refused, trained, tmp_path):
    run, _ = trained
    np.savez(tmp_path / "other.npz", images=images())
    refused("evaluate", run, "--data", tmp_path / "other.npz", words=["had test images of its own"])


@pytest.mark.parametrize("command", ["evaluate", "probe"])
def test_other_images_in_the_place_of_those_it_was_trained_on(refused, trained, tmp_path, command):
    """Images of arrays go by their places: held-out ones would be taken for others."""
    run, data = trained
    with np.load(data) as content:
        arrays = dict(content)
    arrays["train_images"] = arrays["train_images"][::-1]
    np.savez(tmp_path / "other.npz", **arrays)
    refused(command, run, "--data", tmp_path / "other.npz", words=["are not those the run was started with"])


def test_a_model_that_is_none(refused, trained, tmp_path):
    (tmp_path / "x.safetensors").write_text("no weights")
    refused("embed", tmp_path / "x.safetensors", trained[1], "--out", tmp_path / "o.npz", words=["x.json is missing"])
    (tmp_path / "x.json").write_bytes((trained[0] / "model.json").read_bytes())
    refused("embed", tmp_path / "x.safetensors", trained[1], "--out", tmp_path / "o.npz", words=["cannot be read as"])


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("byol", ["--hidden", "0"], ["widths", "0"]),
        ("simsiam", ["--layers", "0"], ["a layer at least"]),
        ("simsiam", ["--bottleneck", "-3"], ["-3"]),
        ("vssl", ["--latent", "0"], ["1 or more"]),
        ("vssl", ["--hidden", "-1"], ["1 or more", "-1"]),
        ("vje", ["--ratio", "inf"], ["--ratio must be positive, and finite"]),
        ("swav", ["--projection", "0"], ["1 or more"]),
        ("moco", ["--projection", "0"], ["--hidden and --projection must be 1 or more, got", "and 0"]),
        ("moco", ["--batch", "8", "--groups", "3"], ["--groups 3 does not divide the 8 images"]),
        ("moco", ["--batch", "8", "--accumulate", "2", "--groups", "8"], ["--groups 8 does not divide the 4 images"]),
        ("moco", ["--groups", "2", "--sync-batch-norm"], ["--groups 2", "--no-sync-batch-norm"]),
        ("moco", ["--groups", "2", "--normalization", "group"], ["--groups 2", "no plain batch norm"]),
        ("vi-simsiam", ["--kl-weight", "-1"], ["--kl-weight must be 0 or more, got -1.0"]),
        ("simclr", ["--temperature", "0"], ["--temperature must be positive (0.1 to 0.5 are usual), got 0.0"]),
        ("simsiam", ["--batch", "4", "--accumulate", "4"], ["--accumulate 4", "need two"]),
        ("supervised", [], ["learns from labels", "--labels FILE"]),
    ],
)
def test_settings_that_a_method_cannot_work_with(refused, tmp_path, tiny, method, options, words):
    data = tmp_path / "set.npz"
    np.savez(data, train_images=images())
    out = tmp_path / "run"
    refused("train", "folder", "--method", method, "--data", data, "--out", out, *tiny, *options, words=words)


def test_class_numbers_that_would_make_an_enormous_classifier(refused, tmp_path, tiny):
    data, out = tmp_path / "set.npz", tmp_path / "run"
    np.savez(data, train_images=images(), train_labels=np.where(np.arange(len(images())) % 2, 3, 10**9))
    words = ["largest class number is 1,000,000,000, and there are 2 classes", "--labels FILE"]
    refused("train", "folder", "--method", "supervised", "--data", data, "--out", out, *tiny, words=words)
    assert not out.exists()


def test_classes_to_tell_apart_when_there_is_one(refused, tmp_path, tiny):
    """The only label is not 0, so counting up to it would find four."""
    data, out = tmp_path / "set.npz", tmp_path / "run"
    np.savez(data, train_images=images(), train_labels=np.full(len(images()), 3))
    refused(
        "train", "folder", "--method", "supervised", "--data", data, "--out", out, *tiny, words=["all of one class"]
    )
    assert not out.exists()
