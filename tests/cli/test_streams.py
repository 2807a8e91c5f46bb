"""Work does not end, or come to nothing, because nobody reads what it prints, or because its terminal is gone."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vje.cli.streams import Outlasting

OPTIONS = ("--device", "cpu", "--batch", 16, "--knn-every", 0, "--checkpoint-epochs", 100_000, "--epochs")


@pytest.fixture
def start(cli_env, tiny_npz, tmp_path):
    """Starts ``vje train`` in a session of its own, as a terminal does; none outlives the test."""
    children = []

    def start_one(*options, **streams):
        words = [sys.executable, "-m", "vje", "train", "digits", "--data", tiny_npz, "--out", tmp_path / "run"]
        words += [*OPTIONS, *options]
        environment = cli_env({"PYTHONUNBUFFERED": "1"})
        children.append(subprocess.Popen([*map(str, words)], env=environment, start_new_session=True, **streams))
        return children[-1]

    yield start_one
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_until(holds, child):
    deadline = time.monotonic() + 100
    while not holds():
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)


def test_training_goes_on_when_nobody_reads(start, tmp_path):
    child = start(20, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=100) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 20
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("workers", [None, 2])
def test_a_closed_terminal_ends_training_with_a_checkpoint(start, tmp_path, workers):
    streamed = [] if workers is None else ["--resident", "never", "--workers", workers]
    ours, theirs = pty.openpty()
    child = start(100_000, *streamed, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    wait_until((tmp_path / "run" / "metrics.jsonl").exists, child)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    os.close(ours)  # what is written from here on fails
    os.killpg(child.pid, signal.SIGHUP)  # to all of the terminal's processes
    assert child.wait(timeout=100) == 130
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_training_outlives_its_terminal_where_it_was_told_to(start, tmp_path):
    def nohup():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    child = start(20, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=nohup)
    wait_until((tmp_path / "run" / "metrics.jsonl").exists, child)
    os.killpg(child.pid, signal.SIGHUP)
    assert child.wait(timeout=100) == 0


def test_a_script_around_the_program_keeps_its_lines(cli_env, tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys\nprint('before')\nfrom vje.cli.main import main\nsys.argv[1:] = ['--version']\nmain()\n"
        "sys.stdout = sys.__stdout__\nprint('after')\n"
    )
    environment = {name: value for name, value in cli_env().items() if name != "PYTHONUNBUFFERED"}
    script = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
    before, version, after = done.stdout.splitlines()
    assert (before, version.partition(" ")[0], after) == ("before", "vje", "after")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_other_trouble_with_a_stream_is_told():
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space left"):
        Outlasting(full, "utf-8", write_through=True).write("a line")
