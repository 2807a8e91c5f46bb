"""What several tests need: a tiny data set, and the command line in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

# Before torch is imported: the tests are the parallel work, and threads of several of them would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest

hypothesis.settings.register_profile("vje", deadline=None)  # speed is not tested, least of all on a busy machine
hypothesis.settings.load_profile("vje")

SOURCE = Path(__file__).resolve().parents[1] / "src"


def write_tiny_npz(path: Path, train: int = 96, test: int = 32) -> Path:
    """Four classes of 8x8 RGB images, told apart by brightness, with labels."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split, count in (("train", train), ("test", test)):
        labels = np.arange(count) % 4
        noise = rng.integers(0, 64, (count, 8, 8, 3))
        arrays[f"{split}_images"] = (noise + 60 * labels[:, None, None, None]).astype(np.uint8)
        arrays[f"{split}_labels"] = labels
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def cli_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a child process: this source tree, as many threads as here, wide lines."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "400", **(extra or {})}


@pytest.fixture
def cli_env() -> Callable[..., dict[str, str]]:
    """``cli_env(extra=None)``: the environment of a child process."""
    return cli_environment


@pytest.fixture
def tiny_npz(tmp_path: Path) -> Path:
    """A ``.npz`` file of 96 training and 32 test images, 8x8 RGB, four classes."""
    return write_tiny_npz(tmp_path / "tiny.npz")


@pytest.fixture
def make_npz() -> Callable[..., Path]:
    """``make_npz(path, train=96, test=32)`` writes such a file of other numbers of images."""
    return write_tiny_npz


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs of four steps, with labels and an EMA target. Not to be changed: copy it."""
    from vje.cli.main import main

    folder = tmp_path_factory.mktemp("trained")
    data = write_tiny_npz(folder / "tiny.npz", train=32, test=12)
    options = ["--data", str(data), "--out", str(folder / "run"), "--device", "cpu", "--target", "ema", "--lr", "0.01"]
    assert main(["train", "digits", *options, "--batch", "8", "--epochs", "2", "--checkpoint-epochs", "1"]) == 0
    return folder / "run"


@pytest.fixture
def run_cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_cli(*arguments, env=None, timeout=120)`` runs ``vje`` in a process of its own and waits for it."""

    def run(
        *arguments: object, env: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vje", *map(str, arguments)]
        return subprocess.run(
            command, env=cli_environment(env), timeout=timeout, capture_output=True, text=True, check=False
        )

    return run
