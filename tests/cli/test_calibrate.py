import csv
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vje.data.arrays import load_npz
from vje.data.folders import scan_folder
from vje.ood.conformal import Calibration
from vje.ood.detector import ImageDetector
from vje.runs import RunFolder


@pytest.fixture
def pictures(tmp_path: Path, make_pixels) -> Path:
    """12 readable images and one that is none."""
    root = tmp_path / "pictures"
    root.mkdir()
    for i, x in enumerate(make_pixels(12, 3)):
        Image.fromarray(x).save(root / f"{i:02}.png")
    (root / "text.png").write_text("no picture")
    return root


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(("score", "sign"), [("nll", 1), ("kl", -1)])
def test_calibrated_p_values_equal_brute_force(vje, run, pictures, make_pixels, score: str, sign: int) -> None:
    answer = vje("calibrate", run, "--score", score, "--batch", 16)
    assert answer.status == 0 and f"{score} of 60 images" in answer.out and "1/(n + 1) = 0.016" in answer.out
    assert "never: needs 99 images" in answer.out and "60 images are few" in answer.err
    detector = ImageDetector.from_run(run, "cpu", calibrated=False)
    held_out = sign * detector.score(make_pixels(60, 2).transpose(0, 3, 1, 2))[score].double().numpy()

    rows = [row for row in table(vje("score", run, pictures, "--alpha", 0.3).out) if not row["error"]]
    for row in rows:
        p = (1 + np.sum(held_out >= sign * float(row[score]))) / 61
        assert float(row["p_value"]) == p
        assert row["outlier"] == str(bool(p <= 0.3))
    assert "p-values end at 0.016" in vje("score", run, pictures, "--alpha", 0.01).err


def test_calibration_refuses_what_was_trained_on(vje, run: Path, tmp_path: Path) -> None:
    answer = vje("calibrate", run, "--data", tmp_path / "set.npz", "--split", "train")
    assert answer.status == 2 and "was trained on" in answer.err
    assert vje("calibrate", run, "--data", tmp_path / "set.npz").status == 0  # its test images
    folder = RunFolder.open(run)
    everything = load_npz(tmp_path / "set.npz")["train"]
    kept = [str(i) for i in range(0, 50, 10)]
    train = everything.subset([i for i in range(50) if str(i) not in kept])
    folder.write("data", {"held_out": kept, "fingerprint": train.fingerprint()})
    np.savez(tmp_path / "only.npz", images=train.images)
    answer = vje("calibrate", run, "--data", tmp_path / "only.npz")
    assert answer.status == 2 and "was trained on" in answer.err
    answer = vje("calibrate", run, "--data", tmp_path / "set.npz", "--split", "val")
    assert answer.status == 2 and "has no val split; it has test, train" in answer.err


def test_of_a_runs_own_images_in_another_place_the_held_out_ones_are_taken(vje, run: Path, pictures: Path) -> None:
    folder, files = RunFolder.open(run), scan_folder(pictures)
    config = folder.read("config")
    there = str(pictures.absolute())
    folder.write("config", config | {"data": config["data"] | {"data": there}})
    kept = list(files.files[:3])
    trained = files.subset(range(3, len(files))).fingerprint()
    folder.write("data", {"held_out": kept, "fingerprint": trained, "path": there})
    assert vje("calibrate", run).status == 0
    expected = Calibration.read(run / "calibration.safetensors").scores
    moved = pictures.rename(pictures.with_name("moved"))
    answer = vje("calibrate", run)
    assert answer.status == 2 and f"was trained on {there}, which is not there" in answer.err
    answer = vje("calibrate", run, "--data", moved)
    assert answer.status == 0 and f"3 of its {len(files)} images are used, those that {run} held out" in answer.out
    assert Calibration.read(run / "calibration.safetensors").scores.tolist() == expected.tolist()


def test_calibration_refuses_some_of_what_was_trained_on(vje, run: Path, pictures: Path) -> None:
    """Also a part of the folder, by links; but what came to the folder later was not trained on."""
    folder, files = RunFolder.open(run), scan_folder(pictures)
    config = folder.read("config")
    folder.write("config", config | {"data": config["data"] | {"data": str(pictures)}})
    folder.write("data", {"held_out": ["00.png"], "fingerprint": files.subset(range(1, 13)).fingerprint()})
    chosen = pictures.with_name("chosen")
    chosen.mkdir()
    for name in ("00.png", "03.png", "04.png"):
        (chosen / name).symlink_to(pictures / name)
    answer = vje("calibrate", run, "--data", chosen)
    assert answer.status == 2 and f"{chosen} holds images that {run} was trained on (2 of 3)" in answer.err
    answer = vje("calibrate", run, "--data", pictures)
    assert answer.status == 0 and "1 of its 13 images are used" in answer.out
    (pictures / "later").mkdir()
    Image.new("RGB", (8, 8)).save(pictures / "later" / "new.png")
    answer = vje("calibrate", run, "--data", pictures / "later")
    assert answer.status == 0, answer.err
    pictures.rename(pictures.with_name("gone"))
    assert vje("calibrate", run, "--data", pictures.with_name("gone") / "later").status == 0


def test_calibration_with_nothing_readable_says_why(vje, run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / "mine" / name).touch()
    answer = vje("calibrate", run, "--data", tmp_path / "mine")
    assert answer.status == 2 and answer.err.endswith("with could be read; 1.jpg: the file is empty\n")


def test_calibration_with_a_folder_or_for_a_model_file(vje, run: Path, pictures: Path) -> None:
    answer = vje("calibrate", run, "--data", pictures)
    assert answer.status == 0 and "1 of 13 files could not be read" in answer.out
    assert vje("calibrate", run / "model.safetensors", "--data", pictures).status == 0
    answer = vje("calibrate", run / "model.safetensors")
    assert answer.status == 2 and "--data" in answer.err
    assert vje("calibrate", run / "nothing").status == 2


def test_an_earlier_calibration_is_kept(vje, run: Path, pictures: Path) -> None:
    calibration = run / "calibration.safetensors"
    assert vje("calibrate", run).status == 0
    assert "earlier calibration" not in vje("calibrate", run).out  # the same once more needs no keeping
    first = calibration.read_bytes()
    answer = vje("calibrate", run, "--data", pictures)
    (kept,) = (run / "calibration-earlier").glob("*/calibration.safetensors")
    assert f"The earlier calibration, nll of 60 images of set.npz: test_images, is in {kept.parent}." in answer.out
    assert kept.read_bytes() == first and len(Calibration.read(calibration).scores) == 12
    for number, words in enumerate((["--score", "kl"], ["--views", "mirror"], []), 2):
        vje("calibrate", run, "--data", pictures, *words)
        assert len(list((run / "calibration-earlier").iterdir())) == number
    kept.replace(calibration)
    assert "p-values" not in vje("score", run, pictures).err  # it serves as it did
    calibration.write_bytes(first[:50])
    assert vje("calibrate", run).status == 0 and len(Calibration.read(calibration).scores) == 60


def test_where_an_earlier_calibration_cannot_be_kept_it_stays(vje, run: Path, pictures: Path) -> None:
    assert vje("calibrate", run).status == 0
    before = (run / "calibration.safetensors").read_bytes()
    (run / "calibration-earlier").touch()
    answer = vje("calibrate", run, "--data", pictures)
    assert answer.status == 2 and "move calibration.safetensors away yourself" in answer.err
    assert "nll of 12 images" in answer.out and (run / "calibration.safetensors").read_bytes() == before


def test_the_earlier_calibration_of_a_model_file_is_beside_it(vje, run: Path, pictures: Path) -> None:
    for suffix in ("safetensors", "json"):
        (run / f"model.{suffix}").rename(run.parent / f"birds.{suffix}")
    model = run.parent / "birds.safetensors"
    for images in (run.parent / "set.npz", pictures):
        assert vje("calibrate", model, "--data", images).status == 0
    (kept,) = (run.parent / "birds.calibration-earlier").glob("*/birds.calibration.safetensors")
    assert len(Calibration.read(kept).scores) == 60


def test_stale_calibration_is_refused(vje, run: Path, pictures: Path, save_untrained) -> None:
    assert vje("calibrate", run).status == 0
    save_untrained(run, seed=1)
    answer = vje("score", run, pictures)
    assert answer.status == 2 and "vje calibrate" in answer.err and answer.out == ""
    assert vje("calibrate", run).status == 0
    assert vje("score", run, pictures).status == 0


def test_views_are_those_of_the_calibration(vje, run: Path, photos: Path, tmp_path: Path) -> None:
    assert vje("calibrate", run, "--views", "ten").status == 0
    out = tmp_path / "scores.csv"
    assert vje("score", run, photos, "--out", out).status == 0
    ten = ImageDetector.from_run(run, "cpu", calibrated=False, views="ten")
    with out.open() as stream:
        row = next(row for row in csv.DictReader(stream) if not row["error"])
    assert float(row["nll"]) == pytest.approx(float(ten.score([row["file"]])["nll"]), rel=1e-4)
    answer = vje("score", run, photos, "--views", "one")
    assert answer.status == 2 and "was made with views 'ten'" in answer.err
    assert "`vje calibrate RUN --views one`" in answer.err
