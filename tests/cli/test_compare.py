"""``vje compare``: figures that were measured, put side by side; seeds together, everything else apart."""

import json
import statistics
from dataclasses import replace

import pytest

from vje.config import to_dict
from vje.recipes import load_recipe
from vje.runs import RunFolder


@pytest.fixture
def make_run(tmp_path):
    """A run folder with made-up figures."""

    def make(name, recipe="cifar10", seed=0, knn=80.0, momentum=None, **files):
        config = load_recipe(recipe)
        config = replace(config, run=replace(config.run, seed=seed))
        if momentum is not None:
            config = replace(config, settings=replace(config.settings, target_momentum=momentum))
        folder = RunFolder.create(tmp_path / name)
        folder.write("config", to_dict(config))
        for epoch in (10, 20):
            record = {
                "epoch": epoch,
                "step": epoch,
                "images_per_second": 1000.0 * epoch,
                "knn": {"z": knn - 20 + epoch},
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
    assert found["cifar10"]["seeds"] == [0, 1, 2]
    value = found["cifar10"]["values"]["k-NN z"]
    assert value["mean"] == pytest.approx(statistics.mean(knn))
    assert value["std"] == pytest.approx(statistics.stdev(knn))
    assert f"{statistics.mean(knn):.2f} ± {statistics.stdev(knn):.2f}" in answer.out
    assert found["cifar10"]["values"]["images/s"]["mean"] == 15_000
    assert (tmp_path / "c.png").stat().st_size > 5000


def test_settings_other_than_the_seed_make_groups_of_their_own(vje, make_run, tmp_path):
    runs = [make_run("a", recipe="cifar10-ema"), make_run("b", recipe="cifar10-ema", momentum=0.9, seed=1)]
    assert vje("compare", *runs, "--out", tmp_path / "c").status == 0
    assert groups_of(tmp_path).keys() == {"cifar10-ema", "cifar10-ema (target_momentum 0.9)"}


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


def test_what_is_not_a_run_is_named(vje, tmp_path):
    assert "nowhere" in vje("compare", tmp_path / "nowhere").err
    assert vje("compare").status == 2
