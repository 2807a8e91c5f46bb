import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from vje.cli.main import main
from vje.config import to_dict
from vje.data.arrays import load_npz
from vje.methods.vje import VJE
from vje.preprocessing import Preprocessing
from vje.recipes import load_recipe
from vje.runs import RunFolder

TINY = ("--encoder", "resnet8", "--size", "8", "--device", "cpu", "--batch", "16", "--epochs", "2", "--workers", "0")


class Answer(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def vje(capsys, monkeypatch):
    """The command line in this process: ``vje("train", ...)`` gives the exit status and what was printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        capsys.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # the option parser's way out
            status = stop.code
        return Answer(status, *capsys.readouterr())

    return run


@pytest.fixture
def tiny():
    """Options that train in a second."""
    return TINY


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A finished run on 96 labelled training and 32 test images, and its data; tests may evaluate it, no more."""
    folder = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 96), ("test", 32)):
        labels = np.arange(count) % 4
        pixels = rng.integers(0, 64, (count, 8, 8, 3)) + 60 * labels[:, None, None, None]
        arrays |= {f"{split}_images": pixels.astype(np.uint8), f"{split}_labels": labels}
    data, run = folder / "tiny.npz", folder / "run"
    np.savez(data, **arrays)
    assert main(["train", "folder", "--data", str(data), "--out", str(run), *TINY, "--knn-every", "1"]) == 0
    return run, data


@pytest.fixture
def photos(tmp_path):
    """A folder as people have them: nested, mixed kinds and sizes, two files that are no images and a note."""
    root, rng = tmp_path / "photos", np.random.default_rng(0)
    for i in range(38):
        path = root / ("a/b", "c", "")[i % 3] / f"{i:02}.{('png', 'jpg')[i % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = 8 + 3 * (i % 7), 8 + 5 * (i % 5)
        kinds = ("RGB", "L", "CMYK") if i % 2 else ("RGB", "L", "RGBA", "P", "I;16", "LA")
        kind = kinds[i % len(kinds)]
        if kind == "I;16":
            picture = Image.fromarray(rng.integers(0, 2**16, (height, width), dtype=np.uint16))
        else:
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            picture = Image.fromarray(pixels).convert(kind if kind != "LA" else "L").convert(kind)
        picture.save(path)
    whole = (root / "00.png" if (root / "00.png").exists() else root / "a/b/00.png").read_bytes()
    (root / "c" / "cut.png").write_bytes(whole[:60])
    (root / "notes.jpg").write_text("no picture")
    (root / "readme.txt").write_text("38 pictures, and two files that are none")
    return root


@pytest.fixture
def snapshot():
    """Content of everything under a folder."""

    def read(root):
        return {
            os.path.relpath(path, root): path.read_bytes() if path.is_file() else None
            for path in sorted(Path(root).rglob("*"))
        }

    return read


@pytest.fixture(scope="session")
def make_pixels():
    """``make_pixels(count, seed)``: small pictures of all degrees of brightness."""

    def make(count, seed):
        rng = np.random.default_rng(seed)
        return (rng.integers(0, 64, (count, 8, 8, 3)) + rng.integers(0, 190, (count, 1, 1, 1))).astype(np.uint8)

    return make


@pytest.fixture(scope="session")
def save_untrained():
    """``save_untrained(folder, seed)``: an untrained model."""

    def save(folder, seed=0):
        torch.manual_seed(seed)
        VJE("resnet8", preprocessing=Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3)).eval().save(folder)

    return save


@pytest.fixture
def run(tmp_path, make_pixels, save_untrained):
    """An untrained model in the folder of a run with 60 test images of its own."""
    data = tmp_path / "set.npz"
    np.savez(data, train_images=make_pixels(50, 1), test_images=make_pixels(60, 2))
    recipe = load_recipe("digits")
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config", to_dict(replace(recipe, data=replace(recipe.data, data=str(data)))))
    folder.write("data", {"held_out": None, "fingerprint": load_npz(data)["train"].fingerprint()})
    save_untrained(folder.path)
    return folder.path
