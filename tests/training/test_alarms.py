"""What the alarms say, when, and that they say it once."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from vje.errors import UserError
from vje.runs import RunFolder
from vje.training.alarms import CollapseWatch, NonFinite, non_finite
from vje.training.loop import Callback

HEALTHY = {"epoch": 10, "variance": 0.65, "kl": 140.0, "effective_rank": 80.0, "knn": {"z": 60.0, "mean": 50.0}}
SICK = {
    "prior": ({"variance": 0.999, "kl": 0.4}, ["collapsed to the prior", "0.999", "--beta", "--nu"]),
    "floor": ({"variance": 2e-5, "kl": 3000.0}, ["collapsed to its floor", "2e-05", "--samples 1"]),
    "rank": ({"effective_rank": 15.0}, ["effective rank 15.0 of 512", "down from 80.0", "--lr"]),
    "chance": ({"knn": {"z": 11.9, "mean": 50.0}}, ["11.9%", "chance (10.0%)", "--crop-area"]),
}


def watching(**options):
    watch = CollapseWatch(dim=512, chance=10.0, **options)
    assert watch(HEALTHY) == []
    return watch


@pytest.mark.parametrize("kind", SICK)
def test_each_kind_of_collapse_is_told_in_words_and_once(kind):
    change, words = SICK[kind]
    watch = watching()
    [text] = watch(HEALTHY | change)
    assert all(word in text for word in words), text
    assert watch(HEALTHY | change) == []
    assert watch(HEALTHY) == []
    assert watch(HEALTHY | change) == []
    assert watch.said == {kind}


def test_one_warning_does_not_silence_another():
    watch = watching()
    for change, _ in SICK.values():
        assert len(watch(HEALTHY | change)) == 1
    assert watch.said == set(SICK)
    both = CollapseWatch(dim=512, chance=10.0)
    assert len(both(HEALTHY | SICK["prior"][0] | SICK["chance"][0])) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"variance": 0.999, "kl": 20.0},  # a posterior may have the prior's variance and another mean
        {"variance": 0.9, "kl": 0.4},
        {"variance": 2e-3},
        {"effective_rank": 20.1},
        {"effective_rank": math.nan},
        {"knn": {"z": 12.1, "mean": 1.0}},
        {"knn": {}},
    ],
)
def test_what_is_healthy_is_left_in_peace(change):
    watch = watching()
    assert watch(HEALTHY | change) == []
    assert watch.said == set()


LIMITS = {
    "prior by KL": ({"variance": 1.0, "kl": 2.5}, {"variance": 1.0, "kl": 2.6}),  # 0.005 nats for each of 512
    "prior from below": ({"variance": 0.985, "kl": 0.4}, {"variance": 0.975, "kl": 0.4}),
    "prior from above": ({"variance": 1.015, "kl": 0.4}, {"variance": 1.025, "kl": 0.4}),
    "floor": ({"variance": 0.00099}, {"variance": 0.00101}),
    "rank": ({"effective_rank": 19.9}, {"effective_rank": 20.1}),  # a quarter of 80
    "chance": ({"knn": {"z": 11.99}}, {"knn": {"z": 12.01}}),  # a fifth above 10
    "epochs": ({"epoch": 4, "variance": 0.0}, {"epoch": 3, "variance": 0.0}),
}


@pytest.mark.parametrize("name", LIMITS)
def test_each_alarm_begins_at_its_limit(name):
    beyond, before = LIMITS[name]
    watch = watching()
    assert watch(HEALTHY | before) == []
    assert len(watch(HEALTHY | beyond)) == 1


def test_records_may_lack_anything_but_the_epoch():
    assert CollapseWatch(dim=512, chance=10.0)({"epoch": 10}) == []
    assert CollapseWatch(dim=512, chance=None)(HEALTHY | {"knn": {"z": 0.0}}) == []  # no labels, no chance


def test_a_rank_of_one_is_collapse_even_from_the_start():
    [text] = CollapseWatch(dim=512)(HEALTHY | {"effective_rank": 1.2})
    assert "effective rank 1.2 of 512" in text


def test_the_first_epochs_are_not_judged_but_their_rank_counts():
    watch = CollapseWatch(dim=512, patience=3)
    for epoch in (1, 2, 3):
        assert watch({"epoch": epoch, "effective_rank": 90.0, "variance": 1.0, "kl": 0.0}) == []
    assert len(watch({"epoch": 4, "effective_rank": 20.0})) == 1


@pytest.mark.parametrize(("chance", "accuracy", "warns"), [(95.0, 95.5, True), (95.0, 97.0, False), (100, 100, False)])
def test_chance_is_judged_by_what_is_left_above_it(chance, accuracy, warns):
    found = CollapseWatch(dim=512, chance=chance)(HEALTHY | {"knn": {"z": accuracy}})
    assert bool(found) == warns


def test_state_survives_as_json():
    watch = watching()
    watch(HEALTHY | SICK["prior"][0] | {"effective_rank": 120.0})
    resumed = CollapseWatch(dim=512, chance=10.0)
    resumed.load(json.loads(json.dumps(watch.state())))
    assert resumed(HEALTHY | SICK["prior"][0]) == []
    [text] = resumed(HEALTHY | {"effective_rank": 29.0})
    assert "down from 120.0" in text


@pytest.mark.parametrize(("target", "helps"), [("ema", False), ("stop-gradient", True)])
def test_a_remedy_that_the_run_has_already_is_not_proposed(train, small_config, tmp_path, target, helps):
    said = []
    config = replace(small_config, settings=replace(small_config.settings, target=target))
    train(config, tmp_path / "run", prepare=lambda loop: said.extend(loop.watch({"epoch": 99, "effective_rank": 1.0})))
    assert len(said) == 1 and ("--target ema" in said[0]) == helps and "a larger --batch" in said[0]


class Listener(Callback):
    def __init__(self):
        self.heard = []

    def on_warning(self, text):
        self.heard.append(text)


def test_a_run_warns_once_over_interruptions(train, small_config, tmp_path):
    heard = []

    def prepare(loop):
        loop.watch.patience, loop.rank_of = 0, lambda _: 1.0
        listener = Listener()
        heard.append(listener.heard)
        loop.callbacks = [*loop.callbacks, listener]

    train(small_config, tmp_path / "run", stop_after=6, prepare=prepare)  # the first epoch has warned
    train(small_config, tmp_path / "run", prepare=prepare)
    assert [len(texts) for texts in heard] == [1, 0]
    lines = [json.loads(line) for line in RunFolder(tmp_path / "run").warnings_file.read_text().splitlines()]
    assert lines == [{"step": 4, "text": heard[0][0]}]


def test_a_warning_that_a_kill_took_back_is_given_again(train, small_config, tmp_path):
    def prepare(loop):
        loop.watch.patience, loop.rank_of = 0, lambda _: 1.0

    train(small_config, tmp_path / "run", stop_after=3, prepare=prepare)
    folder = RunFolder(tmp_path / "run")
    folder.append(folder.warnings_file, {"step": 4, "text": "said, but killed before the checkpoint"})
    train(small_config, tmp_path / "run", prepare=prepare)
    [line] = folder.warnings_file.read_text().splitlines()
    assert "The embeddings are collapsing" in line


# Non-finite values (that training stops and where is tested with the step)


def test_the_message_names_offenders_and_others_and_what_to_try(tmp_path):
    batch = {"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)}
    error = non_finite(17, {"loss": math.inf, "kl": 2.0, "norm_z": math.nan}, batch, tmp_path)
    assert isinstance(error, NonFinite)
    assert isinstance(error, UserError)  # the command line prints it without a traceback
    assert "stopped at step 17: loss = inf, norm_z = nan (the rest: kl = 2)." in str(error)
    assert "--lr" in str(error)
    assert load_file(tmp_path / "bad-batch-step-17.safetensors").keys() == {"images"}


def test_without_a_folder_nothing_is_saved_and_nothing_is_left_unsaid():
    assert "saved" not in str(non_finite(1, {"loss": math.nan}, {}, None))
    assert "step 1: loss = nan (the rest: none)." in str(non_finite(1, {"loss": math.nan}, {}, None))
    assert "not finite in another process (the rest: kl = 2)." in str(non_finite(1, {"kl": 2.0}, {}, None))


def test_a_classifier_may_need_few_dimensions():
    watch = CollapseWatch(dim=64, patience=0, watch_rank=False)
    assert watch({"epoch": 1, "effective_rank": 60.0}) == watch({"epoch": 2, "effective_rank": 3.0}) == []


def test_a_clock_that_stands_still_is_no_trouble(train, small_config, tmp_path, monkeypatch):
    monkeypatch.setattr("vje.training.loop.time.monotonic", lambda: 5.0)
    train(small_config, tmp_path / "run")
    assert all(record["seconds"] == 0 for record in RunFolder(tmp_path / "run").metrics())
