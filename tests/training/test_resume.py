"""A run that is stopped, however often and however rudely, and resumed ends where one that never stopped ends."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from vje.build_data import build_data
from vje.cli.console import TrainingDisplay
from vje.cli.main import main
from vje.cli.monitor import KNNMonitor
from vje.data.decode import UnreadableImage
from vje.data.sources import FolderSource
from vje.errors import UserError
from vje.runs import RunFolder
from vje.training import checkpoint
from vje.training.loop import Callback
from vje.training.step import TrainStep

CLOCK = ("images_per_second", "seconds", "elapsed")


def untimed(run):
    """The records of a run, without what a clock says."""
    return [{key: value for key, value in record.items() if key not in CLOCK} for record in RunFolder(run).metrics()]


def assert_same_state(run, expected):
    """The last checkpoints hold the same weights, EMA, optimiser, step state and random state, bit for bit."""
    (first, _), (second, _) = (checkpoint.newest(RunFolder(path).checkpoints) for path in (run, expected))
    assert first.info["step"] == second.info["step"]
    assert first.tensors.keys() == second.tensors.keys()
    assert [name for name, x in first.tensors.items() if not torch.equal(x, second.tensors[name])] == []


# Ctrl-C, between any two steps


@pytest.mark.parametrize(
    ("stops", "changes"),
    [
        (range(1, 8), {}),
        ([3], {"optimizer": {"accumulate": 2, "clip_norm": 1.0}}),
        ([4], {"settings": {"target": "stop-gradient"}, "encoder": {"normalization": "group"}}),
        ([2, 5], {"settings": {"target": "ema", "target_batch_norm": "running", "batch_norm": "separate"}}),
    ],
    ids=["every-step", "accumulation", "end-of-epoch", "running-statistics"],
)
def test_stopping_between_steps_changes_nothing(train, small_config, tmp_path, stops, changes):
    config = replace(
        small_config, **{group: replace(getattr(small_config, group), **values) for group, values in changes.items()}
    )

    def prepare(loop):
        """k-NN every epoch, as on the command line: it must not disturb training."""
        data = build_data(config, loop.run.read("data"))
        monitor = KNNMonitor(loop.step.method, data, 1, config.optimizer.epochs, autocast=False, workers=0)
        loop.callbacks = [monitor, *loop.callbacks]

    train(config, tmp_path / "whole", prepare=prepare)
    for stop in stops:
        torch.manual_seed(stop)  # a new process would not know the old one's random state
        loop = train(config, tmp_path / "pieces", stop_after=stop, prepare=prepare)
        assert loop.steps_done == stop
    train(config, tmp_path / "pieces", prepare=prepare)
    assert_same_state(tmp_path / "pieces", tmp_path / "whole")
    assert untimed(tmp_path / "pieces") == untimed(tmp_path / "whole")
    assert all("z" in record["knn"] for record in untimed(tmp_path / "pieces"))


def test_a_request_to_stop_during_the_last_step_lets_the_run_finish(train, small_config, tmp_path):
    loop = train(small_config, tmp_path / "run", stop_after=8)
    assert loop.steps_done == 8
    assert len(untimed(tmp_path / "run")) == 2


def test_a_second_ctrl_c_is_obeyed_at_once_and_handlers_are_put_back(train, small_config, tmp_path):
    class Impatient(Callback):
        def on_progress(self, progress):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        train(small_config, tmp_path / "run", prepare=lambda loop: setattr(loop, "callbacks", [Impatient()]))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_records_written_after_the_checkpoint_are_not_written_twice(train, small_config, tmp_path):
    """Killed between the record of an epoch and its checkpoint."""
    train(small_config, tmp_path / "whole")
    train(small_config, tmp_path / "run", stop_after=3)
    folder = RunFolder(tmp_path / "run")
    folder.append(folder.metrics_file, {"epoch": 1, "step": 4, "loss": -1.0})
    with folder.metrics_file.open("a") as stream:
        stream.write('{"epoch": 2, "st')
    train(small_config, tmp_path / "run")
    assert untimed(tmp_path / "run") == untimed(tmp_path / "whole")


# kill -9 and SIGTERM, at moments of their own choosing


class Child:
    """``vje train`` in a process of its own."""

    def __init__(self, environment, log, *arguments):
        self.log = log.open("w+")
        command = [sys.executable, "-m", "vje", "train", *map(str, arguments)]
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=subprocess.STDOUT)

    def wait_until(self, holds):
        deadline = time.monotonic() + 100
        while not holds():
            assert self.process.poll() is None, f"ended too early: {self.output()}"
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def end(self, number=None):
        """Send a signal, if any, and wait; returns the exit status."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(timeout=100)

    def output(self):
        self.log.seek(0)
        return self.log.read()


@pytest.fixture
def start(cli_env, tmp_path):
    """Starts a :class:`Child`; none outlives the test."""
    children = []

    def start_one(*arguments):
        log = tmp_path / f"{len(children)}.log"
        children.append(Child(cli_env({"PYTHONUNBUFFERED": "1"}), log, *arguments))
        return children[-1]

    yield start_one
    for child in children:
        child.end(signal.SIGKILL)
        child.log.close()


def test_kills_at_random_moments_change_nothing(tiny_npz, tmp_path, start):
    moments = random.Random(4)
    run, whole = tmp_path / "run", tmp_path / "whole"
    options = ["digits", "--data", tiny_npz, "--device", "cpu", "--target", "ema", "--batch", 8, "--epochs", 6]
    options += ["--knn-every", 2, "--workers", 0]

    def newest():
        found = sorted((run / "checkpoints").glob("step-*.safetensors"))
        return int(found[-1].stem.removeprefix("step-")) if found else 0

    def killed(child, holds, number=signal.SIGKILL, longest=0.15):
        child.wait_until(holds)
        time.sleep(moments.uniform(0, longest))
        return child.end(number)

    first = start(*options, "--checkpoint-seconds", 0.1, "--out", run)
    assert killed(first, (run / "model.json").exists, longest=0.05) == -signal.SIGKILL  # probably before a checkpoint
    second = start("--resume", run)
    target = moments.randrange(8)
    assert killed(second, lambda: newest() > target) == -signal.SIGKILL
    reached = newest()
    target = reached + moments.randrange(8)
    third = start("--resume", run)
    assert killed(third, lambda: newest() > target, signal.SIGTERM) == 130
    stopped = newest()
    assert f"Stopped after step {stopped}; nothing is lost" in third.output()
    assert f"Go on with: vje train --resume {run}\n" in third.output()
    assert reached < stopped < 72
    last = start("--resume", run, "--checkpoint-seconds", 300)
    assert last.end() == 0, last.output()
    assert f"Resuming after step {stopped}." in last.output()

    assert main(["train", *map(str, options), "--out", str(whole)]) == 0  # never interrupted
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert_same_state(run, whole)
    assert untimed(run) == untimed(whole)
    assert [record["epoch"] for record in untimed(run)] == list(range(1, 7))
    assert len(list((run / "checkpoints").iterdir())) == 2


# What the command line allows on --resume


@pytest.fixture
def finished(trained_run, tmp_path):
    """A run of two epochs of four steps that is done."""
    shutil.copytree(trained_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def interrupted(finished):
    """The same, killed in the second epoch: the checkpoint of step 4 is the last."""
    (finished / "model.safetensors").unlink()
    (finished / "checkpoints" / "step-000000008.safetensors").unlink()
    return finished


@pytest.fixture
def interrupted_early(interrupted):
    """The same, killed in the first epoch, before any checkpoint."""
    (interrupted / "checkpoints" / "step-000000004.safetensors").unlink()
    (interrupted / "metrics.jsonl").unlink()
    return interrupted


def content(run):
    return {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}


def same_model(run, other):
    return (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_an_interrupted_run_goes_on_to_the_same_end(interrupted, trained_run, capsys):
    assert main(["train", "--resume", str(interrupted)]) == 0
    assert "Resuming after step 4." in capsys.readouterr().out
    assert same_model(interrupted, trained_run)
    assert_same_state(interrupted, trained_run)
    assert untimed(interrupted) == untimed(trained_run)


def test_a_finished_run_says_so(finished, capsys):
    before = content(finished)
    assert main(["train", "--resume", str(finished)]) == 0
    assert f"{finished} is finished (2 epochs). Next: vje evaluate {finished}" in capsys.readouterr().out
    assert content(finished) == before


def test_another_schedule_for_epochs_that_are_done_is_refused(finished, capsys):
    before = content(finished)
    assert main(["train", "--resume", str(finished), "--schedule-epochs", "4", "--extend"]) == 2
    assert "--schedule-epochs 4 would change nothing: all 2 epochs are done. Give more" in capsys.readouterr().err
    assert content(finished) == before


def test_the_death_of_a_worker_is_told_with_the_way_on(interrupted, trained_run, capsys, monkeypatch):
    """torch raises it wherever the main thread is: in a step, say."""
    step = TrainStep.__call__

    def die(self):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr(TrainStep, "__call__", die)
    assert main(["train", "--resume", str(interrupted)]) == 2
    said = capsys.readouterr().err
    assert "ended from outside, perhaps for want of memory" in said and "Traceback" not in said
    assert f"To go on from the last checkpoint: vje train --resume {interrupted}" in said
    monkeypatch.setattr(TrainStep, "__call__", step)
    assert main(["train", "--resume", str(interrupted)]) == 0
    assert same_model(interrupted, trained_run)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lr", "0.02"], ["--lr 0.01 -> 0.02 cannot be changed on resume", "Start a new run"]),
        (["--seed", "1"], ["--seed 0 -> 1 cannot be changed on resume"]),
        (["--batch", "4"], ["--batch 8 -> 4 cannot be changed on resume"]),
        (["--target", "stop-gradient"], ["--target ema -> stop-gradient cannot be changed"]),
        (["--lr", "0.02", "--extend"], ["--lr 0.01 -> 0.02 cannot be changed on resume"]),
        (["--epochs", "3"], ["--epochs 2 -> 3 cannot be changed", "cosine", "--extend"]),
        (["--epochs", "3", "--schedule-epochs", "4"], ["--epochs 2 -> 3 cannot be changed", "those of a run of 2"]),
        (["--schedule-epochs", "4"], ["--schedule-epochs 4 cannot be given on resume", "--extend"]),
        (["--epochs", "1", "--schedule-epochs", "2"], ["--epochs 2 -> 1 cannot be changed", "epochs are done"]),
        (["--schedule-epochs", "1"], ["--schedule-epochs must be EPOCHS (2) or more", "got 1"]),
        (["--epochs", "1", "--extend"], ["--extend is for more epochs, and --epochs 1 is fewer than the run's 2"]),
        (["--out", "elsewhere"], ["--out cannot be given with --resume"]),
    ],
)
def test_what_would_change_the_past_is_refused(interrupted, capsys, options, words):
    before = content(interrupted)
    assert main(["train", "--resume", str(interrupted), *options]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert content(interrupted) == before


def test_what_cannot_change_the_past_may_be_changed(interrupted, trained_run):
    assert main(["train", "--resume", str(interrupted), "--knn-every", "0", "--checkpoint-epochs", "7"]) == 0
    assert same_model(interrupted, trained_run)
    assert_same_state(interrupted, trained_run)
    assert "knn" in untimed(trained_run)[-1]
    assert "knn" not in untimed(interrupted)[-1]
    assert RunFolder(interrupted).read("config")["run"]["knn_every"] == 0


def test_more_epochs_must_be_asked_for(interrupted, trained_run, capsys):
    assert main(["train", "--resume", str(interrupted), "--epochs", "3", "--extend"]) == 0
    assert "--epochs 2 -> 3: from here on the schedules are those of a run of 3 epochs" in capsys.readouterr().out
    assert [record["step"] for record in untimed(interrupted)] == [4, 8, 12]
    assert untimed(interrupted)[0] == untimed(trained_run)[0]
    assert untimed(interrupted)[1]["lr"] > untimed(trained_run)[1]["lr"]
    assert not same_model(interrupted, trained_run)


def test_the_start_of_a_longer_run_is_that_run_so_far(trained_run, tmp_path, capsys):
    """One epoch of the schedules of two, and then the other: what a run of two has after each, bit for bit."""
    config = RunFolder(trained_run).read("config")
    options = ["--data", config["data"]["data"], "--device", "cpu", "--target", "ema", "--lr", "0.01", "--batch", "8"]
    start = [*options, "--epochs", "1", "--schedule-epochs", "2", "--out", str(tmp_path / "run")]
    assert main(["train", "digits", *start]) == 0
    (first,) = untimed(tmp_path / "run")
    assert {**first, "knn": None} == {**untimed(trained_run)[0], "knn": None}
    assert RunFolder(tmp_path / "run").model_file.exists()
    assert not same_model(tmp_path / "run", trained_run)
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "run"), "--epochs", "2"]) == 0
    assert "from here on" not in capsys.readouterr().out
    assert same_model(tmp_path / "run", trained_run)
    assert_same_state(tmp_path / "run", trained_run)
    assert RunFolder(tmp_path / "run").read("config")["optimizer"] == config["optimizer"]  # one way of saying it


def test_more_epochs_than_the_schedules_have_must_be_asked_for(trained_run, tmp_path, capsys):
    config = RunFolder(trained_run).read("config")
    options = ["--data", config["data"]["data"], "--device", "cpu", "--lr", "0.01", "--batch", "8"]
    assert (
        main(["train", "digits", *options, "--epochs", "1", "--schedule-epochs", "2", "--out", str(tmp_path / "r")])
        == 0
    )
    more = ["train", "--resume", str(tmp_path / "r"), "--epochs", "3"]
    assert main(more) == 2
    assert (
        "EPOCHS (3) or more (on --resume, --schedule-epochs 3 --extend makes it so), got 2" in capsys.readouterr().err
    )
    assert main([*more, "--schedule-epochs", "3", "--extend"]) == 0
    assert len(untimed(tmp_path / "r")) == 3


def test_damaged_lines_do_not_hide_how_many_epochs_are_done(finished, capsys):
    file = finished / "metrics.jsonl"
    file.write_text("damaged\n" + file.read_text().splitlines()[1] + "\n")
    assert main(["train", "--resume", str(finished), "--epochs", "1", "--schedule-epochs", "2"]) == 2
    assert "2 epochs are done" in capsys.readouterr().err
    assert main(["train", "--resume", str(finished)]) == 0
    assert "is finished (2 epochs)" in capsys.readouterr().out


def test_a_run_may_stop_early_and_keep_its_schedules(interrupted_early, trained_run, capsys):
    assert main(["train", "--resume", str(interrupted_early), "--epochs", "1", "--schedule-epochs", "2"]) == 0
    (only,) = untimed(interrupted_early)
    assert {**only, "knn": None} == {**untimed(trained_run)[0], "knn": None}
    assert main(["train", "--resume", str(interrupted_early), "--epochs", "2"]) == 0
    assert same_model(interrupted_early, trained_run)


def test_an_extended_run_that_is_interrupted_does_not_pass_for_finished(finished, trained_run, monkeypatch, capsys):
    told = TrainingDisplay.on_progress

    def interrupt(display, progress):
        signal.raise_signal(signal.SIGTERM)
        told(display, progress)

    monkeypatch.setattr(TrainingDisplay, "on_progress", interrupt)
    assert main(["train", "--resume", str(finished), "--epochs", "3", "--extend"]) == 130
    monkeypatch.undo()
    assert "Stopped after step 9" in capsys.readouterr().out
    assert main(["train", "--resume", str(finished)]) == 0
    assert "Resuming after step 9." in capsys.readouterr().out
    assert len(untimed(finished)) == 3
    assert not same_model(finished, trained_run)


def test_an_extension_killed_before_its_first_step_does_not_pass_for_finished(finished, capsys):
    config = RunFolder(finished).read("config")
    config["optimizer"]["epochs"] = 3
    RunFolder(finished).write("config", config)
    assert main(["train", "--resume", str(finished)]) == 0
    assert "Resuming after step 8." in capsys.readouterr().out
    assert len(untimed(finished)) == 3


def test_a_checkpoint_cut_in_half_is_passed_over_and_said(finished, trained_run, capsys):
    (finished / "model.safetensors").unlink()
    file = finished / "checkpoints" / "step-000000008.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert main(["train", "--resume", str(finished)]) == 0
    said = capsys.readouterr().out
    assert f"{file} cannot be read as a checkpoint: it is cut short or foreign" in said
    assert "The checkpoint before it is used." in said
    assert "Resuming after step 4." in said
    assert same_model(finished, trained_run)


def test_without_a_readable_checkpoint_a_run_starts_over_and_says_so(interrupted, trained_run, capsys):
    for file in (interrupted / "checkpoints").iterdir():
        file.write_bytes(b"nothing")
    assert main(["train", "--resume", str(interrupted)]) == 0
    assert "There is none before it: starting over." in capsys.readouterr().out
    assert same_model(interrupted, trained_run)
    assert untimed(interrupted) == untimed(trained_run)


def test_a_run_killed_right_after_its_config_was_written_starts_over(trained_run, tmp_path):
    run = RunFolder.create(tmp_path / "run")
    shutil.copy(trained_run / "config.json", run.config_file)
    assert main(["train", "--resume", str(run.path)]) == 0
    assert same_model(run.path, trained_run)


def test_other_images_than_the_run_began_with_are_refused(interrupted, capsys, tmp_path, trained_run):
    source = trained_run.parent / "tiny.npz"
    with np.load(source) as arrays:
        changed = {name: arrays[name] for name in arrays}
    changed["train_images"] = 255 - changed["train_images"]
    np.savez(tmp_path / "tiny.npz", **changed)
    config = json.loads((interrupted / "config.json").read_text())
    config["data"]["data"] = str(tmp_path / "tiny.npz")
    (interrupted / "config.json").write_text(json.dumps(config))
    assert main(["train", "--resume", str(interrupted)]) == 2
    assert "are not those the run was started with" in capsys.readouterr().err


@pytest.mark.parametrize("then", [True, False])
def test_files_that_are_read_otherwise_than_the_run_began_are_refused(small_config, tmp_path, monkeypatch, then):
    """The files are the same; what decodes them is not, or the drive fails."""
    folder, real = tmp_path / "pictures", FolderSource.fitted
    folder.mkdir()
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")

    def failing(source, index, *how):
        if index == 3:
            raise UnreadableImage(source.names[index], "no plug-in")
        return real(source, index, *how)

    with monkeypatch.context() as without:
        if not then:
            without.setattr(FolderSource, "fitted", failing)
        config = replace(small_config, data=replace(small_config.data, data=str(folder), workers=0))
        recorded = json.loads(json.dumps(build_data(config).record()))
    build = partial(build_data, config, recorded)
    if then:
        assert build().record() == recorded
        monkeypatch.setattr(FolderSource, "fitted", failing)
    with pytest.raises(UserError, match=r"cannot be read \(no plug-in\), unlike" if then else "can be read, unlike"):
        build()


@pytest.mark.filterwarnings("ignore:the labels of .* are not those of training")
@pytest.mark.parametrize(("method", "status"), [("supervised", 2), ("simsiam", 0)])
def test_other_labels_than_the_run_began_with_are_refused_where_they_are_learned_from(
    make_npz, tmp_path, capsys, method, status
):
    data, run = make_npz(tmp_path / "small.npz", train=32, test=12), tmp_path / "run"
    options = ["--data", str(data), "--out", str(run), "--batch", "8", "--epochs", "1", "--device", "cpu"]
    assert main(["train", "digits", "--method", method, *options]) == 0
    (run / "model.safetensors").unlink()
    with np.load(data) as arrays:
        changed = {name: arrays[name] for name in arrays}
    changed["train_labels"] = np.roll(changed["train_labels"], 1)
    np.savez(data, **changed)
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == status
    assert ("are not those the run was started with" in capsys.readouterr().err) == bool(status)
