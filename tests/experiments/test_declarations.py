"""Every declaration can be made: its values are of known files, its runs have settings that training accepts."""

import re
from pathlib import Path

import pytest

from vje.errors import UserError
from vje.experiments import experiment_names, load_experiment
from vje.experiments.check import FILES, PICTURES
from vje.experiments.grid import Scale
from vje.methods import method_names
from vje.recipes import load_recipe

TABLES = [
    "imagenet-linear",
    "comparison",
    "geometry-margin",
    "ood-scoring-datasets",
    "ood-nu-sweep",
    "ood-visimsiam-scores",
    "ood-openood-context",
    "ood-common-bench",
    "nu-sweep",
    "loss-ablation",
    "norm-pathology",
    "mc-ablation",
    "isotropic",
    "compute",
]
OWN = ["cifar10-methods", "cifar10-methods-ood", "cifar10-ood"]
"""Tables that are not the paper's."""
COMPARED = {
    *("vje", "simsiam", "byol", "vicreg", "barlow", "simclr", "moco", "swav", "lejepa", "vi-simsiam", "vssl"),
    "supervised",
}
"""Methods with a row in the tables of methods; one that is added need not have one at once."""
FIGURES = [
    "scalar-t-vs-gauss",
    "knn-curves",
    "geometry",
    "ood-roc",
    "ood-nll-density",
    "pathology-imagenet",
    "pathology-decomp-grid",
]


def test_every_table_and_figure_is_declared():
    assert sorted(experiment_names()) == sorted(TABLES + FIGURES + OWN)
    assert [n for n in experiment_names() if load_experiment(n).kind == "table"] == [
        name for name in experiment_names() if name in TABLES + OWN
    ]


@pytest.mark.parametrize("name", ["cifar10-methods", "cifar10-methods-ood"])
def test_every_method_is_in_the_tables_of_methods(name):
    table = load_experiment(name)
    methods = {load_recipe(row.recipe).method for row in table.rows}
    assert COMPARED <= methods <= set(method_names())
    assert all(load_recipe(row.recipe).optimizer.epochs == 200 or row.epochs == 100 for row in table.rows)
    shorter = [row.name for row in table.rows if row.epochs == 100]
    assert f"{', '.join(shorter[:-1])} and {shorter[-1]} have 100 epochs" in " ".join(table.notes)


@pytest.mark.parametrize("name", TABLES + FIGURES)
def test_values_are_of_known_files_and_every_table_has_the_papers_numbers(name):
    experiment = load_experiment(name)
    cells = [cell for row in experiment.cells() for cell in row]
    assert all(file in FILES for cell in cells for file in cell.files())
    assert experiment.label.startswith("tab:" if name in TABLES else "fig:")
    if name in TABLES:
        assert all(cell.paper is not None for cell in cells if cell.value and name != "imagenet-linear")
        assert all(cell.value or cell.quoted for cell in cells)
        assert all(cell.recipe or cell.quoted or name == "compute" for cell in cells)
    if experiment.kind == "picture":
        assert experiment.picture in PICTURES
    if experiment.kind == "curves":
        assert all(
            (strip.value or row.value)[0].startswith("metrics:")
            for strip in experiment.strips
            for row in experiment.rows
        )


def test_training_accepts_every_run():
    runs = {
        run: None
        for name in experiment_names()
        for row in load_experiment(name).cells()
        for cell in row
        for run in Scale(seeds=1).runs(cell)
    }
    names = {}
    for run in runs:
        config = run.config()  # checks itself
        assert config.optimizer.epochs == run.epochs
        for option, value in run.options:
            assert {**vars(config.optimizer), **vars(config.settings)}[option] == value
        assert names.setdefault(run.name, config) == config  # a folder's name stands for one config
    assert {"cifar10_e200_s0", "cifar10-ema_nu-50_e200_s0", "cifar10_terms-directional+radial_e200_s0"} <= set(names)
    assert {"cifar10_samples-0_e200_s0", "cifar10_isotropic_nu-inf_e200_s0", "stl10-vicreg_e800_s0"} <= set(names)


def test_tables_share_their_runs():
    def runs(name):
        return {run.name for row in load_experiment(name).cells() for cell in row for run in Scale().runs(cell)}

    shared = {f"cifar10_e200_s{seed}" for seed in range(3)}
    for name in ("nu-sweep", "loss-ablation", "mc-ablation", "norm-pathology", "isotropic", "geometry-margin"):
        assert shared <= runs(name)
    assert {f"cifar10-ema_e200_s{seed}" for seed in range(3)} == runs("ood-scoring-datasets")
    assert runs("knn-curves") == runs("comparison")


# Typed from the paper


def papers(name):
    return {row.name: [cell.paper and (cell.paper.mean, cell.paper.std) for cell in cells]
            for row, cells in zip(load_experiment(name).rows, load_experiment(name).cells(), strict=True)}  # fmt: skip


def test_the_papers_nu_sweep():
    assert papers("tab:nu-sweep") == {
        "1": [(87.3, 0.2), (56.3, 0.2), (80.9, 0.1), (34.2, 0.4)],
        "3": [(87.5, 0.2), (55.9, 0.4), (81.0, 0.3), (34.2, 0.3)],
        "7": [(87.5, 0.3), (55.8, 0.6), (80.4, 0.2), (33.5, 0.0)],
        "20": [(88.0, 0.3), (55.1, 0.2), (79.7, 0.5), (31.9, 0.3)],
        "50": [(44.2, 13.0), (7.5, 1.9), (78.4, 0.2), (20.9, 16.0)],
        "inf": [(16.3, 11.0), (4.3, 2.8), (13.8, 4.1), (1.0, 0.8)],
    }


def test_the_papers_geometry():
    assert papers("geometry-margin") == {
        "low": [(0.6630, 0.0237), (-531.55, 57.52), (120.28, 33.20), (0.6883, 0.1450)],
        "mid": [(0.6436, 0.0215), (-577.98, 52.20), (153.85, 38.02), (0.8203, 0.1494)],
        "high": [(0.6354, 0.0209), (-610.68, 54.64), (171.60, 38.36), (0.8720, 0.1433)],
        "Spearman, margin": [(-0.50, None), (-0.58, None), (0.58, None), (0.55, None)],
        "Spearman, radius": [(-0.36, None), (-0.28, None), (0.54, None), (0.69, None)],
        "Spearman, distance": [(-0.36, None), (-0.28, None), (0.54, None), (0.69, None)],  # the radius, read otherwise
    }


@pytest.mark.parametrize("name", ["ood-scoring-datasets", "ood-nu-sweep", "ood-visimsiam-scores"])
def test_the_papers_ood_rows_agree_with_themselves(name):
    """Near, far and average are means of the sets, so a slip of the keyboard shows."""
    for row in papers(name).values():
        values = [mean for mean, _ in row]
        near, far = sum(values[:2]) / 2, sum(values[2:6]) / 4
        assert values[6:] == pytest.approx([near, far, (near + far) / 2], abs=0.12)


# Mistakes

CELL = "[[columns]]\nname = 'c'\n[[rows]]\nname = 'a'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[rows]]\nname = "a"\npaper = ["1"]', "row a has 1 of the paper's numbers for 0 columns"),
        ('[[columns]]\nname = "c"\n[[rows]]\nname = "a"\nvalue = "knn.z"', "'knn.z' must be FILE:PATH"),
        ('[[columns]]\nname = "c"\n[[rows]]\nname = "a"\nvalue = "ood:{score}"', "a word in braces"),
        ('[[columns]]\nname = "c"\n[[rows]]\nname = "a"\npaper = ["about 3"]', "'about 3' is no number"),
        ('[[rows]]\nname = "a"\nrecipy = "cifar10"', "unknown setting 'recipy'; did you mean recipe"),
        ('[[rows]]\nrecipe = "cifar10"', "needs a name"),
        ('kind = "picture"\npicture = "x.png"', "picture must be one of geometry.png"),
        ("rows = ", "not valid TOML"),
        ("[rows]\nname = 'a'", "mine.toml: rows must be tables, each below a line [[rows]]"),
        ("[[rows]]\nname = 'a'\noptions = 3", "row a: options must be a table, such as options = { nu"),
        ("[[rows]]\nname = 'a'\noptions = { nu = { a = 3 } }", "row a: option nu must be a number, a word"),
        ("[[rows]]\nname = 'a'\noptions = { epochs = 3, seed = 5 }", "row a: epochs is no option: write epochs = 3"),
        ("[[rows]]\nname = 'a'\noptions = { seed = 5 }", "row a: seed is no option: write seeds = N beside options"),
        ("[[rows]]\nname = 'a'\nepochs = -3", "row a: epochs must be at least 1, got -3; leave it out for the table's"),
        ("[[rows]]\nname = 'a'\nseeds = 0", "row a: seeds must be at least 1, got 0"),
        ("epochs = -3", "mine.toml: epochs must be at least 1, or 0 for each recipe's own, got -3"),
        ("seeds = 0", "mine.toml: seeds must be at least 1, got 0"),
        ("[[columns]]\nname = 'c'", "mine.toml: there are no rows: add at least one, [[rows]] with a name"),
        ("[[rows]]\nname = 'a'", "mine.toml: there are no columns"),
        ("kind = 'curves'\n[[columns]]\nname = 'c'\n[[rows]]\nname = 'a'", "mine.toml: there are no strips"),
        (CELL + "recipe = 'digits'", "row a, column c: no value: give the row or the column one, such as value ="),
        (CELL + "value = 'evaluation:knn.z'", "row a, column c: no recipe: give the row or the column one"),
        (CELL + "recipe = 'digit'", "mine.toml: row a, column c: there is no recipe 'digit'. Did you mean digits?"),
    ],
)  # fmt: skip
def test_a_declaration_of_ones_own_is_checked(tmp_path, text, message):
    file = tmp_path / "mine.toml"
    file.write_text(f'about = "mine"\n{text}\n')
    with pytest.raises(UserError, match=re.escape(message)):
        load_experiment(str(file))


def test_a_declaration_is_text(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b'about = "\xff"\n')
    with pytest.raises(UserError, match=r"mine.toml is not text in UTF-8"):
        load_experiment(str(tmp_path / "mine.toml"))


def test_a_declaration_says_what_it_is_about(tmp_path):
    (tmp_path / "mine.toml").touch()
    with pytest.raises(UserError, match=r'mine.toml has no `about = "\.\.\."`'):
        load_experiment(str(tmp_path / "mine.toml"))


def test_the_declaration_in_the_documentation(tmp_path):
    """It is a table of its own: the recipe's epochs, and nothing is called the paper's."""
    text = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
    file = tmp_path / "mine.toml"
    file.write_text(text.partition("```toml\n")[2].partition("```")[0])
    mine = load_experiment(str(file))
    assert [[cell.epochs for cell in row] for row in mine.cells()] == [[load_recipe("digits").optimizer.epochs] * 2] * 2
    assert mine.cells()[0][0].options == {"samples": 0} and mine.cells()[1][0].paper.mean == 98.3
    assert Scale(epochs=1).label(mine) == f"1 of the declared {load_recipe('digits').optimizer.epochs} epochs"


def test_a_setting_that_is_none_is_told_with_those_that_are(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('about = "mine"\nxyz = 1\n')
    with pytest.raises(UserError, match="unknown setting 'xyz'; there are name, about, label, kind, epochs"):
        load_experiment(str(file))
