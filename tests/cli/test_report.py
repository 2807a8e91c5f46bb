"""``vje report`` and ``vje train --watch``: pages of runs of every kind, and training that is none the worse for it."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from vje.cli.live import LivePage
from vje.data import registry
from vje.errors import UserError
from vje.runs import RunFolder, write_atomically


def data_of(file):
    """What the page's scripts would read."""
    return data_in(file.read_text(encoding="utf-8"))


def data_in(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))


@pytest.fixture
def mine(trained, tmp_path):
    """A copy of a finished run, to write into."""
    shutil.copytree(trained[0], tmp_path / "run")
    return tmp_path / "run"


def test_what_is_not_measured_comes_with_its_command(vje, mine):
    for name in ("evaluation", "probe", "geometry"):
        (mine / f"{name}.json").unlink(missing_ok=True)
    assert vje("report", mine, "--device", "cpu", "--points", 0).status == 0
    text = (mine / "report.html").read_text(encoding="utf-8")
    for command in ("evaluate", "probe", "geometry"):
        assert f"vje {command} {mine}" in text
        assert command in vje("--help").out


def test_a_run_with_labels(vje, mine, monkeypatch):
    assert vje("evaluate", mine, "--device", "cpu").status == 0
    answer = vje("report", mine, "--device", "cpu", "--workers", 0)
    assert answer.status == 0, answer.err
    assert answer.out.strip() == f"Written to {mine / 'report.html'}"
    found = data_of(mine / "report.html")
    assert found["map"]["count"] == 32 and found["map"]["space"] == "posterior means"
    assert found["map"]["classes"] == [str(n) for n in range(4)]
    names = [one["name"] for one in found["map"]["statistics"]]
    assert {"nll", "kl", "variance", "anisotropy", "norm", "isolation"} <= set(names)
    assert [panel["title"] for panel in found["panels"]][:2] == ["k-NN accuracy (%)", "Loss"]
    assert found["ood"] is None
    text = (mine / "report.html").read_text(encoding="utf-8")
    assert "k-NN accuracy of z" in text and f"vje probe {mine}" in text
    assert f"vje ood {mine} --id PATH --ood NAME=PATH" in text  # there is no benchmark for such images

    def computed_again(*_):
        raise AssertionError("the map was not kept")

    monkeypatch.setattr("vje.reporting.geometry.tsne", computed_again)
    assert vje("report", mine, "--device", "cpu", "--workers", 0).status == 0
    assert data_of(mine / "report.html")["map"] == found["map"]


def test_only_vjes_statistics_are_explained_as_vjes(vje, mine, trained, tmp_path, tiny):
    assert "the prior's is 1" in vje("evaluate", mine, "--device", "cpu").out
    other = tmp_path / "other"
    train = vje("train", "folder", "--method", "vssl", "--data", trained[1], "--out", other, *tiny, "--hidden", 32)
    assert train.status == 0, train.err
    answer = vje("evaluate", other, "--device", "cpu")
    assert answer.status == 0 and "variance" in answer.out and "the prior" not in answer.out
    assert json.loads((other / "evaluation.json").read_text())["method"] == "vssl"
    assert vje("report", other, "--points", 0).status == 0
    text = (other / "report.html").read_text(encoding="utf-8")
    assert "Posterior variance" in text and "the prior" not in text.split("<script>")[0]


def test_fewer_points_without_labels(vje, run):
    answer = vje("report", run, "--device", "cpu", "--points", 20, "--out", run.parent / "page.htm")
    assert answer.status == 0, answer.err
    found = data_of(run.parent / "page.htm")
    assert found["map"]["count"] == 20 and "labels" not in found["map"]
    assert found["panels"] == []


def test_photos_with_another_method(vje, photos, tmp_path, tiny):
    run = tmp_path / "run"
    train = vje("train", "folder", "--method", "simsiam", "--data", photos, "--out", run, *tiny, "--held-out", 0.4)
    assert train.status == 0, train.err
    (run / "model.safetensors").unlink()  # as if it had been interrupted: the newest checkpoint is taken
    with pytest.warns(UserWarning, match="not finished"):
        answer = vje("report", run, "--device", "cpu", "--workers", 0)
    assert answer.status == 0, answer.err
    found = data_of(run / "report.html")["map"]
    assert found["space"] == "embeddings z" and found["typicality"] == "isolation"
    assert all(name.endswith((".png", ".jpg")) for name in found["names"])
    assert found["pictures"]["side"] == 8


def test_a_run_that_has_only_begun(vje, mine):
    shutil.rmtree(mine / "checkpoints")
    for name in ("model.safetensors", "metrics.jsonl"):
        (mine / name).unlink()
    assert vje("report", mine).status == 0
    text = (mine / "report.html").read_text(encoding="utf-8")
    assert "has neither a model nor a checkpoint yet" in text and "No epoch is finished yet." in text


def test_a_run_that_diverged_at_once(vje, mine):
    shutil.rmtree(mine / "checkpoints")
    for name in ("model.safetensors", "metrics.jsonl"):
        (mine / name).unlink()
    RunFolder(mine).write("failed", {"step": 1, "message": "training stopped at step 1: loss = nan"})
    assert vje("report", mine, mine).status == 0  # the same one twice is one
    text = (mine / "report.html").read_text(encoding="utf-8").split("<script>")[0]
    assert "diverged at step 1, in the first epoch" in text and "<li>Diverged in the first epoch: training" in text
    assert f"The map needs a model, and {mine} has neither a model nor a checkpoint." in text and " yet" not in text


def test_ood_curves_are_in_the_report(vje, mine, make_pixels, tmp_path):
    np.savez(tmp_path / "id.npz", images=make_pixels(30, 1))
    np.savez(tmp_path / "other.npz", images=make_pixels(20, 2) // 2)
    words = ("--id", tmp_path / "id.npz", "--ood", f"darker={tmp_path / 'other.npz'}", "--device", "cpu")
    assert vje("ood", mine, *words).status == 0
    curves, result = (json.loads((mine / f"{name}.json").read_text()) for name in ("ood-curves", "ood"))
    for score, curve in curves["sets"]["darker"]["roc"].items():
        assert curve["auroc"] == pytest.approx(result["scores"][score]["darker"]["auroc"])
    assert vje("report", mine, "--points", 0).status == 0
    found = data_of(mine / "report.html")
    assert found["map"] is None and found["ood"]["sets"][0]["roc"][0]["name"] == "NLL"


def test_several_runs_are_compared(vje, trained, mine, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(mine, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(
        json.dumps(config | {"recipe": "</script><b>", "method": "vje", "run": {"seed": 3}})
    )
    (mine / "report.html").write_text("here")
    answer = vje("report", mine, other, "--out", tmp_path / "both.html")
    assert answer.status == 0, answer.err
    text = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert (
        'href="run/report.html"' in text and "other/report.html" not in text and "<b>" not in text.split("<script>")[0]
    )
    lines = data_of(tmp_path / "both.html")["panels"][0]["lines"]
    assert len(lines) == 1 and len(lines[0]["std"]) == 2  # they differ in their seeds alone


def test_a_run_that_went_on_is_not_headed_by_what_it_was(vje, mine):
    assert vje("evaluate", mine, "--device", "cpu").status == 0
    (mine / "probe.json").unlink(missing_ok=True)
    old = json.loads((mine / "evaluation.json").read_text())
    assert vje("train", "--resume", mine, "--epochs", 3, "--extend", "--device", "cpu").status == 0
    new = RunFolder(mine).metrics()[-1]["knn"]["z"]
    for points in (9, 0):  # with the model at hand, and without
        assert vje("report", mine, "--points", points, "--device", "cpu", "--workers", 0).status == 0
        text = (mine / "report.html").read_text(encoding="utf-8").split("<script>")[0]
        assert "3 epochs, seed 0; finished" in text and f"<td>{new:.2f}%</td><td>in training, after epoch 3" in text
        assert f"{old['effective_rank']:.1f}" not in text.split("<h2")[1]
        assert "Left out: evaluation.json" in text and f"<code>vje evaluate {mine}</code> makes it anew" in text


def test_a_map_that_cannot_be_kept_is_in_the_page_all_the_same(vje, mine, tmp_path, monkeypatch):
    def guarded(file, content):
        if mine in file.parents:
            raise UserError(f"cannot write {file}")
        write_atomically(file, content)

    monkeypatch.setattr("vje.cli.report.write_atomically", guarded)
    for kept in (mine / "cache").glob("map-*"):
        kept.unlink()
    answer = vje("report", mine, "--device", "cpu", "--workers", 0, "--out", tmp_path / "page.html")
    assert answer.status == 0, answer.err
    assert data_of(tmp_path / "page.html")["map"]["count"] == 32 and not list((mine / "cache").glob("map-*"))


def test_only_a_page_of_ours_is_replaced(vje, trained, mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {mine / "report.html": (mine,), tmp_path / "comparison.html": (mine, trained[0])}
    for place, runs in places.items():
        assert [vje("report", *runs, "--points", 0).status for _ in range(2)] == [0, 0]
        place.write_text("precious")
        answer = vje("report", *runs, "--points", 0)
        assert answer.status == 2 and f"{place.name} is there, and is no page that vje wrote" in answer.err
        assert place.read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report"], "needs a run folder"),
        (["report", "nowhere"], "no run at nowhere"),
        (["report", "{}", "--points", "-1"], "--points must be between 0 and 10,000"),
        (["report", "{}", "--out", "{}"], "is a folder"),
        (["report", "{}", "--out", "{}/model.safetensors"], "the file must end in .html or .htm"),
        (["report", "{}", "--out", "{}/precious.html"], "is no page that vje wrote"),
        (["report", "{}", "--out", "{}/none/page.html"], "there is no folder {}/none"),
        (["report", "{}", "--data", "nowhere.npz"], "--points 0 makes the report without the map"),
        (["train", "digits", "--watch", "--watch-port", "70000"], "between 0 and 65535"),
        (["train", "digits", "--watch-port", "8000"], "which was not given"),
    ],
)
def test_mistakes_are_named_before_anything_heavy(mine, words, message, snapshot):
    (mine / "precious.html").write_text("<!doctype html>")
    before = snapshot(mine)
    program = (
        "import sys; from vje.cli.main import main; status = main(sys.argv[1:]);"
        "sys.exit(9 if {'torch', 'plotly'} & sys.modules.keys() else status)"
    )
    command = [sys.executable, "-c", program, *(word.replace("{}", str(mine)) for word in words)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2 and message.replace("{}", str(mine)) in answer.stderr, answer
    assert snapshot(mine) == before


def comparable(run):
    """What a run computed, without what depends on the clock."""
    clock = ("images_per_second", "seconds", "elapsed")
    records = [{k: v for k, v in record.items() if k not in clock} for record in RunFolder(run).metrics()]
    return records, (run / "model.safetensors").read_bytes()


def test_watching_changes_nothing_and_ends_with_training(vje, trained, tmp_path, tiny, monkeypatch):
    answers, addresses = [], set()
    note = LivePage.on_progress

    def look(self, progress):
        note(self, progress)
        addresses.add(self.server.address)
        with urllib.request.urlopen(f"{self.server.address}/data.json", timeout=5) as answer:
            answers.append(json.loads(answer.read()))

    monkeypatch.setattr(LivePage, "on_progress", look)
    run = tmp_path / "run"
    words = ("train", "folder", "--data", trained[1], "--out", run, *tiny, "--knn-every", 1)
    answer = vje(*words, "--watch")
    assert answer.status == 0, answer.err
    address = addresses.pop()
    assert f"Watch it at {address}" in answer.out and address.startswith("http://127.0.0.1:")
    assert answers[0]["panels"] == [] and answers[-1]["progress"]["epoch"] == 2
    assert answers[-1]["panels"][0]["title"] == "k-NN accuracy (%)"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=5)
    assert comparable(run) == comparable(trained[0])
    assert "watch" not in (run / "config.json").read_text()


class Page(threading.Thread):
    """Does what an open page does: asks for the numbers, and for each map, until it is told that this is the end."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.states, self.maps = address, [], {0: None}
        self.ask("/")
        self.start()

    def run(self):
        while not (self.states and self.states[-1]["ended"]):
            self.states.append(json.loads(self.ask("/data.json")))
            if self.states[-1]["map"]["number"] not in self.maps:
                found = json.loads(self.ask("/map.json"))
                self.maps[found["number"]] = found
            time.sleep(0.05)

    def ask(self, path):
        with urllib.request.urlopen(self.address + path, timeout=30) as answer:
            return answer.read().decode()


def test_an_open_page_is_given_the_end_of_training(vje, trained, tmp_path, tiny, monkeypatch):
    pages, note = [], LivePage.on_progress

    def look(self, progress):
        note(self, progress)
        if not pages:
            pages.append(Page(self.server.address))

    monkeypatch.setattr(LivePage, "on_progress", look)
    monkeypatch.setattr("vje.cli.live.PATIENCE", 60.0)
    monkeypatch.setattr("vje.reporting.live.sleep", lambda _: pages[0].join(30))  # it is through in no time
    words = ("--data", trained[1], "--out", tmp_path / "run", *tiny, "--knn-every", 1)
    assert vje("train", "folder", *words, "--watch").status == 0
    pages[0].join(30)
    last = pages[0].states[-1]
    assert last["ended"]["status"] == "finished" and last["progress"]["done"] == 1
    assert all(panel["lines"][0]["x"][-1] == 2 for panel in last["panels"])
    assert last["map"] == {"number": max(pages[0].maps), "epoch": 2, "settled": True}
    assert not any(state["ended"] for state in pages[0].states[:-1])


def test_an_interrupted_run_stops_the_page_too(vje, trained, tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(LivePage, "on_progress", lambda *_: signal.raise_signal(signal.SIGINT))
    run = tmp_path / "run"
    answer = vje("train", "folder", "--data", trained[1], "--out", run, *tiny, "--watch")
    assert answer.status == 130, answer.err
    assert not any(thread.name == "vje-watch" for thread in threading.enumerate())
    monkeypatch.undo()
    assert vje("train", "--resume", run, "--watch", "--device", "cpu").status == 0
    assert comparable(run)[1] == comparable(trained[0])[1]


def test_the_demo_ends_with_its_report(vje, tmp_path, monkeypatch):
    few = registry.RawSplits("digits", train=registry._digits().train.subset(range(200)))
    monkeypatch.setattr(registry, "_digits", lambda: few)
    answer = vje("demo", "--epochs", 1, "--out", tmp_path / "demo")
    assert answer.status == 0, answer.err
    assert answer.out.rstrip().endswith(str(tmp_path / "demo" / "report.html"))
    assert data_of(tmp_path / "demo" / "report.html")["map"]["count"] == 40
