"""Runs whose images have moved, or of which some are gone: nothing is measured on others in silence."""

import json
import os
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image

from vje.experiments.usual import unusual
from vje.runs import RunFolder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run, ``run``, on the folder ``pictures`` beside it, which it knows by a relative path."""
    from vje.cli.main import main

    root, rng = tmp_path_factory.mktemp("moved"), np.random.default_rng(0)
    for i in range(48):
        file = root / "pictures" / "ab"[i % 2] / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        options = ["--encoder", "resnet8", "--size", "8", "--device", "cpu", "--batch", "16", "--epochs", "1"]
        assert main(["train", "folder", "--data", "pictures", "--out", "run", *options, "--workers", "0"]) == 0
    return root


@pytest.fixture
def mine(made, tmp_path, monkeypatch):
    """A copy of it, and being there."""
    shutil.copytree(made, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    data = json.loads((tmp_path / "here/run/data.json").read_text())
    (tmp_path / "here/run/data.json").write_text(json.dumps(data | {"path": str(tmp_path / "here/pictures")}))
    return tmp_path / "here"


def take_away(mine, held_out=0, trained=0):
    gone = json.loads((mine / "run/data.json").read_text())["held_out"]
    names = [str(file.relative_to(mine / "pictures")) for file in sorted((mine / "pictures").rglob("*.png"))]
    chosen = [*gone[:held_out], *[name for name in names if name not in gone][:trained]]
    for name in chosen:
        (mine / "pictures" / name).unlink()


def test_fewer_images_are_told_and_marked(vje, mine):
    take_away(mine, held_out=2, trained=1)
    with pytest.warns(UserWarning, match=r"pictures lacks 3 of the 48 images .* \(training 1, held out 2\)"):
        assert vje("evaluate", "run", "--device", "cpu", "--k", 5).status == 0
    found = json.loads((mine / "run/evaluation.json").read_text())
    assert found["lacking"] == 3 and found["data"]["test_images"] == 3
    assert unusual(RunFolder(mine / "run"), "evaluation") == "3 of the run's images missing"
    compared = vje("compare", "run")
    assert "without 3 of the run's images; `vje evaluate run` makes it anew" in compared.out
    for command in ("probe", "geometry"):
        with pytest.warns(UserWarning, match="lacks 3 of the 48"):
            assert (
                vje(command, "run", "--device", "cpu", *(["--points", 0] if command == "geometry" else [])).status == 0
            )
        assert unusual(RunFolder(mine / "run"), command) == "3 of the run's images missing"


@pytest.mark.parametrize("held_out", [True, False])
@pytest.mark.parametrize("command", [("evaluate", "--k", 5), ("calibrate",)])
def test_images_that_were_replaced_are_told(vje, mine, held_out, command):
    names = json.loads((mine / "run/data.json").read_text())["held_out"]
    others = [str(file.relative_to(mine / "pictures")) for file in sorted((mine / "pictures").rglob("*.png"))]
    trained = next(name for name in others if name not in names)
    shutil.copy(mine / "pictures" / others[-1], mine / "pictures" / (names[0] if held_out else trained))
    with pytest.warns(UserWarning, match="the images of pictures do not seem to be those of training"):
        assert vje(command[0], "run", "--device", "cpu", *command[1:]).status == 0


def test_a_run_that_recorded_less_is_not_doubted(vje, mine):
    """Older ones have no fingerprint of the images held out."""
    data = json.loads((mine / "run/data.json").read_text())
    (mine / "run/data.json").write_text(json.dumps({k: v for k, v in data.items() if k != "test_fingerprint"}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vje("evaluate", "run", "--device", "cpu", "--k", 5).status == 0


@pytest.mark.filterwarnings("ignore:the images of pictures do not seem to be those of training")
def test_with_other_classes_no_accuracy_is_given(vje, mine, tiny):
    """Classes b and c are numbers 1 and 2 in training, and 0 and 1 of those that are left without a."""
    (mine / "pictures/c").mkdir()
    for file in sorted((mine / "pictures/b").iterdir())[::2]:
        file.rename(mine / "pictures/c" / file.name)
    options = ("--method", "supervised", "--data", "pictures", "--out", "judge", *tiny)
    assert vje("train", "folder", *options).status == 0
    assert vje("evaluate", "judge", "--device", "cpu", "--k", 5).status == 0
    judged = json.loads((mine / "judge/evaluation.json").read_text())["classifier"]
    (mine / "pictures/0 new").mkdir()  # the first in order
    for i in range(3):
        Image.new("RGB", (8, 8)).save(mine / f"pictures/0 new/{i}.png")
    answer = vje("evaluate", "judge", "--device", "cpu", "--k", 5)
    assert answer.status == 0 and "accuracy is left out: the classes are not those of training" in answer.err
    assert "classifier" not in json.loads((mine / "judge/evaluation.json").read_text())
    shutil.rmtree(mine / "pictures/0 new")
    assert vje("evaluate", "judge", "--device", "cpu", "--k", 5).status == 0
    assert json.loads((mine / "judge/evaluation.json").read_text())["classifier"] == judged
    shutil.rmtree(mine / "pictures/a")
    with pytest.warns(UserWarning, match="lacks 24 of the 48"):
        answer = vje("evaluate", "judge", "--device", "cpu", "--k", 5)
    assert answer.status == 0 and "accuracy is left out" in answer.err
    assert "classifier" not in json.loads((mine / "judge/evaluation.json").read_text())


def test_the_page_says_of_how_many_images_the_map_is(vje, mine):
    take_away(mine, held_out=2)
    with pytest.warns(UserWarning, match="lacks 2 of the 48"):
        assert vje("report", "run", "--device", "cpu").status == 0
    assert "The map is of 3 of the 5 images held out" in (mine / "run/report.html").read_text()


@pytest.mark.filterwarnings("ignore:the images of pictures do not seem to be those of training")
@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_held_out_images_that_cannot_be_read_are_named(vje, mine, command):
    name = json.loads((mine / "run/data.json").read_text())["held_out"][0]
    (mine / "pictures" / name).write_text("no picture")
    answer = vje(command, "run", "--device", "cpu", *(["--k", 5] if command == "evaluate" else ["--points", 3]))
    assert answer.status == 0, answer.err
    assert f"images: left out, as they cannot be read: {name} (" in answer.err


def test_whole_data_is_not_marked(vje, mine):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vje("evaluate", "run", "--device", "cpu", "--k", 5).status == 0
    assert "lacking" not in json.loads((mine / "run/evaluation.json").read_text())


@pytest.fixture
def stopped(mine):
    """The run as if it had been killed before its model was written, and the model it should end with."""
    model = (mine / "run/model.safetensors").read_bytes()
    (mine / "run/model.safetensors").unlink()
    return model


def test_resumed_from_another_folder(vje, mine, stopped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert vje("train", "--resume", "here/run").status == 0
    assert (mine / "run/model.safetensors").read_bytes() == stopped


def test_resumed_after_its_images_moved(vje, mine, stopped):
    (mine / "pictures").rename(mine / "elsewhere")
    answer = vje("train", "--resume", "run")
    assert answer.status == 2 and "say where it is now with --data PATH (`vje train --resume`" in answer.err
    answer = vje("train", "--resume", "run", "--data", "elsewhere")
    assert answer.status == 0, answer.err
    assert "--data pictures -> elsewhere: these have to be the same images" in answer.out
    assert (mine / "run/model.safetensors").read_bytes() == stopped


def test_not_resumed_on_other_images(vje, mine, stopped):
    shutil.copytree(mine / "pictures", mine / "others")
    take_away(mine, trained=1)
    (mine / "pictures").rename(mine / "fewer")
    answer = vje("train", "--resume", "run", "--data", "fewer")
    assert answer.status == 2 and "the images of fewer are not those the run was started with" in answer.err
    assert not (mine / "run/model.safetensors").exists()
    (mine / "others").rename(mine / "pictures")
    assert vje("train", "--resume", "run").status == 0  # what was refused left no trace
    assert (mine / "run/model.safetensors").read_bytes() == stopped


def test_resumed_with_other_held_out_images_is_told(vje, mine, stopped):
    name = json.loads((mine / "run/data.json").read_text())["held_out"][0]
    os.utime(mine / "pictures" / name, (0, 0))
    with pytest.warns(UserWarning, match="the images of pictures do not seem to be those of training"):
        assert vje("train", "--resume", "run").status == 0
    assert (mine / "run/model.safetensors").read_bytes() == stopped


def test_a_folder_of_that_name_elsewhere_is_not_taken_for_it(vje, mine, tmp_path, monkeypatch):
    """The run knows its images as ``pictures``, and a folder of that name happens to be here too."""
    assert vje("evaluate", "run", "--device", "cpu", "--k", 5).status == 0
    expected = json.loads((mine / "run/evaluation.json").read_text())["knn"]
    (tmp_path / "other/pictures").mkdir(parents=True)
    for i in range(20):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"other/pictures/{i}.png")
    monkeypatch.chdir(tmp_path / "other")
    assert vje("evaluate", mine / "run", "--device", "cpu", "--k", 5).status == 0
    assert json.loads((mine / "run/evaluation.json").read_text())["knn"] == expected


def test_monitoring_ends_where_no_held_out_image_can_be_read(vje, tmp_path, tiny):
    """Training goes on: it needs other images."""
    rng = np.random.default_rng(0)
    for i in range(40):
        file = tmp_path / "pictures" / "ab"[i % 2] / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    options = ("--data", tmp_path / "pictures", "--out", tmp_path / "run", *tiny, "--epochs", 4, "--knn-every", 2)
    assert vje("train", "folder", *options, "--epochs", 1).status == 0
    held_out = json.loads((tmp_path / "run/data.json").read_text())["held_out"]
    for name in held_out:
        (tmp_path / "pictures" / name).write_text("no picture")
    answer = vje("train", "folder", *options, "--out", tmp_path / "second", "--watch")
    assert json.loads((tmp_path / "second/data.json").read_text())["held_out"] == held_out
    assert answer.status == 0 and answer.err.count("k-NN accuracy is left out: none of the images") == 1
    assert [record.get("knn") for record in RunFolder(tmp_path / "second").metrics()] == [None] * 4


def test_a_path_stays_as_it_was_given_where_training_goes_on_from_the_same_folder(vje, mine, tmp_path, monkeypatch):
    more = ("train", "--resume", "run", "--epochs", 2, "--extend")
    assert vje(*more).status == 0
    assert RunFolder(mine / "run").read("config")["data"]["data"] == "pictures"
    monkeypatch.chdir(tmp_path)
    assert vje("train", "--resume", mine / "run", "--epochs", 3, "--extend").status == 0
    assert RunFolder(mine / "run").read("config")["data"]["data"] == str(mine / "pictures")
