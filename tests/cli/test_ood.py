import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

import vje
from vje.cli.main import main
from vje.cli.ood import Options
from vje.cli.ood_sets import open_sets
from vje.cli.subject import run_config
from vje.config import to_dict
from vje.data.registry import open_data
from vje.errors import UserError
from vje.evaluation.features import Features
from vje.methods import find_method
from vje.preprocessing import Preprocessing
from vje.recipes import load_recipe
from vje.runs import RunFolder

SETS = {"cifar100": (24, 2), "tin": (9, 0), "svhn": (7, 0), "textures": (5, 0)}


def pixels(count: int, seed: int, side: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def make_run(
    path: Path, data_dir: Path, seed: int, method: str = "vje", data: str = "cifar10", batch: int = 256
) -> Path:
    """An untrained model in the folder of a run on (very small) CIFAR-10."""
    recipe = load_recipe("digits" if method == "vje" else f"digits-{method}")
    config = replace(
        recipe,
        data=replace(recipe.data, data=data, data_dir=data_dir),
        optimizer=replace(recipe.optimizer, batch=batch),
        run=replace(recipe.run, seed=seed),
    )
    folder = RunFolder.create(path)
    folder.write("config", to_dict(config))
    folder.write("data", {"held_out": None, "fingerprint": ""})
    torch.manual_seed(seed)
    preprocessing = Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3)
    find_method(method)("resnet8", preprocessing=preprocessing).eval().save(path)
    return path


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    labels = np.arange(1100) % 10  # 100 of each class are validation
    np.savez(
        folder / "cifar10.npz",
        train_images=pixels(60, 0),
        train_labels=np.arange(60) % 10,
        test_images=pixels(1100, 1),
        test_labels=labels,
    )
    for seed, (name, (count, classes)) in enumerate(SETS.items()):
        arrays = {"test_images": pixels(count, seed + 5, side=12 if name == "tin" else 8)}
        if classes:
            arrays["test_labels"] = np.arange(count) % classes
        if name == "tin":
            arrays["val_images"] = pixels(20, 99, side=12)
        np.savez(folder / f"{name}.npz", **arrays)

    def no_network(*_: object) -> None:
        from vje.errors import UserError

        raise UserError("no network here")

    monkeypatch.setattr("vje.data.registry._download", no_network)
    return folder


@pytest.fixture(autouse=True)
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds: one test draws them, the others only leave the files."""
    if request.node.name != "test_benchmark_writes_every_score_and_names_what_is_missing":
        for name in ("save_roc", "save_densities"):
            monkeypatch.setattr(f"vje.reporting.ood.{name}", lambda file, *_: file.write_bytes(b"a figure"))


def test_benchmark_writes_every_score_and_names_what_is_missing(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", data_dir, 0)
    assert main(["ood", str(run), "--device", "cpu", "--samples", "2"]) == 0
    printed = capsys.readouterr().out
    result = json.loads((run / "ood.json").read_text())
    assert result["counts"] == {"id": 100, "cifar100": 4, "tin": 9, "svhn": 7, "textures": 5}
    assert set(result["partial"]) == {"id", *SETS}
    assert result["missing"] == {"far": ["mnist", "places"]}
    assert "† not the protocol's mean: without mnist, places" in printed
    assert "in-distribution cifar10* (100 images)" in printed and all(f"{name}*" in printed for name in SETS)
    assert "own image list (other counts): cifar10, cifar100, tin, svhn, textures\n" in printed
    k, whole, classes, react = printed.partition("chosen on validation images: ")[2].splitlines()[0].split(", ")
    tuned, kinds = result["tuned"], ["features", "directions"]
    assert (k, react) == (f"k-NN distance k = {tuned['knn']:g}", f"ReAct percentile {tuned['react']:g}")
    assert whole == f"Mahalanobis of {kinds[int(tuned['mahalanobis'])]}"
    assert classes == f"Mahalanobis (classes) of {kinds[int(tuned['mahalanobis_class'])]}"
    assert "far†" in printed and "avg†" in printed and "near†" not in printed
    assert {"nll", "nll_mc", "knn", "mahalanobis", "msp", "vim"} <= result["scores"].keys()
    near = np.mean([result["scores"]["nll"][name]["auroc"] for name in ("cifar100", "tin")])
    far = np.mean([result["scores"]["nll"][name]["auroc"] for name in ("svhn", "textures")])
    summary = result["summary"]["nll"]
    assert (summary["near"], summary["far"], summary["avg"]) == pytest.approx((near, far, (near + far) / 2))
    assert set(result["tuned"]) == {"knn", "mahalanobis", "mahalanobis_class", "react"}
    assert "mnist is left out" in printed and "places is left out" in printed
    assert result["classifier"] == "fitted" and "MSP (fitted classifier)" in printed
    assert (run / "ood-roc.png").stat().st_size > 0 and (run / "ood-nll.png").stat().st_size > 0


def test_several_runs_give_mean_and_deviation(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / f"run{seed}", data_dir, seed) for seed in (0, 1)]
    out = tmp_path / "both.json"
    assert main(["ood", *map(str, runs), "--no-detectors", "--device", "cpu", "--out", str(out)]) == 0
    values = [json.loads((run / "ood.json").read_text())["summary"]["nll"]["near"] for run in runs]
    written = json.loads(out.read_text())
    assert written["counts"] == {"id": 100, "cifar100": 4, "tin": 9, "svhn": 7, "textures": 5}
    assert [json.loads((run / "ood.json").read_text())["seed"] for run in runs] == [0, 1]
    leaf = written["summary"]["nll"]["near"]
    assert leaf == pytest.approx({"mean": np.mean(values), "std": np.std(values, ddof=1)})
    printed = capsys.readouterr().out
    assert "±" in printed and "differ" not in printed and "each counts" not in printed
    shutil.copytree(runs[0], tmp_path / "copy")
    assert main(["ood", *map(str, [*runs, tmp_path / "copy"]), "--no-detectors", "--device", "cpu"]) == 0
    assert f"each counts, though seed 0 is the same: {runs[0]}, {tmp_path / 'copy'}" in capsys.readouterr().out
    assert "classifier" not in json.loads((runs[0] / "ood.json").read_text())
    assert "nll" in written["scores"] and "nll_mc" not in written["scores"]  # sampled only if asked for


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vje.environment.commit", lambda: "0123abc")
    run = make_run(tmp_path / "run", data_dir, 0)

    def measure(*options: str) -> bool:
        """Whether the stored result was used."""
        assert main(["ood", str(run), "--no-detectors", "--device", "cpu", *options]) == 0
        printed = capsys.readouterr().out
        assert "NLL" in printed
        return "was measured before" in printed

    assert not measure()
    first = (run / "ood.json").read_bytes()
    assert measure() and (run / "ood.json").read_bytes() == first
    (run / "ood-roc.png").unlink()
    assert not measure() and (run / "ood-roc.png").exists()  # a figure is missing
    assert not measure("--samples", "1")  # other options
    np.savez(data_dir / "svhn.npz", test_images=pixels(7, 50))
    assert not measure("--samples", "1")  # other images
    torch.manual_seed(1)
    find_method("vje")("resnet8", preprocessing=Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3)).eval().save(run)
    assert not measure("--samples", "1") and measure("--samples", "1")  # other weights
    for code in ("4567def", "4567def-changed", "4567def-changed", None, None):
        monkeypatch.setattr("vje.environment.commit", lambda code=code: code)
        assert not measure("--samples", "1")  # other code, or who knows


def test_mirrored_scores_are_means_over_the_image_and_its_mirror_image(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same benchmark on images that were mirrored by hand gives the other half of each mean."""
    run = make_run(tmp_path / "run", data_dir, 0)
    found = vje.load(run)

    def nll(images: np.ndarray) -> np.ndarray:
        planes = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
        return found.score(planes)["nll"].double().numpy()

    def both(images: np.ndarray) -> np.ndarray:
        return (nll(images) + nll(images[:, :, ::-1])) / 2

    with np.load(data_dir / "cifar10.npz") as content:
        inside = content["test_images"][1000:]  # the first 100 of each class are validation
    with np.load(data_dir / "svhn.npz") as content:
        outside = content["test_images"]
    assert main(["ood", str(run), "--device", "cpu", "--views", "mirror"]) == 0
    result = json.loads((run / "ood.json").read_text())["scores"]
    assert {f"{name}_mirror" for name in result if not name.endswith("_mirror")} <= result.keys()
    labels = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    for name, score in (("nll", nll), ("nll_mirror", both)):
        expected = roc_auc_score(labels, np.r_[score(inside), score(outside)])
        assert result[name]["svhn"]["auroc"] == pytest.approx(100 * expected, abs=1e-9)
    assert "NLL, mirrored too" in capsys.readouterr().out


def test_the_recipe_says_which_views_are_scored(tmp_path: Path, data_dir: Path) -> None:
    run = make_run(tmp_path / "run", data_dir, 0)
    config = json.loads((run / "config.json").read_text())
    config["run"]["ood_views"] = "mirror"
    (run / "config.json").write_text(json.dumps(config))

    def names(*options: str) -> set[str]:
        assert main(["ood", str(run), "--device", "cpu", "--no-detectors", *options]) == 0
        return set(json.loads((run / "ood.json").read_text())["scores"])

    whole = names("--views", "one")
    assert names() == whole | {f"{name}_mirror" for name in whole}
    del config["run"]["ood_views"]  # as in folders of earlier versions
    (run / "config.json").write_text(json.dumps(config))
    assert names() == whole


def test_a_supervised_run_has_a_classifier_of_its_own(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", data_dir, 0, method="supervised")
    assert main(["ood", str(run), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert json.loads((run / "ood.json").read_text())["classifier"] == "own"
    titles = json.loads((run / "ood-curves.json").read_text())["titles"]
    assert [titles[name] for name in ("msp", "vim")] == ["MSP (own classifier)", "ViM (own classifier)"]
    assert "energy (own classifier)" in printed and "probe" not in printed


def test_without_detectors_a_method_needs_scores_of_its_own(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", data_dir, 0, method="simsiam")
    assert main(["ood", str(run), "--no-detectors", "--device", "cpu"]) == 2
    assert "simsiam, which has no scores of its own: leave --no-detectors out" in capsys.readouterr().err
    assert not (run / "ood.json").exists() and not (run / "cache").exists()
    assert main(["ood", str(run), "--device", "cpu"]) == 0


@pytest.mark.parametrize("other", [{"method": "simsiam"}, {"data": "cifar100"}])
def test_runs_that_have_no_mean_are_refused(
    tmp_path: Path, data_dir: Path, other: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / "a", data_dir, 0), make_run(tmp_path / "b", data_dir, 1, **other)]
    assert main(["ood", *map(str, runs), "--device", "cpu"]) == 2
    message = capsys.readouterr().err
    assert f"different {next(iter(other))}" in message and next(iter(other.values())) in message
    assert f"`vje compare {runs[0]} {runs[1]}`" in message
    assert not any((run / "ood.json").exists() for run in runs)


def test_the_same_images_in_two_places_have_a_mean(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy" / "cifar10.npz"
    copy.parent.mkdir()
    shutil.copy(data_dir / "cifar10.npz", copy)
    runs = [make_run(tmp_path / "a", data_dir, 0), make_run(tmp_path / "b", data_dir, 1, data=str(copy))]
    words = ["ood", *map(str, runs), "--device", "cpu", "--no-detectors"]
    same = open_data("cifar10", data_dir).train.fingerprint()
    for prints, status in ((("", ""), 2), ((same, "another"), 2), ((same, same), 0)):
        for run, fingerprint in zip(runs, prints, strict=True):
            RunFolder(run).write("data", {"held_out": None, "fingerprint": fingerprint})
        assert main(words) == status
    printed = capsys.readouterr()
    assert printed.err.count("different data") == 2 and "2 runs" in printed.out and "Not only" not in printed.out


def test_runs_whose_sets_hold_different_images_are_refused(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = shutil.copytree(data_dir, tmp_path / "elsewhere")
    np.savez(elsewhere / "svhn.npz", test_images=pixels(7, 50))
    (elsewhere / "textures.npz").unlink()
    runs = [make_run(tmp_path / "a", data_dir, 0), make_run(tmp_path / "b", elsewhere, 1)]
    words = ["ood", *map(str, runs), "--device", "cpu", "--no-detectors"]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert f"{runs[0]} and {runs[1]} would be measured on different images (svhn, textures)" in message
    assert "--data-dir PATH" in message
    assert not any((run / name).exists() for run in runs for name in ("ood.json", "cache"))
    assert main([*words, "--data-dir", str(data_dir)]) == 0
    printed = capsys.readouterr().out
    assert "2 runs" in printed and printed.count("mnist is left out") == 2  # once a run


def test_without_any_set_it_is_said_how_to_get_them(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in SETS:
        (data_dir / f"{name}.npz").unlink()
    assert main(["ood", str(make_run(tmp_path / "run", data_dir, 0)), "--device", "cpu"]) == 2
    printed = capsys.readouterr()
    assert f"none of the benchmark's data sets is in {data_dir}; see above" in printed.err
    for name in (*SETS, "mnist", "places"):
        assert f"Put {name}.npz (array test_images) or a folder {name}/ into {data_dir}" in printed.out


def test_hyper_parameters_are_chosen_on_validation_images_of_both_kinds(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(make_run(tmp_path / "run", data_dir, 0))

    def validation() -> list[str] | None:
        found = open_sets(folder, run_config(folder, None, None), Options((folder.path,))).validation
        return None if found is None else [source.fingerprint() for source in found]

    inside = open_data("cifar10", data_dir).test.subset(range(1000))  # the first 100 of each class
    assert validation() == [inside.fingerprint(), open_data("tin", data_dir).val.fingerprint()]

    def enough(_: object, bank: Features, tuning: tuple[torch.Tensor, torch.Tensor], __: int) -> None:
        raise UserError(f"{len(bank.z)} to fit, {len(tuning[0])} inside, {len(tuning[1])} outside")

    monkeypatch.setattr("vje.ood.protocol.build_scorer", enough)
    assert main(["ood", str(folder.path), "--device", "cpu"]) == 2
    assert "60 to fit, 1000 inside, 20 outside" in capsys.readouterr().err
    np.savez(data_dir / "tin.npz", test_images=pixels(9, 5))
    assert validation() is None


def test_other_settings_are_said_and_a_folder_counts_once(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / "a", data_dir, 0), make_run(tmp_path / "b", data_dir, 0, batch=64)]
    out = tmp_path / "both.json"
    words = ["--no-detectors", "--device", "cpu", "--out", str(out)]
    assert main(["ood", *map(str, [*runs, runs[0]]), *words]) == 0
    said = capsys.readouterr().out
    assert f"The settings differ: {runs[1]} has batch 64" in said
    assert f"each counts, though seed 0 is the same: {runs[0]}, {runs[1]}" in said
    assert json.loads(out.read_text())["runs"] == [str(run) for run in runs]


def test_images_of_ones_own(tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", data_dir, 0)
    np.savez(tmp_path / "mine.npz", images=pixels(20, 3))
    np.savez(tmp_path / "other.npz", images=np.zeros((15, 8, 8, 3), np.uint8))
    words = ["--id", str(tmp_path / "mine.npz"), "--ood", f"black={tmp_path / 'other.npz'}"]
    assert main(["ood", str(run), *words, "--device", "cpu"]) == 0
    result = json.loads((run / "ood.json").read_text())
    assert result["counts"] == {"id": 20, "black": 15} and result["missing"] == {}
    assert set(result["summary"]["nll"]) == {"avg"}
    used = {"knn": 50, "mahalanobis": 1, "mahalanobis_class": 1, "react": 90.0}
    assert (result["tuned"], result["usual"]) == ({}, used)
    printed = capsys.readouterr().out
    values = "k-NN distance k = 50, Mahalanobis of directions, Mahalanobis (classes) of directions, ReAct percentile 90"
    assert f"the usual values, not chosen on validation images: {values}\n" in printed
    assert "\nchosen on" not in printed


def test_a_result_that_does_not_say_the_usual_values_is_shown(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", data_dir, 0)
    np.savez(tmp_path / "mine.npz", images=pixels(20, 3))
    words = ["--id", str(tmp_path / "mine.npz"), "--ood", f"black={tmp_path / 'mine.npz'}", "--device", "cpu"]
    assert main(["ood", str(run), *words]) == 0
    old = json.loads((run / "ood.json").read_text())
    del old["usual"]
    monkeypatch.setattr("vje.cli.ood_run._measured_already", lambda *_: old)
    capsys.readouterr()
    assert main(["ood", str(run), *words]) == 0
    printed = capsys.readouterr().out
    assert "was measured before" in printed and "usual values" not in printed


def test_files_that_cannot_be_read_are_named_and_not_counted(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", data_dir, 0)
    np.savez(tmp_path / "mine.npz", images=pixels(20, 3))
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, image in enumerate(pixels(5, 4)):
        Image.fromarray(image).save(folder / f"{number}.png")
    for name in ("6.png", "7.png"):
        (folder / name).write_text("no picture")
    words = ["--id", str(tmp_path / "mine.npz"), "--ood", f"mine={folder}", "--no-detectors"]
    assert main(["ood", str(run), *words, "--device", "cpu"]) == 0
    assert json.loads((run / "ood.json").read_text())["counts"] == {"id": 20, "mine": 5}
    said = capsys.readouterr().err
    assert "mine: left out, as they cannot be read: 6.png (" in said and "and 1 more" in said
    again = [*words[:3], f"a={folder}", f"a={folder}"]
    assert main(["ood", str(run), *again, "--device", "cpu"]) == 2
    assert "the name a is taken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--id", "x.npz"], "go together"),
        (["--ood", "a=x.npz"], "go together"),
        (["--id", "x.npz", "--ood", "nopath"], "NAME=PATH"),
        (["--id", "x.npz", "--ood", "id=x.npz"], "the name id is taken"),
        (["--samples", "-3"], "--samples must be at least 0, got -3"),
        (["--batch", "0"], "--batch must be at least 1, got 0"),
        (["--out", "mean.json"], "the result of one is in RUN/ood.json"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, data_dir: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", data_dir, 0)
    assert main(["ood", str(run), *words, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err
    assert not (run / "ood.json").exists()
