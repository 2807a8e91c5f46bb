"""Saved models: the same scores after loading, a description that suffices, and clear words for everything else."""

import json
import math
import shutil
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vje
from vje.build import build_method
from vje.errors import UserError
from vje.evaluation.features import weights_fingerprint
from vje.methods.moco import MoCo
from vje.methods.simclr import SimCLR
from vje.methods.vje import VJE
from vje.models import load, start_from
from vje.networks.encoders import Encoder, build_encoder
from vje.preprocessing import Preprocessing
from vje.recipes import load_recipe
from vje.runs import write_atomically

PREPROCESSING = Preprocessing(10, 8, 3, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


def build(seed=0, encoder=None, **options):
    torch.manual_seed(seed)
    encoder = build_encoder("resnet8", small_images=True, normalization="group", **(encoder or {}))
    return VJE(encoder, **options).eval()


def pictures(count=6):
    return torch.randint(0, 256, (count, 3, 12, 14), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def trained_a_little(model):
    """Away from its initial weights and statistics, target included."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for seed in range(2):
        torch.manual_seed(seed)
        model([torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8)]).loss.backward()
        optimizer.step()
        model.after_step(0.5)
    return model.eval()


# Round trip


@pytest.mark.parametrize(
    "options",
    [
        {"target": "ema"},
        {"nu": math.inf, "beta": 0.5, "samples": 0, "isotropic": True, "terms": ("directional", "kl"), "ratio": 0.5},
        {"likelihood": "standard", "center_variance": True, "batch_norm": "separate", "nu": 4},
        {"target": "ema", "target_batch_norm": "running"},
    ],
)
@pytest.mark.parametrize("normalization", ["batch", "frozen"])
def test_a_loaded_model_scores_as_the_saved_one(tmp_path, options, normalization):
    torch.manual_seed(0)
    encoder = build_encoder("resnet8", small_images=True, normalization=normalization)
    model = trained_a_little(VJE(encoder, **options, preprocessing=PREPROCESSING))
    file = model.save(tmp_path / "model")
    assert file == tmp_path / "model" / "model.safetensors"
    torch.manual_seed(99)
    for place in (file, str(file), tmp_path / "model"):
        loaded = vje.load(place)
        assert same(loaded.score(pictures()), model.score(pictures()))
    assert same(loaded.state_dict(), model.state_dict())
    assert loaded.hyperparameters() == model.hyperparameters()
    assert loaded.preprocessing == Preprocessing(10, 8, 3, [0.4, 0.5, 0.6], [0.2, 0.25, 0.3])
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "nonsense"])
def test_a_device_that_is_not_there_is_told(tmp_path, device):
    file = build(preprocessing=PREPROCESSING).save(tmp_path)
    with pytest.raises(UserError, match=f"cannot be put on device '{device}' .*: choose another"):
        vje.load(file, device=device)


def test_the_description_says_all_that_is_needed(tmp_path):
    model = build(target="ema", nu=math.inf, preprocessing=PREPROCESSING)
    file = model.save(tmp_path / "mine.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.json", "mine.safetensors"]
    assert json.loads((tmp_path / "mine.json").read_text()) == {
        "weights": weights_fingerprint(vje.load(file))[:16],
        "schema": 1,
        "format": "vje-model",
        "method": "vje",
        "dim": 256,
        "architecture": {
            "name": "resnet8",
            "channels": 3,
            "small_images": True,
            "normalization": "group",
            "image_size": None,
        },
        "hyperparameters": {
            "nu": "inf",
            "beta": 1.0,
            "samples": 1,
            "isotropic": False,
            "likelihood": "factorized",
            "terms": ["directional", "radial", "kl"],
            "center_variance": False,
            "target": "ema",
            "target_momentum": 0.996,
            "batch_norm": "joint",
            "target_batch_norm": "batch",
            "ratio": 0.25,
        },
        "preprocessing": {
            "size": 10,
            "crop": 8,
            "channels": 3,
            "mean": [0.4, 0.5, 0.6],
            "std": [0.2, 0.25, 0.3],
        },
    }
    assert same(load_file(file), model.state_dict())
    assert load(file).nu == math.inf


def test_without_preprocessing_a_model_is_saved_all_the_same(tmp_path):
    assert load(build().save(tmp_path)).preprocessing is None


def test_an_encoder_built_by_hand_is_not_saved_half(tmp_path):
    model = VJE(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(12, 8)), 8))
    with pytest.raises(UserError, match=r"built by hand.*vje\.build_encoder"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


# Runs


def test_a_finished_run_loads_without_its_data_or_config(trained_run, tmp_path):
    for name in ("model.safetensors", "model.json"):
        shutil.copy(trained_run / name, tmp_path)
    scores = vje.load(tmp_path).score(pictures())
    assert same(scores, vje.load(tmp_path).score(pictures().numpy()))  # arrays will do
    assert same(scores, vje.load(trained_run).score(pictures()))
    assert all(torch.isfinite(values).all() and values.shape == (6,) for values in scores.values())


def test_an_unfinished_run_loads_its_newest_checkpoint_with_a_warning(trained_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    finished = load(run)
    (run / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match="is not finished; using its state after step 8"):
        assert same(load(run).state_dict(), finished.state_dict())
    newest = run / "checkpoints" / "step-000000008.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="after step 4"):
        assert not same(load(run).state_dict(), finished.state_dict())
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(
        UserError, match=rf"holds no model and no checkpoint yet: train it with `vje train --resume {run}`"
    ):
        load(run)
    (run / "failed.json").write_text('{"step": 2}')
    with pytest.raises(UserError, match=r"no checkpoint: it diverged at step 2.*Start a new run with a lower --lr"):
        load(run)


def test_a_kill_while_a_model_is_saved_leaves_a_run_that_is_not_finished(tmp_path, monkeypatch):
    """A run whose model is there is left as it is, so all else has to be there before."""
    run, model = tmp_path / "run", build()

    def killed(file, content, last):
        if file.name == last:
            raise KeyboardInterrupt
        write_atomically(file, content)

    for last in ("model.json", "model.safetensors"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            for module in ("vje.runs", "vje.models"):
                patch.setattr(f"{module}.write_atomically", partial(killed, last=last))
            model.save(run)
        assert not (run / "model.safetensors").exists()
    model.save(run)
    assert json.loads((run / "model.json").read_text())["weights"] == weights_fingerprint(model)[:16]


# Files that are no models


def spoil(tmp_path, weights=None, description=None):
    file = build(preprocessing=PREPROCESSING).save(tmp_path)
    if weights is not None:
        weights(file)
    if description is not None:
        description(file.with_suffix(".json"))
    return file


def edit(**changes):
    def change(file):
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("weights", "description", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), None, r"model\.safetensors cannot be read as a model"),
        (lambda file: torch.save({"a": 1}, file), None, r"model\.safetensors cannot be read as a model"),
        (lambda file: save_file({"a": torch.zeros(1)}, file), None, "is not a model of this program"),
        (
            lambda file: save_file({"a": torch.zeros(1)}, file, metadata={"format": "vje-model"}),
            None,
            "does not fit its description",
        ),
        (None, lambda file: file.unlink(), r"model\.json is missing, which says what model .* so copy both"),
        (None, lambda file: file.write_text("{"), r"model\.json is damaged"),
        (None, edit(format="other"), r"model\.json does not describe a model of this program"),
        (None, edit(schema=7), "newer vje"),
        (None, edit(hyperparameters={"later": 1}), r"model\.json describes no model.*'later'.*another version of vje"),
        (None, edit(architecture={"name": "resnet8", "later": 1}), r"describes no model.*'later'"),
        (None, edit(architecture={"name": "resnet8", "channels": 10**12}), "describes no model"),
        (None, edit(preprocessing={"size": -4}), "describes no model"),
        (None, edit(method="later"), "there is no method"),
        (None, edit(architecture={"name": "resnet14", "small_images": True}), "does not fit its description"),
    ],
)
def test_a_wrong_file_is_told_in_words(tmp_path, weights, description, words):
    with pytest.raises(UserError, match=words):
        load(spoil(tmp_path, weights, description))


def test_a_missing_path_and_a_folder_of_something_else_are_told(tmp_path):
    with pytest.raises(UserError, match="that path does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a run folder"):
        load(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=r"notes\.txt is neither a run folder nor a \.safetensors file"):
        load(tmp_path / "notes.txt")


# Starting from another model


def test_starting_from_a_model_copies_what_fits():
    model, other = build(seed=0, isotropic=True), build(seed=1)
    left = start_from(model, other)
    assert left == ["inference.variance.bias", "inference.variance.weight"]  # one variance instead of one a feature
    ours, theirs = model.state_dict(), other.state_dict()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items() if name not in left)
    assert start_from(build(), other) == []


def test_a_new_target_starts_at_the_encoder_and_an_old_one_is_taken_over():
    model = build(target="ema")
    start_from(model, build(seed=1))
    assert same(model.target.state_dict(), model.encoder.state_dict())
    old = trained_a_little(build(seed=2, target="ema"))
    assert not same(old.target.state_dict(), old.encoder.state_dict())
    start_from(model, old)
    assert same(model.state_dict(), old.state_dict())


def test_another_encoder_is_refused_even_if_parts_of_it_fit():
    torch.manual_seed(0)
    model = VJE(build_encoder("resnet14", small_images=True, normalization="group"))
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(
        UserError, match=r"another encoder \(.* weights do not fit, such as encoder\.network.*--encoder"
    ):
        start_from(model, build(seed=1))
    assert same(model.state_dict(), before)
    with pytest.raises(UserError, match=r"such as encoder\.network\.conv1\.weight"):
        start_from(build(encoder={"channels": 1}), build(seed=1))


def test_another_method_gives_its_encoder_and_no_heads():
    torch.manual_seed(0)
    other, model = SimCLR("resnet8", hidden=16, projection=8), MoCo("resnet8", hidden=16, projection=8, queue=4)
    before = model.projector[0].weight.clone()
    start_from(model, other)
    assert same(model.encoder.state_dict(), other.encoder.state_dict())
    assert same(model.target.state_dict(), other.encoder.state_dict())
    assert torch.equal(model.projector[0].weight, before)


def test_init_in_a_config_is_a_run_a_file_or_a_name(trained_run, monkeypatch):
    recipe = load_recipe("digits")

    def method(init, **changes):
        torch.manual_seed(5)
        return build_method(replace(recipe, encoder=replace(recipe.encoder, init=init, **changes)), PREPROCESSING)

    expected = load(trained_run).state_dict()
    for place in (trained_run, trained_run / "model.safetensors"):
        model = method(str(place))
        assert all(torch.equal(x, expected[name]) for name, x in model.state_dict().items())
        assert all(p.requires_grad for p in model.parameters())
    assert not same(method(None).state_dict(), model.state_dict())
    with pytest.raises(UserError, match="no model at runs/nowhere: that path does not exist"):
        method("runs/nowhere")
    with pytest.raises(UserError, match="another encoder"):
        method(str(trained_run), encoder="resnet14")
    with pytest.raises(UserError, match=r"no encoder is called 'resnet19'; did you mean .*resnet18"):
        method(None, encoder="resnet19")
    with pytest.raises(UserError, match=r"^--init nowhere: there is no run or model of that path, and no encoder is"):
        method("nowhere")
    with pytest.raises(UserError, match=r"^--normalization='group' is for torchvision ResNets"):
        method("resnet18", normalization="group")  # what is wrong here is not the name
    vit, large = replace(recipe.encoder, encoder="vit_tiny_patch16_224"), replace(recipe.data, size=32)
    with pytest.raises(UserError, match=r"no ResNet stem for small images; turn --small-images off"):
        build_method(replace(recipe, encoder=vit, data=large), PREPROCESSING)

    def unreachable(*_, **__):
        raise ConnectionError("no route to host\nat all")

    monkeypatch.setattr("timm.create_model", unreachable)
    with pytest.raises(
        UserError, match=r"^--init resnet18: .* not be had \(ConnectionError: no route to host\)\. timm"
    ):
        method("resnet18", small_images=False)
    monkeypatch.setitem(sys.modules, "timm", None)
    for name in ("nowhere", "resnet18"):
        with pytest.raises(UserError, match=f"^--init {name}: there is no .* path, and pretrained weights are timm's"):
            method(name)
