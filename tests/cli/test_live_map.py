"""The map of ``vje train --watch``: right after every evaluation, steady, and of no consequence for training."""

import base64
import io
import json
import socket
import threading
import time
import urllib.request
from dataclasses import replace
from itertools import pairwise
from queue import Queue
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from vje.cli.live import LivePage, _no_map, watching
from vje.cli.live_map import MOST_IMAGES, MapMaker, MapMonitor
from vje.data import registry
from vje.data.sources import ArraySource
from vje.methods.simsiam import SimSiam
from vje.methods.vje import VJE
from vje.preprocessing import Preprocessing
from vje.recipes import load_recipe
from vje.reporting.atlas import Survey, nearest
from vje.reporting.live import LiveServer
from vje.reporting.sprites import make_sprites
from vje.runs import RunFolder
from vje.training.loop import Progress


def unpacked(packed):
    return np.frombuffer(base64.b64decode(packed["bytes"]), dtype=packed["kind"])


@pytest.fixture
def served(monkeypatch):
    """Every map that was shown, and what a page would have been given after the last evaluation of a run."""
    shown, answers = [], []
    show, close = LiveServer.show, MapMonitor.close

    def note(self, atlas, epoch, settled):
        show(self, atlas, epoch, settled)
        shown.append((atlas, epoch, settled))

    def look(self, patience):
        server = self.show.__self__
        until = time.monotonic() + 60
        while self._maker is not None and not (server.map.epoch == 2 and server.map.settled):
            assert time.monotonic() < until
            time.sleep(0.01)
        for path in ("data.json", "map.json") if server.map.number else ("data.json", ""):
            with urllib.request.urlopen(f"{server.address}/{path}", timeout=5) as answer:
                text = answer.read().decode()
                answers.append(json.loads(text) if path else text)
        close(self, patience)

    monkeypatch.setattr(LiveServer, "show", note)
    monkeypatch.setattr(MapMonitor, "close", look)
    return shown, answers


def test_the_digits_are_trained_alike_and_the_map_is_right(vje, tmp_path, monkeypatch, served):
    few = registry.RawSplits("digits", train=registry._digits().train.subset(range(500)))
    monkeypatch.setattr(registry, "_digits", lambda: few)
    words = ("train", "digits", "--epochs", 2, "--knn-every", 1, "--device", "cpu")
    assert vje(*words, "--out", tmp_path / "plain").status == 0
    answer = vje(*words, "--out", tmp_path / "watched", "--watch")
    assert answer.status == 0, answer.err
    plain, watched = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "watched"))
    assert plain == watched

    shown, (state, found) = served
    assert state["map"] == {"number": len(shown), "epoch": 2, "settled": True}
    assert found["count"] == 100 and "100 images" in found["section"] and found["space"] == "posterior means"
    places = np.stack([unpacked(found["x"]), unpacked(found["y"])], 1)
    assert places.shape == (100, 2) and np.isfinite(places).all()
    held_out = json.loads((tmp_path / "watched" / "data.json").read_text())["held_out"]
    assert sorted(found["names"]) == sorted(held_out)
    truth = dict(zip(few.train.names, few.train.labels, strict=True))
    assert unpacked(found["labels"]).tolist() == [truth[name] for name in found["names"]]
    assert found["typicality"] == "nll" and len(found["most"]) == len(found["least"]) == 12
    assert {epoch for _, epoch, _ in shown} == {1, 2}


def test_another_method_without_labels(vje, photos, tmp_path, tiny, served):
    run = tmp_path / "run"
    words = ("--method", "simsiam", "--data", photos, "--out", run, *tiny, "--held-out", 0.4, "--knn-every", 1)
    answer = vje("train", "folder", *words, "--watch")
    assert answer.status == 0, answer.err
    _, (_, found) = served
    unreadable = {"c/cut.png", "notes.jpg"}
    held_out = set(json.loads((run / "data.json").read_text())["held_out"])
    assert set(found["names"]) == held_out - unreadable and "labels" not in found
    assert found["space"] == "embeddings z" and found["typicality"] == "isolation"
    assert [one["name"] for one in found["statistics"]] == ["norm", "isolation"]


def test_no_evaluation_no_map(vje, trained, tmp_path, tiny, served):
    words = ("--data", trained[1], "--out", tmp_path / "run", *tiny, "--knn-every", 0)
    assert vje("train", "folder", *words, "--watch").status == 0
    shown, (state, page) = served
    assert shown == [] and state["map"]["number"] == 0 and "--knn-every 0 turns those off" in page


def test_the_progress_line_is_of_the_whole_run():
    page = LivePage(SimpleNamespace(progress={}))
    page.on_progress(Progress(3, 10, 5, 20, images_per_step=32, images_per_second=128.0, averages={}))
    # 45 of 200 steps are done, and 155 of a quarter second are left
    assert page.server.progress == {
        "epoch": 3,
        "epochs": 10,
        "done": pytest.approx(0.225),
        "images_per_second": 128.0,
        "left": "39s",
    }


@pytest.mark.parametrize(
    ("every", "images", "words"),
    [
        (5, 9, "The map comes with the next evaluation: there is one every 5 epochs (--knn-every) and after the last"),
        (20, 9, "The map comes with the next evaluation: there is one after the last epoch."),
        (5, 0, "no images were held out"),
        (0, 9, "--knn-every 0 turns those off"),
    ],
)
def test_why_there_is_no_map_yet(every, images, words):
    config = load_recipe("digits")
    config = replace(config, run=replace(config.run, knn_every=every), optimizer=replace(config.optimizer, epochs=20))
    assert words in _no_map(config, images)


@pytest.fixture
def watch(tmp_path):
    """``watch(port)``: the callbacks of a run of 7 epochs, and what was printed."""

    def enter(port):
        config, console = load_recipe("digits"), Console(file=io.StringIO(), width=200)
        config = replace(config, run=replace(config.run, knn_every=3), optimizer=replace(config.optimizer, epochs=7))
        data = SimpleNamespace(splits=SimpleNamespace(train="train", test="test"))
        loop = SimpleNamespace(step=SimpleNamespace(method="model", options=SimpleNamespace(autocast=True)))
        with watching(RunFolder(tmp_path), port, console, config, data, loop) as callbacks:
            return callbacks, console.file.getvalue()

    return enter


def test_the_map_is_of_held_out_images_as_often_as_of_k_nn(watch):
    (page, monitor), said = watch(0)
    assert page.server.address in said and monitor.show == page.server.show
    assert (monitor.model, monitor.test, monitor.autocast) == ("model", "test", True)
    assert (monitor.every, monitor.epochs, monitor.workers) == (3, 7, load_recipe("digits").data.workers)


def test_a_port_that_someone_took_in_the_meantime_ends_no_run(watch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        callbacks, said = watch(other.getsockname()[1])
    assert callbacks == [] and "cannot be used" in said and "Training goes on without the page." in said


# What is done in training's own thread


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("method", [VJE, SimSiam])
def test_looking_at_the_images_leaves_no_trace(method, training, make_pixels):
    model = method("resnet8", preprocessing=Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3)).train(training)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    draws = torch.random.get_rng_state(), np.random.get_state()[1].tolist()
    shown = Queue()
    monitor = MapMonitor(model, ArraySource(make_pixels(30, 1)), 2, 9, False, 0, lambda *x: shown.put(x))
    for epoch in range(1, 4):
        monitor.on_recorded({"epoch": epoch})
    while not (seen := shown.get(timeout=30))[2]:
        pass
    monitor.close()
    assert seen[1] == 2 and shown.empty() and len(seen[0].places) == seen[0].total == 30
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(x.grad is None for x in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), draws[0]) and np.random.get_state()[1].tolist() == draws[1]


def test_a_large_set_is_thinned_evenly(make_pixels):
    model = SimSiam("resnet8", preprocessing=Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3))
    images = ArraySource(np.repeat(make_pixels(50, 1), 50, axis=0), labels=np.arange(2500) // 250)
    shown = Queue()
    monitor = MapMonitor(model, images, 1, 9, False, 0, lambda *x: shown.put(x))
    monitor.on_recorded({"epoch": 1})
    atlas, *_ = shown.get(timeout=30)
    monitor.close()
    assert len(atlas.places) == MOST_IMAGES and atlas.total == 2500
    assert set(np.diff([int(name) for name in atlas.names])) == {2, 3} and atlas.names[-1] == "2499"
    assert np.bincount(atlas.labels).tolist() == pytest.approx([100] * 10, abs=1)


def test_every_few_epochs_and_the_last_are_looked_at_as_by_one_pass(make_pixels, monkeypatch):
    drawn = []
    monkeypatch.setattr(MapMaker, "draw", lambda self, epoch, found: drawn.append((epoch, found)))
    monkeypatch.setattr("vje.cli.live_map.BATCH", 7)  # several, the last one smaller
    preprocessing = Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3)
    model, pixels = SimSiam("resnet8", preprocessing=preprocessing).train(), make_pixels(30, 1)
    monitor = MapMonitor(model, ArraySource(pixels), 2, 5, False, 0, lambda *_: None)
    for epoch in range(1, 6):
        monitor.on_recorded({"epoch": epoch})
    monitor.close()
    assert [epoch for epoch, _ in drawn] == [2, 4, 5]
    with torch.no_grad():
        images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
        z = model.encoder.eval()(images).numpy()  # running statistics, not those of each batch
    for _, found in drawn:
        np.testing.assert_allclose(found.vectors, z, rtol=1e-3, atol=1e-4)


# What is done beside it


def surveyed(features):
    features = features.astype(np.float32)
    neighbours, similarity = (x.numpy() for x in nearest(torch.from_numpy(features)))
    return Survey("embeddings z", features, {"isolation": 1 - similarity.mean(1)}, neighbours, similarity)


@pytest.fixture
def maker(make_pixels):
    shown = Queue()
    pixels = make_pixels(200, 1)
    made = MapMaker(ArraySource(pixels), pixels.transpose(0, 3, 1, 2), 200, lambda *x: shown.put(x))
    yield made, shown
    made.close()


def test_each_image_has_its_own_picture_name_class_and_neighbours(make_pixels):
    shown, pixels = Queue(), make_pixels(6, 1)
    source = ArraySource(pixels, labels=np.array([2, 0, 1, 1, 0, 0]), classes=["cat", "dog", "ship"]).subset(
        range(5, -1, -1)
    )
    features = np.random.default_rng(0).normal(size=(6, 4))
    survey = replace(surveyed(features), titles={"isolation": "how lonely"})
    made = MapMaker(source, pixels[::-1].transpose(0, 3, 1, 2), 80, lambda *x: shown.put(x))
    made.draw(1, survey)
    atlas, *_ = shown.get(timeout=30)
    made.close()
    assert list(atlas.names) == ["5", "4", "3", "2", "1", "0"] and atlas.labels.tolist() == [0, 0, 1, 1, 0, 2]
    assert list(atlas.classes) == ["cat", "dog", "ship"] and atlas.total == 80
    assert atlas.titles == {"isolation": "how lonely"} and atlas.statistics == survey.statistics
    np.testing.assert_array_equal(atlas.neighbours, survey.neighbours)
    np.testing.assert_array_equal(atlas.similarity, survey.similarity)
    assert atlas.pictures == make_sprites(np.ascontiguousarray(pixels[::-1].transpose(0, 3, 1, 2)))


def test_the_map_goes_on_from_where_it_was(maker):
    made, shown = maker
    rng = np.random.default_rng(0)
    features = rng.normal(0, 0.4, (200, 16)) + 2 * np.eye(16)[np.arange(200) % 5]
    settled = []
    for epoch in (1, 2, 3):
        made.draw(epoch, surveyed(features + epoch * rng.normal(0, 0.03, features.shape)))
        first, then = shown.get(timeout=30), shown.get(timeout=30)
        assert [first[1:], then[1:]] == [(epoch, False), (epoch, True)]
        if settled:
            np.testing.assert_array_equal(first[0].places, settled[-1])  # there at once, with the new numbers
        settled.append(then[0].places)
    for before, after in pairwise(settled):
        assert np.isfinite(after).all() and np.corrcoef(before.ravel(), after.ravel())[0, 1] > 0.97


def test_a_collapsed_model_is_no_trouble(maker):
    made, shown = maker
    for epoch, features in enumerate((np.ones((200, 8)), np.full((200, 8), np.nan)), 1):
        made.draw(epoch, surveyed(features))
        atlas, *rest = shown.get(timeout=30)
        assert rest == [epoch, True] and len(np.unique(atlas.places, axis=0)) == 200


def test_the_last_map_may_settle(maker):
    made, shown = maker
    made.draw(7, surveyed(np.random.default_rng(0).normal(size=(200, 8))))
    made.close(patience=60)
    assert [shown.get_nowait()[1:] for _ in range(2)] == [(7, False), (7, True)]
    assert not made._thread.is_alive()


@pytest.fixture
def held(monkeypatch):
    """t-SNE that does not come to an end before it is told to."""
    release = threading.Event()

    def wait(features, start, threads):
        assert release.wait(30)
        return np.zeros((len(features), 2), np.float32)

    monkeypatch.setattr("vje.cli.live_map.tsne", wait)
    yield release
    release.set()


def test_the_end_waits_no_longer_than_told(maker, held):
    made, shown = maker
    made.draw(7, surveyed(np.random.default_rng(0).normal(size=(200, 8))))
    assert shown.get(timeout=30)[1:] == (7, False)
    began = time.monotonic()
    made.close(patience=0.1)
    assert 0.1 <= time.monotonic() - began < 20 and shown.empty()


def test_the_newest_model_is_shown_and_those_before_it_no_more(maker, held):
    made, shown = maker
    features = np.random.default_rng(0).normal(size=(200, 8))
    made.draw(1, surveyed(features))
    assert shown.get(timeout=30)[1:] == (1, False)
    for epoch in (2, 3):
        made.draw(epoch, surveyed(features))
    held.set()
    assert [shown.get(timeout=30)[1:] for _ in range(2)] == [(3, False), (3, True)]
    made.close(patience=30)
    assert shown.empty()
