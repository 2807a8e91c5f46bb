import csv
import math
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image

import vje.ood
from vje.cli import calibrate, score
from vje.cli.score import Options
from vje.cli.score_job import ScoringJob
from vje.data.folders import scan_folder
from vje.data.sources import ArraySource
from vje.errors import UserError
from vje.evaluation.features import weights_fingerprint
from vje.methods.vje import VJE
from vje.ood import detector as module
from vje.ood.conformal import Calibration
from vje.ood.detector import COLUMNS, SCORES, ImageDetector, calibration_file
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
    return a.keys() == b.keys() and all(
        torch.allclose(a[k].double(), b[k].double(), rtol=1e-4, equal_nan=True) for k in a
    )


def test_public_name() -> None:
    assert vje.ood.Detector is ImageDetector
    assert "Detector" in dir(vje.ood)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = vje.ood.Nothing


def test_scores_are_the_models(run: Path) -> None:
    detector = vje.ood.Detector.from_run(run, device="cpu")
    images = torch.from_numpy(pixels(5))
    found = detector.score(images)
    assert tuple(found) == (*COLUMNS, "p_value", "outlier")
    assert close({name: found[name] for name in COLUMNS}, detector.model.score(images))


def test_what_is_calibratable_and_in_which_direction() -> None:
    assert set(SCORES) == set(COLUMNS) - {"cosine_mean_z"}
    assert {name for name, sign in SCORES.items() if sign < 0} == {"kl", "anisotropy"}
    choices = get_args(get_type_hints(calibrate.Options)["score"])  # spelled out there, as torch is not imported
    assert score.SCORES == COLUMNS and set(choices) == set(SCORES)


def test_without_a_calibration_nothing_is_an_outlier(run: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    batch = next(iter(detector.stream(ArraySource(pixels(5).transpose(0, 2, 3, 1)))))
    for found in (detector.score(pixels(5)), batch.scores):
        assert found["p_value"].dtype == torch.float64 and found["p_value"].isnan().tolist() == [True] * 5
        assert found["outlier"].dtype == torch.bool and found["outlier"].tolist() == [False] * 5
    detector.calibrate(pixels(9, seed=1))
    found = detector.score(pixels(5))
    assert tuple(found) == (*COLUMNS, "p_value", "outlier") and not found["p_value"].isnan().any()


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_command_line_leaves_empty_what_is_unknown(run: Path, tmp_path: Path, calibrated: bool) -> None:
    """Not NaN and False: cells of a CSV file that are empty, nulls of a Parquet file."""
    options = Options(run, ("images",), tmp_path / "scores.csv")
    source, detector = ArraySource(pixels(3).transpose(0, 2, 3, 1)), ImageDetector.from_run(run, "cpu")
    if calibrated:
        detector.calibrate(pixels(9, seed=1))
    job = ScoringJob(options, source, detector)
    job.score()
    rows = list(csv.DictReader(options.out.open(newline="")))
    assert len(rows) == 3 and all(math.isfinite(float(row[name])) for row in rows for name in COLUMNS)
    assert [bool(row["p_value"]) for row in rows] == [bool(row["outlier"]) for row in rows] == [calibrated] * 3
    values = [dict(zip(options.columns, row, strict=True)) for rows in job._scored(range(3)) for _, row in rows]
    assert [(row["p_value"] is None, row["outlier"] is None) for row in values] == [(not calibrated,) * 2] * 3


def test_either_order_of_channels_and_single_images(run: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    first = pixels(6)
    last = np.ascontiguousarray(first.transpose(0, 2, 3, 1))
    expected = detector.score(first)
    for batch in (last, torch.from_numpy(last), first.transpose(0, 2, 3, 1)):
        assert close(detector.score(batch), expected)
    tensors, arrays = list(torch.from_numpy(first)), list(last)
    mixed = [tensors[0], arrays[1], Image.fromarray(arrays[2]), *first[3:5], torch.from_numpy(arrays[5])]
    for items in (tensors, arrays, list(first), tuple(tensors), mixed):
        assert close(detector.score(items), expected)
    one = {name: x[1:2] for name, x in expected.items()}
    for image in (first[1], last[1], tensors[1], torch.from_numpy(last[1]), [last[1]], Image.fromarray(last[1])):
        assert close(detector.score(image), one)


def test_grey_and_transparent_arrays_and_several_sizes(run: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    grey, clear = pixels(2)[:, :1], np.concatenate([pixels(2), pixels(2, seed=1)[:, :1]], 1)
    for batch in (grey, clear):
        expected = detector.score(batch)
        for same in (batch.transpose(0, 2, 3, 1), list(batch), list(batch.transpose(0, 2, 3, 1))):
            assert close(detector.score(same), expected)
    assert close(detector.score(clear), detector.score([Image.fromarray(x.transpose(1, 2, 0)) for x in clear]))
    sizes = [pixels(1, side=side)[0] for side in (8, 11, 20)]
    expected = [float(detector.score(x)["nll"]) for x in sizes]
    assert detector.score(sizes)["nll"].tolist() == pytest.approx(expected, rel=1e-4)
    long = pixels(1, side=24)[0][:, :5]  # which Pillow resizes, alone or in a batch
    assert close(detector.score([long]), detector.score(long))


def test_channels_first_wins(run: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    either = pixels(2, side=3)  # [2, 3, 3, 3]
    expected = detector.score([Image.fromarray(x.transpose(1, 2, 0)) for x in either])
    assert close(detector.score(either), expected)
    assert close(detector.score(list(either)), expected)


def test_calibration_takes_what_score_takes(run: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    first = pixels(10)
    last = np.ascontiguousarray(first.transpose(0, 2, 3, 1))
    expected = detector.calibrate(first)
    assert detector.calibrate(last).fingerprint == expected.fingerprint
    for images in (last, torch.from_numpy(last), list(first), list(torch.from_numpy(last)), [*first[:5], *last[5:]]):
        assert np.allclose(detector.calibrate(images).scores, expected.scores, rtol=1e-4)
    for one in (first[0], last[0], Image.fromarray(last[0])):
        assert detector.calibrate(one).scores.tolist() == pytest.approx([float(detector.score(one)["nll"])], rel=1e-4)
    for wrong in (first / 255, [first[0] / 255], first[:, 0], [first], [1, 2]):
        with pytest.raises(UserError, match=r"images (must be|are) uint8"):
            detector.calibrate(wrong)
    for nothing in ([], first[:0]):
        with pytest.raises(UserError, match="no images"):
            detector.calibrate(nothing)


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


@pytest.mark.parametrize(("score", "sign"), [("nll", 1), ("variance", 1), ("neg_kl", 1), ("kl", -1)])
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
    model.inference.mean.bias.data.fill_(math.nan)
    detector = ImageDetector(model, Calibration(np.arange(39.0), "nll", "", "", weights_fingerprint(model)))
    found = detector.score(pixels(2))
    assert found["p_value"].tolist() == [1 / 40] * 2 and found["outlier"].all()
    with pytest.raises(UserError, match="2 of 2 calibration scores are NaN"):
        detector.calibrate(pixels(2))


def test_mistakes_are_explained(run: Path, tmp_path: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    remedy = r"got {} of shape \[{}\]: multiply floats in \[0, 1\] by 255, round them and convert them to uint8"
    floats = torch.rand(2, 3, 8, 8)
    for wrong, kind, shape in (
        (floats, "float32", "2, 3, 8, 8"),
        (floats.bfloat16(), "bfloat16", "2, 3, 8, 8"),
        (floats.double().numpy(), "float64", "2, 3, 8, 8"),
        (list(floats), "float32", "3, 8, 8"),
        (floats[0].numpy(), "float32", "3, 8, 8"),
        (pixels(2).astype(np.int64), "int64", "2, 3, 8, 8"),
    ):
        with pytest.raises(UserError, match=remedy.format(kind, shape)) as error:
            detector.score(wrong)
        assert len(str(error.value)) < 200
    for wrong in (pixels(2)[:, 0], pixels(2)[0, 0], pixels(2)[:, :2, 0], np.array(1, np.uint8)):
        with pytest.raises(
            UserError, match=r"must be uint8 \[B, C, H, W\] or \[B, H, W, C\], or one image .* got shape"
        ):
            detector.score(wrong)
    for wrong in ([pixels(2)], [pixels(2)[0, 0]], list(pixels(2)[:, 0])):
        with pytest.raises(UserError, match=r"must be uint8 \[C, H, W\] or \[H, W, C\] .* got shape"):
            detector.score(wrong)
    for wrong, kind in (([1, 2], "int"), (None, "NoneType"), (pixels(2).tolist(), "list"), ([b"a.png"], "bytes")):
        with pytest.raises(UserError, match=f"or a list of these; got one of type {kind}"):
            detector.score(wrong)
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


@pytest.mark.parametrize("views", ["one", "ten"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_scores_of_no_image_are_empty(run: Path, calibrated: bool, views: str) -> None:
    detector = ImageDetector.from_run(run, "cpu", views=views)
    if calibrated:
        detector.calibrate(pixels(9, seed=1))
    some = detector.score(pixels(1), explain=True)
    for nothing in ([], (), np.zeros((0, 3, 8, 8), np.uint8), torch.zeros(0, 8, 8, 3, dtype=torch.uint8)):
        found = detector.score(nothing, explain=True)
        assert {name: (x.dtype, (0, *x.shape[1:])) for name, x in some.items()} == {
            name: (x.dtype, tuple(x.shape)) for name, x in found.items()
        }
        with pytest.raises(UserError, match="no images"):
            detector.calibrate(nothing)


def test_a_detector_says_what_it_is(run: Path) -> None:
    detector = ImageDetector.from_run(run, "cpu")
    assert repr(detector) == "Detector(vje, D = 256, no calibration)"
    detector.calibrate(pixels(9), "kl", "photos")
    assert repr(detector) == "Detector(vje, D = 256, kl of 9 images of photos)"


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


def test_views_of_no_name_are_refused() -> None:
    for views in ("Ten", "none", None):
        with pytest.raises(UserError, match="views must be one of one, mirror, ten"):
            ImageDetector(make_model(), views=views)  # type: ignore[arg-type]


def test_a_model_that_was_trained_on_is_evaluated_all_the_same() -> None:
    detector, images = ImageDetector(make_model()), pixels(20)
    expected = detector.score(images)
    detector.model.train()
    assert close(detector.score(images), expected)
    assert close(detector.score(images[:3]), {name: x[:3] for name, x in expected.items()})


def test_p_values_of_other_weights_than_were_calibrated_are_refused() -> None:
    detector, images = ImageDetector(make_model()), pixels(20)
    detector.calibrate(images)
    expected = detector.score(images)
    with pytest.raises(UserError, match="of other weights"):
        ImageDetector(make_model(seed=1), detector.calibration).score(images)
    with torch.no_grad():
        weight = next(detector.model.inference.parameters())
        weight.mul_(2)
        with pytest.raises(UserError, match="of other weights than the model has now"):
            detector.score(images)
        weight.div_(2)  # as they were
    assert close(detector.score(images), expected)
    detector.model.double().float()  # other memory, the same weights
    assert close(detector.score(images), expected)


def test_a_model_made_without_gradients_for_good_can_be_calibrated() -> None:
    with torch.inference_mode():
        detector = ImageDetector(make_model())
        detector.calibrate(pixels(20))
        assert detector.score(pixels(5))["p_value"].isfinite().all()
