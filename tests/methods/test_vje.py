"""The VJE objective against a slow re-implementation: float64, one sample and one direction at a time."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from vje.methods.vje import VJE
from vje.networks.encoders import Encoder
from vje.preprocessing import Preprocessing
from vje.random import Draws, Stream

BATCH, DIM = 5, 8


# The objective, as the paper states it


def reference_posterior(model, z):
    """Mean and variance of one embedding from the inference network's weights."""
    p = {name: value.detach().double().numpy() for name, value in model.inference.named_parameters()}
    x = z
    for linear, layer_norm in ((0, 1), (3, 4)):
        x = p[f"bottleneck.{linear}.weight"] @ x
        x = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
        x = np.maximum(x * p[f"bottleneck.{layer_norm}.weight"] + p[f"bottleneck.{layer_norm}.bias"], 0)
    variance = np.logaddexp(0, p["variance.weight"] @ x + p["variance.bias"]) + 1e-5
    return p["mean.weight"] @ x + p["mean.bias"], np.broadcast_to(variance, z.shape)


def kernel(q, nu, k):
    return q / 2 if math.isinf(nu) else (nu + k) / 2 * math.log(1 + q / nu)


def reference_terms(z, s, v, nu, center=False):
    """Directional, radial and standard NLL of one target z given one sample s."""
    dim, z_norm, s_norm = len(z), math.sqrt((z**2).sum()), math.sqrt((s**2).sum())
    z_hat, n = z / z_norm, s / s_norm
    w = 1 / (v / np.exp(np.log(v).mean()) if center else v)
    theta = math.acos(z_hat @ n)
    t = theta / math.sin(theta) * (z_hat - math.cos(theta) * n)
    c = (n**2 * w).sum()
    q = (t**2 * w).sum() - (t * n * w).sum() ** 2 / c
    log_det = -0.5 * np.log(w).sum() + 0.5 * math.log(c)
    return {
        "directional": kernel(q, nu, dim - 1) + log_det + (dim - 2) * (math.log(math.sin(theta)) - math.log(theta)),
        "radial": kernel((z_norm - s_norm) ** 2, nu, 1),
        "standard": kernel(((z - s) ** 2 / v).sum(), nu, dim) + 0.5 * np.log(v).sum(),
    }


def reference_loss(model, z, observed, noise, terms, nu=1.0, beta=1.0, center=False):
    """Mean over images and both directions i -> j; z, observed ``[2, B, D]``, noise ``[B, K, 2, D]``."""
    z, observed, noise = (np.asarray(x, dtype=np.float64) for x in (z, observed, noise))
    losses = []
    for b in range(z.shape[1]):
        for i, j in ((0, 1), (1, 0)):
            mean, variance = reference_posterior(model, z[i, b])
            kl = 0.5 * (variance + mean**2 - 1 - np.log(variance)).sum()
            values = [
                reference_terms(observed[j, b], mean + np.sqrt(variance) * eps, variance, nu, center)
                for eps in noise[b, :, i]
            ]
            nll = np.mean([sum(value[term] for term in terms if term != "kl") for value in values])
            losses.append(nll + (beta * kl if "kl" in terms else 0))
    return np.mean(losses)


# Small models and inputs


def linear_encoder():
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, DIM)), DIM)


def batch_norm_encoder():
    return Encoder(
        nn.Sequential(nn.Conv2d(3, DIM, 3), nn.BatchNorm2d(DIM), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), DIM
    )


def make(encoder=linear_encoder, seed=0, **options):
    torch.manual_seed(seed)
    model = VJE(encoder(), ratio=0.5, **options)
    for p in model.inference.parameters():
        nn.init.normal_(p, std=0.7)  # biases and layer norms too, so that each is seen to matter
    if model.target is not None:
        for p in model.target.parameters():
            nn.init.normal_(p, std=0.3)
    return model


def two_views(seed=1, side=4):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(BATCH, 3, side, side, generator=generator) for _ in range(2)]


def draws(first=0, batch=BATCH):
    return Draws(seed=3, step=11, positions=torch.arange(first, first + batch))


def noise(samples):
    return draws().normal(Stream.POSTERIOR, samples * 2 * DIM).view(BATCH, samples, 2, DIM)


class FixedNoise:
    """Stands in for Draws with given numbers."""

    def __init__(self, numbers):
        self.numbers = numbers

    def normal(self, stream, count):
        assert stream == Stream.POSTERIOR
        return self.numbers.reshape(len(self.numbers), count)


def embeddings(encoder, views):
    with torch.no_grad():
        return torch.stack([encoder(view) for view in views])


ALL = ("directional", "radial", "kl")


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("target", ["stop-gradient", "ema"])
@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({}, ALL),
        ({"nu": 3.5, "beta": 0.2}, ALL),
        ({"nu": math.inf}, ALL),
        ({"center_variance": True}, ALL),
        ({"isotropic": True}, ALL),
        ({"terms": ["radial", "kl"]}, ("radial", "kl")),
        ({"terms": ["directional", "kl"]}, ("directional", "kl")),
        ({"terms": ["directional", "radial"]}, ("directional", "radial")),
        ({"terms": ["kl"], "beta": 2.0}, ("kl",)),
        ({"likelihood": "standard"}, ("standard", "kl")),
        ({"likelihood": "standard", "nu": math.inf, "terms": ["directional", "radial"]}, ("standard",)),
        ({"likelihood": "standard", "terms": ["kl"]}, ("kl",)),
    ],
)
def test_the_loss_equals_the_slow_reference(options, terms, target, samples):
    model, views = make(samples=samples, target=target, **options), two_views()
    output = model(views, draws())
    z = embeddings(model.encoder, views)
    observed = z if target == "stop-gradient" else embeddings(model.target, views)
    expected = reference_loss(
        model,
        z,
        observed,
        noise(samples),
        terms,
        nu=options.get("nu", 1.0),
        beta=options.get("beta", 1.0),
        center=options.get("center_variance", False),
    )
    assert output.loss.item() == pytest.approx(expected, rel=2e-5, abs=1e-4)
    assert torch.equal(output.embeddings, z[0])


def test_a_float64_model_computes_in_float64():
    model, views = make().double(), [view.double() for view in two_views()]
    output = model(views, draws())
    z = embeddings(model.encoder, views)
    assert output.loss.dtype == torch.float64
    assert output.loss.item() == pytest.approx(reference_loss(model, z, z, noise(1), ALL), rel=1e-10)


def test_parts_are_the_terms_and_statistics_of_the_batch():
    model, views = make(beta=0.5), two_views()
    output = model(views, draws())
    parts = {name: value.item() for name, value in output.parts.items()}
    z = embeddings(model.encoder, views)
    posteriors = [reference_posterior(model, x.double().numpy()) for x in z.reshape(-1, DIM)]
    means, variances = (np.stack(x) for x in zip(*posteriors, strict=True))
    flat = z.reshape(-1, DIM).double().numpy()
    cosine = (means * flat).sum(1) / np.linalg.norm(means, axis=1) / np.linalg.norm(flat, axis=1)
    assert parts == pytest.approx(
        {
            "loss": output.loss.item(),
            "nll_directional": reference_loss(model, z, z, noise(1), ["directional"]),
            "nll_radial": reference_loss(model, z, z, noise(1), ["radial"]),
            "kl": reference_loss(model, z, z, noise(1), ["kl"]),
            "variance": variances.mean(),
            "anisotropy": (variances.std(1) / variances.mean(1)).mean(),
            "norm_z": np.linalg.norm(flat, axis=1).mean(),
            "norm_mean": np.linalg.norm(means, axis=1).mean(),
            "cosine_mean_z": cosine.mean(),
        },
        rel=2e-5,
        abs=1e-5,
    )
    assert parts["loss"] == pytest.approx(parts["nll_directional"] + parts["nll_radial"] + 0.5 * parts["kl"], rel=1e-5)
    assert not any(value.requires_grad for value in output.parts.values())
    assert not output.embeddings.requires_grad


@pytest.mark.parametrize("target", ["stop-gradient", "ema"])
@pytest.mark.parametrize("samples", [0, 1])
def test_the_encoder_gradient_is_that_of_a_fixed_target(target, samples):
    """Finite differences of the reference with the observations held still; letting them move gives another slope."""
    model, views = make(batch_norm_encoder, target=target, samples=samples), two_views(side=6)
    eps = noise(1) if samples else torch.zeros(BATCH, 1, 2, DIM)
    model(views, draws()).loss.backward()

    encoder = copy.deepcopy(model.encoder).double()
    double_views = torch.cat(views).double()
    generator = torch.Generator().manual_seed(5)
    directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in encoder.parameters()]
    start = [p.detach().clone() for p in encoder.parameters()]

    def embedded(module):
        return module(double_views).detach().view(2, BATCH, DIM).numpy()

    fixed = embedded(encoder) if target == "stop-gradient" else embedded(copy.deepcopy(model.target).double())

    def loss(h, move_target=False):
        for p, p0, d in zip(encoder.parameters(), start, directions, strict=True):
            p.data = p0 + h * d
        z = embedded(encoder)
        return reference_loss(model, z, z if move_target else fixed, eps, ALL)

    def slope(**kwargs):
        return (loss(1e-5, **kwargs) - loss(-1e-5, **kwargs)) / 2e-5

    gradients = [p.grad.double() for p in model.encoder.parameters()]
    actual = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
    assert actual == pytest.approx(slope(), rel=1e-3)
    if target == "stop-gradient":
        assert actual != pytest.approx(slope(move_target=True), rel=1e-2)
    else:
        assert all(p.grad is None and not p.requires_grad for p in model.target.parameters())


def test_without_samples_the_mean_is_scored():
    model, views = make(samples=0), two_views()
    z = embeddings(model.encoder, views)
    expected = reference_loss(model, z, z, np.zeros((BATCH, 1, 2, DIM)), ALL)
    assert model(views).loss.item() == pytest.approx(expected, rel=2e-5)
    assert torch.equal(model(views, FixedNoise(None)).loss, model(views).loss)  # asks for no noise at all


def test_swapping_the_views_and_their_noise_leaves_the_loss():
    model, views = make(batch_norm_encoder, samples=2), two_views(side=6)
    eps = noise(2)
    loss = model(views, FixedNoise(eps)).loss
    torch.testing.assert_close(model(views[::-1], FixedNoise(eps.flip(2))).loss, loss, rtol=1e-5, atol=1e-5)
    assert (model(views[::-1], FixedNoise(eps)).loss - loss).abs() > 1e-2


def test_processes_that_share_a_batch_see_its_noise():
    """The mean of two halves' losses is the loss of the whole, whichever process holds which half."""
    model, views = make(samples=2), two_views()
    whole = model(views, draws()).loss
    halves = [model([v[a:b] for v in views], draws(a, b - a)).loss * (b - a) / BATCH for a, b in ((0, 2), (2, BATCH))]
    torch.testing.assert_close(sum(halves), whole)


def test_without_draws_noise_comes_from_the_global_generator():
    model, views = make(), two_views()
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(model(views).loss.item())
    assert losses[0] == losses[1] != losses[2]


def test_batch_norm_statistics_are_joint_or_separate():
    joint = make(batch_norm_encoder, target="ema")
    separate = make(batch_norm_encoder, target="ema", batch_norm="separate")
    separate.load_state_dict(joint.state_dict())
    views = two_views(side=6)
    views[1] = 3 * views[1] + 1  # so that the views' statistics differ

    encoder, target = copy.deepcopy(joint.encoder), copy.deepcopy(joint.target)
    with torch.no_grad():
        together = [module(torch.cat(views)).view(2, BATCH, DIM) for module in (encoder, target)]
    apart = [embeddings(module, views) for module in (encoder, target)]
    for model, (z, observed) in ((joint, together), (separate, apart)):
        expected = reference_loss(model, z, observed, noise(1), ALL)
        assert model(views, draws()).loss.item() == pytest.approx(expected, rel=2e-5)
    assert (together[0] - apart[0]).abs().max() > 0.1

    separate.load_state_dict(joint.state_dict())
    joint.eval(), separate.eval()
    torch.testing.assert_close(joint(views, draws()).loss, separate(views, draws()).loss)


@pytest.mark.parametrize("call_train", [False, True])
def test_a_target_with_running_statistics_uses_them_from_the_first_step(call_train):
    model, views = make(batch_norm_encoder, target="ema", target_batch_norm="running"), two_views(side=6)
    if call_train:
        model.train()
    still = copy.deepcopy(model.target).eval()
    output = model(views, draws())
    z = copy.deepcopy(model.encoder)(torch.cat(views)).detach().view(2, BATCH, DIM)
    expected = reference_loss(model, z, embeddings(still, views), noise(1), ALL)
    assert output.loss.item() == pytest.approx(expected, rel=2e-5)
    assert all(torch.equal(a, b) for a, b in zip(model.target.buffers(), still.buffers(), strict=True))


@pytest.mark.parametrize("target_batch_norm", ["batch", "running"])
def test_after_step_moves_the_target(target_batch_norm):
    model, views = make(batch_norm_encoder, target="ema", target_batch_norm=target_batch_norm), two_views(side=6)
    model(views, draws())
    before = {name: value.clone() for name, value in model.target.state_dict().items()}
    model.after_step(0.9)
    parameters = dict(model.target.named_parameters())
    for name, value in model.target.state_dict().items():
        moves = name in parameters or (target_batch_norm == "running" and value.is_floating_point())
        expected = 0.9 * before[name] + 0.1 * model.encoder.state_dict()[name] if moves else before[name]
        torch.testing.assert_close(value, expected)
    assert model.target_encoder is model.target


def test_stop_gradient_has_no_target_encoder():
    model = make()
    before = copy.deepcopy(model.state_dict())
    model.after_step(0.5)
    assert model.target_encoder is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_ema_target_starts_as_a_copy():
    model = VJE(linear_encoder(), target="ema")
    for p, q in zip(model.encoder.parameters(), model.target.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.data_ptr() != q.data_ptr()


# Inference


@pytest.mark.parametrize("options", [{"beta": 0.5}, {"nu": 4.0, "center_variance": True}, {"likelihood": "standard"}])
def test_scores_equal_the_formula_at_the_mean(options):
    model, views = make(batch_norm_encoder, **options), two_views(side=6)
    model(views)  # moves the batch-norm statistics
    model.eval()
    scores = model.score(views[0])
    z = model.encoder(views[0]).detach().double().numpy()
    for b in range(BATCH):
        mean, variance = reference_posterior(model, z[b])
        nu = options.get("nu", 1.0)
        terms = reference_terms(z[b], mean, variance, nu, options.get("center_variance", False))
        centered = reference_terms(z[b], mean, variance, nu, center=True)
        kl = 0.5 * (variance + mean**2 - 1 - np.log(variance)).sum()
        joint = terms["standard"] if "likelihood" in options else terms["directional"] + terms["radial"]
        expected = {
            "nll": joint,
            "nll_directional": terms["directional"],
            "nll_radial": terms["radial"],
            "nll_centered": centered["directional"] + terms["radial"],
            "neg_elbo": joint + options.get("beta", 1.0) * kl,
            "kl": kl,
            "variance": variance.mean(),
            "anisotropy": variance.std() / variance.mean(),
            "variance_trace": variance.sum(),
            "neg_kl": -kl,
            "neg_anisotropy": -variance.std() / variance.mean(),
            "cosine_mean_z": z[b] @ mean / np.linalg.norm(z[b]) / np.linalg.norm(mean),
        }
        assert {name: value[b].item() for name, value in scores.items()} == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert all(value.shape == (BATCH,) and not value.requires_grad for value in scores.values())


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({"beta": 0.5}, ALL),
        ({"nu": 4.0, "center_variance": True}, ALL),
        ({"likelihood": "standard"}, ("standard", "kl")),
    ],
)
def test_the_elbo_of_several_views_is_that_of_every_pair(options, terms):
    """Of two views it is the loss that training minimises, at s = mean; of three, the mean over the pairs."""
    model, views = make(samples=0, **options).eval(), (*two_views(), two_views(seed=3)[0])
    z = torch.stack([model.encoder(view).detach() for view in views])
    settings = {"nu": options.get("nu", 1.0), "beta": options.get("beta", 1.0), "center": "nu" in options}
    zero = np.zeros((BATCH, 1, 2, DIM))
    pairs = [reference_loss(model, z[list(p)], z[list(p)], zero, terms, **settings) for p in ((0, 1), (1, 2), (0, 2))]
    assert model.view_scores(z[:2])["neg_elbo"].mean().item() == pytest.approx(pairs[0], rel=1e-5)
    assert model.view_scores(z[:2])["neg_elbo"].mean().item() == pytest.approx(model(views[:2]).loss.item(), rel=1e-5)
    assert model.view_scores(z)["neg_elbo"].mean().item() == pytest.approx(np.mean(pairs), rel=1e-5)


def test_posterior_is_the_inference_network_at_the_embedding():
    model, images = make(batch_norm_encoder).eval(), two_views(side=6)[0]
    posterior = model.posterior(images)
    for b, z in enumerate(model.embed(images).detach().double().numpy()):
        mean, variance = reference_posterior(model, z)
        np.testing.assert_allclose(posterior.mean[b].detach().numpy(), mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(posterior.variance[b].detach().numpy(), variance, rtol=1e-4)


def test_uint8_images_are_preprocessed():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    model = make(preprocessing=Preprocessing(size=4, crop=4, channels=3, mean=mean, std=std)).eval()
    pixels = torch.randint(256, (BATCH, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    column = np.array(mean)[:, None, None], np.array(std)[:, None, None]
    manual = torch.from_numpy((pixels.numpy() / 255 - column[0]) / column[1]).float()
    torch.testing.assert_close(model.embed(pixels), model.embed(manual), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.score(pixels)["nll"], model.score(manual)["nll"], rtol=1e-4, atol=1e-4)


# Precision


def test_pixels_are_not_taken_for_normalised_images():
    torch.manual_seed(0)
    model = VJE("resnet8", preprocessing=Preprocessing(4, 4, 3, [0.5] * 3, [0.25] * 3)).eval()
    pixels = torch.randint(256, (BATCH, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="as if they were pixels"):
        model.score(pixels / 255)
    with pytest.raises(ValueError, match="uint8"):
        model.score(pixels.long())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        normalised = model.score(model.preprocessing.normalize(pixels / 255))["nll"]
    assert torch.allclose(normalised, model.score(pixels)["nll"], rtol=1e-4)


def test_under_autocast_everything_after_the_encoder_is_float32():
    model, views = make(batch_norm_encoder, target="ema"), two_views(side=6)
    outputs = []
    for module in (model.encoder, model.target):
        module.network[0].register_forward_hook(lambda *args: outputs.append(args[-1].dtype))
    seen = {}
    for name in ("encoder", "target"):
        module = getattr(model, name)
        module.register_forward_hook(lambda *args, name=name: seen.update({name: args[-1].detach().float()}))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(views, draws())
    assert outputs == [torch.bfloat16, torch.bfloat16]  # the encoders did run in half precision
    z, observed = (seen[name].view(2, BATCH, DIM) for name in ("encoder", "target"))
    assert output.loss.item() == pytest.approx(reference_loss(model, z, observed, noise(1), ALL), rel=2e-5)
    assert {value.dtype for value in (*output.parts.values(), output.embeddings)} == {torch.float32}
    output.loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in model.encoder.parameters())


def test_under_autocast_scores_after_the_encoder_are_float32():
    model = make().eval()
    z = torch.randn(BATCH, DIM, generator=torch.Generator().manual_seed(0))
    expected = model.score_embeddings(z)
    with torch.autocast("cpu", torch.bfloat16):
        scores = model.score_embeddings(z)
        posterior = model.posterior(two_views()[0])
    assert posterior.mean.dtype == posterior.variance.dtype == torch.float32
    for name, value in scores.items():
        torch.testing.assert_close(value, expected[name])


# Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "gaussian"}, "likelihood must be one of factorized, standard, got 'gaussian'"),
        ({"target": "momentum"}, "target must be one of stop-gradient, ema, got 'momentum'"),
        ({"batch_norm": "both"}, "batch_norm must be one of joint, separate, got 'both'"),
        ({"target_batch_norm": "eval"}, "target_batch_norm must be one of batch, running, got 'eval'"),
        ({"terms": ["directional", "rad"]}, "terms must be some of directional, radial, kl"),
        ({"terms": []}, "terms must be some of directional, radial, kl"),
        ({"samples": -1}, r"samples \(K\) must be a whole number, 0 or more, got -1"),
        ({"nu": 0.0}, r"nu must be positive.*got 0\.0"),
        ({"nu": math.nan}, r"nu must be positive.*got nan"),
        ({"beta": -1.0}, r"beta must be 0 or more.*got -1\.0"),
        ({"beta": math.nan}, r"beta must be 0 or more.*got nan"),
        ({"samples": 1.5}, r"samples \(K\) must be a whole number"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        VJE(linear_encoder(), **options)


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_views_is_refused(count):
    with pytest.raises(ValueError, match=f"two views of each image, got {count}"):
        make()([torch.zeros(2, 3, 4, 4)] * count)


def test_uint8_images_without_preprocessing_are_refused():
    with pytest.raises(ValueError, match="uint8 images need the model's preprocessing"):
        make().eval().score(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))


def test_an_encoder_can_be_named():
    model = VJE("resnet8")
    assert model.encoder.dim == 256
    assert model([torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)]).loss.isfinite()
