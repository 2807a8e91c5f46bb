"""The page of several runs: who is who, what stands where, and the way to each run's own page."""

import json
import re
from dataclasses import replace

import pytest

from vje.config import to_dict
from vje.recipes import load_recipe
from vje.reporting.compare_page import compare_page
from vje.runs import RunFolder


@pytest.fixture
def make_run(tmp_path):
    """``make_run(name, recipe, seed, knn, **results)``: a run of two epochs, trained to the end."""

    def make(name, recipe="cifar10", seed=0, knn=80.0, **results):
        config = load_recipe(recipe)
        config = replace(config, run=replace(config.run, seed=seed), optimizer=replace(config.optimizer, epochs=20))
        folder = RunFolder.create(tmp_path / name)
        folder.write("config", to_dict(config))
        for epoch in (10, 20):
            folder.append(folder.metrics_file, {"epoch": epoch, "step": epoch, "knn": {"z": knn + epoch / 10}})
        for kind, value in results.items():
            folder.write(kind, value)
        return folder

    return make


def table_of(page):
    """The table's head, and its rows by name."""
    text = page.split("<script")[0]
    head = re.findall(r'<th scope="col">([^<]*)</th>', text)
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th>(.*?)</tr>', text)
    return head, {name: re.findall(r"<td>([^<]*)</td>", cells) for name, cells in rows}


def test_every_value_is_in_the_row_of_its_group_and_under_its_head(make_run, tmp_path):
    runs = [
        make_run("a", seed=0, knn=70.0, probe={"spaces": {"z": {"top1": 90.0}}}),
        make_run("b", seed=1, knn=74.0, probe={"spaces": {"z": {"top1": 92.0}}}),
        make_run("c", recipe="cifar10-simsiam", knn=50.0, evaluation={"effective_rank": 33.25}),
    ]
    page = compare_page([*runs, runs[0]], tmp_path / "x.html")  # one of them twice
    head, rows = table_of(page)
    assert "<title>3 runs compared</title>" in page
    assert head == ["run", "runs", "epochs", "k-NN z", "probe z", "rank of z"]
    assert rows == {
        "cifar10": ["2", "20", "74.00 ± 2.83", "91.00 ± 1.41", ""],
        "cifar10-simsiam": ["1", "20", "52.00", "", "33.2"],
    }
    assert f'<p class="note">cifar10: {runs[0].path}, {runs[1].path}</p>' in page
    assert "<title>1 run compared</title>" in compare_page(runs[:1], tmp_path / "x.html")


def test_curves_of_groups_are_means_over_epochs(make_run, tmp_path):
    runs = [make_run("a", knn=70.0), make_run("b", seed=1, knn=74.0), make_run("c", recipe="cifar10-simsiam", knn=50.0)]
    page = compare_page(runs, tmp_path / "x.html")
    (panel,) = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))["panels"]
    assert panel["lines"] == [
        {"name": "cifar10", "x": [10, 20], "y": [73, 74], "std": pytest.approx([8**0.5, 8**0.5])},
        {"name": "cifar10-simsiam", "x": [10, 20], "y": [51, 52]},
    ]


def test_a_page_without_curves_says_so(make_run, tmp_path):
    run = make_run("a")
    page = compare_page([run], tmp_path / "x.html")
    assert 'id="curves"' in page and "None was recorded." not in page
    run.metrics_file.write_text('{"epoch": 20, "step": 20}\n')
    page = compare_page([run], tmp_path / "x.html")
    assert 'id="curves"' not in page and "None was recorded." in page


def test_links_lead_to_pages_of_folders_with_any_name(make_run, tmp_path):
    odd, other = make_run("100% <b>#1"), make_run("other", seed=1)
    (odd.path / "report.html").touch()
    other.model_file.touch()
    text = compare_page([odd, other], tmp_path / "pages" / "x.html").split("<script")[0]
    assert re.findall(r'<li><a href="([^"]*)"', text) == ["../100%25%20%3Cb%3E%231/report.html"]
    assert "<b>" not in text and "seed 0; 20 epochs done" in text and "seed 1; finished" in text


def test_marks_and_what_was_left_out_are_on_the_page(make_run, tmp_path):
    ood = {"summary": {"nll": {"near": 88.0}}, "data": "cifar10", "partial": ["id"], "counts": {"id": 9, "tin": 8}}
    run = make_run("<b>", ood=ood, evaluation={"effective_rank": 2.0, "lacking": 1234})
    page = compare_page([run], tmp_path / "x.html")
    assert table_of(page)[0] == ["run", "runs", "epochs", "k-NN z", "near OOD NLL*"]
    _, partial, left_out, *_ = re.findall(r'<p class="note">([^<]*)</p>', page)
    assert partial == "* not the protocol&#x27;s own image list (other counts): cifar10"
    assert "&lt;b&gt;/evaluation.json, without 1,234 of the run&#x27;s images;" in left_out
