"""Means, deviations and differences, and what a table says of what it lacks."""

import math
import statistics

import numpy as np
import pytest
import torch
from rich.console import Console

from vje.config import to_dict
from vje.errors import UserError
from vje.experiments import load_experiment
from vje.experiments.grid import Scale
from vje.experiments.plan import plan
from vje.experiments.table import Found, difference
from vje.experiments.write import write
from vje.likelihood import radial_nll
from vje.reporting.panels import scalar_influence, scalar_nll
from vje.runs import RunFolder, read_json, write_json

TABLE = """
about = "digits"
source = "paper"
label = "tab:digits"
epochs = 2
seeds = 3
notes = ["Be careful."]

[[columns]]
name = "k-NN"
recipe = "digits"
value = "evaluation:knn.z"

[[columns]]
name = "mean | both"
recipe = "digits"
value = ["evaluation:knn.z", "evaluation:knn.mean"]
spread = "evaluation:spread"

[[rows]]
name = "1"
paper = ["90.0 ± 1.0", "0.125"]

[[rows]]
name = "3"
options = { nu = 3.0 }
paper = ["91.0", ""]

[[rows]]
name = "elsewhere"
quoted = "Others, 2020"
paper = ["88.8", ""]
"""
CURVES = """
about = "curves"
label = "fig:curves"
kind = "curves"
epochs = 2
seeds = 2

[[columns]]
name = "digits"
recipe = "digits"

[[strips]]
name = "KL"
value = "metrics:kl"

[[rows]]
name = "all"
"""
OOD = {"svhn": "scores.nll.svhn.auroc"} | {part: f"summary.nll.{part}" for part in ("near", "far", "avg")}
VALUES = ([80.0, 81.5, 86.0], [70.0, 71.0, 78.0], [0.5, 0.25, 0.75])


def fill(out, experiment, evaluated=VALUES):
    """Finished runs of the first row, with evaluations."""
    for job, *values in zip(plan(experiment, Scale(), out, None), *evaluated, strict=False):
        folder = RunFolder.create(out / job.run.name)
        folder.write("config", to_dict(job.run.config()))
        mark = "-changed" if job.run.seed == 1 else ""
        folder.write("environment", {"commit": f"abcdef0123456789{mark}", "device": "a device"})
        for epoch in (1, 2):
            folder.append(folder.metrics_file, {"epoch": epoch, "step": epoch, "kl": values[0] + epoch})
        folder.model_file.write_bytes(b"")
        folder.write("evaluation", {"knn": {"z": values[0], "mean": values[1]}, "spread": values[2]})


@pytest.fixture
def declared(tmp_path):
    def load(text):
        file = tmp_path / "mine.toml"
        file.write_text(text)
        return load_experiment(str(file))

    return load


def make(experiment, out, scale=Scale(), failures=None):  # noqa: B008
    console = Console(record=True, width=200)
    files = write(experiment, scale, plan(experiment, scale, out, None), failures or {}, out, console)
    return files, read_json(files[1]), files[0].read_text()


def test_cells_are_mean_deviation_and_difference(tmp_path, declared):
    fill(tmp_path, experiment := declared(TABLE))
    _, found, page = make(experiment, tmp_path)
    first, second = found["rows"][0]["cells"]
    assert first["ours"]["mean"] == pytest.approx(statistics.mean(VALUES[0]))
    assert first["ours"]["std"] == pytest.approx(statistics.stdev(VALUES[0]))
    assert first["difference"] == pytest.approx(statistics.mean(VALUES[0]) - 90.0)
    assert first["paper"] == {"mean": 90.0, "std": 1.0}
    both = [(a + b) / 2 for a, b in zip(*VALUES[:2], strict=True)]
    assert second["ours"]["values"] == both
    assert second["ours"]["std"] == pytest.approx(0.5)  # the mean of what is declared as the spread
    assert "| 1 | ours | 82.5 ± 3.1 | 77.750 ± 0.500 |" in page
    assert "|  | paper | 90.0 ± 1.0 | 0.125 |" in page
    assert "|  | difference | -7.5 | +77.625 |" in page
    assert "| elsewhere | paper, from Others, 2020 | 88.8 |  |" in page
    assert "mean \\| both" in page
    assert "Made with `vje" in page
    assert "commit abcdef012345, abcdef012345-changed; device a device; seeds 0, 1, 2; epochs 2; 3 of 6 runs" in page
    assert "Be careful." in page and "Scaled down" not in page


def test_empty_cells_have_their_reason_below(tmp_path, declared):
    fill(tmp_path, experiment := declared(TABLE))
    (tmp_path / "digits_e2_s2" / "evaluation.json").unlink()
    RunFolder(tmp_path / "digits_e2_s1").write("evaluation", {"knn": {"z": math.nan}})
    _, found, page = make(experiment, tmp_path, failures={"digits_nu-3_e2_s0": "vje train failed: out of luck"})
    assert found["rows"][1]["cells"][0] == {"ours": None, "paper": {"mean": 91.0, "std": None}, "difference": None}
    assert "| 1 | ours | 80.0 (1 of 3) |" in page
    assert "Missing, vje train failed: out of luck: digits_nu-3_e2_s0." in page
    assert "Missing, not trained yet: digits_nu-3_e2_s1, digits_nu-3_e2_s2." in page
    assert "Missing, not measured yet (vje evaluate): digits_e2_s2." in page
    assert "Missing, knn.z is not finite: digits_e2_s1." in page
    RunFolder(tmp_path / "digits_e2_s1").write("evaluation", {"knn": {"z": [80.0]}})
    assert "Missing, knn.z of evaluation.json is not a number: digits_e2_s1." in make(experiment, tmp_path)[2]


def test_a_run_that_diverged_has_no_value_even_if_epochs_before_have_it(tmp_path, declared):
    experiment = declared(TABLE.replace('value = "evaluation:knn.z"', 'value = "metrics:kl"'))
    fill(tmp_path, experiment, tuple([*values, 1.0] for values in VALUES))  # of the second row, one seed
    for name, step in (("digits_e2_s1", 7), ("digits_nu-3_e2_s0", 9)):
        folder = RunFolder(tmp_path / name)
        folder.model_file.unlink()
        folder.write("failed", {"step": step, "epoch": None, "message": "loss = nan"})
    _, found, page = make(experiment, tmp_path, Scale(seeds=3))
    assert found["rows"][0]["cells"][0]["ours"]["values"] == [82.0, 88.0]
    assert found["rows"][1]["cells"][0]["ours"] is found["rows"][1]["cells"][0]["difference"] is None
    assert [row["cells"][0].get("diverged") for row in found["rows"]] == [1, 1, None]
    assert "| 1 | ours | 85.0 ± 4.2 (2 of 3, 1 diverged) |" in page
    assert "| 3 | ours | diverged (1 of 3) |" in page
    assert "Missing, diverged at step 7: digits_e2_s1." in page
    assert "Missing, diverged at step 9: digits_nu-3_e2_s0." in page
    assert "2 of 6 runs finished, 2 diverged" in page
    _, _, page = make(experiment, tmp_path, Scale(seeds=1))
    assert "| 3 | ours | diverged |" in page


def test_a_smaller_table_says_so_everywhere(tmp_path, declared):
    experiment = declared(TABLE)
    whole = make(experiment, tmp_path)[0]
    before = [file.read_bytes() for file in whole]
    files, found, page = make(experiment, tmp_path, Scale(epochs=1, seeds=2))
    assert [file.name for file in files] == ["mine_e1_s2.md", "mine_e1_s2.json"]
    assert [file.read_bytes() for file in whole] == before
    said = "1 of the paper's 2 epochs, 2 of the paper's 3 seeds"
    assert found["scaled"] == said
    assert page.startswith(f"# digits (tab:digits) [{said}]")
    assert f"Scaled down: {said}." in page


def test_curves_are_means_over_seeds(tmp_path, declared):
    fill(tmp_path, experiment := declared(CURVES))
    files, found, page = make(experiment, tmp_path)
    (series,) = found["series"]
    expected = [[e, statistics.mean([80.0 + e, 81.5 + e]), statistics.stdev([80.0, 81.5])] for e in (1, 2)]
    assert np.array(series["points"]) == pytest.approx(np.array(expected))
    assert files[-1].read_bytes().startswith(b"\x89PNG")
    assert "![curves](mine.png)" in page
    files, _, page = make(experiment, tmp_path, Scale(seeds=1))
    assert files[-1].name == "mine_s1.png" and "![curves](mine_s1.png)" in page


@pytest.mark.parametrize("text", [TABLE, CURVES])
def test_what_is_written_is_not_replaced_by_what_has_less(tmp_path, declared, text):
    fill(tmp_path, experiment := declared(text))
    files, _, _ = make(experiment, tmp_path)
    before = [file.read_bytes() for file in files]
    moved = [(tmp_path / name, tmp_path / "away" / name) for name in ("digits_e2_s0", "digits_e2_s1")]
    (tmp_path / "away").mkdir()
    for place, away in moved:
        place.rename(away)
    with pytest.raises(UserError, match=r"mine.json is left as it was.* (1, k-NN; 1, mean \| both|KL, digits, all)\."):
        make(experiment, tmp_path)
    assert [file.read_bytes() for file in files] == before
    files[1].unlink()  # as the message says
    assert make(experiment, tmp_path)[0][1].read_bytes() != before[1]
    for place, away in moved:
        away.rename(place)
    assert [file.read_bytes() for file in make(experiment, tmp_path)[0][:2]] == before[:2]


def test_a_figure_has_panels_for_what_was_begun(tmp_path, declared, monkeypatch):
    drawn = []
    monkeypatch.setattr("vje.experiments.write.save_panels", lambda file, columns, *rest: drawn.append(columns))
    more = CURVES.replace(
        "[[strips]]", '[[columns]]\nname = "others"\nrecipe = "digits"\noptions = { nu = 3.0 }\n[[strips]]'
    )
    make(declared(more), tmp_path)
    fill(tmp_path, declared(CURVES))
    _, found, page = make(declared(more), tmp_path)
    assert drawn == [["digits", "others"], ["digits"]]  # nothing is begun: all of them
    assert [series["column"] for series in found["series"]] == ["digits", "others"]
    assert "Missing, not trained yet: digits_nu-3_e2_s0" in page


def test_roc_curves_are_over_the_runs_whose_curves_were_kept_or_else_a_picture(tmp_path, declared, monkeypatch):
    drawn = []
    monkeypatch.setattr("vje.experiments.write.save_roc", lambda file, found, scores: drawn.append((found, scores)))
    rows = 'rows = [{ name = "all", recipe = "digits" }]\ncolumns = [{ name = "digits" }]\n'
    about = 'about = "ROC"\nkind = "picture"\npicture = "ood-roc.png"\nepochs = 2\nseeds = 3\n'
    fill(tmp_path, experiment := declared(about + rows))
    folders = [RunFolder(tmp_path / f"digits_e2_s{seed}") for seed in range(3)]
    for folder in folders:
        folder.write("ood", {"data": "digits", "counts": {}})
    (folders[1].path / "ood-roc.png").write_bytes(b"a picture")
    files, _, page = make(experiment, tmp_path)
    assert not drawn and files[-1].read_bytes() == b"a picture" and "![ROC](mine.png)" in page
    for seed in (0, 2):
        folders[seed].write("ood-curves", {"seed": seed})
    _, _, page = make(experiment, tmp_path)
    ((found, scores),) = drawn
    assert [curves["seed"] for curves in found] == [0, 2]
    assert scores == ("nll", "neg_anisotropy", "variance_trace", "neg_kl")  # the paper's
    assert "Missing, no ood-curves.json, which `vje ood` writes: digits_e2_s1." in page


def test_a_table_says_which_images_its_ood_sets_were(tmp_path, declared):
    column = '[[columns]]\nname = "far"\nrecipe = "digits"\nvalue = "ood:summary.nll.far"\n'
    fill(tmp_path, experiment := declared(f'about = "OOD"\nepochs = 2\n{column}[[rows]]\nname = "all"\n'))
    found = {"data": "digits", "summary": {"nll": {"far": 2}}, "partial": ["id", "svhn"], "missing": {}}
    for seed in range(3):
        RunFolder(tmp_path / f"digits_e2_s{seed}").write("ood", found | {"counts": {"id": 1200, "svhn": 9}})
    page = make(experiment, tmp_path)[2]
    assert "Images of each set: id 1,200, svhn 9." in page
    assert "Not the protocol's own image list: digits, svhn." in page


def test_ood_averages_without_some_of_their_sets_are_missing(tmp_path, declared):
    """Of the runs, the first has all sets, the second no Tiny ImageNet, the third (as of old) says nothing."""
    parts = "".join(f'[[columns]]\nname = "{p}"\nrecipe = "digits"\nvalue = "ood:{v}"\n' for p, v in OOD.items())
    fill(tmp_path, experiment := declared(f'about = "OOD"\nepochs = 2\n{parts}[[rows]]\nname = "all"\n'))
    for seed, more in enumerate(({"missing": {"near": []}}, {"missing": {"near": ["tin"], "far": ["a", "b"]}}, {})):
        found = {"scores": {"nll": {"svhn": {"auroc": 90.0}}}, "summary": {"nll": {"near": 1, "far": 2, "avg": 1.5}}}
        RunFolder(tmp_path / f"digits_e2_s{seed}").write("ood", found | more | {"counts": {}})
    _, found, page = make(experiment, tmp_path)
    counts = [len(cell["ours"]["values"]) for cell in found["rows"][0]["cells"]]
    assert counts == [3, 2, 2, 2]  # a set by itself is whole
    assert "Missing, near OOD was measured without tin: digits_e2_s1." in page
    assert "Missing, far OOD was measured without a, b: digits_e2_s1." in page
    assert "Missing, avg OOD was measured without tin, a, b: digits_e2_s1." in page


def test_small_numbers_without_the_papers_beside_them_keep_their_figures(tmp_path, declared):
    experiment = declared(TABLE.replace('paper = ["90.0 ± 1.0", "0.125"]', ""))
    fill(tmp_path, experiment, ([0.0608, 0.0612, 0.0616], [24335.1, 24336.2, 24337.3], [2.0, 2.0, 2.0]))
    page = make(experiment, tmp_path)[2]
    assert "| 1 | ours | 0.0612 ± 0.0004 | 12168 ± 2 |" in page


def test_a_difference_needs_both():
    assert difference(None, None) is None
    assert difference(Found((1.0,), None, 1), None) is None


@pytest.mark.parametrize("nu", [1.0, 7.0, math.inf])
def test_the_scalar_figure_shows_the_radial_likelihood(nu):
    residual = torch.linspace(-3, 5, 17, dtype=torch.float64, requires_grad=True)
    expected = radial_nll(5 + residual[:, None], torch.full((17, 1), 5.0, dtype=torch.float64), nu)
    slope = torch.autograd.grad(expected.sum(), residual)[0]
    np.testing.assert_allclose(scalar_nll(residual.detach().numpy(), nu), expected.detach(), atol=1e-12)
    np.testing.assert_allclose(scalar_influence(residual.detach().numpy(), nu), slope.abs(), atol=1e-12)


def test_speed_is_the_benchmark_s_of_the_recipe(tmp_path, declared):
    rows = '[[rows]]\nname = "one"\nrecipe = "digits"\n\n[[rows]]\nname = "other"\nrecipe = "cifar10"\n'
    experiment = declared(
        f'about = "speed"\nseeds = 1\n[[columns]]\nname = "images/s"\nvalue = "speed:images_per_second"\n{rows}'
    )
    reason = "Missing, speed not measured alone yet (benchmarks/speed.py): "
    assert f"{reason}digits_e18_s0, cifar10_e200_s0." in make(experiment, tmp_path)[2]
    cases = [{"name": "digits/eager", "images_per_second": 1.0}, {"name": "digits/graph", "images_per_second": 1234.5}]
    write_json(tmp_path / "speed.json", {"commit": "fedcba", "device": "a GPU", "results": cases})
    _, found, page = make(experiment, tmp_path)
    assert found["rows"][0]["cells"][0]["ours"]["values"] == [1234.5]
    assert f"{reason}cifar10_e200_s0." in page and "commit fedcba; device a GPU" in page
