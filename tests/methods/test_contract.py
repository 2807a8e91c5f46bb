"""What holds for every method: the trainer, the recipes and saved models count on it."""

import copy
import inspect
import json
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import vje
from vje.config import read_config, to_dict
from vje.errors import UserError
from vje.methods import find_method, method_names
from vje.networks.encoders import build_encoder
from vje.random import Draws
from vje.recipes import load_recipe, method_about
from vje.runs import finite

BATCH = 6


@pytest.fixture(params=method_names())
def name(request):
    return request.param


@pytest.fixture
def model(name):
    """As the digits recipe has it, but for images of three channels."""
    torch.manual_seed(0)
    settings = vars(load_recipe("digits", name).settings)
    return find_method(name)(build_encoder("resnet8"), **settings)


def inputs(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    views = [torch.randn(BATCH, 3, 8, 8, generator=generator) for _ in range(model.views)]
    labels = torch.arange(BATCH) % 3 if model.needs_labels else None
    return views, Draws(0, 5, torch.arange(BATCH)), labels


def test_a_step_reports_finite_detached_numbers_and_trains_every_parameter(model):
    views, draws, labels = inputs(model)
    output = model(views, draws, labels)
    assert output.loss.shape == () and output.loss.isfinite() and output.loss.dtype == torch.float32
    assert torch.equal(output.parts["loss"], output.loss.detach())
    assert all(x.shape == () and x.isfinite() and not x.requires_grad for x in output.parts.values())
    assert output.embeddings.shape == (BATCH, model.encoder.dim) and not output.embeddings.requires_grad
    output.loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
    assert any(p.grad.any() for p in model.encoder.parameters())
    followers = [p for p in model.parameters() if not p.requires_grad]
    assert all(p.grad is None for p in followers)
    assert bool(followers) == (model.target_encoder is not None)


def test_parts_have_the_same_names_every_step_and_draws_decide_all_randomness(model):
    model.eval()  # no state, such as MoCo's queue, moves
    views, draws, labels = inputs(model)
    first = model(views, draws, labels)
    torch.manual_seed(123)
    second = model(views, draws, labels)
    assert list(first.parts) == list(second.parts)
    assert torch.equal(first.loss, second.loss)


def test_images_are_scored_by_what_the_method_has_or_it_says_what_to_do(model):
    model.eval()
    (images, *_), _, _ = inputs(model)
    with torch.no_grad():
        own = model.ood_scores(model.embed(images))
    if not own:
        with pytest.raises(TypeError, match=rf"{type(model).__name__} has no likelihood .*vje\.ood\.detectors"):
            model.score(images)
        return
    found = model.score(images)
    assert own.keys() <= found.keys()
    assert all(torch.equal(found[key], own[key]) and found[key].shape == (BATCH,) for key in own)


def test_a_posterior_is_given_or_it_says_whose_it_is(model, name):
    images = inputs(model.eval())[0][0]
    if name == "vje":
        assert model.posterior(images).mean.shape == model.embed(images).shape
    else:
        with pytest.raises(TypeError, match=f"posterior is for models trained with VJE; {type(model).__name__} has"):
            model.posterior(images)


def test_floats_of_any_precision_are_the_same_images(model):
    model.eval()
    images = inputs(model)[0][0].half()
    with torch.no_grad():
        expected = model.embed(images.float())
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            torch.testing.assert_close(model.embed(images.to(dtype)), expected, atol=0.03, rtol=0.03)
        assert torch.equal(model.embed(images), expected)
        torch.testing.assert_close(model.double().embed(images.double()).float(), expected, atol=1e-4, rtol=1e-4)


def test_training_mode_is_what_train_puts_it_into(model):
    model.eval()
    assert not any(module.training for module in model.modules())
    assert model.train() is model
    assert model.training and all(module.training for module in model.encoder.modules())


def test_only_a_loss_across_images_is_more_than_the_mean_over_parts_of_a_batch(model):
    model.double().eval()  # in which batch normalisation looks at no other image
    model.training = True  # and keys go into a queue, where there is one
    views, draws, labels = inputs(model)
    views = [view.double() for view in views]
    whole = copy.deepcopy(model)(views, draws, labels).loss.item()
    parts = []
    for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
        own = Draws(draws.seed, draws.step, draws.positions[rows])
        parts.append(model([x[rows] for x in views], own, None if labels is None else labels[rows]).loss.item())
    assert (sum(parts) / 3 != pytest.approx(whole, rel=1e-9)) == model.across_images


def test_the_target_follows_after_a_step_only(model):
    if model.target_encoder is None:
        return  # nothing follows
    before = [p.clone() for p in model.target_encoder.parameters()]
    with torch.no_grad():
        for p in model.encoder.parameters():
            p.add_(1.0)
    model.after_step(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.target_encoder.parameters(), strict=True))
    model.after_step(0.75)
    for old, new in zip(before, model.target_encoder.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25)


def test_under_autocast_the_loss_stays_float32(model):
    views, draws, labels = inputs(model)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(views, draws, labels)
    assert output.loss.dtype == torch.float32 and output.loss.isfinite()
    assert output.embeddings.dtype == torch.float32


def test_in_float64_the_loss_is_too(model):
    views, draws, labels = inputs(model)
    assert model.double()([view.double() for view in views], draws, labels).loss.dtype == torch.float64


def test_a_saved_model_is_the_same_model(model, name, tmp_path):
    views, draws, labels = inputs(model)
    model(views, draws, labels)  # so that running statistics and queues are not as they began
    loaded, model = vje.load(model.save(tmp_path)), model.eval()
    assert (loaded.name(), loaded.hyperparameters()) == (name, model.hyperparameters())
    assert torch.equal(loaded.embed(views[0]), model.embed(views[0]))
    assert torch.equal(loaded(views, draws, labels).loss, model(views, draws, labels).loss)


def test_other_spaces_and_scores_are_of_each_embedding_alone(model):
    model.eval()
    z = torch.rand(5, model.encoder.dim)
    for function in (model.spaces, model.statistics, model.ood_scores):
        whole = function(z)
        for key, value in whole.items():
            assert len(value) == 5 and value.isfinite().all(), key
            torch.testing.assert_close(function(z[2:3])[key], value[2:3], rtol=1e-4, atol=1e-4)


def test_scores_of_several_views_are_of_each_image_alone(model):
    model.eval()
    z = torch.rand(3, 5, model.encoder.dim)  # [V, B, D]
    whole = model.view_scores(z)
    assert whole.keys() <= model.ood_scores(z[0]).keys()  # whose means they take the place of
    for key, value in whole.items():
        assert value.shape == (5,) and value.isfinite().all(), key
        torch.testing.assert_close(model.view_scores(z[:, 2:3])[key], value[2:3], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model.view_scores(z[[2, 0, 1]])[key], value, rtol=1e-4, atol=1e-4)  # in any order


def test_scores_of_several_views_keep_no_graph(model):
    scores = model.eval().view_scores(torch.rand(3, 2, model.encoder.dim))
    assert not any(value.requires_grad for value in scores.values())


def test_every_statistic_is_explained_and_every_explanation_is_of_something(model, name):
    views, draws, labels = inputs(model)
    reported = {*model(views, draws, labels).parts, *model.eval().statistics(torch.rand(2, model.encoder.dim))}
    assert model.quantities.keys() <= reported | {"nll_standard"}  # which is another likelihood's
    for key in model.statistics(torch.rand(2, model.encoder.dim)):
        title, meaning, *_ = model.quantity(key)
        assert title and meaning and "_" not in title, f"{name}: {key}"


def test_another_number_of_views_is_refused(model):
    views, draws, labels = inputs(model)
    with pytest.raises(ValueError, match="view"):
        model([*views, views[0]], draws, labels)


def test_loss_functions_have_the_defaults_of_their_method(name):
    method = find_method(name)
    for function in vars(sys.modules[method.__module__]).values():
        if inspect.isfunction(function) and function.__module__ == method.__module__:
            for key, parameter in inspect.signature(function).parameters.items():
                if parameter.default is not parameter.empty and key in method.settings():
                    assert parameter.default == method.settings()[key].default, f"{function.__name__}: {key}"


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("barlow", {"lambd": 0.0, "hidden": 1, "layers": 1}),
        ("vicreg", {"invariance": 0.0, "variance": 0.0, "covariance": 0.0, "hidden": 1, "layers": 1}),
        ("lejepa", {"lambd": 0.0, "knots": 3, "hidden": 1, "projection": 1, "layers": 1, "slices": 1}),
        ("lejepa", {"lambd": 1.0, "hidden": 1, "projection": 1, "slices": 1}),
        ("moco", {"queue": 1, "hidden": 1, "projection": 1}),
        ("simclr", {"hidden": 1, "projection": 2}),
        ("swav", {"prototypes": 2, "iterations": 1, "hidden": 1, "projection": 1}),
        ("supervised", {"classes": 2, "label_smoothing": 0.0}),
        ("vi-simsiam", {"kl_weight": 0.0, "hidden": 2, "layers": 1, "bottleneck": 1}),
        ("vssl", {"kl_weight": 0.0, "hidden": 1, "latent": 1}),
        ("vje", {"beta": 0.0, "samples": 0, "ratio": 1 / 256}),
    ],
)
def test_the_least_that_a_setting_may_be_is_allowed(name, least):
    model = find_method(name)(build_encoder("resnet8"), **least)
    views, draws, _ = inputs(model)
    labels = torch.arange(BATCH) % 2 if model.needs_labels else None
    assert model(views, draws, labels).loss.isfinite()


def test_constant_rates_are_of_the_method_s_own_parameters(model):
    own = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for p in model.constant_rate()} <= own


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "imagenet1k", "digits", "folder"])
def test_there_is_a_recipe_for_every_data_set_that_survives_json(name, data):
    config = load_recipe(data, name)
    config.check()
    assert config.method == name and method_about(name)
    assert read_config(json.loads(json.dumps(finite(to_dict(config)))), "config.json") == config


def test_views_of_different_images_are_refused(model):
    if model.views == 1:
        pytest.skip("it has one view")
    (first, second), draws, labels = inputs(model)
    for unlike in (None, draws):
        with pytest.raises(ValueError, match="the same images, got 6 and 3"):
            model([first, second[:3]], unlike, labels)


def test_batch_norm_that_is_neither_is_refused(name):
    if "batch_norm" not in find_method(name).settings():
        pytest.skip("it has one view")
    with pytest.raises(ValueError, match="batch_norm must be one of joint, separate, got 'Joint'"):
        find_method(name)("resnet8", batch_norm="Joint")


def test_settings_from_numpy_and_torch_are_saved_as_numbers(tmp_path):
    pixels = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for kind in (torch.Tensor.float, torch.Tensor.double, lambda x: x.numpy(), lambda x: x.double().numpy()):
        mean, std = kind(pixels.mean((0, 2, 3))), kind(pixels.std((0, 2, 3)))
        preprocessing = vje.Preprocessing(8, 8, 3, mean, std)
        model = vje.VJE("resnet8", nu=np.float32(1.5), beta=torch.tensor(0.5), preprocessing=preprocessing).eval()
        model.save(tmp_path / "model")
        again = vje.load(tmp_path / "model")
        assert (again.nu, again.beta) == (1.5, 0.5)
        assert again.preprocessing.mean == tuple(float(x) for x in mean)
        images = (pixels * 255).to(torch.uint8)
        assert torch.equal(again.score(images)["nll"], model.score(images)["nll"])


def test_an_encoder_must_say_and_keep_its_width():
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(TypeError, match=r"vje.Encoder\(network, dim\)"):
        vje.VJE(pooled)
    images = torch.randn(4, 3, 8, 8)
    for network, gives in ((pooled, r"\[4, 3\]"), (nn.Identity(), r"\[4, 3, 8, 8\]")):
        with pytest.raises(ValueError, match=rf"gives {gives} and not \[B, 8\]"):
            vje.VJE(vje.Encoder(network, 8)).embed(images)
    assert vje.VJE(vje.Encoder(pooled, 3), ratio=1.0).embed(images).shape == (4, 3)


def test_what_is_no_batch_of_images_is_refused_in_words():
    model = vje.VJE("resnet8", preprocessing=vje.Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3)).eval()
    for images in ([], "photo.png", [torch.zeros(3, 8, 8)]):
        with pytest.raises(TypeError, match=r"vje\.ood\.Detector takes"):
            model.score(images)
    with pytest.raises(ValueError, match=r"must be \[B, C, H, W\], got \[3, 8, 8\]"):
        model.score(torch.zeros(3, 8, 8))
    with pytest.raises(ValueError, match="takes 3 channels, and the images have 1"):
        model.score(torch.randn(2, 1, 8, 8))
    with pytest.warns(UserWarning, match=r"images of \[9, 8\] pixels, and the model's have 8 x 8") as caught:
        model.score(torch.randn(2, 3, 9, 8))
    assert caught[0].filename == __file__
    with pytest.raises(UserError, match=r"a name like model\.safetensors"):
        model.save("model.pt")


def test_a_setting_called_target_is_no_target_encoder():
    model = find_method("simsiam")("resnet8")
    model.target = 0.9
    assert model.target_encoder is None


def test_a_model_is_saved_into_a_folder_of_any_name(tmp_path):
    (tmp_path / "exp.bin").mkdir()
    assert vje.VJE("resnet8").save(tmp_path / "exp.bin") == tmp_path / "exp.bin" / "model.safetensors"


def test_scores_in_training_mode_are_warned_of_and_training_is_not():
    model = vje.VJE("resnet8", preprocessing=vje.Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3))
    images = torch.randn(4, 3, 8, 8)
    with pytest.warns(UserWarning, match=r"call model.eval\(\) first") as caught:
        model.score(images)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.embed(images)  # with gradients: part of a loop of somebody's own
        model.eval().score(images)


def test_uint8_images_in_a_double_model_and_no_half_ones():
    model = vje.VJE("resnet8", preprocessing=vje.Preprocessing(8, 8, 3, [0.5] * 3, [0.25] * 3)).eval()
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    expected = model.score(images)["nll"]
    found = copy.deepcopy(model).double().score(images)["nll"]
    assert found.dtype == torch.float64 and torch.allclose(found.float(), expected, rtol=1e-4, atol=1e-3)
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(TypeError, match="scores need float32"):
            copy.deepcopy(model).to(dtype).score(images)
        found = copy.deepcopy(model).to(dtype).embed(images)
        assert found.dtype == torch.float32 and torch.allclose(found, model.embed(images), rtol=0.1, atol=0.3)
