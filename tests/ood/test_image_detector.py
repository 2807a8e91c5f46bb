import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vje.ood
from vje.data.folders import scan_folder
from vje.data.sources import ArraySource
from vje.errors import UserError
from vje.methods.vje import VJE
from vje.ood import detector as module
from vje.ood.conformal import Calibration
from vje.ood.detector import COLUMNS, ImageDetector, calibration_file
from vje.preprocessing import Preprocessing


def pixels(count: int, seed: int = 0, side: int = 8) -> np.ndarray:
    """Images of random brightness and noise, uint8 [N, 3, side, side]."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 64, (count, 3, side, side)) + rng.integers(0, 190, (count, 1, 1, 1))).astype(np.uint8)


def make_model(seed: int = 0, size: int = 8, crop: int = 8) -> VJE:
    torch.manual_seed(seed)
    return VJE("resnet8", preprocessing=Preprocessing(size, crop, 3, [0.5] * 3, [0.25] * 3)).eval()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_model().save(tmp_path / "run")
    return tmp_path / "run"


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[k].double(), b[k].double(), rtol=1e-4) for k in a)


def test_public_name() -> None:
    assert vje.ood.Detector is ImageDetector
    assert "Detector" in dir(vje.ood)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = vje.ood.Nothing


def test_scores_are_the_models(run: Path) -> None:
    detector = vje.ood.Detector.from_run(run, device="cpu")
    images = torch.from_numpy(pixels(5))
    found = detector.score(images)
    assert tuple(found) == COLUMNS
    assert close(found, detector.model.score(images))


def test_every_kind_of_input_gives_the_same(run: Path, tmp_path: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    array = pixels(6)
    pictures = [Image.fromarray(x.transpose(1, 2, 0)) for x in array]
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    expected = detector.score(torch.from_numpy(array))
    assert close(detector.score(array), expected)
    assert close(detector.score(pictures), expected)
    assert close(detector.score(paths), expected)
    mixed = [str(paths[0]), pictures[1], paths[0]]
    assert detector.score(mixed)["nll"].tolist() == pytest.approx(expected["nll"][[0, 1, 0]].tolist(), rel=1e-4)
    assert detector.score(str(paths[2]))["nll"].tolist() == pytest.approx([float(expected["nll"][2])], rel=1e-4)


def test_resize_and_crop_are_those_of_files(tmp_path: Path) -> None:
    detector = ImageDetector(make_model(size=10, crop=8))
    array = pixels(3, side=20)
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for x, path in zip(array, paths, strict=True):
        Image.fromarray(x.transpose(1, 2, 0)).save(path)
    assert close(detector.score(array), detector.score(paths))
    assert close(detector.score([Image.open(path) for path in paths]), detector.score(paths))


def test_orientation_and_colour_modes(run: Path, tmp_path: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    upright = Image.fromarray(pixels(1)[0].transpose(1, 2, 0))
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 270 degrees to see it upright
    turned.save(tmp_path / "phone.png", exif=exif)
    expected = detector.score([upright])
    assert close(detector.score([tmp_path / "phone.png"]), expected)
    assert close(detector.score([Image.open(tmp_path / "phone.png")]), expected)
    assert close(detector.score([upright.convert("RGBA")]), expected)
    grey = upright.convert("L")
    assert close(detector.score([grey]), detector.score([grey.convert("RGB")]))


def test_batches_do_not_matter(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    detector.calibrate(pixels(30, seed=1))
    array = pixels(7)
    expected = detector.score(array, explain=True)
    monkeypatch.setattr(module, "BATCH", 3)
    assert close(detector.score(array, explain=True), expected)
    assert close(detector.score([Image.fromarray(x.transpose(1, 2, 0)) for x in array], explain=True), expected)


def test_contributions_sum_to_the_directional_part(run: Path) -> None:
    found = ImageDetector.from_run(run, "cpu").score(pixels(4), explain=True)
    assert found["contributions"].shape == (4, 256)
    assert torch.allclose(found["contributions"].sum(1), found["nll_directional"], rtol=1e-4)


@pytest.mark.parametrize(("score", "sign"), [("nll", 1), ("variance", 1), ("kl", -1)])
def test_p_values_equal_brute_force(run: Path, score: str, sign: int) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    calibration, new = pixels(40, seed=1), np.concatenate([pixels(20), pixels(40, seed=1)[:5]])
    held_out = (sign * detector.score(calibration)[score]).tolist()
    assert detector.calibrate(calibration, score).scores.tolist() == sorted(held_out)
    detector.save_calibration()

    found = ImageDetector.from_run(run, "cpu").score(new, alpha=0.25)
    expected = [(1 + sum(c >= s for c in held_out)) / 41 for s in (sign * found[score]).tolist()]
    assert found["p_value"].tolist() == expected
    assert found["outlier"].tolist() == [p <= 0.25 for p in expected]
    assert 0 < found["outlier"].sum() < len(new)


def test_calibration_from_sources_folders_and_pictures(run: Path, tmp_path: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    array = pixels(10)
    folder = tmp_path / "birds"
    folder.mkdir()
    for i, x in enumerate(array):
        Image.fromarray(x.transpose(1, 2, 0)).save(folder / f"{i}.png")
    (folder / "torn.png").write_bytes(b"\x89PNG")
    source = ArraySource(array.transpose(0, 2, 3, 1), name="birds")
    seen: list[tuple[int, int]] = []
    expected = detector.calibrate(source, batch_size=4, report=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 10), (8, 10), (10, 10)]
    assert (expected.data, expected.fingerprint) == ("birds", source.fingerprint())
    for images in (folder, scan_folder(folder), [Image.open(folder / f"{i}.png") for i in range(10)]):
        assert np.allclose(detector.calibrate(images).scores, expected.scores, rtol=1e-4)


def test_stale_or_damaged_calibration_is_refused(run: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    detector.calibrate(pixels(10))
    file = detector.save_calibration()
    assert file == run / "calibration.safetensors"
    make_model(seed=1).save(run)
    with pytest.raises(UserError, match=r"belongs to other weights.*vje calibrate"):
        ImageDetector.from_run(run, "cpu")
    assert ImageDetector.from_run(run, "cpu", calibrated=False).calibration is None
    file.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read as a calibration"):
        ImageDetector.from_run(run, "cpu")


def test_calibration_is_beside_the_model(tmp_path: Path) -> None:
    assert calibration_file(tmp_path) == tmp_path / "calibration.safetensors"
    assert calibration_file(tmp_path / "model.safetensors") == tmp_path / "calibration.safetensors"
    file = make_model().save(tmp_path / "birds.safetensors")
    detector = ImageDetector.from_run(file, "cpu")
    detector.calibrate(pixels(4))
    assert detector.save_calibration() == tmp_path / "birds.calibration.safetensors"
    assert ImageDetector.from_run(file, "cpu").calibration is not None


def test_a_score_that_is_not_a_number_is_an_outlier() -> None:
    model = make_model()
    detector = ImageDetector(model, Calibration(np.arange(39.0), "nll", "", "", ""))
    model.inference.mean.bias.data.fill_(math.nan)
    found = detector.score(pixels(2))
    assert found["p_value"].tolist() == [1 / 40] * 2 and found["outlier"].all()
    with pytest.raises(UserError, match="2 of 2 calibration scores are NaN"):
        detector.calibrate(pixels(2))


def test_mistakes_are_explained(run: Path, tmp_path: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    for wrong in (np.zeros((2, 8, 8, 3), np.uint8), torch.zeros(2, 3, 8, 8), np.zeros((3, 8, 8), np.uint8)):
        with pytest.raises(UserError, match=r"must be uint8 \[B, C, H, W\], got"):
            detector.score(wrong)
    for nothing in ([], np.zeros((0, 3, 8, 8), np.uint8)):
        with pytest.raises(UserError, match="no images to score"):
            detector.score(nothing)
    with pytest.raises(UserError, match="no such file"):
        detector.score([tmp_path / "gone.png"])
    with pytest.raises(UserError, match="no score 'beauty'"):
        detector.calibrate(pixels(2), score="beauty")
    with pytest.raises(UserError, match="call calibrate first"):
        detector.save_calibration()
    with pytest.raises(UserError, match="between 0 and 1"):
        detector.score(pixels(2), alpha=5)
    with pytest.raises(UserError, match="no preprocessing"):
        ImageDetector(VJE("resnet8"))


def test_scores_over_several_views_are_means(run: Path) -> None:
    images = torch.from_numpy(pixels(4))
    one = ImageDetector.from_run(run, "cpu")
    both = ImageDetector.from_run(run, "cpu", views="mirror")
    parts = [one.score(x, explain=True) for x in (images, images.flip(-1))]
    expected = {k: (parts[0][k] + parts[1][k]) / 2 for k in parts[0]}
    z = torch.stack([one.model.embed(x) for x in (images, images.flip(-1))]).detach()
    expected["neg_elbo"] = one.model.view_scores(z)["neg_elbo"]  # of each under the other
    assert close(both.score(images, explain=True), expected)
    ten = ImageDetector.from_run(run, "cpu", views="ten").score(images)
    assert close(ten, ImageDetector.from_run(run, "cpu", views="ten").score(images.flip(-1)))  # ten crops are symmetric
    assert not close(ten, one.score(images))


def test_a_calibration_brings_its_views(run: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu", views="ten")
    detector.calibrate(pixels(30, 1))
    detector.save_calibration()
    again = ImageDetector.from_run(run, "cpu")
    assert again.views == "ten"
    assert close(again.score(pixels(5)), detector.score(pixels(5)))
    with pytest.raises(UserError, match=r"was made with views 'ten': use these, or calibrate again"):
        ImageDetector.from_run(run, "cpu", views="one")
    assert ImageDetector.from_run(run, "cpu", calibrated=False, views="one").views == "one"
