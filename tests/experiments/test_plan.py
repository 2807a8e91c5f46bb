"""What a table still needs, from the folders that are there."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vje.config import to_dict
from vje.errors import UserError
from vje.evaluation.usual import USUAL_PROBE
from vje.experiments import load_experiment
from vje.experiments.estimate import estimate
from vje.experiments.grid import Run, Scale, changed_options
from vje.experiments.plan import divergence, missing_sets, plan, plan_all
from vje.experiments.table import Missing, Results, provenance
from vje.experiments.usual import unusual
from vje.runs import RunFolder

DECLARATION = """
about = "digits"
source = "paper"
epochs = 3
seeds = 2

[[columns]]
name = "k-NN"
recipe = "digits"
value = "evaluation:knn.z"

[[rows]]
name = "1"
paper = ["90.0 ± 1.0"]

[[rows]]
name = "3"
options = { nu = 3.0, terms = ["directional", "kl"] }
paper = ["91.0"]
"""


@pytest.fixture
def experiment(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(DECLARATION)
    return load_experiment(str(file))


def make_run(out, run, epochs=None, evaluated=False, **changes):
    """A run folder as training leaves it."""
    folder, config = RunFolder.create(out / run.name), run.config()
    folder.write("config", to_dict(replace(config, settings=replace(config.settings, **changes))))
    for epoch in range(1, (run.epochs if epochs is None else epochs) + 1):
        folder.append(folder.metrics_file, {"epoch": epoch, "step": epoch, "images_per_second": 100.0, "seconds": 7.0})
    if epochs is None:
        folder.model_file.write_bytes(b"")
    if evaluated:
        folder.write("evaluation", {"knn": {"z": 90.0}})
    return folder


def test_missing_interrupted_and_finished_runs(tmp_path, experiment):
    first, second, third, fourth = (job.run for job in plan(experiment, Scale(), tmp_path, None))
    assert [run.name for run in (first, third)] == ["digits_e3_s0", "digits_nu-3_terms-directional+kl_e3_s0"]
    make_run(tmp_path, first, evaluated=True)
    make_run(tmp_path, second)
    make_run(tmp_path, third, epochs=2)
    jobs = plan(experiment, Scale(), tmp_path, None)
    assert [(job.run, job.state, job.steps) for job in jobs] == [
        (first, "finished", ()),
        (second, "finished", ("evaluate",)),
        (third, "interrupted", ("train", "evaluate")),
        (fourth, "missing", ("train", "evaluate")),
    ]
    assert jobs[2].command("train", None)[2:] == ["vje", "train", "--resume", str(tmp_path / third.name)]
    started = jobs[3].command("train", tmp_path / "data")[2:]
    assert started[:5] == ["vje", "train", "digits", "--out", str(tmp_path / fourth.name)]
    assert (
        " ".join(started[5:]) == f"--epochs 3 --seed 1 --data-dir {tmp_path / 'data'} --nu 3.0 --terms directional kl"
    )


def test_records_without_weights_are_finished_but_cannot_be_measured(tmp_path, experiment):
    """As in a repository of results: the table is made from them, and what they lack is said."""
    first, second, third, _ = (job.run for job in plan(experiment, Scale(), tmp_path, None))
    for run, evaluated in ((first, True), (second, False)):
        folder = make_run(tmp_path, run, evaluated=evaluated)
        folder.model_file.unlink()
        folder.checkpoints.rmdir()
    make_run(tmp_path, third).model_file.unlink()  # killed after its last epoch, before anything was saved
    jobs = plan(experiment, Scale(), tmp_path, None)
    assert [(job.state, job.steps, bool(job.obstacle)) for job in jobs[:3]] == [
        ("finished", (), False),
        ("finished", ("evaluate",), True),
        ("interrupted", ("train", "evaluate"), False),
    ]
    assert "needs their weights" in jobs[1].obstacle
    found = Results(tmp_path, Scale(), {job.run.name: job for job in jobs}, {})
    assert found.value(first, "evaluation:knn.z") == 90.0
    with pytest.raises(Missing, match="needs their weights"):
        found.value(second, "evaluation:knn.z")


def test_several_tables_share_runs_and_add_up_what_is_left_to_do(tmp_path, experiment):
    other = tmp_path / "other.toml"
    other.write_text(DECLARATION.replace("evaluation:knn.z", "geometry:correlations.variance").replace("3.0", "7.0"))
    both = [experiment, load_experiment(str(other))]
    alone = [plan(one, Scale(seeds=1), tmp_path, None) for one in both]
    jobs = plan_all(both, Scale(seeds=1), tmp_path, None)
    assert [job.run for job in jobs] == [alone[0][0].run, alone[0][1].run, alone[1][1].run]
    assert alone[0][0].run == alone[1][0].run
    assert [job.steps[1:] for job in jobs] == [("evaluate", "geometry"), ("evaluate",), ("geometry",)]


def test_a_run_that_diverged_is_not_trained_again_until_it_is_resumed(tmp_path, experiment):
    run = plan(experiment, Scale(seeds=1), tmp_path, None)[0].run
    folder = make_run(tmp_path, run, epochs=1)
    file = folder.write("failed", {"step": 7, "epoch": 2, "message": "training stopped at step 7"})
    job = plan(experiment, Scale(seeds=1), tmp_path, None)[0]
    assert (job.state, job.steps) == ("diverged", ())
    assert divergence(folder) == "diverged at step 7"
    file.unlink()  # as `vje train --resume` does
    job = plan(experiment, Scale(seeds=1), tmp_path, None)[0]
    assert (job.state, job.steps) == ("interrupted", ("train", "evaluate"))


def test_a_relative_data_folder_is_the_same_one_for_a_child_elsewhere(tmp_path, experiment, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = plan(experiment, Scale(seeds=1), tmp_path / "out", Path("sets"))[0]
    for step in job.steps:
        words = job.command(step, Path("sets"))
        assert words[words.index("--data-dir") + 1] == str(tmp_path / "sets")


def test_parts_of_longer_runs_are_scaled_with_their_schedules(tmp_path):
    experiment = load_experiment("ood-visimsiam-scores")
    runs = {job.run.name: job.run for job in plan(experiment, Scale(epochs=40, seeds=1), tmp_path, None)}
    schedules = {name: dict(run.options).get("schedule_epochs") for name, run in runs.items()}
    assert sorted(schedules.values(), key=lambda x: x or 0) == [None, 80, 160]
    assert {run.epochs for run in runs.values()} == {40}


def test_an_evaluation_of_another_model_is_made_again(tmp_path, experiment):
    run = plan(experiment, Scale(seeds=1), tmp_path, None)[0].run
    folder = make_run(tmp_path, run, evaluated=True)
    folder.write("evaluation", folder.read("evaluation") | {"weights": "a"})
    folder.write("model", {"weights": "b"})
    assert plan(experiment, Scale(seeds=1), tmp_path, None)[0].steps == ("evaluate",)


def test_a_folder_with_other_settings_is_refused(tmp_path, experiment):
    run = plan(experiment, Scale(), tmp_path, None)[0].run
    make_run(tmp_path, run, beta=0.5)
    with pytest.raises(UserError, match=r"digits_e3_s0 holds a run of other settings \(beta 0.5 where 1.0 is wanted\)"):
        plan(experiment, Scale(), tmp_path, None)


def test_another_methods_run_is_refused(tmp_path, experiment):
    run = plan(experiment, Scale(), tmp_path, None)[0].run
    folder = make_run(tmp_path, run)
    folder.config_file.write_text(json.dumps(folder.read("config") | {"method": "simsiam"}))
    with pytest.raises(UserError, match="method simsiam where vje is wanted"):
        plan(experiment, Scale(), tmp_path, None)


def test_scaling_down_is_said_and_has_folders_of_its_own(tmp_path, experiment):
    scale = Scale(epochs=1, seeds=1)
    assert [job.run.name for job in plan(experiment, scale, tmp_path, None)] == [
        "digits_e1_s0",
        "digits_nu-3_terms-directional+kl_e1_s0",
    ]
    assert scale.label(experiment) == "1 of the paper's 3 epochs, 1 of the paper's 2 seeds"
    assert Scale(epochs=3, seeds=7).label(experiment) == Scale().label(experiment) == ""
    assert Scale(epochs=200).label(load_experiment("ood-common-bench")) == (
        "200 of the paper's 800 epochs in some cells"
    )
    assert Scale(epochs=50).label(load_experiment("cifar10-methods")) == "50 of the published 100 or 200 epochs"


def test_only_smaller_tables_have_their_scale_in_the_file_name(experiment):
    scales = [Scale(), Scale(3, 2), Scale(epochs=1), Scale(seeds=1), Scale(1, 1), Scale(1, 7)]
    names = [scale.file_name(experiment) for scale in scales]
    assert names == ["mine", "mine", "mine_e1", "mine_s1", "mine_e1_s1", "mine_e1"]


def test_data_that_is_not_there_is_an_obstacle_for_its_runs_alone(tmp_path):
    jobs = plan(load_experiment("nu-sweep"), Scale(seeds=1), tmp_path, tmp_path)
    hindered = {job.run.recipe for job in jobs if job.obstacle}
    assert hindered == {"tiny-imagenet"}
    obstacle = next(j.obstacle for j in jobs if j.obstacle)
    assert "tiny-imagenet cannot be downloaded: put its images into" in obstacle
    assert obstacle.endswith("or say where they are with --data-dir")  # the only such option of `vje reproduce`


def test_ood_sets_that_are_not_there_are_named_where_they_would_be_measured(tmp_path):
    """Those that can be downloaded are not missing; those that cannot are a file or a folder of images."""
    np.savez(tmp_path / "tin.npz", test_images=np.zeros((1, 8, 8, 3), np.uint8))
    (tmp_path / "places").mkdir()  # and no image in it
    jobs = plan(load_experiment("ood-scoring-datasets"), Scale(seeds=1), tmp_path, tmp_path)
    (line,) = missing_sets(jobs, tmp_path)
    assert "cifar10 runs" in line and str(tmp_path) in line
    assert "textures (the Describable Textures images" in line and "places (" in line
    assert not any(f"{name} (" in line for name in ("tin", "mnist", "svhn", "cifar100"))
    assert missing_sets(plan(load_experiment("nu-sweep"), Scale(seeds=1), tmp_path, tmp_path), tmp_path) == []


def test_the_estimate_is_by_runs_that_are_there_or_stated(tmp_path, experiment):
    jobs = plan(experiment, Scale(), tmp_path, None)
    assert estimate(jobs, tmp_path) == (pytest.approx(4 * 3 * 1438 / 1000), {"digits"})
    make_run(tmp_path, jobs[0].run)
    make_run(tmp_path, jobs[2].run, epochs=1)
    jobs = plan(experiment, Scale(), tmp_path, None)
    assert estimate(jobs, tmp_path) == (7.0 * (3 + 2 + 3), set())


def test_the_estimate_takes_the_median_of_epochs_and_then_of_runs(tmp_path, experiment):
    """An epoch that a slow start or another job drew out counts no more than any other, nor does a run of them."""
    jobs = plan(experiment, Scale(), tmp_path, None)
    for job, seconds in zip(jobs, ([4.0, 90.0, 5.0], [6.0, 8.0, 7.0], [600.0, 50.0, 60.0]), strict=False):
        folder = make_run(tmp_path, job.run)
        records = [{"epoch": i + 1, "seconds": x, "images_per_second": 100.0} for i, x in enumerate(seconds)]
        records.insert(1, {"epoch": 1, "seconds": 0.001, "images_per_second": 0.0})  # nothing was trained in it
        folder.metrics_file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert estimate(plan(experiment, Scale(), tmp_path, None), tmp_path) == (7.0 * 3, set())  # of 5, 7 and 60


def test_options_as_the_recipe_has_them_do_not_make_another_run():
    assert changed_options("cifar10", {"nu": 1.0, "terms": ["directional", "radial", "kl"]}) == ()
    assert changed_options("tiny-imagenet", {"target": "stop-gradient"}) == (("target", "stop-gradient"),)
    assert (
        Run("cifar10", (("isotropic", True), ("nu", float("inf"))), 200, 1).name == "cifar10_isotropic_nu-inf_e200_s1"
    )
    with pytest.raises(UserError, match="recipe digits has no setting 'nuu'"):
        Run("digits", (("nuu", 3.0),), 1, 0).config()


# Settings that training would refuse


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("nuu = 3", "recipe digits has no setting 'nuu'; did you mean nu?"),
        ("xyzzy = 3", "recipe digits has no setting 'xyzzy'; `vje train digits --help` lists them."),
        ("nu = 'three'", "recipe digits: vje: nu must be of type float, got 'three'."),
        ("nu = -3.0", "--nu must be positive (inf is the Gaussian limit), got -3.0."),
    ],
)
def test_options_that_training_would_refuse_are_refused_by_the_plan(tmp_path, options, message):
    file = tmp_path / "mine.toml"
    file.write_text(DECLARATION.replace("nu = 3.0", options))
    with pytest.raises(UserError) as error:
        plan(load_experiment(str(file)), Scale(), tmp_path, None)
    assert str(error.value) == f"mine.toml: row 3, column k-NN: {message}"


def test_options_of_other_methods_are_looked_at_thoroughly(tmp_path):
    file = tmp_path / "mine.toml"
    text = DECLARATION.replace('recipe = "digits"', 'recipe = "digits-simsiam"')
    file.write_text(text.replace('nu = 3.0, terms = ["directional", "kl"]', "bottlenek = 3"))
    mine = load_experiment(str(file))
    assert len(plan(mine, Scale(), tmp_path, None)) == 4
    with pytest.raises(UserError, match=r"row 3, column k-NN: .* no setting 'bottlenek'; did you mean bottleneck\?"):
        plan(mine, Scale(), tmp_path, None, thorough=True)


def test_a_recipe_that_is_none_is_told_with_its_cell(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(DECLARATION.replace('recipe = "digits"', 'recipe = "digit"'))
    with pytest.raises(UserError, match=r"mine.toml: row 1, column k-NN: .*digits"):
        plan(load_experiment(str(file)), Scale(), tmp_path, None)


# Results of other settings


def test_an_evaluation_with_another_k_is_made_again(tmp_path, experiment):
    run = plan(experiment, Scale(seeds=1), tmp_path, None)[0].run
    folder = make_run(tmp_path, run)
    for k, steps in ((3, ("evaluate",)), (20, ())):
        folder.write("evaluation", {"knn": {"k": k, "z": 90.0}})
        jobs = plan(experiment, Scale(seeds=1), tmp_path, None)
        assert jobs[0].steps == steps
    folder.write("evaluation", {"knn": {"k": 3, "z": 90.0}})
    found = Results(tmp_path, Scale(), {job.run.name: job for job in jobs}, {})
    with pytest.raises(Missing, match=r"evaluation.json was measured with k 3 instead of 20; vje evaluate measures it"):
        found.value(run, "evaluation:knn.z")


def test_a_record_with_another_k_leaves_the_cell_empty_and_says_so(tmp_path, experiment):
    run = plan(experiment, Scale(seeds=1), tmp_path, None)[0].run
    folder = make_run(tmp_path, run)
    folder.write("evaluation", {"knn": {"k": 3, "z": 90.0}})
    folder.model_file.unlink()
    folder.checkpoints.rmdir()
    jobs = plan(experiment, Scale(seeds=1), tmp_path, None)
    found = Results(tmp_path, Scale(seeds=1), {job.run.name: job for job in jobs}, {})
    assert found.cell(experiment.cells()[0][0]) is None
    (note,) = found.notes()
    assert note.startswith("Missing, evaluation.json was measured with k 3 instead of 20; only their records were kept")


PROBE = {
    "spaces": {"z": {"top1": 90.0, "rates": [{"lr": rate} for rate in USUAL_PROBE["lr"]]}},
    "images": {"train": 50_000},
    **{name: value for name, value in USUAL_PROBE.items() if name != "lr"},
}
ONE_RATE = {"spaces": {"z": {"top1": 90.0, "rates": [{"lr": 0.1}]}}}
FEW, MANY = {"images": {"train": 162}}, {"images": {"train": 1_281_167}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"epochs": 5}, "epochs 5 instead of 100"),
        (ONE_RATE, "lr 0.1 instead of 0.001/0.003/0.01/0.03/0.1/0.3/1/3"),
        ({"standardize": False}, "standardize off instead of on"),
        ({"batch": 64, "weight_decay": 1e-4}, "batch 64 instead of 256, weight-decay 0.0001 instead of 0"),
        ({"augment": True}, "augment on instead of off"),
        (FEW | {"batch": 81}, ""),
        (FEW | {"batch": 16}, "batch 16 instead of 256"),
        (MANY | {"augment": True}, ""),
    ],
)  # fmt: skip
def test_a_probe_with_other_settings_is_none_of_the_table(tmp_path, changes, words):
    """Except for what `vje probe` chooses itself: smaller batches of few images, crops of very many."""
    folder = RunFolder(tmp_path)
    folder.write("model", {"dim": 2048})
    folder.write("probe", PROBE | changes)
    assert unusual(folder, "probe") == words


def test_only_some_data_sets_are_made(tmp_path):
    wanted = load_experiment("nu-sweep")
    jobs = plan(wanted, Scale(50, 1, ("cifar10",)), tmp_path, tmp_path)
    todo = [job for job in jobs if job.steps and not job.obstacle]
    assert len(jobs) == 24 and [job.run.data() for job in todo] == ["cifar10"] * 6
    others = {job.obstacle for job in jobs if job.run.data() != "cifar10"}
    assert others == {"their data sets are not among --only cifar10"}
    everything = plan(wanted, Scale(50, 1), tmp_path, tmp_path)
    assert [job.run for job in everything] == [job.run for job in jobs]
    assert [job.obstacle for job in everything if job.run.data() == "cifar10"] == [
        job.obstacle for job in jobs if job.run.data() == "cifar10"
    ]
    assert Scale(50, 1, ("cifar10",)).file_name(wanted) == Scale(50, 1).file_name(wanted)


# What is damaged


def damaged_plan(experiment, out, file, content):
    """The plan of two finished runs, of which the first has a damaged file."""
    runs = [job.run for job in plan(experiment, Scale(seeds=1), out, None)]
    for run in runs:
        make_run(out, run, evaluated=True)
    (out / runs[0].name / file).write_text(content)
    return plan(experiment, Scale(seeds=1), out, None)


def test_a_damaged_result_is_measured_anew(experiment, tmp_path):
    first, second = damaged_plan(experiment, tmp_path, "evaluation.json", '{"knn": {"z"')
    assert (first.state, first.steps, first.obstacle) == ("finished", ("evaluate",), "")
    assert second.steps == ()
    results = Results(tmp_path, Scale(seeds=1), {job.run.name: job for job in (first, second)}, {})
    found = [results.cell(row[0]) for row in experiment.cells()]
    assert found[0] is None and found[1].values == (90.0,)
    (note,) = results.notes()
    assert "evaluation.json is damaged" in note and "vje evaluate measures it anew" in note


def test_a_damaged_config_leaves_the_other_runs_alone(experiment, tmp_path):
    first, second = damaged_plan(experiment, tmp_path, "config.json", "")
    assert (first.state, first.steps) == ("damaged", ()) and "config.json is damaged" in first.obstacle
    assert (second.state, second.obstacle) == ("finished", "")
    assert estimate([first, second], tmp_path)[0] == 0
    results = Results(tmp_path, Scale(seeds=1), {job.run.name: job for job in (first, second)}, {})
    assert [results.cell(row[0]) is None for row in experiment.cells()] == [True, False]
    assert "config.json is damaged" in results.notes()[0] and "move" in results.notes()[0]


def test_a_finished_run_without_its_metrics_is_finished(experiment, tmp_path):
    first, _ = damaged_plan(experiment, tmp_path, "metrics.jsonl", "")
    assert (first.state, first.steps) == ("finished", ())
    results = Results(tmp_path, Scale(seeds=1), {first.run.name: first}, {})
    with pytest.raises(Missing, match=r"metrics\.jsonl has no knn\.z"):
        results.value(first.run, "metrics:knn.z")


def test_a_damaged_record_of_the_surroundings_only_says_less(experiment, tmp_path):
    first, second = damaged_plan(experiment, tmp_path, "environment.json", "")
    made = provenance([first.folder, second.folder], [first, second], [])
    assert made["commits"] == [] and len(made["runs"]) == 2


def test_folders_of_data_with_the_same_name_are_told_apart_before_training(tmp_path):
    file = tmp_path / "mine.toml"
    rows = [f'[[rows]]\nname = "{place}"\noptions = {{ data = "{place}/big" }}\n' for place in ("x", "y")]
    head = DECLARATION.partition("[[rows]]")[0]
    file.write_text(head + "".join(rows))
    with pytest.raises(
        UserError, match=r"called digits_data-big_e3_s0: one with data x/big, one with data y/big\. .*rename"
    ):
        plan(load_experiment(str(file)), Scale(), tmp_path, None)
