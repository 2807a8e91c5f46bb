"""``vje compare`` of folders that are copies of each other, or damaged: it says so, and shows the rest."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from vje.config import to_dict
from vje.recipes import load_recipe
from vje.runs import RunFolder


@pytest.fixture
def make_run(tmp_path):
    """``make_run(name, seed)``: a finished run with an evaluation of its own model."""

    def make(name, seed=0):
        config = load_recipe("digits")
        config = replace(config, run=replace(config.run, seed=seed), optimizer=replace(config.optimizer, epochs=1))
        folder = RunFolder.create(tmp_path / name)
        folder.write("config", to_dict(config))
        folder.append(folder.metrics_file, {"epoch": 1, "step": 1, "knn": {"z": 60.0 + seed}})
        folder.model_file.touch()
        folder.write("model", {"weights": f"of seed {seed}"})
        folder.write("evaluation", {"weights": f"of seed {seed}", "finished": True, "knn": {"z": 70.0 + seed}})
        return folder

    return make


def test_a_seed_that_is_there_twice_is_told(vje, make_run, tmp_path):
    first, second = make_run("first"), make_run("second", seed=1)
    shutil.copytree(first.path, tmp_path / "copy")
    alone = vje("compare", first.path, second.path, "--out", tmp_path / "c")
    assert "each counts" not in alone.out
    answer = vje("compare", first.path, second.path, tmp_path / "copy", "--out", tmp_path / "c")
    assert f"each counts, though seed 0 is the same: {first.path}, {tmp_path / 'copy'}" in answer.out


def test_a_damaged_result_is_left_out_and_the_others_are_shown(vje, make_run, tmp_path):
    whole, damaged = make_run("whole"), make_run("damaged", seed=1)
    file = damaged.path / "evaluation.json"
    file.write_text("{")
    answer = vje("compare", whole.path, damaged.path, "--out", tmp_path / "c")
    assert answer.status == 0, answer.err
    assert f"left out: {file}, which is damaged; `vje evaluate {damaged.path}` makes it anew" in answer.out
    values = json.loads((tmp_path / "c.json").read_text())["groups"][0]["values"]
    assert values["k-NN z"]["mean"] == pytest.approx((70.0 + 61.0) / 2)  # of the other run, training's own


@pytest.fixture
def make_foreign(make_run):
    """``make_foreign(name)``: a run of a method that is not there."""

    def make(name):
        folder = make_run(name)
        folder.write("config", folder.read("config") | {"method": "align-uniform", "align-uniform": {"width": 64}})
        return folder.path

    return make


def test_a_run_of_a_method_that_is_not_there_is_passed_over(vje, make_run, make_foreign, tmp_path):
    runs, foreign = [make_run(f"run{seed}", seed).path for seed in (0, 1)], make_foreign("foreign")
    for command, out in (("compare", tmp_path / "c"), ("report", tmp_path / "c.html")):
        answer = vje(command, foreign, *runs, "--out", out)
        assert answer.status == 0, answer.err
        assert f"passed over, as there is no method of this name here: {foreign} (align-uniform)\n" in answer.err
    (group,) = json.loads((tmp_path / "c.json").read_text())["groups"]
    assert group["runs"] == [str(run) for run in runs]
    assert "2 runs compared" in (tmp_path / "c.html").read_text(encoding="utf-8")


def test_where_no_run_is_of_a_method_that_is_there_nothing_can_be_compared(vje, make_foreign, tmp_path):
    runs = [make_foreign("one"), make_foreign("other")]
    for words in (["compare", runs[0]], ["compare", *runs], ["report", *runs]):
        answer = vje(*words)
        assert answer.status == 2 and "passed over" not in answer.err
        assert f"there is no method of this name here: {runs[0]} (align-uniform)" in answer.err
        assert "Methods: " in answer.err and "add the file of the method" in answer.err
    (runs[0] / "evaluation.json").unlink()
    assert vje("report", runs[0], "--points", "0").status == 0  # a page of one needs no method


def test_copying_a_run_neither_ages_nor_renews_its_results(vje, make_run, tmp_path):
    run = make_run("run")
    run.write("probe", {"weights": "of an earlier model", "spaces": {"z": {"top1": 99.0}}})
    copy = tmp_path / "copy"
    for order in (["evaluation.json", "probe.json", "model.safetensors"], ["model.safetensors", "evaluation.json"]):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run.path, copy)
        for at, name in enumerate(order):
            (copy / name).touch()
            os.utime(copy / name, (at, at))
        answer = vje("compare", copy, "--out", tmp_path / "c")
        assert "70.00" in answer.out and "99.00" not in answer.out
        assert f"left out: {copy / 'probe.json'}, of other weights than the model;" in answer.out
        assert "evaluation.json" not in answer.out
