"""The benchmark runs; how fast is for a GPU to say."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # the benchmark changes it for the whole process
    return importlib.import_module("speed")


def test_smoke_run_measures_both_recipes(
    speed: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as if lightly were not installed
    speed.main(["--smoke", "--out", str(tmp_path / "speed.json")])

    assert "lightly is not installed" in capsys.readouterr().out
    report = json.loads((tmp_path / "speed.json").read_text())
    assert report["data"] == "random"
    assert report["command"].startswith("python benchmarks/speed.py --smoke")
    assert report["packages"]["torch"] is not None
    assert [result["name"] for result in report["results"]] == ["cifar10/eager", "cifar10-ema/eager"]
    for result in report["results"]:
        assert len(result["windows"]) == 2
        assert 0 < result["lowest"] <= result["images_per_second"] <= result["highest"]
        assert result["first_step_seconds"] > 0


def test_cases_in_processes_of_their_own_take_turns(speed: ModuleType, tmp_path: Path) -> None:
    speed.main(["--smoke", "--together", "--only", "cifar10", "--out", str(tmp_path / "speed.json")])
    (result,) = json.loads((tmp_path / "speed.json").read_text())["results"]
    assert (result["name"], len(result["windows"])) == ("cifar10/eager", 2)


def test_lightly_runs_where_it_is_installed(speed: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightly")
    speed.main(["--smoke", "--only", "lightly"])
    assert "lightly/end-to-end" in capsys.readouterr().out


def test_unknown_case_is_refused_with_the_known_ones(speed: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        speed.main(["--smoke", "--only", "cifar11"])
    assert "no case is called cifar11; choose from cifar10" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(speed: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        speed.main([])
    assert "no CUDA GPU" in capsys.readouterr().err


def test_scoring_smoke_run_tells_decoding_from_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    scoring = importlib.import_module("scoring")
    scoring.main(["--smoke", "--device", "cpu", "--repeats", "1", "--out", str(tmp_path / "scoring.json")])

    report = json.loads((tmp_path / "scoring.json").read_text())
    (result,) = report["results"]
    assert result["files"] == 24
    assert min(result["decode"], result["model"], result["stream"]) > 0
