"""`vje train` beside another: a folder each, and never two in one; and what it says."""

import json
import os
import shutil
import signal
from functools import partial

import pytest
import torch

from vje.claims import claimed
from vje.cli.console import TrainingDisplay
from vje.runs import RunFolder


@pytest.fixture
def during(monkeypatch):
    """``during(do)``: training consists of ``do()``, once; what is started meanwhile trains nothing."""
    folders = []

    def arrange(do):
        def train(config, folder, resuming, watch):
            folders.append(folder.path)
            if len(folders) == 1:
                do()
            return 0

        monkeypatch.setattr("vje.cli.train._train", train)
        return folders

    return arrange


@pytest.fixture
def interrupted(trained_run, tmp_path):
    shutil.copytree(trained_run, tmp_path / "my run")
    (tmp_path / "my run" / "model.safetensors").unlink()
    (tmp_path / "my run" / "checkpoints" / "step-000000008.safetensors").unlink()
    return tmp_path / "my run"


def test_two_trainings_side_by_side_have_a_folder_each(vje, during, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = during(lambda: vje("train", "digits", "--seed", 1))
    assert vje("train", "digits").status == 0
    assert [str(folder) for folder in folders] == ["runs/digits", "runs/digits-2"]
    assert not list(tmp_path.rglob(".lock"))


def test_two_trainings_in_one_folder_are_refused(vje, during, tmp_path):
    answers = []
    during(lambda: answers.append(vje("train", "digits", "--out", tmp_path / "run")))
    assert vje("train", "digits", "--out", tmp_path / "run").status == 0
    assert answers[0].status == 2
    assert f"{tmp_path / 'run'} is being trained by process {os.getpid()} on " in answers[0].err
    assert answers[0].err.count("\n") == 1


def test_of_several_processes_only_the_first_claims(vje, during, tmp_path, monkeypatch):
    def second():
        monkeypatch.setenv("RANK", "1")
        assert vje("train", "digits", "--out", tmp_path / "run").status == 0

    folders = during(second)
    monkeypatch.setenv("RANK", "0")
    assert vje("train", "digits", "--out", tmp_path / "run").status == 0
    assert folders == [tmp_path / "run"] * 2


def test_a_run_that_is_being_trained_is_not_resumed_but_may_be_evaluated(vje, interrupted, snapshot, tmp_path):
    with claimed(RunFolder(interrupted)):
        before = snapshot(interrupted)
        answer = vje("train", "--resume", interrupted)
        assert answer.status == 2
        assert f"{interrupted} is being trained by process {os.getpid()} on " in answer.err
        assert snapshot(interrupted) == before
        with pytest.warns(UserWarning, match="not finished"):
            assert vje("evaluate", interrupted, "--device", "cpu").status == 0
        assert vje("compare", interrupted, "--out", tmp_path / "c").status == 0
    assert vje("train", "--resume", interrupted).status == 0
    assert not (interrupted / ".lock").exists()


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("vje", {"variance": "variance"}),
        ("vi-simsiam", {"-ELBO": "loss_nats", "kappa": "kappa"}),
        ("vssl", {"variance": "posterior_variance"}),
        ("simsiam", {}),
    ],
)
def test_the_line_of_an_epoch_has_what_tells_most(vje, tiny_npz, tiny, tmp_path, method, own):
    run = tmp_path / "run"
    answer = vje("train", "folder", "--method", method, "--data", tiny_npz, "--out", run, *tiny, "--epochs", "1")
    assert answer.status == 0, answer.err
    record = json.loads((run / "metrics.jsonl").read_text())
    (line,) = (line for line in answer.out.splitlines() if line.startswith("epoch 1 "))
    assert f"loss {record['loss']:.2f}  " in line
    shown = [f"{short} {record[name]:.3f}" for short, name in own.items()] or [f"loss {record['loss']:.2f}"]
    assert line.split("  rank ")[0].split("  ")[-len(shown) :] == shown


def test_a_compiler_that_fails_is_told_and_training_goes_on(vje, tiny_npz, tiny, tmp_path, monkeypatch):
    def failing(graph, inputs):
        raise AssertionError("512 v.s. 4096")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=failing))
    run, words = tmp_path / "run", ("--data", tiny_npz, *tiny, "--epochs", "1")
    answer = vje("train", "folder", *words, "--out", run, "--compile", "on")
    said = "The step could not be compiled, and training is slower for it (AssertionError: 512 v.s. 4096)."
    assert answer.status == 0 and said in answer.out
    assert json.loads((run / "warnings.jsonl").read_text()) == {"step": 0, "text": said}
    monkeypatch.undo()
    assert vje("train", "folder", *words, "--out", tmp_path / "eager", "--compile", "off").status == 0
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "eager" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("place", "stays"), [("vje.cli.launch.build_loop", False), ("vje.cli.launch._warm_up", True)])
def test_ctrl_c_before_the_first_step_is_answered(vje, tiny_npz, tiny, tmp_path, monkeypatch, place, stays):
    """Before there is anything to go on with, the folder goes again; afterwards it is said how to go on."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    run, words = tmp_path / "run", ("--data", tiny_npz, *tiny, "--epochs", "1")
    with monkeypatch.context() as patch:
        patch.setattr(place, interrupt)
        answer = vje("train", "folder", *words, "--out", run)
    assert answer.status == 130 and run.exists() == stays
    assert (f"Interrupted. Go on with: vje train --resume {run}" in answer.out) == stays
    again = ("train", "--resume", run) if stays else ("train", "folder", *words, "--out", run)
    assert vje(*again).status == 0 and (run / "model.safetensors").exists()


def test_commands_to_go_on_with_can_be_pasted(vje, interrupted, monkeypatch):
    told = TrainingDisplay.on_progress

    def interrupt(display, progress):
        signal.raise_signal(signal.SIGTERM)
        told(display, progress)

    monkeypatch.setattr(TrainingDisplay, "on_progress", interrupt)
    answer = vje("train", "--resume", interrupted)
    assert answer.status == 130
    assert f"Go on with: vje train --resume '{interrupted}'\n" in answer.out
    monkeypatch.undo()
    for _ in range(2):  # to the end, and after it
        answer = vje("train", "--resume", interrupted)
        assert answer.status == 0
        assert f"Next: vje evaluate '{interrupted}'\n" in answer.out


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_goes_on_with_its_threads_where_it_has_as_many_processes(vje, tiny_npz, tmp_path, monkeypatch, processes):
    run, options = tmp_path / "run", ["--device", "cpu", "--batch", 16, "--knn-every", 0, "--schedule-epochs", 2]
    assert vje("train", "digits", "--data", tiny_npz, "--out", run, *options, "--epochs", 1).status == 0
    file = run / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"threads": 7, "processes": processes}))
    told = []
    monkeypatch.setattr("torch.set_num_threads", told.append)
    assert vje("train", "--resume", run, "--epochs", 2).status == 0
    assert told == ([7] if processes == 1 else [])
