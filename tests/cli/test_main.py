"""Help and mistakes are answered at once: before torch is imported, with the nearest name, and with status 2."""

import json
import os
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import vje
from vje.config import AugmentConfig, DataConfig, EncoderConfig, OptimizerConfig, RunConfig, VJEConfig
from vje.recipes import recipe_names

# name: arguments, exit status, words in the answer. "{}" is a folder with an empty one, a run, and another file.
QUESTIONS = {
    "help": (["--help"], 0, ["usage: vje COMMAND", "train", "evaluate", "embed", "demo", "recipes"]),
    "nothing": ([], 0, ["usage: vje COMMAND"]),
    "version": (["--version"], 0, [f"vje {vje.__version__}"]),
    "train --help": (["train", "--help"], 0, ["usage: vje train RECIPE", "--resume RUN", *recipe_names()]),
    "train": (["train"], 0, ["usage: vje train RECIPE"]),
    "recipe --help": (
        ["train", "cifar10", "--help"],
        0,
        ["--epochs INT", "(default: 200)", "--out", "--data", "--nu", "--seed", "--crop-area", "--tensorboard"],
    ),
    "evaluate --help": (["evaluate", "--help"], 0, ["usage: vje evaluate", "RUN"]),
    "embed --help": (["embed", "--help"], 0, ["usage: vje embed", "RUN IMAGES", "--out"]),
    "demo --help": (["demo", "--help"], 0, ["usage: vje demo", "--epochs"]),
    "recipes": (["recipes"], 0, ["cifar10-ema", "folder", "vje train RECIPE --help"]),
    "command": (["trian"], 2, ["there is no command 'trian'", "Did you mean `vje train`?"]),
    "another command": (["xyzzy"], 2, ["there is no command 'xyzzy'", "Commands: train, evaluate"]),
    "recipe": (["train", "cifra10"], 2, ["there is no recipe 'cifra10'", "Did you mean cifar10?"]),
    "recipe file": (["train", "mine.toml"], 2, ["there is no recipe file mine.toml"]),
    "option": (["train", "cifar10", "--epohcs", "3"], 2, ["--epohcs", "Perhaps you meant", "--epochs"]),
    "option of evaluate": (["evaluate", "run", "--wrokers", "3"], 2, ["--wrokers", "--workers"]),
    "method": (["train", "cifar10", "--method", "vjee"], 2, ["there is no method 'vjee'", "methods: ", " vje"]),
    "value": (["train", "cifar10", "--epochs", "many"], 2, ["--epochs", "'many'"]),
    "choice": (["train", "cifar10", "--device", "gpu"], 2, ["gpu", "cuda"]),
    "range": (["train", "cifar10", "--epochs", "0"], 2, ["--epochs must be at least 1, got 0"]),
    "no recipe": (["train", "--epochs", "3"], 2, ["needs a recipe"]),
    "late recipe": (["train", "--epochs", "3", "digits"], 2, ["The recipe comes first: vje train digits ..."]),
    "two methods": (["train", "digits", "--method", "byol", "--method", "moco"], 2, ["given twice, byol and moco"]),
    "resume what": (["train", "--resume"], 2, ["--resume needs a value: a run folder"]),
    "data name": (["train", "folder", "--data", "cifra10"], 2, ["no data 'cifra10'", "did you mean cifar10"]),
    "no data": (["train", "folder"], 2, ["recipe folder needs to know where the images are: --data PATH"]),
    "no such data": (["train", "folder", "--data", "{}/nowhere"], 2, ["nowhere does not exist"]),
    "empty folder": (["train", "folder", "--data", "{}/empty"], 2, ["no images under {}/empty"]),
    "text for data": (["train", "folder", "--data", "{}/note.txt"], 2, ["neither a folder of images nor a .npz"]),
    "npz in name only": (["train", "folder", "--data", "{}/fake.npz"], 2, ["fake.npz is not a .npz file"]),
    "a run already": (["train", "digits", "--out", "{}/run"], 2, ["already holds a run", "--resume {}/run", "--out"]),
    "foreign folder": (["train", "digits", "--out", "{}/foreign"], 2, ["foreign is not empty and holds no run"]),
    "file for a run": (["train", "digits", "--out", "{}/note.txt"], 2, ["note.txt is a file", "--out"]),
    "cannot write": (["train", "digits", "--out", "{}/note.txt/run"], 2, ["cannot write to {}/note.txt/run"]),
    "resume nothing": (["train", "--resume", "{}/nowhere"], 2, ["no run at {}/nowhere", "Runs nearby: {}/run"]),
    "resume foreign": (["train", "--resume", "{}/foreign"], 2, ["foreign is not a run folder"]),
    "resume and out": (["train", "--resume", "{}/run", "--out", "x"], 2, ["--out cannot be given with --resume"]),
    "resume and recipe": (["train", "digits", "--resume", "{}/run"], 2, ["knows its recipe; leave 'digits' out"]),
    "evaluate nothing": (["evaluate", "{}/nowhere"], 2, ["no run at {}/nowhere"]),
    "evaluate foreign": (["evaluate", "{}/foreign"], 2, ["foreign is not a run folder", "Runs nearby: {}/run"]),
    "evaluate a file": (["evaluate", "{}/note.txt"], 2, ["note.txt is not a run folder"]),
    "evaluate by no one": (["evaluate", "{}/run", "--k", "0"], 2, ["--k must be at least 1, got 0"]),
    "evaluate in none": (["evaluate", "{}/run", "--batch", "0"], 2, ["--batch must be at least 1, got 0"]),
    "embed with nothing": (["embed", "{}/nowhere", "digits", "--out", "o.npz"], 2, ["no run or model at {}/nowhere"]),
    "embed with a folder": (["embed", "{}/foreign", "digits", "--out", "o.npz"], 2, ["is not a run folder"]),
    "embed with a file": (["embed", "{}/note.txt", "digits", "--out", "o.npz"], 2, ["neither a run folder nor"]),
    "embed to text": (["embed", "{}/run", "digits", "--out", "o.txt"], 2, ["must end in .npz or .csv or .parquet"]),
    "embed over": (["embed", "{}/run", "digits", "--out", "{}/fake.npz"], 2, ["exists already", "--force"]),
    "embed nowhere": (["embed", "{}/run", "digits", "--out", "{}/no/o.npz"], 2, ["there is no folder {}/no"]),
    "embed in none": (["embed", "{}/run", "digits", "--out", "{}/o.npz", "--batch", "0"], 2, ["--batch must be"]),
    "embed no images": (["embed", "{}/run", "{}/empty", "--out", "{}/o.npz"], 2, ["no images under {}/empty"]),
    "embed what": (["embed", "{}/run", "--out", "{}/o.npz"], 2, ["no images were named"]),
    "embed a split": (["embed", "{}/run", "{}/ok.npz", "--split", "val", "--out", "{}/o.npz"], 2, ["has no val split"]),
    "demo over a run": (["demo", "--out", "{}/run"], 2, ["run already holds a run", "--out"]),
    "demo over a folder": (["demo", "--out", "{}/foreign"], 2, ["foreign is not empty and holds no run"]),
    "demo of nothing": (["demo", "--epochs", "0"], 2, ["--epochs must be at least 1, got 0"]),
    "recipes of what": (["recipes", "cifar10"], 2, ["takes no arguments"]),
}
PARSER = {"option", "option of evaluate", "value", "choice"}  # these are answered by tyro, in a box

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(vje.__file__).resolve().parents[1]), "COLUMNS": "160"}
ASK = """
import contextlib, io, json, sys
from vje.cli.main import main
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = stop.code
    print(json.dumps([status, out.getvalue(), err.getvalue(), "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("place")
    for folder in ("empty", "run", "foreign"):
        (root / folder).mkdir()
    (root / "foreign" / "thesis.tex").write_text("years of work")
    (root / "run" / "config.json").write_text(json.dumps({"schema": 1, "recipe": "digits", "data": {"data": "digits"}}))
    (root / "note.txt").write_text("a note")
    (root / "fake.npz").write_text("no arrays")
    np.savez(root / "ok.npz", train_images=np.zeros((3, 4, 4), np.uint8))
    return root


@pytest.fixture(scope="module")
def answers(place, tmp_path_factory):
    """All questions put to one process; by name: status, standard output, standard error, whether torch was loaded."""

    def files():
        return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}

    before, began = files(), time.monotonic()
    questions = [[word.replace("{}", str(place)) for word in words] for words, _, _ in QUESTIONS.values()]
    where = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(questions), capture_output=True, text=True, check=True, cwd=where,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert time.monotonic() - began < 30  # of some fifty answers
    assert files() == before  # nothing was touched
    assert list(where.iterdir()) == []
    return dict(zip(QUESTIONS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers(name, answers, place):
    status, out, err, heavy = answers[name]
    _, expected, words = QUESTIONS[name]
    assert status == expected
    told, silent = (out, err) if status == 0 else (err, out)
    assert silent == ""
    for word in words:
        assert word.replace("{}", str(place)) in told
    assert "Traceback" not in told
    assert not heavy
    if status == 2 and name not in PARSER:
        assert told.startswith("vje: ")
        assert told.count("\n") == 1  # one line


def test_every_setting_is_an_option(answers):
    _, out, _, _ = answers["recipe --help"]
    for group in (DataConfig, AugmentConfig, EncoderConfig, VJEConfig, OptimizerConfig, RunConfig):
        for setting in fields(group):
            assert f"--{setting.name.replace('_', '-')}" in out


def test_the_installed_command_does_the_same(run_cli):
    helped, failed = run_cli("--help"), run_cli("trian")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "usage: vje COMMAND" in helped.stdout
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "Did you mean `vje train`?" in failed.stderr


def test_one_of_several_processes_says_all_before_it_leaves(cli_env):
    """It leaves without taking Python apart, so what it printed must be on its way before."""
    environment = cli_env({"WORLD_SIZE": "2", "RANK": "1"})
    command = [sys.executable, "-m", "vje"]
    version = subprocess.run([*command, "--version"], env=environment, capture_output=True, text=True, check=False)
    assert (version.returncode, version.stdout) == (0, f"vje {vje.__version__}\n")
    wrong = subprocess.run([*command, "trane"], env=environment, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "Did you mean `vje train`?" in wrong.stderr


def test_a_closed_pipe_is_no_mistake():
    head = f"{sys.executable} -m vje train cifar10 --help | head -1"
    done = subprocess.run(head, shell=True, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert "usage" in done.stdout
    assert done.stderr == ""


WARN = """
import warnings
from vje.cli import main, recipes
def run(_):
    for file, category in ((recipes.__file__, UserWarning), ("other.py", UserWarning), (recipes.__file__, Warning)):
        warnings.warn_explicit("runs/x [y] is not finished", category, file, 7)
    return 0
usual, recipes.run = warnings.formatwarning, run
assert main.main(["recipes"]) == 0 and warnings.formatwarning is usual
"""


def test_warnings_of_this_package_are_one_line_and_others_as_ever():
    done = subprocess.run([sys.executable, "-c", WARN], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    ours, other, kind = done.stderr.splitlines()[:3]
    assert ours == "warning: runs/x [y] is not finished"
    assert other == "other.py:7: UserWarning: runs/x [y] is not finished"
    assert kind.endswith("recipes.py:7: Warning: runs/x [y] is not finished")
