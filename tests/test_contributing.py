"""The method that CONTRIBUTING shows is a working one: it is read from the page, trained, and evaluated."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

import vje.methods
import vje.recipes
from vje.cli.main import main
from vje.config import settings_type
from vje.methods import find_method
from vje.runs import RunFolder

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The method's file among the others, its recipe among theirs."""
    folder = tmp_path / "methods"
    folder.mkdir()
    (folder / "align_uniform.py").write_text(block("python"))
    (folder / "align-uniform.toml").write_text(block("toml"))
    monkeypatch.setattr(vje.methods, "__path__", [*vje.methods.__path__, str(folder)])
    read = vje.recipes._method_settings
    parse = vje.recipes._parse

    def settings(method: str) -> dict[str, object]:
        return parse(block("toml"), "the example") if method == "align-uniform" else read(method)

    monkeypatch.setattr(vje.recipes, "_method_settings", settings)
    settings_type.cache_clear()
    return tmp_path


def test_it_fits_on_a_page() -> None:
    lines = [line for line in block("python").splitlines() if line.strip()]
    assert len(lines) <= 40


def test_it_trains_resumes_and_is_evaluated(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = example / "run"
    options = ["--device", "cpu", "--epochs", "3", "--workers", "0", "--out", str(run)]
    assert main(["train", "digits", "--method", "align-uniform", *options]) == 0
    records = RunFolder.open(run).metrics()
    assert {"loss", "alignment", "uniformity"} <= records[-1].keys()
    assert records[-1]["loss"] < records[0]["loss"]
    assert records[-1]["knn"]["z"] > 50
    assert main(["evaluate", str(run), "--device", "cpu"]) == 0
    model = vje.load(run)
    assert model.hyperparameters() == {"width": 64}
    with pytest.raises(SystemExit):
        main(["train", "digits-align-uniform", "--help"])
    assert "Dimension of the projection" in capsys.readouterr().out


def test_its_loss_is_what_it_says(example: Path) -> None:
    module = vars(sys.modules[find_method("align-uniform").__module__])
    x = normalize(torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=1)
    pairs = [math.exp(-2 * float((x[i] - x[j]).square().sum())) for i in range(5) for j in range(i)]
    assert float(module["uniformity"](x)) == pytest.approx(math.log(sum(pairs) / len(pairs)))
    assert float(module["alignment"](x, -x)) == pytest.approx(4.0)


def test_its_two_files_are_all_that_is_needed(tmp_path: Path) -> None:
    """In a copy of the package: lint, types, and what the tests ask of every method."""
    package = tmp_path / "vje"
    shutil.copytree(vje.__path__[0], package, ignore=shutil.ignore_patterns("__pycache__"))
    method = package / "methods" / "align_uniform.py"
    method.write_text(block("python"))
    (package / "recipes" / "methods" / "align-uniform.toml").write_text(block("toml"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    of_all_methods = ["tests/methods/test_contract.py", "tests/experiments/test_declarations.py"]
    for tool in (
        ["ruff", "check", "--no-cache", "--config", "pyproject.toml", method],
        ["ruff", "format", "--no-cache", "--config", "pyproject.toml", "--diff", method],
        ["mypy", method],
        ["pytest", "-p", "no:cacheprovider", "-n", "0", *of_all_methods, "-k", "align-uniform or tables_of_methods"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *map(str, tool)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[1-9]\d passed", done.stdout), done.stdout
