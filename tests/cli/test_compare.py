"""``vje compare``: figures that were measured, put side by side; seeds together, everything else apart."""

import json
import re
import statistics
from dataclasses import replace

import pytest

from vje.cli.probe import Options
from vje.config import to_dict
from vje.evaluation.usual import USUAL_PROBE
from vje.recipes import load_recipe
from vje.reporting.compare import group_runs, read_runs
from vje.reporting.compare_table import heads
from vje.runs import RunFolder


@pytest.fixture
def make_run(tmp_path):
    """A run folder with made-up figures."""

    def make(name, recipe="cifar10", seed=0, knn=80.0, momentum=None, epochs=20, others=None, **files):
        config = load_recipe(recipe)
        config = replace(config, run=replace(config.run, seed=seed), optimizer=replace(config.optimizer, epochs=epochs))
        if momentum is not None:
            config = replace(config, settings=replace(config.settings, target_momentum=momentum))
        folder = RunFolder.create(tmp_path / name)
        folder.write("config", to_dict(config))
        for epoch in (10, 20):
            record = {
                "epoch": epoch,
                "step": epoch,
                "images_per_second": 1000.0 * epoch,
                "knn": {"z": knn - 20 + epoch} | (others or {}),
            }
            folder.append(folder.metrics_file, record)
        for kind, value in files.items():
            folder.write(kind, value)
        return folder.path

    return make


def groups_of(tmp_path):
    return {g["name"]: g for g in json.loads((tmp_path / "c.json").read_text())["groups"]}


def test_seeds_are_averaged_and_methods_stay_apart(vje, make_run, tmp_path):
    knn = [80.0, 83.0, 87.0]
    runs = [make_run(f"s{i}", seed=i, knn=value) for i, value in enumerate(knn)]
    other = make_run("other", recipe="cifar10-simsiam", knn=70.0)
    answer = vje("compare", *runs, other, "--out", tmp_path / "c")
    assert answer.status == 0, answer.err
    found = groups_of(tmp_path)
    assert found.keys() == {"cifar10", "cifar10-simsiam"}
    assert found["cifar10"]["seeds"] == [0, 1, 2] and found["cifar10"]["runs"] == [str(run) for run in runs]
    assert found["cifar10"]["epochs_done"] == [20, 20, 20] and found["cifar10-simsiam"]["method"] == "simsiam"
    value = found["cifar10"]["values"]["k-NN z"]
    assert value["mean"] == pytest.approx(statistics.mean(knn))
    assert value["std"] == pytest.approx(statistics.stdev(knn))
    assert f"{statistics.mean(knn):.2f} ± {statistics.stdev(knn):.2f}" in answer.out
    assert found["cifar10"]["values"]["images/s"]["mean"] == 15_000
    assert (tmp_path / "c.png").stat().st_size > 5000
    assert f"Written to {tmp_path / 'c.png'} and {tmp_path / 'c.json'}\n" in answer.out


def test_without_a_name_the_files_are_called_comparison(vje, make_run, tmp_path, monkeypatch):
    run = make_run("run")
    monkeypatch.chdir(tmp_path)
    assert vje("compare", run).status == 0
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["comparison.json", "comparison.png"]


def test_what_the_posterior_is_like_stands_beside_accuracy(vje, make_run, tmp_path):
    found = {"knn": {"k": 20, "z": 80.0}, "posterior": {"variance": 0.6513, "kl": 143.86}, "effective_rank": 249.96}
    simsiam = {"knn": {"k": 20, "z": 70.0}, "effective_rank": 99.0}
    runs = [make_run("a", evaluation=found), make_run("b", recipe="cifar10-simsiam", evaluation=simsiam)]
    answer = vje("compare", *runs, "--out", tmp_path / "c")
    assert answer.status == 0, answer.err
    assert all(text in answer.out for text in ("variance", "0.651", "KL", "143.9", "rank of z", "250.0", "99.0"))
    assert groups_of(tmp_path)["cifar10"]["values"]["variance"]["mean"] == 0.6513
    assert "variance" not in groups_of(tmp_path)["cifar10-simsiam"]["values"]


def test_posteriors_with_other_priors_have_columns_of_their_own(vje, make_run, tmp_path):
    found = {"knn": {"k": 20, "z": 80.0}, "posterior": {"variance": 0.6513, "kl": 22.34}}
    power, student = ({"knn": {"k": 20, "z": 70.0}, "posterior": x} for x in ({"kl": 0.34}, {"variance": 0.5254}))
    runs = [
        make_run("a", evaluation=found),
        make_run("b", recipe="cifar10-vi-simsiam", evaluation=power | {"method": "vi-simsiam"}),
        make_run("c", recipe="cifar10-vssl", evaluation=student),  # as an older version wrote it
    ]
    answer = vje("compare", *runs, "--out", tmp_path / "c")
    assert answer.status == 0, answer.err
    whose = {name: set(group["values"]) - {"k-NN z", "images/s"} for name, group in groups_of(tmp_path).items()}
    assert whose == {"cifar10": {"variance", "KL"}, "cifar10-vi-simsiam": {"KL (vi-simsiam)"},
                     "cifar10-vssl": {"variance (vssl)"}}  # fmt: skip
    assert heads(group_runs(read_runs(map(RunFolder, runs))))[4:-1] == [
        "variance", "variance (vssl)", "KL", "KL (vi-simsiam)"]  # fmt: skip
    assert all(f" {text} " in answer.out for text in ("0.651", "22.3", "0.3", "0.525"))


def test_settings_other_than_the_seed_make_groups_of_their_own(vje, make_run, tmp_path):
    runs = [make_run("a", recipe="cifar10-ema"), make_run("b", recipe="cifar10-ema", momentum=0.9, seed=1)]
    assert vje("compare", *runs, "--out", tmp_path / "c").status == 0
    assert groups_of(tmp_path).keys() == {"cifar10-ema", "cifar10-ema (target_momentum 0.9)"}


def test_settings_that_cannot_change_a_result_do_not_part_runs(vje, make_run, tmp_path):
    runs = [make_run("a"), make_run("b", seed=1)]
    config = RunFolder(runs[1]).read("config")
    RunFolder(runs[1]).write("config", config | {"recipe": "mine", "run": config["run"] | {"knn_every": 3}})
    assert vje("compare", *runs, "--out", tmp_path / "c").status == 0
    assert {name: group["seeds"] for name, group in groups_of(tmp_path).items()} == {"cifar10": [0, 1]}


def rename(run, recipe, **settings):
    """Let a run be of a recipe of someone's own, with other settings of its method."""
    config = RunFolder(run).read("config")
    method = config["method"]
    RunFolder(run).write("config", config | {"recipe": recipe, method: config[method] | settings})
    return run


def test_a_row_of_several_recipes_has_the_name_that_says_least(vje, make_run, tmp_path):
    """Equal settings by two names: one is a recipe that is here, the other has unlike runs of its own."""
    bad, usual = rename(make_run("bad-4", recipe="cifar10-ema"), "bad"), make_run("cifar10-ema", recipe="cifar10-ema")
    others = [
        rename(make_run("bad-2", recipe="cifar10-ema"), "bad", nu=5.0),
        rename(make_run("bad-3", recipe="cifar10-simsiam"), "bad"),
    ]
    for order in ([bad, usual, *others], [*others, usual, bad]):
        answer = vje("compare", *order, "--out", tmp_path / "c")
        found = {name: {*group["runs"]} for name, group in groups_of(tmp_path).items()}
        assert found == {
            "cifar10-ema": {str(bad), str(usual)},
            "bad (nu 5.0)": {str(others[0])},
            "bad (method simsiam)": {str(others[1])},
        }
        lines = answer.out.splitlines()
        assert f"cifar10-ema: {', '.join(map(str, (run for run in order if run in (bad, usual))))}" in lines
        assert f"bad (nu 5.0): {others[0]}" in lines
    vje("compare", bad, usual, "--out", tmp_path / "c")
    assert list(groups_of(tmp_path)) == ["cifar10-ema"]
    vje("compare", bad, *others, "--out", tmp_path / "c")  # the usual nu and method go without saying
    assert list(groups_of(tmp_path)) == ["bad", "bad (nu 5.0)", "bad (method simsiam)"]


def test_groups_of_a_recipe_are_told_apart_though_one_shares_its_row(vje, make_run, tmp_path):
    """The names of a row's later runs count as much as that of its first."""
    shared = [rename(make_run("a"), "mine"), rename(make_run("b", seed=1), "yours")]
    others = [rename(make_run("c", momentum=0.5), "yours"), rename(make_run("d", momentum=0.5, seed=1), "mine")]
    assert vje("compare", *shared, *others, "--out", tmp_path / "c").status == 0
    assert list(groups_of(tmp_path)) == ["mine", "yours (target_momentum 0.5)"]


def test_folders_are_named_where_the_row_does_not_name_them(vje, make_run, tmp_path):
    named, numbered = make_run("cifar10-ema", recipe="cifar10-ema"), make_run("cifar10-2")
    lines = vje("compare", named, numbered, "--out", tmp_path / "c").out.splitlines()
    assert f"cifar10: {numbered}" in lines and not any(line.startswith("cifar10-ema: ") for line in lines)
    assert f"cifar10: {numbered}" not in vje("compare", numbered, "--out", tmp_path / "c").out


def test_where_the_data_was_is_said_only_if_it_tells_groups_apart(vje, make_run, tmp_path):
    moved = make_run("moved")
    config = RunFolder(moved).read("config")
    RunFolder(moved).write("config", config | {"data": config["data"] | {"data": "mine/cifar10.npz"}})
    assert vje("compare", moved, "--out", tmp_path / "c").status == 0
    assert list(groups_of(tmp_path)) == ["cifar10"]
    assert vje("compare", moved, make_run("usual"), "--out", tmp_path / "c").status == 0
    assert list(groups_of(tmp_path)) == ["cifar10 (data mine/cifar10.npz)", "cifar10"]


def test_the_same_images_by_another_path_are_the_same_data(vje, make_run, tmp_path):
    """A run that was resumed from another folder knows its images by their whole path."""
    runs = [make_run(name, recipe="folder", seed=seed) for seed, name in enumerate("ab")]
    for run, data in zip(runs, ("pictures", "/there/pictures"), strict=True):
        config = RunFolder(run).read("config")
        RunFolder(run).write("config", config | {"data": config["data"] | {"data": data}})
        RunFolder(run).write("data", {"path": "/there/pictures"})
    assert vje("compare", *runs, "--out", tmp_path / "c").status == 0
    assert {name: group["seeds"] for name, group in groups_of(tmp_path).items()} == {"folder": [0, 1]}
    other = make_run("other", recipe="cifar10-simsiam")
    assert vje("compare", *runs, other, "--out", tmp_path / "c").status == 0
    assert list(groups_of(tmp_path)) == ["folder (data pictures)", "cifar10-simsiam"]  # told from each other's data


def test_a_folder_is_no_name_for_a_comparison(vje, make_run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    answer = vje("compare", make_run("a"), "--out", ".")
    assert answer.status == 2 and "--out . is a folder: name what to write, such as comparison." in answer.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("README.md", "a .png and a .json are written; end it in one of these, or in nothing"),
        ("page.html", "a .png and a .json are written; end it in one of these, or in nothing"),
        ("none/c", "there is no folder none"),
        ("mine.png", "mine.png is there, and is no picture that vje wrote"),
        ("config", "config.json is there, and is no record of a comparison that vje wrote"),
    ],
)
def test_files_of_others_stay(vje, make_run, snapshot, monkeypatch, tmp_path, given, message):
    monkeypatch.chdir(make_run("a"))
    for name in ("README.md", "mine.png"):
        (tmp_path / "a" / name).write_text("precious")
    before = snapshot(tmp_path)
    answer = vje("compare", ".", "--out", given)
    assert answer.status == 2 and message in answer.err and not answer.out
    assert snapshot(tmp_path) == before


def test_a_comparison_is_made_anew_in_its_place(vje, make_run, tmp_path):
    runs = [make_run("a"), make_run("b", recipe="cifar10-simsiam")]
    for given in (runs[:1], runs):
        assert vje("compare", *given, "--out", tmp_path / "c.png").status == 0
    assert len(groups_of(tmp_path)) == 2
    (tmp_path / "c.json").unlink()  # the picture alone is kept
    assert vje("compare", *runs[:1], "--out", tmp_path / "c.png").status == 0
    assert len(groups_of(tmp_path)) == 1


def test_names_say_what_differs_from_the_recipe_in_any_order(vje, make_run, tmp_path):
    unusual = make_run("a", recipe="cifar10-ema", momentum=0.9, seed=1)
    longer = make_run("c", recipe="cifar10-ema", epochs=40)
    assert vje("compare", unusual, make_run("b", recipe="cifar10-ema"), "--out", tmp_path / "c").status == 0
    assert list(groups_of(tmp_path)) == ["cifar10-ema (target_momentum 0.9)", "cifar10-ema"]
    assert vje("compare", unusual, longer, "--out", tmp_path / "c").status == 0
    assert list(groups_of(tmp_path)) == ["cifar10-ema (target_momentum 0.9, epochs 20)", "cifar10-ema (epochs 40)"]
    assert vje("compare", unusual, "--out", tmp_path / "c").status == 0
    assert list(groups_of(tmp_path)) == ["cifar10-ema (target_momentum 0.9)"]


def test_names_of_recipes_that_are_not_here_say_how_groups_differ(vje, make_run, tmp_path):
    runs = [make_run("a", recipe="cifar10-ema", momentum=0.9), make_run("b", recipe="cifar10-ema", momentum=0.5)]
    for run in runs:
        RunFolder(run).write("config", RunFolder(run).read("config") | {"recipe": "mine"})
    assert vje("compare", *runs, "--out", tmp_path / "c").status == 0
    assert list(groups_of(tmp_path)) == ["mine (target_momentum 0.9)", "mine (target_momentum 0.5)"]
    assert vje("compare", runs[0], "--out", tmp_path / "c").status == 0
    assert list(groups_of(tmp_path)) == ["mine"]


def test_the_full_evaluation_is_preferred_and_what_is_missing_stays_empty(vje, make_run, tmp_path):
    ood = {
        "summary": {"nll": {"near": 88.0, "far": 96.0, "avg": 92.0}, "knn": {"near": 89.0, "far": 94.0, "avg": 91.5}}
    }
    full = make_run("full", evaluation={"knn": {"k": 20, "z": 81.5, "mean": 80.5}}, ood=ood)
    bare = make_run("bare", recipe="cifar10-simsiam")
    assert vje("compare", full, bare, "--out", tmp_path / "c").status == 0
    found = groups_of(tmp_path)
    values = {name: value["mean"] for name, value in found["cifar10"]["values"].items()}
    assert values.items() >= {"k-NN z": 81.5, "k-NN mean": 80.5, "near OOD NLL": 88.0, "far OOD k-NN": 94.0}.items()
    assert "near OOD NLL" not in found["cifar10-simsiam"]["values"]


def test_the_evaluation_is_shown_whatever_it_holds(vje, make_run, tmp_path):
    found = {"knn": {"z": 81.5, "target": 64.0}, "posterior": {"variance": 1.0, "kl": 0.0}}  # of an older version
    run = make_run("run", others={"target": 62.0}, evaluation=found)
    assert vje("compare", run, "--out", tmp_path / "c").status == 0
    values = {name: value["mean"] for name, value in groups_of(tmp_path)["cifar10"]["values"].items()}
    assert values.items() >= {"k-NN z": 81.5, "k-NN target": 64.0, "KL": 0.0}.items()


def cells_of(out, name):
    """A row of the printed table."""
    line = next(line for line in out.splitlines() if line.strip().startswith(f"{name} "))
    return re.split(r"\s{2,}", line.strip())


def test_unfinished_runs_are_marked(vje, make_run, tmp_path):
    whole = make_run("whole", recipe="cifar10-ema")
    answer = vje("compare", whole, make_run("part", knn=71.0, epochs=40), "--out", tmp_path / "c")
    assert cells_of(answer.out, "cifar10") == ["cifar10", "1", "20/40*", "71.00*", "15,000"]
    assert cells_of(answer.out, "cifar10-ema") == ["cifar10-ema", "1", "20", "80.00", "15,000"]
    assert "* unfinished" in answer.out
    found = groups_of(tmp_path)
    assert found["cifar10"]["epochs_done"] == [20] and found["cifar10"]["epochs"] == 40
    assert [found[name]["values"]["k-NN z"]["unfinished"] for name in ("cifar10", "cifar10-ema")] == [1, 0]
    answer = vje("compare", whole, "--out", tmp_path / "c")
    assert "*" not in answer.out


def test_a_run_that_was_never_evaluated_is_marked_too(vje, make_run, tmp_path):
    run = make_run("run", epochs=40)
    (run / "metrics.jsonl").write_text('{"epoch": 10, "step": 10, "images_per_second": 9.0}\n')
    answer = vje("compare", run, "--out", tmp_path / "c")
    assert cells_of(answer.out, "cifar10") == ["cifar10", "1", "10/40*", "9"] and "* unfinished" in answer.out


def test_a_model_without_a_record_of_its_training_is_finished(vje, make_run, tmp_path):
    run = make_run("run", evaluation={"knn": {"k": 20, "z": 81.5}})
    (run / "metrics.jsonl").unlink()
    (run / "model.safetensors").touch()
    answer = vje("compare", run, "--out", tmp_path / "c")
    assert cells_of(answer.out, "cifar10") == ["cifar10", "1", "20", "81.50"] and "*" not in answer.out


def test_a_run_that_goes_on_is_unfinished_though_it_has_a_model(vje, make_run, tmp_path):
    run = make_run("run", epochs=40)
    (run / "model.safetensors").touch()
    assert cells_of(vje("compare", run, "--out", tmp_path / "c").out, "cifar10")[2:4] == ["20/40*", "80.00*"]


def test_each_value_has_the_marks_of_the_runs_it_is_of(vje, make_run, tmp_path):
    whole = make_run("whole", epochs=40, probe={"spaces": {"z": {"top1": 90.0}}})
    RunFolder(whole).append(whole / "metrics.jsonl", {"epoch": 40, "step": 40})
    failed = make_run("failed", seed=2, epochs=40, failed={"step": 27, "message": "no"})
    answer = vje("compare", whole, make_run("part", seed=1, epochs=40), failed, "--out", tmp_path / "c")
    marked = ["40, 20/40*, 20/40†", "80.00 ± 0.00*†", "90.00 (1 of 3)", "15,000"]
    assert cells_of(answer.out, "cifar10") == ["cifar10", "3", *marked]
    assert "* unfinished" in answer.out and answer.out.count("† diverged") == 1


def test_a_run_that_reached_its_end_has_not_diverged(vje, make_run, tmp_path):
    run = make_run("run", failed={"step": 7, "message": "no"})  # before it was continued
    answer = vje("compare", run, "--out", tmp_path / "c")
    assert cells_of(answer.out, "cifar10")[2:4] == ["20", "80.00"] and "†" not in answer.out


def test_runs_that_diverged_are_marked_as_such(vje, make_run, tmp_path):
    run, whole = make_run("run", epochs=40, failed={"step": 27, "message": "no"}), make_run("b", recipe="cifar10-ema")
    answer = vje("compare", run, whole, "--out", tmp_path / "c")
    assert cells_of(answer.out, "cifar10") == ["cifar10", "1", "20/40†", "80.00†", "15,000"]
    assert f"† diverged: {run}, at step 27, after 20 of 40 epochs;" in answer.out and "unfinished" not in answer.out
    assert [groups_of(tmp_path)[name]["diverged"] for name in ("cifar10", "cifar10-ema")] == [[27], [None]]
    (run / "metrics.jsonl").unlink()
    assert "0/40†" in vje("compare", run, "--out", tmp_path / "c").out
    assert vje("report", run, whole, "--out", tmp_path / "c.html").status == 0
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "<td>0/40†</td>" in text and "† diverged" in text and "diverged at step 27, in the first epoch" in text


def test_epochs_without_a_speed_are_passed_over(vje, make_run, tmp_path):
    run = make_run("run", epochs=30)
    RunFolder(run).append(run / "metrics.jsonl", {"epoch": 30, "step": 30, "knn": {"z": 90.0, "mean": "nan"}})
    assert cells_of(vje("compare", run, "--out", tmp_path / "c").out, "cifar10")[2:] == ["30", "90.00", "15,000"]


def test_what_is_no_number_is_passed_over(vje, make_run, tmp_path):
    found = {"knn": {"k": 20, "z": "nan", "mean": 80.5}, "effective_rank": "inf"}
    run = make_run("run", epochs=30, evaluation=found)
    record = {"epoch": 30, "step": 30, "images_per_second": "inf", "knn": {"z": "nan"}}
    RunFolder(run).append(run / "metrics.jsonl", record)
    answer = vje("compare", run, "--out", tmp_path / "c")
    assert answer.status == 0, answer.err
    assert cells_of(answer.out, "cifar10")[2:] == ["30", "80.00", "80.50", "15,000"]


def test_a_speed_of_some_of_the_runs_says_so(vje, make_run, tmp_path):
    runs = [make_run("a"), make_run("b", seed=1)]
    (runs[1] / "metrics.jsonl").write_text('{"epoch": 20, "step": 20, "knn": {"z": 80.0}}\n')
    cells = cells_of(vje("compare", *runs, "--out", tmp_path / "c").out, "cifar10")
    assert cells[3:] == ["80.00 ± 0.00", "15,000 (1 of 2)"]


def test_the_speed_is_the_median_of_the_epochs(vje, make_run, tmp_path):
    run = make_run("run", epochs=30)
    RunFolder(run).append(run / "metrics.jsonl", {"epoch": 30, "step": 30, "images_per_second": 12_000.0})
    assert cells_of(vje("compare", run, "--out", tmp_path / "c").out, "cifar10")[-1] == "12,000"  # of 10, 20 and 12


def test_a_mean_with_an_unfinished_seed_is_marked(vje, make_run, tmp_path):
    runs = [make_run(f"s{seed}", seed=seed, epochs=40, probe={"spaces": {"z": {"top1": 90.0}}}) for seed in (0, 1)]
    RunFolder(runs[0]).append(runs[0] / "metrics.jsonl", {"epoch": 40, "step": 40, "images_per_second": 1.0})
    answer = vje("compare", *runs, "--out", tmp_path / "c")
    marked = ["40, 20/40*", "80.00 ± 0.00*", "90.00 ± 0.00*"]
    assert cells_of(answer.out, "cifar10")[:5] == ["cifar10", "2", *marked] and "* unfinished" in answer.out


def test_a_result_from_before_the_end_of_training_is_marked(vje, make_run, tmp_path):
    evaluation = {"knn": {"k": 20, "z": 81.5}, "finished": False}
    run = make_run("run", evaluation=evaluation, ood={"summary": {"knn": {"near": 89.0}}, "finished": True})
    (run / "model.safetensors").touch()
    answer = vje("compare", run, "--out", tmp_path / "c")
    assert cells_of(answer.out, "cifar10")[2:5] == ["20", "81.50*", "89.00"] and "* unfinished" in answer.out


def test_results_of_another_model_are_left_out(vje, make_run, tmp_path):
    files = {
        "evaluation": {"knn": {"k": 20, "z": 33.0}, "finished": True, "weights": "new"},
        "probe": {"spaces": {"z": {"top1": 44.0}}, "weights": "old"},
        "ood": {"summary": {"knn": {"near": 55.0}}, "finished": False, "weights": "new"},
    }
    run = make_run("run", **files)
    (run / "model.safetensors").touch()
    RunFolder(run).write("model", {"weights": "new"})
    answer = vje("compare", run, "--out", tmp_path / "c")
    assert cells_of(answer.out, "cifar10")[2:] == ["20", "33.00", "55.00*", "15,000"]
    assert f"left out: {run / 'probe.json'}, of other weights than the model; `vje probe {run}`" in answer.out
    assert len(groups_of(tmp_path)["cifar10"]["notes"]) == 1

    RunFolder(run).write("model", {"weights": "newest"})
    answer = vje("compare", run, "--out", tmp_path / "c")
    assert cells_of(answer.out, "cifar10")[2:] == ["20", "80.00", "15,000"]  # what training saw last
    assert answer.out.count("of other weights than the model") == 3
    assert (
        f"{run / 'evaluation.json'}, of other weights than the model; `vje evaluate {run}` makes it anew" in answer.out
    )


def test_a_mean_over_some_of_the_runs_says_of_how_many(vje, make_run, tmp_path):
    evaluation = {"knn": {"k": 20, "z": 81.5, "mean": 80.5}}
    runs = [make_run(f"s{seed}", seed=seed, **({"evaluation": evaluation} if seed else {})) for seed in range(3)]
    answer = vje("compare", *runs[:2], "--out", tmp_path / "c")
    assert cells_of(answer.out, "cifar10")[3:] == ["80.75 ± 1.06", "80.50 (1 of 2)", "15,000"]
    assert vje("report", *runs, "--out", tmp_path / "c.html").status == 0
    assert "80.50 ± 0.00 (2 of 3)" in (tmp_path / "c.html").read_text(encoding="utf-8")


def test_ood_averages_without_some_of_their_sets_are_left_out(vje, make_run, tmp_path):
    summary = {"summary": {"knn": {"near": 89.0, "far": 94.0, "avg": 91.5}}}
    part = make_run("part", ood=summary | {"missing": {"near": ["tin", "cifar100"], "far": []}})
    whole = make_run("whole", seed=1, ood=summary | {"missing": {}})
    answer = vje("compare", part, whole, "--out", tmp_path / "c")
    values = groups_of(tmp_path)["cifar10"]["values"]
    assert (values["near OOD k-NN"]["runs"], values["far OOD k-NN"]["runs"]) == (1, 2)
    note = f"left out: near OOD of {part / 'ood.json'}, measured without tin, cifar100"
    assert note in answer.out and groups_of(tmp_path)["cifar10"]["notes"] == [note]


def benchmark(prints=None, partial=(), **counts):
    """What ``vje ood`` writes of a run on a benchmark: made-up figures, of real sets."""
    counts = {"id": 9_000, "cifar100": 9_000, "tin": 7_793, "textures": 5_640} | counts
    found = {
        "data": "cifar10",
        "counts": counts,
        "partial": list(partial),
        "missing": {},
        "summary": {"knn": {"near": 89.0, "far": 94.0, "avg": 91.5}},
    }
    return found | ({} if prints is None else {"images": dict(zip(counts, prints, strict=True))})


@pytest.mark.parametrize(
    ("one", "other", "left"),
    [
        (benchmark("abcd"), benchmark("abcd"), ["near", "far"]),
        (benchmark("abcd"), benchmark("abcx"), ["near"]),
        (benchmark("abcd"), benchmark("axcd"), ["far"]),
        (benchmark("abcd"), benchmark("xbcd"), []),
        (benchmark(), benchmark(textures=1_200), ["near"]),
        (benchmark("abcd"), benchmark(tin=10), ["far"]),
        (benchmark("abcd"), benchmark(), ["near", "far"]),
        (benchmark("abcd"), {"summary": benchmark()["summary"]}, ["near", "far"]),
    ],
    ids=[
        "the same",
        "a far set",
        "a near set",
        "in-distribution",
        "other counts",
        "one without prints",
        "alike",
        "mute",
    ],
)
def test_ood_of_different_images_is_not_averaged(vje, make_run, tmp_path, one, other, left):
    runs = [make_run(f"s{seed}", seed=seed, ood=ood) for seed, ood in enumerate((one, other))]
    answer = vje("compare", *runs, "--out", tmp_path / "c")
    (group,) = groups_of(tmp_path).values()
    assert [name for name in group["values"] if "OOD" in name] == [f"{part} OOD k-NN" for part in left]
    empty = ", ".join(f"{part} OOD k-NN" for part in ("near", "far") if part not in left)
    files = ", ".join(str(run / "ood.json") for run in runs)
    again = f"`vje ood {runs[0]} {runs[1]} --data-dir PATH` measures all on the same"
    notes = [f"left out: {empty} of {files}, on different images; {again}"] if empty else []
    assert group["notes"] == notes and answer.out.count("on different images") == len(notes)
    apart = [runs[0], make_run("other", recipe="cifar10-simsiam", ood=other)]
    assert "left out" not in vje("compare", *apart, "--out", tmp_path / "c").out  # nothing is averaged there


@pytest.mark.parametrize(("changed", "left"), [("cifar10", "far"), ("svhn", "near")])
def test_cifar10_is_near_to_cifar100(vje, make_run, tmp_path, changed, left):
    images = {"id": "a", "cifar10": "b", "svhn": "c"}
    found = {"data": "cifar100", "summary": {"knn": {"near": 89.0, "far": 94.0, "avg": 91.5}}}
    results = [found | {"images": images}, found | {"images": images | {changed: "x"}}]
    runs = [make_run(f"s{seed}", recipe="cifar100", seed=seed, ood=each) for seed, each in enumerate(results)]
    assert vje("compare", *runs, "--out", tmp_path / "c").status == 0
    assert [name for name in groups_of(tmp_path)["cifar100"]["values"] if "OOD" in name] == [f"{left} OOD k-NN"]


def test_only_runs_with_the_figure_are_said_to_be_on_different_images(vje, make_run, tmp_path):
    results = [benchmark("abcd"), benchmark("abcx"), benchmark("abcd") | {"missing": {"far": ["svhn"]}}]
    runs = [make_run(f"s{seed}", seed=seed, ood=ood) for seed, ood in enumerate(results)]
    assert vje("compare", *runs, "--out", tmp_path / "c").status == 0
    group = groups_of(tmp_path)["cifar10"]
    assert group["values"]["near OOD k-NN"]["runs"] == 3 and "far OOD k-NN" not in group["values"]
    files = ", ".join(str(run / "ood.json") for run in runs[:2])
    assert group["notes"][-1] == (
        f"left out: far OOD k-NN of {files}, on different images; "
        f"`vje ood {runs[0]} {runs[1]} --data-dir PATH` measures all on the same"
    )


def test_a_figure_that_is_no_number_keeps_no_other_out(vje, make_run, tmp_path):
    broken = benchmark("xbcd") | {"summary": {"knn": {"near": "nan", "far": "nan", "avg": "nan"}}}
    runs = [make_run("a", ood=benchmark("abcd")), make_run("b", seed=1, ood=broken)]
    assert vje("compare", *runs, "--out", tmp_path / "c").status == 0
    values = groups_of(tmp_path)["cifar10"]["values"]
    assert (values["near OOD k-NN"]["mean"], values["near OOD k-NN"]["runs"]) == (89.0, 1)


def test_a_benchmark_without_any_near_set_is_still_one(vje, make_run, tmp_path):
    part = {"summary": {"knn": {"far": 94.0, "avg": 94.0}}, "missing": {"near": ["cifar100", "tin"]}}
    run = make_run("run", ood=benchmark() | part)
    assert vje("compare", run, "--out", tmp_path / "c").status == 0
    values = groups_of(tmp_path)["cifar10"]["values"]
    assert {name: value["mean"] for name, value in values.items() if "OOD" in name} == {"far OOD k-NN": 94.0}


def test_sets_that_are_not_the_protocols_are_marked_where_they_are_shown(vje, make_run, tmp_path):
    found = benchmark(partial=["textures"], textures=1_200)
    part = make_run("part", ood=found)
    older = make_run("older", seed=1, ood={name: value for name, value in found.items() if name != "partial"})
    assert "far OOD k-NN*" in vje("compare", part, older, "--out", tmp_path / "c").out
    assert groups_of(tmp_path)["cifar10"]["partial"] == {"far OOD k-NN": ["textures"]}
    whole = make_run("whole", seed=2, ood=benchmark())
    answer = vje("compare", part, whole, "--out", tmp_path / "c")  # of different images: not shown at all
    assert groups_of(tmp_path)["cifar10"]["partial"] == {} and "the protocol's" not in answer.out


def test_whose_sets_are_not_the_protocols_is_said_if_others_are(vje, make_run, tmp_path):
    found = benchmark(partial=["textures"], textures=1_200)
    part, alike = make_run("part", ood=found), make_run("alike", recipe="cifar10-simsiam", ood=found)
    whole = make_run("whole", recipe="cifar10-ema", ood=benchmark())

    def note(*others):
        out = vje("compare", part, *others, "--out", tmp_path / "c").out
        (line,) = (line for line in out.splitlines() if "own image list" in line)
        return line.partition(": ")[2]

    assert note(alike) == note(make_run("bare", recipe="cifar10-byol")) == note(make_run("seed", seed=1)) == "textures"
    assert note(whole) == "textures (cifar10)"


def test_sets_that_are_not_the_protocols_are_marked(vje, make_run, tmp_path):
    part = make_run("part", ood=benchmark(partial=["textures"], textures=1_200))
    answer = vje("compare", part, "--out", tmp_path / "c")
    assert "far OOD k-NN*" in answer.out and "near OOD k-NN*" not in answer.out
    assert "* not the protocol's own image list (other counts): textures\n" in answer.out
    assert groups_of(tmp_path)["cifar10"]["partial"] == {"far OOD k-NN": ["textures"]}
    few = make_run("few", recipe="cifar10-simsiam", ood=benchmark(partial=["id"], id=10))
    assert vje("report", part, few, "--out", tmp_path / "c.html").status == 0
    text = (tmp_path / "c.html").read_text(encoding="utf-8").split("<script>")[0]
    assert ">near OOD k-NN*</th>" in text and ">far OOD k-NN*</th>" in text
    assert "own image list (other counts): textures (cifar10); cifar10 (cifar10-simsiam)</p>" in text
    assert "*" not in vje("compare", make_run("whole", seed=1, ood=benchmark()), "--out", tmp_path / "c").out


def own_sets(images=None, **changes):
    """What ``vje ood --id mine/inbox --ood noise=... dots=...`` writes of a run."""
    aurocs = {
        "nll": {"noise": 90.0, "dots": 80.0},
        "knn": {"noise": 70.0, "dots": 60.0},
        "vim": {"noise": 1, "dots": 1},
    }
    return {
        "data": "mine/inbox",
        "counts": {"id": 20, "noise": 15, "dots": 10},
        "scores": {score: {name: {"auroc": x} for name, x in found.items()} for score, found in aurocs.items()},
        "summary": {score: {"avg": sum(found.values()) / 2} for score, found in aurocs.items()},
        "missing": {},
        "images": {"id": "1", "noise": "2", "dots": "3"} | (images or {}),
        **changes,
    }


def test_sets_of_ones_own_have_columns(vje, make_run, tmp_path):
    runs = [make_run("a", ood=own_sets(inputs="5")), make_run("b", recipe="cifar10-simsiam", ood=own_sets(inputs="6"))]
    answer = vje("compare", *runs, "--out", tmp_path / "c")
    assert answer.status == 0 and "left out" not in answer.out
    for group in groups_of(tmp_path).values():
        assert {name: value["mean"] for name, value in group["values"].items() if "OOD" in name} == {
            "OOD NLL (inbox against noise)": 90.0,
            "OOD NLL (inbox against dots)": 80.0,
            "OOD k-NN (inbox against noise)": 70.0,
            "OOD k-NN (inbox against dots)": 60.0,
        }
    assert "(inbox against dots)" in answer.out and "ViM" not in answer.out
    assert "OOD NLL (inbox" not in answer.out  # the second half of a head is below the first


def test_images_that_each_run_held_out_are_no_other_images(vje, make_run, tmp_path):
    """As with k-NN, whose images another seed holds out too; `vje ood` averages over such runs."""
    mine = [own_sets(images={"id": print_}) | {"held_out": True} for print_ in ("1", "9")]
    runs = [make_run(f"s{seed}", seed=seed, ood=ood) for seed, ood in enumerate(mine)]
    answer = vje("compare", *runs, "--out", tmp_path / "c")
    (group,) = groups_of(tmp_path).values()
    assert group["values"]["OOD NLL (inbox against noise)"]["runs"] == 2
    assert "each run's is of the images that it held out itself" in answer.out and "left out" not in answer.out
    mixed = [runs[0], make_run("given", seed=2, ood=own_sets(images={"id": "1"}))]
    assert "left out: OOD NLL" in vje("compare", *mixed, "--out", tmp_path / "c").out
    other = [runs[0], make_run("dots", seed=3, ood=own_sets(images={"id": "9", "dots": "8"}) | {"held_out": True})]
    vje("compare", *other, "--out", tmp_path / "c")
    (group,) = groups_of(tmp_path).values()
    assert "OOD NLL (inbox against noise)" in group["values"] and "OOD NLL (inbox against dots)" not in group["values"]
    elsewhere = [runs[0], make_run("theirs", seed=4, ood=mine[0] | {"data": "theirs/inbox"})]
    assert "left out: OOD NLL" in vje("compare", *elsewhere, "--out", tmp_path / "c").out


@pytest.mark.parametrize(
    ("data", "name"), [("mine/inbox.npz", "inbox"), ("mine/2024.05", "2024.05"), ("svhn", "svhn"), (".", "images")]
)
def test_images_of_ones_own_are_called_what_their_folder_is(vje, make_run, tmp_path, data, name):
    assert vje("compare", make_run("run", ood=own_sets(data=data)), "--out", tmp_path / "c").status == 0
    assert f"OOD NLL ({name} against noise)" in groups_of(tmp_path)["cifar10"]["values"]


def test_older_results_with_the_same_inputs_are_compared(vje, make_run, tmp_path):
    found = {name: value for name, value in own_sets(inputs="5").items() if name != "images"}
    runs = [make_run("a", ood=found), make_run("b", recipe="cifar10-simsiam", ood=found)]
    assert "left out" not in vje("compare", *runs, "--out", tmp_path / "c").out
    assert all("OOD NLL (inbox against noise)" in group["values"] for group in groups_of(tmp_path).values())


def test_what_is_left_out_marks_nothing_and_takes_no_note_away(vje, make_run, tmp_path):
    lacking = {"spaces": {"z": {"top1": 90.0}}, "lacking": 2}
    one = make_run("a", ood=own_sets(finished=False), probe=lacking)
    other = make_run("b", recipe="cifar10-simsiam", ood=own_sets(images={"id": "9"}))
    answer = vje("compare", one, other, "--out", tmp_path / "c")
    probe, images = groups_of(tmp_path)["cifar10"]["notes"]
    assert "probe.json, without 2 of the run's images" in probe
    assert "on other images or labels than another run's" in images
    assert "*" not in answer.out


@pytest.mark.parametrize(
    ("one", "other", "left"),
    [
        ({}, {"images": {"noise": "9"}}, ["dots"]),
        ({}, {"images": {"id": "9"}}, []),
        ({"images": None, "inputs": "5"}, {"images": None, "inputs": "6"}, []),
        ({"images": None}, {"images": None}, []),
    ],
    ids=["a set", "the in-distribution images", "older results", "results that do not say"],
)
def test_other_images_of_the_same_name_are_not_compared(vje, make_run, tmp_path, one, other, left):
    def written(changes):
        found = own_sets(**changes)
        return {k: v for k, v in found.items() if not (k == "images" and "images" in changes and not changes[k])}

    runs = [make_run("a", ood=written(one)), make_run("b", recipe="cifar10-simsiam", ood=written(other))]
    answer = vje("compare", *runs, "--out", tmp_path / "c")
    expected = [f"OOD {score} (inbox against {name})" for score in ("NLL", "k-NN") for name in left]
    for group, run in zip(groups_of(tmp_path).values(), runs, strict=True):
        assert [name for name in group["values"] if "OOD" in name] == expected
        assert group["notes"][0].startswith("left out: OOD NLL (inbox against noise)") and str(run) in group["notes"][0]
    (line,) = [line for line in answer.out.splitlines() if "on other images or labels than another run's" in line]
    assert f" of {runs[0]}, {runs[1]}, on other" in line
    assert vje("compare", runs[1], "--out", tmp_path / "c").out.count("(inbox against") == 4  # alone it can be shown


def test_seeds_that_each_met_what_they_held_out_are_told_in_one_line(vje, make_run, tmp_path):
    runs = [make_run(f"s{seed}", seed=seed, ood=own_sets(images={"id": str(seed)})) for seed in (7, 8, 9)]
    answer = vje("compare", *runs, "--out", tmp_path / "c")
    files = ", ".join(map(str, runs))
    assert answer.out.count("left out: ") == 1
    assert f" of {files}, on other images or labels than another run's\n" in answer.out
    (note,) = groups_of(tmp_path)["cifar10"]["notes"]
    assert files in note


def test_a_command_for_old_results_can_be_pasted(vje, make_run, tmp_path):
    run = make_run("five [bold]", ood=own_sets(weights="old"), model={"weights": "new"})
    (run / "model.safetensors").touch()
    answer = vje("compare", run, "--out", tmp_path / "c")
    assert f"`vje ood '{run}' --id mine/inbox --ood noise=PATH dots=PATH` makes it anew" in answer.out


def test_every_space_that_training_looked_at_is_shown(vje, make_run, tmp_path):
    others = {"mean": 61.0, "target": 62.0}
    whole = make_run(
        "whole", recipe="cifar10-ema", others=others, evaluation={"knn": {"k": 20, "z": 81.5, "mean": 63.0}}
    )
    part = make_run("part", others=others, epochs=40)
    assert vje("compare", whole, part, "--out", tmp_path / "c").status == 0
    found = {
        name: {column: (value["mean"], value["unfinished"]) for column, value in group["values"].items()}
        for name, group in groups_of(tmp_path).items()
    }
    wanted = {"k-NN z": (81.5, 0), "k-NN mean": (63.0, 0), "k-NN target": (62.0, 0)}
    assert found["cifar10-ema"].items() >= wanted.items()
    assert found["cifar10"].items() >= {"k-NN z": (80.0, 1), "k-NN mean": (61.0, 1), "k-NN target": (62.0, 1)}.items()


def probed(**changes):
    """What ``vje probe`` writes of a run, with its usual options or others."""
    lr = changes.pop("lr", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0))
    usual = (name for name in USUAL_PROBE if name not in ("lr", "batch"))
    fields = {name: Options.__dataclass_fields__[name].default for name in usual} | {"batch": 256}
    spaces = {"z": {"top1": 90.0, "top5": None, "lr": lr[0], "rates": [{"lr": rate} for rate in lr]}}
    return {"spaces": spaces, **fields, "momentum": 0.9, "seed": 3, **changes}


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({}, "probe z"),
        ({"seed": 7}, "probe z"),
        ({"epochs": 5, "batch": 64}, "probe z (epochs=5, batch=64)"),
        ({"lr": (0.1, 0.3)}, "probe z (lr=0.1/0.3)"),
        ({"standardize": False, "augment": True}, "probe z (no-standardize, augment)"),
        ({"weight_decay": 1e-4}, "probe z (weight-decay=0.0001)"),
    ],
)
def test_probes_of_another_protocol_have_columns_of_their_own(vje, make_run, tmp_path, changes, title):
    runs = [make_run("usual", probe=probed()), make_run("other", seed=1, probe=probed(**changes))]
    answer = vje("compare", *runs, "--out", tmp_path / "c")
    found = groups_of(tmp_path)["cifar10"]["values"]
    assert [name for name in found if name.startswith("probe")] == list(dict.fromkeys(["probe z", title]))
    assert all(word in answer.out for word in title.split(" ("))


@pytest.mark.parametrize("given", ["cmp-lr0.1", "cmp-lr0.1.png", "cmp-lr0.1.json", "cmp-lr0.1.PNG"])
def test_a_name_with_dots_is_kept(vje, make_run, tmp_path, given):
    assert vje("compare", make_run("run"), "--out", tmp_path / given).status == 0
    assert sorted(file.name for file in tmp_path.glob("cmp*")) == ["cmp-lr0.1.json", "cmp-lr0.1.png"]


def test_other_numbers_of_neighbours_have_columns_of_their_own(vje, make_run, tmp_path):
    run = make_run("run", evaluation={"knn": {"k": 200, "z": 81.5, "mean": 80.5}})
    assert vje("compare", run, "--out", tmp_path / "c").status == 0
    values = {name: value["mean"] for name, value in groups_of(tmp_path)["cifar10"]["values"].items()}
    assert values == {"k-NN z": 80.0, "k-NN z (k=200)": 81.5, "k-NN mean (k=200)": 80.5, "images/s": 15_000}


def test_a_folder_that_is_given_twice_counts_once(vje, make_run, tmp_path):
    run = make_run("run")
    (tmp_path / "link").symlink_to(run)
    assert vje("compare", run, tmp_path / "link", f"{run}/../run", "--out", tmp_path / "c").status == 0
    assert groups_of(tmp_path)["cifar10"]["runs"] == [str(run)]
    assert vje("report", run, tmp_path / "link").status == 0
    assert "<title>run: report</title>" in (run / "report.html").read_text(encoding="utf-8")


def test_the_page_has_the_same_marks(vje, make_run, tmp_path):
    evaluation = {"knn": {"k": 20, "z": 33.0}, "weights": "old"}
    whole = make_run("whole", recipe="cifar10-ema", evaluation=evaluation, model={"weights": "new"})
    (whole / "model.safetensors").touch()
    assert vje("report", whole, make_run("part", epochs=40), "--out", tmp_path / "c.html").status == 0
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "<td>20/40*</td><td>80.00*</td>" in text and "* unfinished" in text
    assert "33.00" not in text.split("<script>")[0] and "evaluation.json, of other weights than the model" in text


def test_what_is_not_a_run_is_named(vje, tmp_path):
    assert "nowhere" in vje("compare", tmp_path / "nowhere").err
    assert vje("compare").status == 2


def test_what_a_glob_finds_beside_runs_is_passed_over(vje, make_run, tmp_path):
    run, out = make_run("a"), tmp_path / "c"
    (tmp_path / "reproduce").mkdir()
    (tmp_path / "a.log").write_text("")
    answer = vje("compare", run, tmp_path / "reproduce", tmp_path / "a.log", "--out", out)
    assert answer.status == 0
    assert answer.err == f"passed over, as they are no run folders: {tmp_path / 'reproduce'}, {tmp_path / 'a.log'}\n"
    assert vje("compare", tmp_path / "reproduce", "--out", out).status == 2
    assert "does not exist" in vje("compare", run, tmp_path / "typo", "--out", out).err


def test_columns_of_a_kind_stand_together_whichever_run_has_them(vje, make_run, tmp_path):
    first = make_run("a", ood={"summary": {"nll": {"near": 80.0, "far": 90.0}}})
    evaluation = {"knn": {"k": 20, "z": 81.5, "mean": 80.5}, "posterior": {"variance": 0.5}}
    ood = {"summary": {"knn": {"near": 70.0}, "nll": {"near": 60.0}}}
    probe = {"spaces": {"z": {"top1": 9.0}}}
    second = make_run("b", recipe="cifar10-ema", evaluation=evaluation, ood=ood, probe=probe)
    assert vje("compare", first, second, "--out", tmp_path / "c").status == 0
    assert heads(group_runs(read_runs([RunFolder(first), RunFolder(second)])))[3:] == [
        *("k-NN z", "k-NN mean", "probe z", "variance", "near OOD NLL", "far OOD NLL", "near OOD k-NN", "images/s")
    ]


def test_a_narrow_window_has_the_table_in_parts(vje, make_run, tmp_path, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    evaluation = {"knn": {"k": 20, "z": 81.5, "mean": 80.5}, "posterior": {"variance": 0.5, "kl": 7.0}}
    run = make_run("a", evaluation=evaluation, ood={"summary": {"nll": {"near": 88.0, "far": 90.0}}})
    monkeypatch.setenv("COLUMNS", "50")
    said = re.sub("\x1b\\[[0-9]*m", "", vje("compare", run, "--out", tmp_path / "c").out)  # no styles
    lines = said.split("k-NN is of")[0].splitlines()
    assert max(map(len, lines)) <= 50
    parts = [line.split() for line in lines if line.strip().startswith("cifar10")]
    assert len(parts) > 1 and [part[0] for part in parts] == ["cifar10"] * len(parts)
    expected = ["1", "20", "81.50", "80.50", "0.500", "7.0", "88.00", "90.00", "15,000"]
    assert [x for part in parts for x in part[1:]] == expected


def test_figures_of_other_images_or_labels_than_the_runs_own_are_not_averaged(vje, make_run, tmp_path):
    """Unless all runs were measured on the same others: then they can be compared."""

    def measured(name, knn, foreign=None, recipe="cifar10", seed=0):
        mark = {"foreign": foreign} if foreign else {}
        inputs = {"images": f"i{foreign}", "labels": f"l{foreign}"}
        evaluation = {"method": "vje", "knn": {"k": 20, "z": knn}, "effective_rank": 9.0, "inputs": inputs, **mark}
        probe = {"spaces": {"z": {"top1": knn}}, "inputs": f"l{foreign}", **mark}
        return make_run(name, recipe=recipe, seed=seed, evaluation=evaluation, probe=probe)

    own, other = measured("own", 90.0), measured("other", 10.0, foreign="labels", seed=1)
    answer = vje("compare", own, other, "--out", tmp_path / "c")
    (group,) = groups_of(tmp_path).values()
    assert [group["values"][name]["mean"] for name in ("k-NN z", "rank of z", "probe z")] == [90.0, 9.0, 90.0]
    assert [group["values"][name]["runs"] for name in ("k-NN z", "rank of z", "probe z")] == [1, 1, 1]
    assert f"left out: k-NN z, rank of z, probe z of {other}, on other images or labels" in answer.out
    third = measured("third", 30.0, foreign="labels", seed=2)
    assert "left out" not in vje("compare", other, third, "--out", tmp_path / "c").out
    (group,) = groups_of(tmp_path).values()
    assert group["values"]["k-NN z"]["mean"] == 20.0
