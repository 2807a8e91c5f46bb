"""Two real processes against one with the same global batch."""

import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from vje.cli.console import TrainingDisplay
from vje.cli.main import main
from vje.runs import RunFolder

CLOCK = {"images_per_second", "seconds", "elapsed"}


@pytest.fixture
def options(make_npz, tmp_path):
    """Three epochs of three steps; group normalisation, whose statistics are each image's own."""
    data = make_npz(tmp_path / "tiny.npz", train=48, test=12)
    choices = ["--target", "ema", "--normalization", "group", "--batch", "16", "--epochs", "3", "--workers", "0"]
    return ["digits", "--data", str(data), "--device", "cpu", *choices]


@pytest.fixture
def train_in_two(cli_env):
    """``vje train`` with torchrun, which must succeed; returns what it printed."""

    def train(*arguments):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [sys.executable, *launcher, "-m", "vje", "train", *map(str, arguments)]
        environment = cli_env({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
        finished = subprocess.run(command, env=environment, timeout=200, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return train


def assert_agree(two, one):
    """Same records and weights, up to the order of sums."""
    records = list(zip(two.metrics(), one.metrics(), strict=True))
    assert [record["step"] for record, _ in records] == [3, 6, 9]
    for ours, expected in records:
        assert ours.keys() == expected.keys()
        for name in sorted(expected.keys() - CLOCK - {"knn"}):
            assert ours[name] == pytest.approx(expected[name], rel=1e-4), (ours["epoch"], name)
    weights, expected = load_file(two.model_file), load_file(one.model_file)
    assert weights.keys() == expected.keys()
    for name, x in expected.items():
        torch.testing.assert_close(weights[name], x, rtol=1e-4, atol=1e-5, msg=name)


def test_two_processes_train_as_one_would_and_one_can_take_over(options, train_in_two, tmp_path, capsys):
    options += ["--checkpoint-seconds", "0"]  # one after every step
    printed = train_in_two(*options, "--out", tmp_path / "runs" / "two")
    assert main(["train", *options, "--out", str(tmp_path / "one")]) == 0
    two, one = RunFolder(tmp_path / "runs" / "two"), RunFolder(tmp_path / "one")
    assert two.read("environment")["processes"] == 2
    assert_agree(two, one)

    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["two"]
    assert {path.name for path in two.path.rglob("*")} == {path.name for path in one.path.rglob("*")}
    assert printed.count("run folder") == 1  # one process speaks
    assert printed.count("epoch 3  loss") == 1

    (two.checkpoints / "step-000000009.safetensors").unlink()  # as if killed during the last step
    two.model_file.unlink()
    assert main(["train", "--resume", str(two.path)]) == 0
    assert "Resuming after step 8." in capsys.readouterr().out
    assert_agree(two, one)


def test_two_processes_finish_what_one_began_and_accumulate(options, train_in_two, tmp_path, monkeypatch):
    options += ["--accumulate", "2", "--clip-norm", "5"]
    assert main(["train", *options, "--out", str(tmp_path / "one")]) == 0

    told = TrainingDisplay.on_progress

    def interrupt(display, progress):
        told(display, progress)
        if (progress.epoch, progress.epoch_step) == (2, 2):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(TrainingDisplay, "on_progress", interrupt)
    assert main(["train", *options, "--out", str(tmp_path / "two")]) == 130
    printed = train_in_two("--resume", tmp_path / "two")
    assert printed.count("Resuming after step 5.") == 1
    assert_agree(RunFolder(tmp_path / "two"), RunFolder(tmp_path / "one"))
