"""``vje ood`` on images of one's own: what was trained on is kept out, and what was measured before is kept."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vje.cli.ood_run import _draw, keep_earlier
from vje.config import to_dict
from vje.data.folders import scan_folder
from vje.errors import UserError
from vje.ood.names import title
from vje.recipes import load_recipe
from vje.reporting.ood import roc_points
from vje.runs import RunFolder


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """Figures take seconds: only the files are left."""
    for name in ("save_roc", "save_densities"):
        monkeypatch.setattr(f"vje.reporting.ood.{name}", lambda file, *_: file.write_bytes(b"a figure"))


@pytest.fixture
def sets(tmp_path, make_pixels):
    """Files of images by name."""

    def make(name, count=15, seed=7):
        np.savez(tmp_path / f"{name}.npz", images=make_pixels(count, seed))
        return tmp_path / f"{name}.npz"

    return make


@pytest.fixture
def own(tmp_path, make_pixels, save_untrained):
    """An untrained model in the folder of a run on a folder of 12 images, three of them held out."""
    root, held_out = tmp_path / "mine", ["x/02.png", "x/05.png", "y/08.png"]
    for i, pixels in enumerate(make_pixels(12, 4)):
        file = root / ("x" if i < 6 else "y") / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    files = scan_folder(root)
    kept = files.subset([i for i, name in enumerate(files.names) if name not in held_out])
    recipe = load_recipe("digits")
    folder = RunFolder.create(tmp_path / "own")
    folder.write("config", to_dict(replace(recipe, data=replace(recipe.data, data=str(root)))))
    folder.write("data", {"held_out": held_out, "fingerprint": kept.fingerprint(), "labels": True})
    save_untrained(folder.path)
    return folder.path, root, held_out


def result(run):
    return json.loads((run / "ood.json").read_text())


def test_of_the_runs_own_folder_the_held_out_images_are_used(vje, own, sets, tmp_path):
    """The figures are those of copies of the held-out files alone."""
    run, root, held_out = own
    words = ["--ood", f"noise={sets('noise')}", "--device", "cpu"]
    answer = vje("ood", run, "--id", root, *words)
    assert answer.status == 0, answer.err
    assert f"--id {root}: 3 of its images are used, those that {run} held out." in answer.out
    found = result(run)
    for number, name in enumerate(held_out):
        (tmp_path / "copies").mkdir(exist_ok=True)
        shutil.copy(root / name, tmp_path / "copies" / f"{number}.png")
    answer = vje("ood", run, "--id", tmp_path / "copies", *words)
    assert answer.status == 0 and "images are used" not in answer.out
    assert found["counts"] == result(run)["counts"] == {"id": 3, "noise": 15}
    assert found["scores"] == result(run)["scores"]


def test_what_came_to_the_folder_later_is_not_said_to_be_trained_on(vje, own, sets, tmp_path, make_pixels):
    run, root, held_out = own
    Image.fromarray(make_pixels(1, 9)[0]).save(root / "x" / "later.png")
    (root / "x" / "broken.png").write_text("no picture")
    words = ["--ood", f"noise={sets('noise')}", "--device", "cpu"]
    with pytest.warns(UserWarning, match="do not seem to be those of training"):
        answer = vje("ood", run, "--id", root, *words)
    assert answer.status == 0 and f"--id {root}: 3 of its images are used, those that {run} held out." in answer.out
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "1.png").symlink_to(root / held_out[0])
    (tmp_path / "some" / "2.png").symlink_to(root / "x" / "00.png")
    with pytest.warns(UserWarning, match="do not seem to be those of training"):
        answer = vje("ood", run, "--id", tmp_path / "some", *words)
    assert f"--id {tmp_path / 'some'}: 1 of its images are used, on which {run} was not trained." in answer.out


def test_sets_that_are_not_what_they_may_be_meant_to_be_are_told(vje, own, sets):
    run, root, _ = own
    words = ["--no-detectors", "--device", "cpu"]
    answer = vje("ood", run, "--id", root, "--ood", f"known={root / 'x'}", "--ood", f"new={sets('new')}", *words)
    assert answer.status == 0, answer.err
    assert f"--ood known: {run} was trained on 4 of its 6 images." in answer.out and "--ood new" not in answer.out
    assert f"--id {root}: 3 images are few, and the figures as rough." in answer.out
    many, same = sets("many", 50), sets("same", 50)
    answer = vje("ood", run, "--id", many, "--ood", f"x={same}", *words)
    assert "--ood x: these are the images of --id." in answer.out and "are few" not in answer.out


def test_images_that_were_trained_on_are_refused(vje, own, run, sets, make_pixels, tmp_path):
    folder, root, _ = own
    for name in ("00.png", "01.png"):
        (tmp_path / "links").mkdir(exist_ok=True)
        (tmp_path / "links" / name).symlink_to(root / "x" / name)
    np.savez(tmp_path / "same.npz", images=make_pixels(50, 1))
    for trained, images, data in (
        (folder, tmp_path / "links", root),
        (run, tmp_path / "same.npz", tmp_path / "set.npz"),
    ):
        answer = vje("ood", trained, "--id", images, "--ood", f"noise={sets('noise')}", "--device", "cpu")
        assert answer.status == 2
        assert f"--id {images}: {trained} was trained on these images" in answer.err
        assert f"`--id {data}` takes those that it held out" in answer.err
        assert not (trained / "ood.json").exists() and not (trained / "cache").exists()
    answer = vje("ood", run, "--id", tmp_path / "set.npz", "--ood", f"noise={sets('noise')}", "--device", "cpu")
    assert answer.status == 0 and result(run)["counts"]["id"] == 60  # its test images


def test_runs_that_held_out_different_images_have_a_mean_that_is_explained(vje, own, sets, tmp_path):
    run, root, held_out = own
    other = shutil.copytree(run, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config["run"]["seed"] += 1
    RunFolder(other).write("config", config)
    words = ["--ood", f"noise={sets('noise')}", "--device", "cpu", "--no-detectors"]
    answer = vje("ood", run, other, "--id", root, *words)
    assert answer.status == 0 and "3 images), 2 runs" in answer.out, answer.err  # the seeds alone differ
    assert "itself" not in answer.out
    assert answer.out.count("3 of its images are used") == 2  # once a run

    files = scan_folder(root)
    others = [*held_out[:2], "y/09.png"]
    kept = files.subset([i for i, name in enumerate(files.names) if name not in others])
    RunFolder(other).write("data", {"held_out": others, "fingerprint": kept.fingerprint()})
    answer = vje("ood", run, other, "--id", root, *words)
    assert answer.status == 0 and "2 runs" in answer.out, answer.err
    assert answer.out.count("Each run is measured on the images that it held out itself") == 1
    answer = vje("ood", run, other, "--id", sets("inbox", seed=8), *words)
    assert answer.status == 0 and "15 images), 2 runs" in answer.out and "itself" not in answer.out, answer.err


def test_data_that_has_moved(vje, own, sets, tmp_path):
    run, root, _ = own
    root.rename(tmp_path / "elsewhere")
    words = ["--id", sets("inbox", seed=8), "--ood", f"noise={sets('noise')}", "--device", "cpu"]
    answer = vje("ood", run, *words)
    assert answer.status == 2 and str(root) in answer.err
    assert "without them: --no-detectors" in answer.err
    assert vje("ood", run, *words, "--data", tmp_path / "elsewhere").status == 0
    found = result(run)["scores"]["nll"]
    answer = vje("ood", run, *words, "--no-detectors")  # a model's own scores need no training images
    assert answer.status == 0, answer.err
    assert f"The images that {run} was trained on are not at hand: see that --id holds none of them." in answer.out
    assert result(run)["scores"]["nll"] == found


def test_earlier_results_on_other_images_are_kept(vje, run, sets, snapshot, save_untrained):
    common = ["--id", sets("inbox", seed=8), "--device", "cpu", "--no-detectors"]
    one, other = ([*common, "--ood", f"{name}={sets(name, seed=seed)}"] for name, seed in (("x", 1), ("y", 2)))
    names = {"ood.json", "ood-curves.json", "ood-roc.png", "ood-nll.png"}
    earlier = run / "ood-earlier"

    def files():
        return {name: (run / name).read_bytes() for name in names}

    assert vje("ood", run, *one).status == 0
    first = files()
    answer = vje("ood", run, *other)
    (place,) = earlier.iterdir()
    assert place.name.startswith("inbox-") and snapshot(place) == first
    assert f"({common[1]} against x) are in {place} now" in answer.out
    assert result(run)["counts"].keys() == {"id", "y"}
    second = files()

    save_untrained(run, seed=1)  # the same images with other weights, and with other options
    assert "Earlier results" not in vje("ood", run, *other).out
    assert "Earlier results" not in vje("ood", run, *other, "--samples", 1).out
    assert snapshot(place) == first and list(earlier.iterdir()) == [place]

    assert vje("ood", run, *one).status == 0
    assert len(list(earlier.iterdir())) == 2
    third = files()
    assert vje("ood", run, *other).status == 0  # those of x take the place of the first of x
    assert len(list(earlier.iterdir())) == 2 and snapshot(place) == third != first
    assert files().keys() == second.keys() and not list(earlier.rglob("config.json"))


def test_results_that_do_not_say_of_which_images_they_are_are_kept_too(vje, run, sets):
    words = ["--id", sets("inbox", seed=8), "--ood", f"x={sets('x')}", "--device", "cpu", "--no-detectors"]
    assert vje("ood", run, *words).status == 0
    old = {name: value for name, value in result(run).items() if name not in ("images", "inputs")}
    RunFolder(run).write("ood", old)
    assert "Earlier results" in vje("ood", run, *words).out
    (place,) = (run / "ood-earlier").iterdir()
    assert json.loads((place / "ood.json").read_text()) == old | {"schema": 1}


@pytest.fixture
def stopped(trained_run, tmp_path, monkeypatch):
    """A run after its last step and before its model was written, and where that is meanwhile."""
    monkeypatch.setattr("vje.environment.commit", lambda: "0123abc")
    run = shutil.copytree(trained_run, tmp_path / "copy")
    description = RunFolder(run).read("model")
    description.pop("weights", None)  # it is written at the end
    RunFolder(run).write("model", description)
    return run, (run / "model.safetensors").rename(tmp_path / "model.safetensors")


def test_a_result_of_the_last_checkpoint_is_that_of_the_model(vje, stopped, sets):
    run, model = stopped
    words = ["--id", sets("inbox", seed=8), "--ood", f"x={sets('x')}", "--device", "cpu", "--no-detectors"]
    with pytest.warns(UserWarning, match="is not finished"):
        assert vje("ood", run, *words).status == 0
    first = result(run)
    assert (first["finished"], first["epochs"]) == (False, 2)
    model.rename(run / model.name)
    assert "was measured before" in vje("ood", run, *words).out
    assert result(run) == first | {"finished": True}


@pytest.fixture
def earlier(tmp_path):
    """A run folder with a result on images that are recorded, and figures."""

    def write(**changes):
        folder = RunFolder(tmp_path / "run")
        folder.path.mkdir(exist_ok=True)
        scores = {"ps_nll": {}, "knn": {}}
        folder.write("ood", {"data": "mine/inbox", "counts": {"id": 9, "x": 8}, "scores": scores, **changes})
        for name in ("ood-roc.png", "ood-ps-nll.png", "ood-curves.json"):
            (folder.path / name).touch()
        return folder

    return write


def test_earlier_results_go_by_their_images_with_all_their_files(earlier):
    for prints in ("1", "2", "1"):
        folder = earlier(images={"id": prints, "x": "3"})
        keep_earlier(folder, {"images": {"id": "9", "x": "3"}})
        assert not list(folder.path.glob("ood*.*"))
    first, second = (folder.path / "ood-earlier").iterdir()
    files = {"ood.json", "ood-curves.json", "ood-roc.png", "ood-ps-nll.png"}
    assert {file.name for file in first.iterdir()} == {file.name for file in second.iterdir()} == files


def test_earlier_results_on_the_folder_one_is_in_have_a_name(earlier, capsys):
    folder = earlier(data=".", images={"id": "1", "x": "2"})
    keep_earlier(folder, {"images": {"id": "9", "x": "2"}})
    (place,) = (folder.path / "ood-earlier").iterdir()
    assert place.name.startswith("images-") and f"(. against x) are in {place} now" in capsys.readouterr().out


def test_earlier_scores_that_were_not_asked_for_again_are_kept(earlier, capsys):
    prints = {"id": "1", "x": "2"}
    folder, now = earlier(images=prints, weights="w"), {"images": prints, "weights": "w", "scores": {"ps_nll": {}}}
    keep_earlier(folder, now | {"weights": "others"})  # of a model that is no more
    keep_earlier(folder, now | {"scores": {"ps_nll": {}, "knn": {}, "vim": {}}})
    assert not (folder.path / "ood-earlier").exists()
    keep_earlier(folder, now)
    (place,) = (folder.path / "ood-earlier").iterdir()
    assert f"Earlier results with scores that these lack (1) are in {place} now." in capsys.readouterr().out
    assert {file.name for file in place.iterdir()} >= {"ood.json", "ood-roc.png"}


def test_a_result_is_the_last_to_be_moved_away(earlier, monkeypatch):
    folder, replace_file = earlier(images={"id": "1", "x": "2"}), Path.replace

    def fail(self, target):
        if self.name == "ood-curves.json":
            raise OSError(errno.EACCES, "no")
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UserError, match=r"cannot write to .*inbox-.*move ood\.json and its figures away yourself"):
        keep_earlier(folder, {"images": {"id": "9", "x": "2"}})
    assert (folder.path / "ood.json").exists() and not (folder.path / "ood-roc.png").exists()


@pytest.mark.parametrize(
    ("scores", "main", "shown"),
    [
        (["variance_trace", "feature_norm", "nll", "msp"], "nll", ["nll", "variance_trace"]),
        (["neg_kappa", "ps_nll", "knn"], "ps_nll", ["neg_kappa", "knn", "ps_nll"]),
        (["knn", "feature_norm", "msp"], "knn", ["knn"]),
    ],
)
def test_figures_are_of_the_scores_that_stand_for_a_method(earlier, monkeypatch, scores, main, shown):
    drawn = {}
    monkeypatch.setattr("vje.reporting.ood.save_roc", lambda *given: drawn.update(roc=given))
    monkeypatch.setattr("vje.reporting.ood.save_densities", lambda *given: drawn.update(densities=given))
    inside = {name: np.arange(4.0) + place for place, name in enumerate(scores)}
    outside = {"x": {name: values + 1 for name, values in inside.items()}}
    folder = earlier()
    _draw(folder, inside, outside, "fitted")
    file, (curves,), wanted = drawn["roc"]
    found = curves["sets"]["x"]["roc"]
    assert file == folder.path / "ood-roc.png" and sorted(name for name in wanted if name in found) == sorted(shown)
    for name in shown:
        assert curves["titles"][name] == title(name, "fitted")  # as everywhere else
        assert found[name] == roc_points(inside[name], outside["x"][name])
    file, values, others, label = drawn["densities"]
    assert file == folder.path / f"ood-{main.replace('_', '-')}.png" and (values == inside[main]).all()
    assert (others["x"] == outside["x"][main]).all()
    assert label == {"nll": "NLL", "ps_nll": "PS NLL", "knn": "k-NN distance"}[main]
    kept = folder.read("ood-curves")
    assert kept.items() >= curves.items() and kept["density"] == main and kept["titles"].keys() == set(scores)


def test_a_damaged_result_is_put_aside(vje, run, sets):
    (run / "ood.json").write_text("{")
    with pytest.warns(UserWarning, match=r"ood\.json is damaged: .* and made anew"):
        answer = vje("ood", run, "--id", sets("inbox", seed=8), "--ood", f"x={sets('x')}", "--no-detectors")
    assert answer.status == 0 and result(run)["counts"] == {"id": 15, "x": 15}
    (kept,) = (run / "ood-earlier").glob("damaged-*/ood.json")
    assert kept.read_text() == "{"


def test_an_option_may_be_repeated(vje, run, sets):
    one, other = (f"{name}={sets(name, seed=seed)}" for name, seed in (("x", 1), ("y", 2)))
    answer = vje("ood", run, "--id", sets("inbox", seed=8), "--ood", one, "--no-detectors", f"--ood={other}")
    assert answer.status == 0, answer.err
    assert result(run)["counts"] == {"id": 15, "x": 15, "y": 15}


def test_the_table_is_whole_in_a_narrow_window(vje, run, sets, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    names = [f"[b]number-{i}" for i in range(6)]
    words = ["--ood", *(f"{name}={sets('x')}" for name in names), "--device", "cpu", "--no-detectors"]
    lines = vje("ood", run, "--id", sets("inbox", seed=8), *words).out.splitlines()
    assert next(line for line in lines if line.startswith("AUROC")).endswith("inbox.npz (15 images)")
    assert any(line.split() == names for line in lines)
    assert len(next(line for line in lines if line.split()[:1] == ["NLL"]).split()) == 8


def test_arrays_among_pictures_are_no_broken_picture(vje, trained, tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    answer = vje("embed", trained[0], tmp_path / "a.png", trained[1], "--out", tmp_path / "e.npz")
    assert answer.status == 2 and "an .npz file is taken alone" in answer.err
