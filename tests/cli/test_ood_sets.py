"""The images of ``vje ood``: what a result depends on, which runs have a mean, and what is refused."""

import numpy as np
import pytest

from vje.cli import ood_sets
from vje.cli.ood import Options
from vje.cli.ood_run import _inputs, _measured_already
from vje.cli.ood_sets import Sets, benchmark_of, check_asked, check_same_images, named_sets, open_sets
from vje.cli.subject import run_config
from vje.data.arrays import load_npz
from vje.data.sources import ArraySource
from vje.errors import UserError
from vje.ood.benchmark import Member
from vje.runs import RunFolder


def images(seed):
    return ArraySource(np.full((2, 4, 4), seed, np.uint8))


def sets_of(bank=1, inside=2, validation=(3, 4), **members):
    found = [Member(name, None, (images(seed),)) for name, seed in members.items()]
    return Sets(images(bank), images(inside), found, tuple(map(images, validation)))


def test_a_result_depends_on_every_image_but_is_on_those_that_are_told_apart():
    usual = sets_of(noise=5)
    assert usual.fingerprints() == sets_of(noise=5).fingerprints()
    for changes, name in (
        ({"bank": 9}, "bank"),
        ({"validation": (3, 9)}, "tuning"),
        ({"validation": (9, 4)}, "tuning"),
    ):
        other = sets_of(**changes, noise=5)
        assert [key for key, value in usual.fingerprints().items() if other.fingerprints()[key] != value] == [name]
        assert usual.images() == other.images()
    for changes, name in (({"inside": 9}, "id"), ({"noise": 9}, "noise")):
        other = sets_of(**{"noise": 5} | changes).images()
        assert [key for key, value in usual.images().items() if other[key] != value] == [name]


def test_what_was_asked_of_the_images_is_part_of_a_results_inputs():
    asked = [
        *({}, {"samples": 1}, {"views": "mirror"}, {"views": "ten"}, {"detectors": False}),
        *({"bank": 9}, {"validation": (3, 9)}, {"inside": 9}, {"noise": 9}),
    ]
    fields = Options.__dataclass_fields__
    found = set()
    for changes in asked:
        options = Options((), **{name: value for name, value in changes.items() if name in fields})
        other = {name: value for name, value in changes.items() if name not in fields}
        found.add(_inputs(options, sets_of(**{"noise": 5} | other)))
    assert len(found) == len(asked)
    assert _inputs(Options((), batch=7, workers=1), sets_of(noise=5)) in found


def test_a_result_without_its_curves_is_measured_again(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    used = {"inputs": "1", "weights": "2", "environment": {"commit": "0123abc"}}
    folder.write("ood", used)
    for name in ("ood-curves.json", "ood-roc.png"):
        assert _measured_already(folder, used) is None
        (folder.path / name).touch()
    assert _measured_already(folder, used).items() >= used.items()
    (folder.path / "ood-curves.json").unlink()
    assert _measured_already(folder, used) is None


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """``folders((sets, held_out), ...)``: runs that would meet these images."""

    def make(*given):
        found = {}
        for number, (sets, held_out) in enumerate(given):
            folder = RunFolder.create(tmp_path / f"run{number}")
            folder.write("data", {"held_out": held_out})
            found[folder] = sets
        monkeypatch.setattr(ood_sets, "run_config", lambda *_: None)
        monkeypatch.setattr(ood_sets, "open_sets", lambda folder, *_: found[folder])
        return list(found)

    return make


@pytest.mark.parametrize(
    ("one", "other", "held_out", "apart"),
    [
        ({"inside": 9}, {}, (["a"], None), "in-distribution"),
        ({"inside": 9}, {}, (None, ["a"]), "in-distribution"),
        ({"inside": 9}, {}, (["a"], ["a"]), "in-distribution"),
        ({"inside": 9}, {"noise": 9}, (["a"], ["b"]), "in-distribution, noise"),
        ({}, {"noise": 9}, (["a"], ["b"]), "noise"),
        ({}, {"dots": 9}, (None, None), "dots"),
        ({"dots": 9}, {}, (None, None), "dots"),
    ],
)
def test_runs_on_different_images_have_no_mean(folders, one, other, held_out, apart):
    usual = {"noise": 5}
    runs = folders((sets_of(**usual | one), held_out[0]), (sets_of(**usual | other), held_out[1]))
    with pytest.raises(UserError) as refused:
        check_same_images(runs, Options(()))
    paths = f"{runs[0].path} and {runs[1].path}"
    assert f"{paths} would be measured on different images ({apart}), " in str(refused.value)
    assert "--data-dir PATH or --data PATH" in str(refused.value)
    with pytest.raises(UserError, match="give an --id that none of the runs was trained on, or run `vje ood` on each"):
        check_same_images(runs, Options((), id="mine", ood=(("noise=x",),)))


def test_every_run_is_looked_at(folders):
    runs = folders(*((sets_of(noise=seed), None) for seed in (5, 5, 6)))
    with pytest.raises(UserError, match=rf"{runs[0].path} and {runs[2].path} would be measured on different images"):
        check_same_images(runs, Options(()))


def test_images_that_each_run_held_out_may_differ(folders, capsys):
    check_same_images(folders((sets_of(noise=5), ["a"]), (sets_of(noise=5, inside=9), ["b"])), Options(()))
    assert capsys.readouterr().out.count("Each run is measured on the images that it held out itself") == 1


def test_runs_that_meet_the_same_images_need_no_words(folders, capsys):
    check_same_images(folders((sets_of(noise=5), ["a"]), (sets_of(noise=5, bank=9), ["b"])), Options(()))
    assert capsys.readouterr().out == ""


def test_a_run_whose_data_moved_has_the_benchmark_of_where_it_is_now(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config", {"data": {"data": "gone/mine.npz"}})
    check_asked(folder, Options((), data="elsewhere/cifar100.npz"))
    with pytest.raises(UserError, match=r"no benchmark for a run on gone/mine\.npz"):
        check_asked(folder, Options(()))
    assert benchmark_of("elsewhere/cifar100.npz") == "cifar100"


def test_named_sets_are_looked_for_where_the_run_has_its_data_or_where_it_is_said(tmp_path):
    places = {name: tmp_path / name for name in ("stored", "said")}
    for name, place in places.items():
        place.mkdir()
        np.savez(place / f"{name}-images.npz", images=np.zeros((2, 4, 4), np.uint8))
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config", {"data": {"data": "mine", "data_dir": str(places["stored"])}})
    noise = f"noise={places['said'] / 'said-images.npz'}"
    check_asked(folder, Options((), id="stored-images", ood=((noise,),)))
    check_asked(folder, Options((), id="said-images", ood=((noise,),), data_dir=places["said"]))
    for wrong in ({"id": "said-images"}, {"id": "stored-images", "data_dir": places["said"]}):
        with pytest.raises(UserError):
            check_asked(folder, Options((), ood=((noise,),), **wrong))


@pytest.mark.parametrize("word", ["=data/noise", "noise=", "noise", "="])
def test_a_set_needs_a_name_and_a_path(word):
    with pytest.raises(UserError, match=f"--ood {word}: write it as NAME=PATH"):
        named_sets([word])


@pytest.mark.parametrize("name", ["id", "bank", "tuning", "avg", "noise"])
def test_names_that_are_taken(name):
    with pytest.raises(UserError, match=f"--ood {name}=x: the name {name} is taken"):
        named_sets(["noise=x", f"{name}=x"])


def test_detectors_have_the_training_images_also_for_images_of_ones_own(run, tmp_path, make_pixels):
    np.savez(tmp_path / "noise.npz", images=make_pixels(5, 9))
    folder, data = RunFolder(run), str(tmp_path / "set.npz")
    options = Options((run,), id=data, ood=((f"noise={tmp_path / 'noise.npz'}",),))
    found, splits = open_sets(folder, run_config(folder, None, None), options), load_npz(tmp_path / "set.npz")
    assert found.bank.fingerprint() == splits["train"].fingerprint()
    assert found.inside.fingerprint() == splits["test"].fingerprint() and found.validation is None
    assert [(member.name, member.near, len(member.sources[0])) for member in found.members] == [("noise", None, 5)]
