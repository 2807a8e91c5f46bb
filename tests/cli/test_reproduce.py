"""``vje reproduce`` from end to end on a tiny grid, stopped in the middle and completed by a second call."""

import signal
import subprocess
import sys
import time

import pytest

from vje.runs import RunFolder, read_json

DECLARATION = """
about = "two tiny runs"
epochs = 1
seeds = 1
corner = "nu"

[[columns]]
name = "k-NN"
recipe = "digits"
options = {{ data = "{data}", device = "cpu", batch = 16 }}
value = "metrics:knn.z"

[[rows]]
name = "1"
paper = ["80.0 ± 0.5"]

[[rows]]
name = "3"
epochs = 12
options = {{ nu = 3.0 }}
value = "evaluation:knn.z"
paper = ["81.0"]
"""


@pytest.fixture
def declaration(tmp_path, tiny_npz):
    file = tmp_path / "pair.toml"
    file.write_text(DECLARATION.format(data=tiny_npz))
    return file


def test_stopping_loses_nothing_and_a_second_call_completes(tmp_path, declaration, cli_env, vje):
    out = tmp_path / "out"
    command = ["reproduce", declaration, "--epochs", 6, "--out", out]
    process = subprocess.Popen(
        [sys.executable, "-m", "vje", *map(str, command)],
        env=cli_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    first = RunFolder(out / "digits_batch-16_data-tiny_device-cpu_e1_s0")
    second = RunFolder(out / "digits_batch-16_data-tiny_device-cpu_nu-3_e6_s0")
    until = time.monotonic() + 90
    while not second.config_file.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)  # the second run has begun
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert "Stopped; nothing finished is lost." in said
    made = first.model_file.stat().st_mtime_ns
    assert not second.model_file.exists()
    assert f"{first.path.name}: done after" in said and f"{second.path.name}: stopped" in said

    dry = vje(*command, "--dry-run")
    assert dry.status == 0 and "1 of 2 runs to train" in dry.out
    assert f"{first.path.name}: finished; nothing to do" in dry.out

    done = vje(*command)
    assert done.status == 0, done
    assert f"{second.path.name}: resuming: train, evaluate" in done.out
    assert first.model_file.stat().st_mtime_ns == made
    table = read_json(out / "pair.json")
    ours = [row["cells"][0]["ours"]["mean"] for row in table["rows"]]
    assert ours == [first.metrics()[-1]["knn"]["z"], second.read("evaluation")["knn"]["z"]]
    assert table["scaled"] == "6 of the paper's 12 epochs in some cells"
    assert f"train --resume {second.path}" in (out / f"{second.path.name}.log").read_text()

    again = vje(*command, "--table-only")
    assert again.status == 0 and "2 of 2 runs finished" in again.out


def test_nothing_is_planned_with_torch(run_cli):
    code = (
        "import sys; from vje.cli.main import main; "
        "status = main(['reproduce', '--list']) + main(['reproduce', 'comparison', '--dry-run']); "
        "print('torch' in sys.modules, status)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "False 0"
    assert "nu-sweep" in answer.stdout and "0 of 72 runs" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nu-swep"], "Did you mean nu-sweep?"),
        ([], "needs to know what"),
        (["mine.toml"], "there is no file mine.toml"),
        (["nu-sweep", "--jobs", "0"], "--jobs must be at least 1, got 0"),
    ],
)
def test_mistakes(vje, arguments, words):
    answer = vje("reproduce", *arguments)
    assert answer.status == 2 and words in answer.err
