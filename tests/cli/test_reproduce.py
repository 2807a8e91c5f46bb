"""``vje reproduce`` from end to end on a tiny grid, stopped in the middle and completed by a second call."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from vje.config import to_dict
from vje.experiments import load_experiment
from vje.experiments.grid import Scale
from vje.experiments.plan import plan
from vje.runs import RunFolder, read_json, write_json

DECLARATION = """
about = "two tiny runs"
source = "paper"
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
COUNTED = {"head_params_m": 3.4}
MEASURED = {"head_params_m": 3.4, "relative_throughput": 0.98, "peak_memory_gb": 41.4}


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
    table = read_json(out / "pair_e6.json")
    ours = [row["cells"][0]["ours"]["mean"] for row in table["rows"]]
    assert ours == [first.metrics()[-1]["knn"]["z"], second.read("evaluation")["knn"]["z"]]
    assert table["scaled"] == "6 of the paper's 12 epochs in some cells"
    assert f"train --resume {second.path}" in (out / f"{second.path.name}.log").read_text()

    again = vje(*command, "--table-only", "--note", "Two of ten digits.", "On a train.")
    assert again.status == 0 and "2 of 2 runs finished" in again.out
    assert "\n\nTwo of ten digits.\n\nOn a train.\n\n" in (out / "pair_e6.md").read_text()
    assert read_json(out / "pair_e6.json")["notes"][-3:-1] == ["Two of ten digits.", "On a train."]


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_a_dry_run_says_how_long_the_jobs_asked_for_may_take(tmp_path, declaration, vje, jobs):
    """13 epochs of 50,000 images at 10,000 a second, which is assumed."""
    dry = vje("reproduce", declaration, "--dry-run", "--jobs", jobs, "--out", tmp_path / "out")
    share = ", 2 side by side between 32s (if none slows another) and that" if jobs > 1 else ""
    assert f"2 of 2 runs to train: about 1m05s one after another{share}, without starting up" in dry.out


def test_nothing_is_planned_with_torch(tmp_path):
    write_json(tmp_path / "profile.json", {"methods": {"vje": COUNTED}, "environment": {}})
    code = (
        "import sys; from vje.cli.main import main; here = ['--out', sys.argv[1]]; "
        "status = main(['reproduce', '--list', *here]) + main(['reproduce', 'comparison', '--dry-run', *here]); "
        "status += main(['reproduce', 'compute', '--dry-run', *here]); "
        "print('torch' in sys.modules, status)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "False 0"
    assert "nu-sweep" in answer.stdout and "0 of 72 runs" in answer.stdout
    assert "counted, not measured" in answer.stdout and "a GPU adds speed and memory" in answer.stdout


def test_the_list_has_whole_tables_or_else_the_smaller_ones(tmp_path, vje):
    for name, scaled in (("_e50", "50 epochs"), ("_e50_s1", "50 epochs, 1 seed"), ("_extra", "another's")):
        write_json(tmp_path / f"nu-sweep{name}.json", {"scaled": scaled})
        write_json(tmp_path / f"isotropic{name}.json", {"scaled": scaled})
    write_json(tmp_path / "isotropic.json", {"scaled": ""})
    said = vje("reproduce", "--list", "--out", tmp_path, "--data-dir", tmp_path).out
    assert said.count("50 epochs; 50") == 1 and "another's" not in said
    table, _, below = said.partition("Looked in ")
    assert table.count("whole") == 1 and below == f"{tmp_path}.\n"


@pytest.mark.parametrize(
    ("finished", "diverged", "cells", "words"),
    [
        ("ab", "c", [{"ours": {"mean": 1.0}}], "3 of 4 runs"),
        ("abc", "d", [{"ours": {"mean": 1.0}}, {"ours": None}, {"ours": None, "quoted": "others"}], "1 of 2 cells"),
        ("abc", "d", [{"ours": {"mean": 1.0}}, {"ours": None, "diverged": 1}], "whole"),
    ],
)
def test_the_list_says_how_much_of_a_table_is_there(tmp_path, vje, finished, diverged, cells, words):
    made = {"wanted": 4, "runs": list(finished), "diverged": list(diverged)}
    for name, scaled in (("isotropic", ""), ("nu-sweep_s1", "1 seed")):
        record = {"scaled": scaled, "rows": [{"name": "1", "cells": cells}], "made": made}
        write_json(tmp_path / f"{name}.json", record)
    out = vje("reproduce", "--list", "--out", tmp_path, "--data-dir", tmp_path).out
    table = " ".join(out.partition("Looked in ")[0].split())
    assert table.count(words) == (1 if words == "whole" else 2) and table.count("whole") == words.count("whole")
    assert "1 seed" + ("" if words == "whole" else f", {words}") in table


def test_the_list_says_where_it_looked_in_vain(tmp_path, vje):
    said = vje("reproduce", "--list", "--out", tmp_path / "none").out
    assert f"Looked in {tmp_path / 'none'}, where nothing was found; --out FOLDER looks elsewhere." in said


@pytest.mark.parametrize("epochs", ["", "epochs = 3"])
def test_a_recipe_that_is_not_there_is_told_with_its_cell(tmp_path, vje, epochs):
    file = tmp_path / "mine.toml"
    cell = "[[columns]]\nname = 'c'\nvalue = 'evaluation:knn.z'\n[[rows]]\nname = 'a'\nrecipe = 'digitz'\n"
    file.write_text(f"about = 'mine'\n{epochs}\n{cell}")
    for more in (["--dry-run"], ["--only", "digits"]):
        answer = vje("reproduce", file, "--out", tmp_path / "out", *more)
        assert answer.status == 2
        assert "mine.toml: row a, column c: there is no recipe 'digitz'. Did you mean digits?" in answer.err


def test_a_mistake_in_a_table_of_ones_own_is_told_by_a_dry_run(tmp_path, declaration, vje):
    declaration.write_text(declaration.read_text().replace("nu = 3.0", "nu = -3.0"))
    answer = vje("reproduce", declaration, "--dry-run", "--out", tmp_path)
    assert answer.status == 2 and "pair.toml: row 3, column k-NN: --nu must be positive" in answer.err


def test_geometry_of_another_method_is_told_by_a_dry_run(tmp_path, declaration, vje):
    text = declaration.read_text().replace("evaluation:knn.z", "geometry:spearman.margin.variance")
    declaration.write_text(text)
    assert vje("reproduce", declaration, "--dry-run", "--out", tmp_path).status == 0
    declaration.write_text(text.replace('recipe = "digits"', 'recipe = "digits-simsiam"'))
    answer = vje("reproduce", declaration, "--dry-run", "--out", tmp_path)
    assert answer.status == 2 and "`vje geometry` is for VJE runs" in answer.err and "digits-simsiam" in answer.err


def test_data_without_training_images_is_told_by_a_dry_run(tmp_path, declaration, vje):
    np.savez(tmp_path / "tiny.npz", test_images=np.zeros((40, 8, 8, 3), np.uint8))
    file = tmp_path / "other.toml"
    file.write_text(
        f"about = 'mine'\nepochs = 1\ncolumns = [{{ name = 'c', value = 'evaluation:knn.z' }}]\n"
        f"[[rows]]\nname = 'a'\nrecipe = 'folder'\noptions = {{ data = '{tmp_path / 'tiny.npz'}' }}"
    )
    answer = vje("reproduce", file, "--dry-run", "--out", tmp_path / "out")
    assert answer.status == 0 and "0 of 3 runs to train" in answer.out
    assert "3 runs are left out" in answer.out and "no training images" in " ".join(answer.out.split())


def test_ood_sets_that_are_missing_are_named_before_anything_is_trained(tmp_path, vje, monkeypatch):
    def no_time(runner):
        runner.stopped = True

    monkeypatch.setattr("vje.experiments.execute.Runner.__call__", no_time)
    for more in (["--dry-run"], []):
        said = vje("reproduce", "ood-nu-sweep", "ood-roc", "--out", tmp_path, "--data-dir", tmp_path, *more).out
        assert said.count("textures (the Describable Textures images") == 1
    assert "textures (" not in vje("reproduce", "isotropic", "--out", tmp_path, "--dry-run").out


def test_a_damaged_table_does_not_hide_the_others(tmp_path, vje):
    (tmp_path / "nu-sweep.json").write_text('{"rows": [')
    answer = vje("reproduce", "--list", "--out", tmp_path)
    assert answer.status == 0 and "is damaged" in answer.out and "mc-ablation" in answer.out


def test_runs_that_diverged_are_finished_work(tmp_path, declaration, vje):
    out = tmp_path / "out"
    for job in plan(load_experiment(str(declaration)), Scale(), out, None):
        folder = RunFolder.create(job.folder.path)
        folder.write("config", to_dict(job.run.config()))
        folder.append(folder.metrics_file, {"epoch": 1, "step": 6, "knn": {"z": 50.0}})
        folder.write("failed", {"step": 7, "epoch": 2, "message": "loss = nan"})
    again = f"diverged at step 7 and not trained again; to try: vje train --resume {folder.path}"
    dry = vje("reproduce", declaration, "--out", out, "--dry-run")
    assert dry.status == 0 and again in dry.out and "0 of 2 runs to train" in dry.out
    done = vje("reproduce", declaration, "--out", out)
    assert done.status == 0 and again in done.out, done
    assert not list(out.glob("*.log"))  # nothing was started
    assert [row["cells"][0]["ours"] for row in read_json(out / "pair.json")["rows"]] == [None, None]
    assert "Missing, diverged at step 7: " in (out / "pair.md").read_text()
    assert "vje train --resume RUN" in vje("reproduce", "--help").out


def test_several_tables_in_one_call_are_planned_together(tmp_path, vje):
    alone = vje("reproduce", "nu-sweep", "--dry-run", "--out", tmp_path, "--data-dir", tmp_path)
    both = vje("reproduce", "nu-sweep", "ood-nu-sweep", "--dry-run", "--out", tmp_path, "--data-dir", tmp_path)
    assert alone.status == both.status == 0
    assert "nu-sweep:" in both.out and "ood-nu-sweep:" in both.out
    assert both.out.count("one after another") == 1


@pytest.mark.parametrize(
    ("row", "gpu", "again"), [(COUNTED, True, True), (COUNTED, False, False), (MEASURED, True, False)]
)
def test_a_profile_without_speed_is_made_again_on_a_gpu(tmp_path, vje, monkeypatch, row, gpu, again):
    def measure(out, console):
        write_json(out / "profile.json", {"methods": {"vje": MEASURED}, "environment": {}})
        return ""

    monkeypatch.setattr("vje.experiments.execute.profile", measure)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    write_json(tmp_path / "profile.json", {"methods": {"vje": row}, "environment": {}})
    dry = vje("reproduce", "compute", "--out", tmp_path, "--dry-run")
    assert ("profile: there" in dry.out) == (row is MEASURED)
    assert vje("reproduce", "compute", "--out", tmp_path).status == 0
    speed = read_json(tmp_path / "compute.json")["rows"][6]["cells"][0]["ours"]
    assert (speed is not None) == (again or row is MEASURED)


def test_a_profile_that_cannot_be_made_again_keeps_its_counts(tmp_path, vje, monkeypatch):
    monkeypatch.setattr("vje.experiments.execute.profile", lambda out, console: "vje profile failed: no memory")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    write_json(tmp_path / "profile.json", {"methods": {"vje": COUNTED}, "environment": {}})
    answer = vje("reproduce", "compute", "--out", tmp_path)
    assert answer.status == 1 and "Missing, vje profile failed: no memory: profile." in answer.out
    assert read_json(tmp_path / "compute.json")["rows"][0]["cells"][0]["ours"]["mean"] == 3.4


def test_a_table_is_not_replaced_by_an_emptier_one_and_others_are_written(tmp_path, vje):
    write_json(tmp_path / "profile.json", {"methods": {"vje": MEASURED}, "environment": {}})
    command = ["reproduce", "compute", "isotropic", "--table-only", "--out", tmp_path]
    assert vje(*command).status == 0
    before = [(tmp_path / f"compute.{kind}").read_bytes() for kind in ("md", "json")]
    (tmp_path / "profile.json").unlink()
    (tmp_path / "isotropic.md").unlink()
    answer = vje(*command)
    assert answer.status == 1 and f"vje: {tmp_path / 'compute.json'} is left as it was" in answer.err
    assert "not there now: head parameters, M, VJE; speed, SimSiam = 1, VJE; peak memory" in answer.err
    assert [(tmp_path / f"compute.{kind}").read_bytes() for kind in ("md", "json")] == before
    assert (tmp_path / "isotropic.md").exists()


def test_the_profile_of_the_results_makes_their_table(tmp_path, vje):
    there = Path(__file__).parents[2] / "results" / "reproduce"
    (tmp_path / "profile.json").write_bytes((there / "profile.json").read_bytes())
    assert vje("reproduce", "compute", "--table-only", "--out", tmp_path).status == 0
    assert read_json(tmp_path / "compute.json")["rows"] == read_json(there / "compute.json")["rows"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nu-swep"], "Did you mean nu-sweep?"),
        ([], "needs to know what"),
        (["mine.toml"], "there is no file mine.toml"),
        (["nu-sweep", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["nu-sweep", "--minutes", "0"], "--minutes must be positive, got 0"),
        (["nu-sweep", "isotropc"], "Did you mean isotropic?"),
        (["nu-sweep", "--only", "cifar11"], "--only cifar11: nu-sweep has no such runs; its data sets: cifar10"),
    ],
)
def test_mistakes(vje, arguments, words):
    answer = vje("reproduce", *arguments)
    assert answer.status == 2 and words in answer.err
