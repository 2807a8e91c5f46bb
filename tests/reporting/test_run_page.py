"""What a run's page says, row by row and line by line, of a folder whose every number was made up."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vje.config import to_dict
from vje.methods.vje import VJE
from vje.recipes import load_recipe
from vje.reporting.records import read_failure
from vje.reporting.run_curves import curve_panels
from vje.reporting.run_page import about, map_section, run_page
from vje.runs import RunFolder

NASTY = "</script><b>&\"'`${1}"


@pytest.fixture
def folder(tmp_path):
    """A run that has only its settings."""
    found = RunFolder.create(tmp_path / "run")
    found.write("config", to_dict(load_recipe("cifar10-ema")))
    return found


def body(folder, atlas=None):
    """The page's own text, without data and scripts."""
    return run_page(folder, atlas).split("<script")[0]


def rows(folder):
    """(measure, value, what it says) of the table of numbers."""
    text = body(folder).split('id="title-numbers"')[1].split('id="title-map"')[0]
    return re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td><td>([^<]*)</td>', text)


def test_every_measure_has_its_own_number(folder):
    folder.write("evaluation", {"knn": {"k": 7, "z": 11.0, "mean": 12.0, "target": 13.0}, "effective_rank": 14.0})
    folder.write("probe", {"spaces": {"z": {"top1": 21.0}, "mean": {"top1": 22.0}, "target": {"top1": 23.0}}})
    folder.write("geometry", {"margin": 0.5, "spearman": {"nll": {"kl": 0.1}, "margin": {"kl": -0.25}}})
    how = "k = 7, cosine"
    assert rows(folder) == [
        ("k-NN accuracy of z", "11.00%", how),
        ("k-NN accuracy of the posterior mean", "12.00%", how),
        ("k-NN accuracy of the EMA encoder&#x27;s z", "13.00%", how),
        ("Effective rank of z", "14.0", "dimensions in real use"),
        ("Linear probe of z", "21.00%", "top-1 accuracy"),
        ("Linear probe of the posterior mean", "22.00%", "top-1 accuracy"),
        ("Linear probe of the EMA encoder&#x27;s z", "23.00%", "top-1 accuracy"),
        ("Class margin", "0.500", "cosine to the own class&#x27;s centre, less the next nearest"),
        ("Margin against KL (nats)", "\u22120.25", "Spearman&#x27;s rank correlation"),
    ]


@pytest.mark.parametrize("own", ["nll", "ps_nll"])
def test_ood_is_told_by_score_and_kind_of_set(folder, own):
    summary = {"energy": {"near": 1.0, "far": 2.0, "avg": 3.0}, "knn": {"near": 61.0, "far": 62.0, "avg": 63.0}}
    summary[own] = {"near": 71.0, "far": 72.0, "avg": 73.0}
    folder.write("ood", {"summary": summary, "data": "cifar10", "partial": ["tin", "textures", "places"]})
    parts = {"near sets": "tin", "far sets": "textures, places", "average": "tin, textures, places"}
    scores = ("likelihood alone, nothing fitted", 71), ("k-NN distance to training features", 61)
    assert rows(folder) == [
        (
            f"OOD detection, {name}",
            f"{first + i}.0%",
            f"AUROC of the {score}; not the protocol&#x27;s own images: {sets}",
        )
        for score, first in scores
        for i, (name, sets) in enumerate(parts.items())
    ]


def test_ood_of_fewer_sets_than_the_protocols_says_so(folder):
    summary = {"nll": {"near": 71.0, "far": 72.0, "avg": 73.0}}
    missing = {"near": ["tin"], "far": ["mnist", "svhn"]}
    folder.write("ood", {"summary": summary, "data": "cifar10", "partial": ["id"], "missing": missing})
    others, first = "; not the protocol&#x27;s own images: cifar10", "AUROC of the likelihood alone, nothing fitted"
    without = ["tin", "mnist, svhn", "tin, mnist, svhn"]
    said = [f"{first}; not the protocol&#x27;s mean: without {names}{others}" for names in without]
    assert [row[2] for row in rows(folder)] == said
    folder.write("ood", {"summary": summary, "missing": {"near": [], "far": ["mnist"]}})
    assert ["mnist" in row[2] for row in rows(folder)] == [False, True, True]
    folder.write("ood", {"summary": summary, "partial": ["textures", "places"]})
    assert ["the protocol" in row[2] for row in rows(folder)] == [False, True, True]


def test_the_head_says_what_was_trained_on_what(folder, tmp_path):
    config = load_recipe("cifar10-ema")
    config = replace(config, run=replace(config.run, seed=3), optimizer=replace(config.optimizer, epochs=70))
    assert about(to_dict(config)) == "VJE, resnet18 on cifar10; 70 epochs, seed 3"
    assert about(to_dict(config) | {"method": "simsiam"}).startswith("simsiam, resnet18 on cifar10;")
    folder.write("data", {"train_images": 50_000, "test_images": 1_234})
    assert "50,000 training and 1,234 held-out images" in body(folder)
    start = ["vje", "train", "cifar10", "--out", f"my runs/{NASTY}"]
    folder.write("environment", {"vje": f"0.1{NASTY}", "device": f"cpu{NASTY}", "command": start})
    text = body(folder)
    assert "<b>" not in text and "vje 0.1&lt;/script&gt;" in text and "on cpu&lt;/script&gt;" in text
    plain = re.sub(r"</?(code|span)[^>]*>", "", text)
    assert "Started as: vje train cifar10 --out &#x27;my runs/" in plain  # it can be pasted


def test_every_warning_is_there_and_the_end_comes_last(folder):
    for step in (1, 2):
        folder.append(folder.warnings_file, {"step": step, "text": f"warning {step}"})
    for epoch in (1, 2):
        folder.append(folder.metrics_file, {"epoch": epoch, "step": epoch, "loss": 1.0})
    folder.write("failed", {"step": 9, "message": "no more"})
    found = re.findall(r"<li>([^<]*)</li>", body(folder))
    assert found == ["warning 1", "warning 2", "Diverged after epoch 2: no more"]


def test_a_run_that_was_trained_to_its_end_after_all_did_not_diverge(folder):
    folder.write("failed", {"step": 9, "message": "no more"})
    folder.append(folder.metrics_file, {"epoch": 1, "step": 1, "loss": 1.0})
    assert read_failure(folder) and "no more" in body(folder)
    folder.model_file.touch()
    assert not read_failure(folder) and "no more" not in body(folder)


def test_images_of_the_map_that_have_gone_are_said(folder, make_atlas):
    atlas = make_atlas(40)
    for held_out, said in ((39, False), (40, False), (1_041, True)):
        folder.write("data", {"test_images": held_out})
        words = "The map is of 40 of the 1,041 images held out; others are missing or unreadable."
        assert (words in body(folder, atlas)) == said and ("unreadable" in body(folder, atlas)) == said


@pytest.mark.parametrize(
    ("method", "labels", "expected"),
    [
        ("vje", True, ["evaluate", "probe", "geometry"]),
        ("vje", None, ["evaluate", "probe", "geometry"]),  # from before it was recorded
        ("vje", False, ["evaluate"]),
        ("simsiam", True, ["evaluate", "probe"]),
    ],
)
def test_only_what_can_be_measured_is_asked_for(folder, method, labels, expected):
    folder.model_file.touch()
    folder.write("config", folder.read("config") | {"method": method})
    folder.write("data", {} if labels is None else {"labels": labels})
    assert re.findall(r"not there yet; <code>vje (\w+) [^<]*</code> makes it\.", body(folder)) == expected


@pytest.mark.parametrize(("data", "options"), [("cifar10", ""), ("/some/photos", " --id PATH --ood NAME=PATH")])
def test_the_command_for_ood_names_sets_where_there_is_no_benchmark(folder, data, options):
    folder.model_file.touch()
    config = folder.read("config")
    folder.write("config", config | {"data": config["data"] | {"data": data}})
    assert f"<code>vje ood {folder.path}{options}</code> makes them." in body(folder)
    assert f"<code>vje evaluate {folder.path}</code>" in body(folder)


def test_the_map_says_what_it_is_of(make_atlas):
    text = map_section(make_atlas(40))
    assert "one of 40 images" in text and "of posterior means" in text and 'max="39"' in text
    assert "is told by its negative log-likelihood." in text
    some = replace(make_atlas(40, likelihood=False), total=1_200, space="embeddings z")
    text = map_section(some)
    assert "one of 40 of the 1,200 images" in text and "of embeddings z" in text and 'max="39"' in text
    assert "is told by the cosine distance to its nearest neighbours." in text
    assert "collapsed" not in text
    one = replace(some, vectors=np.ones_like(some.vectors) * np.arange(1, 41)[:, None])  # one direction, forty lengths
    assert (
        "spread out evenly: they are too few for a map, or to a model that has collapsed all the same"
        in map_section(one)
    )
    assert map_section(None, NASTY).startswith('<p class="note">&lt;/script&gt;&lt;b&gt;')


def test_ood_charts_have_the_titles_of_their_scores(folder, reported):
    curves = reported.read("ood-curves")
    folder.write("ood", reported.read("ood"))
    for titles, name in (({"nll": "NLL"}, "NLL"), ({}, "nll")):
        folder.write("ood-curves", curves | {"titles": titles})
        found = json.loads(re.search(r'id="data">(.*?)</script>', run_page(folder, None), re.S).group(1))["ood"]
        assert found["score"] == found["sets"][0]["roc"][0]["name"] == name
        assert found["sets"][0]["roc"][0]["auroc"] == curves["sets"][NASTY]["roc"]["nll"]["auroc"]
    rocs = curves["sets"][NASTY]["roc"]
    rocs |= {"neg_kl": rocs["nll"], "knn": rocs["nll"]}  # the first is for the paper's figure alone
    folder.write("ood-curves", curves | {"titles": {}})
    found = json.loads(re.search(r'id="data">(.*?)</script>', run_page(folder, None), re.S).group(1))["ood"]
    assert [curve["name"] for curve in found["sets"][0]["roc"]] == ["nll", "knn"]


def test_a_warm_up_that_did_not_suit_the_run_is_not_passed_off_as_used(folder):
    config = load_recipe("cifar10-ema")
    for epochs, words in ((200, "10"), (20, "10"), (15, "10 (1.5 used)")):
        folder.write("config", to_dict(replace(config, optimizer=replace(config.optimizer, epochs=epochs))))
        assert f'<th scope="row">warmup epochs</th><td>{words}</td>' in body(folder)


def test_settings_are_in_words(folder):
    folder.write(
        "config",
        {
            "schema": 1,
            "recipe": NASTY,
            "data": {"data": "cifar10", "held_out": None},
            "run": {"seed": 0, "some_list": [True, 0.5, 3]},
            "optimizer": {"lr": 1e-3, "nesterov": True, "cosine": False},
        },
    )
    found = re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td>', body(folder).split('class="groups"')[1])
    assert found == [
        ("recipe", "&lt;/script&gt;&lt;b&gt;&amp;&quot;&#x27;`${1}"),
        ("data", "cifar10"),
        ("held out", "default"),
        ("seed", "0"),
        ("some list", "yes, 0.5, 3"),
        ("lr", "0.001"),
        ("nesterov", "yes"),
        ("cosine", "no"),
    ]


def test_the_name_of_a_folder_stays_a_name(folder):
    moved = RunFolder(folder.path.rename(folder.path.with_name("<b>&run")))
    text = body(moved)
    assert "<title>&lt;b&gt;&amp;run: report</title>" in text and "<h1>&lt;b&gt;&amp;run</h1>" in text
    assert "<b>" not in text and "default-src &#x27;none&#x27;;" in text  # and the page asks nobody for anything


def test_a_run_has_its_name_where_one_is_in_its_folder(folder, monkeypatch):
    monkeypatch.chdir(folder.path)
    text = body(RunFolder(Path()))
    assert "<title>run: report</title>" in text and "<h1>run</h1>" in text


def test_of_several_checkpoints_the_newest_is_the_model(folder):
    folder.append(folder.metrics_file, {"epoch": 1, "step": 900, "loss": 1.0})
    for step in (800, 90, 700):
        (folder.checkpoints / f"step-{step:09d}.safetensors").touch()
    assert "the one saved after step 800; the curves go on to step 900." in body(folder)


# Curves


def test_each_line_has_its_own_name():
    record = {"epoch": 3, "knn": {"z": 1.0, "mean": 2.0, "target": 3.0}, "norm_z": 4.0, "norm_mean": 5.0, "lr": 0.0}
    panels = curve_panels([record])
    found = {panel["title"]: {line["name"]: line["y"] for line in panel["lines"]} for panel in panels}
    assert found == {
        "k-NN accuracy (%)": {"z": [1], "mean": [2], "EMA encoder's z": [3]},
        "Norms": {"z": [4], "mean": [5]},
        "Learning rate": {"rate": [0]},
    }
    assert all(line["x"] == [3] for panel in panels for line in panel["lines"])  # epochs as they were recorded


def test_clocks_and_counters_have_no_charts():
    record = {"epoch": 1, "step": 2, "seconds": 3.0, "elapsed": 4.0, "unreadable_files": 5, "done": True, "loss": 6.0}
    assert [panel["title"] for panel in curve_panels([record])] == ["Loss"]


def test_a_loss_of_one_term_has_a_chart_of_its_own_words():
    def titles(**parts):
        return [panel["title"] for panel in curve_panels([{"epoch": 1, **parts}], VJE)]

    assert titles(kl=1.0, variance=2.0) == ["KL (nats)", "Posterior variance"]
    assert titles(kl=1.0, nll=2.0, variance=2.0) == ["Terms of the loss", "Posterior variance"]
