"""Two real processes against one with the same global batch."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from vje.cli.main import main
from vje.runs import RunFolder


def train_in_two(environment, *arguments, timeout=150):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, "-m", "vje", "train", *map(str, arguments)]
    return subprocess.run(command, env=environment, timeout=timeout, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_train_as_one_would(accumulate, make_npz, tmp_path, cli_env):
    data = make_npz(tmp_path / "tiny.npz", train=48, test=12)
    options = ["digits", "--data", data, "--device", "cpu", "--target", "ema", "--normalization", "group"]
    options += ["--batch", 16, "--epochs", 3, "--accumulate", accumulate, "--workers", 0]
    environment = cli_env({"GLOO_SOCKET_IFNAME": "lo"}) if sys.platform == "linux" else cli_env()

    finished = train_in_two(environment, *options, "--out", tmp_path / "runs" / "two")
    assert finished.returncode == 0, finished.stderr
    assert main(["train", *map(str, options), "--out", str(tmp_path / "one")]) == 0

    two, one = RunFolder(tmp_path / "runs" / "two"), RunFolder(tmp_path / "one")
    assert two.read("environment")["processes"] == 2
    records = list(zip(two.metrics(), one.metrics(), strict=True))
    assert [record["step"] for record, _ in records] == [3, 6, 9]
    for ours, expected in records:
        for name in sorted(expected.keys() - {"images_per_second", "seconds", "elapsed", "knn"}):
            assert ours[name] == pytest.approx(expected[name], rel=1e-4), name
    weights, expected = load_file(two.model_file), load_file(one.model_file)
    assert weights.keys() == expected.keys()
    for name, x in expected.items():
        torch.testing.assert_close(weights[name], x, rtol=1e-4, atol=2e-5, msg=name)

    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["two"]  # one folder, one writer
    names = {path.name for path in two.path.rglob("*")}
    assert names == {path.name for path in one.path.rglob("*")}
    assert finished.stdout.count("run folder") == 1
    assert finished.stdout.count("epoch 3  loss") == 1
