"""The Power-Spherical distribution by quadrature and sampling, and VI-SimSiam against a slow re-implementation."""

import json
import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import nn

import vje
from vje.config import read_config, to_dict
from vje.methods.vi_simsiam import (
    KAPPA_FLOOR,
    VISimSiam,
    power_spherical_entropy,
    power_spherical_kl_uniform,
    power_spherical_log_prob,
    squareplus,
)
from vje.networks.encoders import Encoder
from vje.recipes import load_recipe

BATCH, DIM, HIDDEN, BOTTLENECK = 5, 6, 9, 4


def double(x):
    return torch.as_tensor(x, dtype=torch.float64)


def log_area(dim):
    """Of the unit sphere in ``dim`` dimensions, from the volume of balls: V_n = V_(n-2) 2 pi / n, and area n V_n."""
    volume = {0: 1.0, 1: 2.0}
    for n in range(2, dim + 1):
        volume[n] = volume[n - 2] * 2 * math.pi / n
    return math.log(dim * volume[dim])


# The distribution


@pytest.mark.parametrize("kappa", [0.2, 1.0, 6.5, 80.0])
def test_the_density_integrates_to_one_on_the_circle(kappa):
    mean = double([0.6, -0.8])

    def density(angle):
        return power_spherical_log_prob(double([math.cos(angle), math.sin(angle)]), mean, double(kappa)).exp().item()

    peak = math.atan2(-0.8, 0.6)
    total, _ = integrate.quad(density, peak - math.pi, peak + math.pi, points=[peak], epsabs=1e-10)
    assert total == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("kappa", [0.2, 1.0, 6.5, 80.0])
def test_the_density_integrates_to_one_on_the_globe(kappa):
    """Gauss-Legendre in height, the trapezoidal rule around; the mean direction is no axis of the grid."""
    height, weight = np.polynomial.legendre.leggauss(400)
    around = np.arange(400) * 2 * math.pi / 400
    ring = np.sqrt(1 - height**2)
    x = np.stack([np.outer(ring, np.cos(around)), np.outer(ring, np.sin(around)), np.outer(height, np.ones(400))], -1)
    mean = np.array([1.0, 2.0, -2.0]) / 3
    density = power_spherical_log_prob(double(x), double(mean), double(kappa)).exp().numpy()
    assert (density.mean(1) * 2 * math.pi) @ weight == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.5), (5, 3.0), (256, 70.0), (2048, 4000.0), (2048, 2e4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_log_density_is_that_of_a_beta_marginal(dim, kappa, dtype):
    """(1 + cosine) / 2 is Beta(beta + kappa, beta) distributed, the rest uniform on a smaller sphere."""
    generator = np.random.default_rng(dim)
    mean, other = generator.normal(size=(2, dim))
    for mix in (0.2, 1.0, 5.0):
        x = other + mix * mean
        t = x @ mean / np.linalg.norm(x) / np.linalg.norm(mean)
        beta = (dim - 1) / 2
        # p(x) dA = p(t) dt / area of the sphere at height t, dA = area (1 - t^2)^((dim - 3) / 2) dt
        of_t = stats.beta.logpdf((1 + t) / 2, beta + kappa, beta) - math.log(2)
        lower = math.log(2) + beta * math.log(math.pi) - math.lgamma(beta)
        expected = of_t - lower - (dim - 3) / 2 * math.log1p(-(t**2))
        actual = power_spherical_log_prob(*(torch.tensor(v, dtype=dtype) for v in (x, mean, kappa)))
        assert actual.dtype == dtype
        assert actual.item() == pytest.approx(expected, rel=1e-9 if dtype == torch.float64 else 1e-5, abs=1e-5)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.5), (3, 4.0), (5, 2.0)])
def test_entropy_and_kl_agree_with_samples(dim, kappa):
    """Samples by rejection of uniform directions, which needs nothing but the shape (1 + cosine)^kappa."""
    generator = np.random.default_rng(0)
    mean = np.eye(dim)[1]
    x = generator.normal(size=(300_000, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x = x[generator.uniform(size=len(x)) < ((1 + x @ mean) / 2) ** kappa]
    log_prob = power_spherical_log_prob(double(x), double(mean), double(kappa)).numpy()
    error = 4 * log_prob.std() / math.sqrt(len(x))
    assert power_spherical_entropy(double(kappa), dim).item() == pytest.approx(-log_prob.mean(), abs=error)
    expected = log_prob.mean() + log_area(dim)
    assert power_spherical_kl_uniform(double(kappa), dim).item() == pytest.approx(expected, abs=error)


@given(kappa=st.floats(1e-3, 1e4))
def test_the_kl_on_the_globe_has_a_simple_form(kappa):
    expected = math.log1p(kappa) - kappa / (1 + kappa)
    assert power_spherical_kl_uniform(double(kappa), 3).item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(kappa=st.floats(1e-3, 1e5), dim=st.integers(2, 4096))
def test_the_kl_is_positive_and_grows_with_the_concentration(kappa, dim):
    less, more = power_spherical_kl_uniform(double([kappa, 1.1 * kappa]), dim).tolist()
    assert -1e-8 < less < more + 1e-8


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    x, mean = (torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    kappa = double([0.3, 4.0, 60.0]).requires_grad_()
    assert torch.autograd.gradcheck(power_spherical_log_prob, (x, mean, kappa))
    assert torch.autograd.gradcheck(lambda k: power_spherical_entropy(k, 5), (kappa,))
    assert torch.autograd.gradcheck(lambda k: power_spherical_kl_uniform(k, 5), (kappa,))


def test_the_likeliest_concentration_of_a_cosine():
    """Near c / (1 - c) in units of D - 1, which is why it is predicted in these."""
    dim, cosine = 2048, 0.8
    kappa = double((dim - 1) * cosine / (1 - cosine)).requires_grad_()
    x, mean = torch.zeros(2, dim, dtype=torch.float64)
    mean[0], x[0], x[1] = 1.0, cosine, math.sqrt(1 - cosine**2)
    (slope,) = torch.autograd.grad(power_spherical_log_prob(x, mean, kappa), kappa)
    assert abs(slope) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_the_antipode_value_and_gradient_are_finite(dtype):
    mean = torch.nn.functional.normalize(torch.randn(7, dtype=dtype), dim=0).requires_grad_()
    for x in (-mean.detach(), -3 * mean.detach(), mean.detach()):
        value = power_spherical_log_prob(x, mean, torch.tensor(50.0, dtype=dtype))
        (gradient,) = torch.autograd.grad(value, mean)
        assert value.isfinite()
        assert gradient.isfinite().all()
    assert power_spherical_log_prob(-mean, mean, torch.tensor(50.0)) < -300


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_antipode_is_as_unlikely_as_an_angle_of_a_rounding_error_from_it(dtype):
    mean, kappa = torch.eye(3, dtype=dtype)[0], torch.tensor(10.0, dtype=dtype)
    gap = torch.finfo(dtype).eps
    # on the globe the density is (kappa + 1) / (4 pi) ((1 + cosine) / 2)^kappa, and 1 + cosine is gap^2 / 2
    expected = math.log(11 / (4 * math.pi)) + 10 * math.log(gap**2 / 4)
    value = power_spherical_log_prob(-mean, mean, kappa).item()
    assert abs(value - expected) < 10 * math.log(4)


def test_half_precision_is_computed_in_float32():
    x, mean, kappa = torch.randn(2, 64).bfloat16(), torch.randn(2, 64).bfloat16(), torch.tensor([3.0, 90.0]).bfloat16()
    expected = power_spherical_log_prob(x.float(), mean.float(), kappa.float())
    assert torch.equal(power_spherical_log_prob(x, mean, kappa), expected)


@pytest.mark.parametrize("function", [power_spherical_entropy, power_spherical_kl_uniform])
def test_half_precision_concentrations_are_taken_to_float32(function):
    kappa = torch.tensor([3.0, 90.0, 800.0])  # bfloat16 holds them
    found = function(kappa.bfloat16(), 64)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), function(kappa.double(), 64), rtol=1e-4, atol=1e-3)


# The method


HEADS = [{"kappa_from": "projection"}, {"kappa_from": "embedding"}, {"kappa_from": "embedding", "kappa_hidden": 5}]
"""Every head for the concentration."""


def make(seed=0, **options):
    torch.manual_seed(seed)
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, DIM)), DIM)
    model = VISimSiam(encoder, **{"hidden": HIDDEN, "layers": 2, "bottleneck": BOTTLENECK, **options}).double()
    for module in (model.projector, model.predictor, model.concentration):
        for p in module.parameters():
            nn.init.normal_(p, std=0.7)
    return model


def two_views(seed=1, side=4, batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, side, side, generator=generator, dtype=torch.float64) for _ in range(2)]


def by_hand(network, x, training=True):
    """A head in numpy."""
    for module in network:
        p = {name: value.detach().numpy() for name, value in module.state_dict().items()}
        if isinstance(module, nn.Linear):
            x = np.stack([p["weight"] @ row for row in x]) + p.get("bias", 0)
        elif isinstance(module, nn.BatchNorm1d):
            mean, var = (x.mean(0), x.var(0)) if training else (p["running_mean"], p["running_var"])
            x = (x - mean) / np.sqrt(var + 1e-5) * p.get("weight", 1) + p.get("bias", 0)
        else:
            x = np.where(x > 0, x, 0)
    return x


def distribution(model, z, y, training=True):
    """Mean direction and concentration for each embedding and its projection."""
    seen = {"projection": y, "embedding": z}[model.kappa_from]
    mean, raw = by_hand(model.predictor, y, training), by_hand(model.concentration, seen, training)[:, 0]
    positive = {"projection": np.log1p(np.exp(raw)), "embedding": (raw + np.sqrt(raw**2 + 4)) / 2}[model.kappa_from]
    kappa = (HIDDEN - 1) * (positive + KAPPA_FLOOR)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True), kappa


def log_density(x, mean, kappa):
    """One direction's, with the normaliser by quadrature over heights."""
    shape = (HIDDEN - 3) / 2
    area = integrate.quad(lambda t: (1 + t) ** (kappa + shape) * (1 - t) ** shape, -1, 1)[0]
    return kappa * math.log1p(mean @ x / np.linalg.norm(x)) - math.log(area) - log_area(HIDDEN - 1)


def kl(kappa):
    """To the uniform distribution, by quadrature over heights."""
    shape, uniform = (HIDDEN - 3) / 2, math.exp(log_area(HIDDEN - 1) - log_area(HIDDEN))
    area = integrate.quad(lambda t: (1 + t) ** (kappa + shape) * (1 - t) ** shape, -1, 1)[0]

    def integrand(t):
        p = (1 + t) ** (kappa + shape) * (1 - t) ** shape / area
        return p * math.log((1 + t) ** kappa / area / uniform)

    return integrate.quad(integrand, -1 + 1e-12, 1 - 1e-12)[0]


def reference(model, views):
    """NLL and KL of each view of each image, and all concentrations, ``[2, B]``."""
    z = [model.encoder(view).detach().numpy() for view in views]
    y = [by_hand(model.projector, part) for part in z]
    (mean_1, kappa_1), (mean_2, kappa_2) = (distribution(model, *parts) for parts in zip(z, y, strict=True))
    nll = [
        [-log_density(y[1][b], mean_1[b], kappa_1[b]) for b in range(BATCH)],
        [-log_density(y[0][b], mean_2[b], kappa_2[b]) for b in range(BATCH)],
    ]
    kappas = np.stack([kappa_1, kappa_2])
    return np.array(nll), np.vectorize(kl)(kappas), kappas


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kl_weight", [0.0, 1.0, 0.3])
def test_the_loss_equals_the_slow_reference(kl_weight, head):
    model, views = make(kl_weight=kl_weight, **head), two_views()
    output = model(views)
    nll, divergence, kappa = reference(model, views)
    assert output.loss.item() == pytest.approx((nll + kl_weight * divergence).mean() / kappa.mean(), rel=1e-6)
    y = [by_hand(model.projector, model.encoder(view).detach().numpy()) for view in views]
    means = [by_hand(model.predictor, part) for part in y]
    cosines = [
        (mean * theirs).sum(1) / np.linalg.norm(mean, axis=1) / np.linalg.norm(theirs, axis=1)
        for mean, theirs in zip(means, y[::-1], strict=True)
    ]
    expected = {"ps_nll": nll.mean(), "kl": divergence.mean(), "kappa": kappa.mean(), "cosine": np.mean(cosines)}
    expected["loss_nats"] = nll.mean() + kl_weight * divergence.mean()
    assert {name: output.parts[name].item() for name in expected} == pytest.approx(expected, rel=1e-5)
    assert not any(value.requires_grad for value in output.parts.values())


def test_the_loss_in_nats_falls_where_the_loss_rises_as_directions_are_learnt():
    """Most of the loss is the logarithm of the sphere's area, -344 at D = 256, and it is divided by kappa."""
    torch.manual_seed(0)
    encoder, views = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, DIM)), DIM), two_views(batch=32)
    model = VISimSiam(encoder, hidden=256, layers=2, bottleneck=32, kappa_from="embedding").double()
    views[1] = views[0] + 0.1 * views[1]
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(101):
        optimizer.zero_grad()
        output = model(views)
        output.loss.backward()
        optimizer.step()
        found.append({name: x.item() for name, x in output.parts.items()})
    nats, loss, cosine = ([parts[name] for parts in found[25::25]] for name in ("loss_nats", "loss", "cosine"))
    assert nats == sorted(nats, reverse=True) and cosine == sorted(cosine)
    assert loss[-1] > loss[0] + 1


@pytest.mark.parametrize("head", HEADS)
def test_the_gradient_is_that_of_the_elbo_in_units_that_are_constant(head):
    """Neither the observed projection nor the mean concentration that the loss is divided by is differentiated."""
    model, views = make(**head), two_views()
    model(views).loss.backward()
    parameters = [*model.predictor.parameters(), *model.concentration.parameters()]
    directions = [torch.randn_like(p) for p in parameters]
    start, (_, _, kappa) = [p.detach().clone() for p in parameters], reference(model, views)

    def elbo(h):
        for p, p0, d in zip(parameters, start, directions, strict=True):
            p.data = p0 + h * d
        nll, divergence, _ = reference(model, views)
        return (nll + divergence).mean() / kappa.mean()

    slope = (elbo(1e-5) - elbo(-1e-5)) / 2e-5
    actual = sum((p.grad * d).sum().item() for p, d in zip(parameters, directions, strict=True))
    assert actual == pytest.approx(slope, rel=1e-4)


def test_the_observed_projection_gets_no_gradient():
    """With a predictor that says the same of everything, there is no other way to the projector."""
    model = make()
    for head in (model.predictor, model.concentration):
        nn.init.zeros_(head[-1].weight)
    model(two_views()).loss.backward()
    assert all(not p.grad.any() for p in [*model.projector.parameters(), *model.encoder.parameters()])
    assert model.predictor[-1].bias.grad.any()


@pytest.mark.parametrize(("kappa_from", "reached"), [("projection", True), ("embedding", False)])
def test_the_embedding_is_not_trained_to_give_away_its_concentration(kappa_from, reached):
    """With a predictor that says the same of everything, the head for kappa is the only way to the encoder."""
    model = make(kappa_from=kappa_from)
    nn.init.zeros_(model.predictor[-1].weight)
    model(two_views()).loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in model.encoder.parameters()) == reached
    assert model.concentration[-1].weight.grad.any()


def test_a_share_of_the_concentrations_gradient_goes_on_into_the_embedding():
    """By the slow reference: the encoder's gradient is what directions alone give it, and that share of kappa's."""
    slopes = {}
    for share in (0.0, 0.25, 1.0):
        model = make(kappa_from="embedding", kappa_gradient=share)
        output = model(two_views())
        output.loss.backward()
        slopes[share] = model.encoder.network[1].weight.grad.clone()
        assert output.loss.item() == make(kappa_from="embedding")(two_views()).loss.item()
    assert (slopes[1.0] - slopes[0.0]).norm() > 1e-3 * slopes[0.0].norm() > 0
    torch.testing.assert_close(slopes[0.25], 0.75 * slopes[0.0] + 0.25 * slopes[1.0])


def test_all_of_the_concentrations_gradient_is_that_of_the_loss():
    """By finite differences of the slow reference, moving what kappa is predicted from and nothing else."""
    model, views = make(kappa_from="embedding", kappa_gradient=1.0), two_views()
    nn.init.zeros_(model.predictor[-1].weight)  # so that kappa is the only way to the encoder
    model(views).loss.backward()
    weight = model.encoder.network[1].weight
    direction, start = torch.randn_like(weight), weight.detach().clone()
    y = [by_hand(model.projector, model.encoder(view).detach().numpy()) for view in views]  # observed: constant
    kappa_bar = np.mean(reference(model, views)[2])

    def loss(h):
        weight.data = start + h * direction
        total = 0.0
        for own, other in ((0, 1), (1, 0)):
            mean, kappa = distribution(model, model.encoder(views[own]).detach().numpy(), y[own])
            total += sum(kl(kappa[b]) - log_density(y[other][b], mean[b], kappa[b]) for b in range(BATCH))
        return total / (2 * BATCH) / kappa_bar

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert (weight.grad * direction).sum().item() == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kappa_from": "embedding", "kappa_hidden": -1}, "kappa_hidden must be 0 or more"),
        ({"kappa_from": "projection", "kappa_hidden": 64}, "on the projection it is bottleneck"),
        ({"kappa_from": "embedding", "kappa_gradient": 1.5}, "from 0 to 1"),
        ({"kappa_from": "embedding", "kappa_gradient": math.nan}, "from 0 to 1"),
        ({"kappa_from": "projection", "kappa_gradient": 0.5}, "through the projection all of it"),
    ],
)
def test_what_means_nothing_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)


@pytest.mark.parametrize("head", HEADS)
def test_scores_are_those_of_an_embedding_alone(head):
    model, views = make(**head), two_views()
    model(views)  # moves the batch-norm statistics
    model.eval()
    z = model.encoder(views[0]).detach()
    scores = model.ood_scores(z)
    y = by_hand(model.projector, z.numpy(), training=False)
    mean, kappa = distribution(model, z.numpy(), y, training=False)
    for b in range(BATCH):
        nll = -log_density(y[b], mean[b], kappa[b])
        expected = {
            "ps_nll": nll,
            "neg_kappa": -kappa[b],
            "neg_elbo": nll + kl(kappa[b]),
            "cosine_distance": 1 - mean[b] @ y[b] / np.linalg.norm(y[b]),
        }
        assert {name: x[b].item() for name, x in scores.items()} == pytest.approx(expected, rel=1e-6, abs=1e-8)
        alone = model.ood_scores(z[b : b + 1])
        assert all(torch.allclose(alone[name], x[b : b + 1]) for name, x in scores.items())
    torch.testing.assert_close(model.statistics(z)["kappa"], double(kappa))


@pytest.mark.parametrize("head", HEADS)
def test_the_elbo_of_several_views_is_that_of_every_view_given_every_other(head):
    model, views = make(**head), two_views()
    model(views)
    model.eval()
    embedded = torch.stack([model.encoder(view).detach() for view in (*views, views[0].flip(-1))])  # [3, B, D]
    y = [by_hand(model.projector, z.numpy(), training=False) for z in embedded]
    heads = [distribution(model, z.numpy(), each, training=False) for z, each in zip(embedded, y, strict=True)]
    found = model.view_scores(embedded)["neg_elbo"]
    for b in range(BATCH):
        pairs = [
            kl(kappa[b]) - log_density(y[j][b], mean[b], kappa[b])
            for i, (mean, kappa) in enumerate(heads)
            for j in range(3)
            if i != j
        ]
        assert found[b].item() == pytest.approx(np.mean(pairs), rel=1e-6)


def test_who_knows_nothing_still_predicts_a_cosine_of_a_twentieth():
    """The mean cosine of the distribution is kappa / (D - 1 + kappa)."""
    model = make().eval()
    nn.init.zeros_(model.concentration[-1].weight)
    nn.init.constant_(model.concentration[-1].bias, -60.0)
    kappa = model.statistics(torch.zeros(1, DIM, dtype=torch.float64))["kappa"].item()
    assert kappa / (HIDDEN - 1 + kappa) == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_projector_has_the_layers_asked_for(layers):
    widths = [(x.in_features, x.out_features) for x in make(layers=layers).projector if isinstance(x, nn.Linear)]
    assert widths == [(DIM, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN)][:layers]


def test_the_predictors_learning_rate_stays_and_the_concentrations_does_not():
    model = make()
    assert list(model.constant_rate()) == list(model.predictor.parameters())
    assert list(make(fixed_predictor_rate=False).constant_rate()) == []


@given(st.floats(-1e8, 1e8) | st.floats(-3, 3))
def test_what_is_made_positive_solves_its_quadratic_equation(x):
    """y - 1 / y = x has one positive solution; and dy/dx = y^2 / (y^2 + 1), which is above 0 wherever x is."""
    value = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = squareplus(value)
    y.backward()
    solution = float((Decimal(x) + (Decimal(x) ** 2 + 4).sqrt()) / 2)
    assert y.item() == pytest.approx(solution, rel=1e-6)
    assert value.grad.item() == pytest.approx(solution**2 / (solution**2 + 1), rel=1e-6) and value.grad > 0


@pytest.mark.parametrize("x", [-1e15, -3e4, 0.0, 3e4, 1e15])
def test_what_is_made_positive_has_a_slope_in_float32_too(x):
    value = torch.tensor(x, requires_grad=True)
    squareplus(value).backward()
    assert 0 <= value.grad <= 1


def test_a_concentration_far_below_the_floor_can_come_back():
    """With all directions predicted, a larger kappa is likelier; a softplus would be deaf to it here."""
    model = make(kappa_from="embedding")
    nn.init.zeros_(model.concentration[-1].weight)
    nn.init.constant_(model.concentration[-1].bias, -60.0)
    for head in (model.projector, model.predictor):
        nn.init.zeros_(head[-2].weight if head is model.projector else head[-1].weight)
    model.projector[-1].eval()  # the same direction for every image, which batch norm would take away
    with torch.no_grad():
        model.projector[-1].running_mean.fill_(-1.0)
        model.predictor[-1].bias.fill_(1.0)
    output = model(two_views())
    assert output.parts["cosine"].item() == pytest.approx(1)
    output.loss.backward()
    assert model.concentration[-1].bias.grad.item() < -1e-3


def test_the_embeddings_concentration_is_one_linear_layer():
    layers = list(make(kappa_from="embedding").concentration)
    assert [(x.in_features, x.out_features) for x in layers] == [(DIM, 1)] and layers[0].bias is not None
    with pytest.raises(ValueError, match="projection, embedding, got 'z'"):
        make(kappa_from="z")


@pytest.mark.parametrize("data", ["digits", "cifar10", "folder", "imagenet1k"])
def test_recipes_take_the_embedding_and_a_config_from_before_there_was_a_choice_the_projection(data):
    config = load_recipe(data, "vi-simsiam")
    assert config.settings.kappa_from == "embedding"
    stored = to_dict(config)
    del stored["vi-simsiam"]["kappa_from"]
    assert read_config(stored, "config.json").settings.kappa_from == "projection"


def test_a_model_from_before_there_was_a_choice_has_its_concentration_from_the_projection(tmp_path):
    torch.manual_seed(0)
    old = VISimSiam("resnet8", hidden=8, layers=2, bottleneck=4, kappa_from="projection")
    file = old.save(tmp_path).with_suffix(".json")
    description = json.loads(file.read_text())
    del description["hyperparameters"]["kappa_from"]
    file.write_text(json.dumps(description))
    loaded, z = vje.load(tmp_path / "model.safetensors"), torch.rand(3, 256)
    torch.testing.assert_close(loaded.statistics(z)["kappa"], old.eval().statistics(z)["kappa"])


@pytest.mark.parametrize("kappa_from", ["projection", "embedding"])
def test_a_step_trains_every_parameter(kappa_from):
    torch.manual_seed(0)
    model = VISimSiam("resnet8", hidden=32, layers=2, bottleneck=8, kappa_from=kappa_from)
    with torch.autocast("cpu", torch.bfloat16):
        output = model([view.float() for view in two_views(side=8, batch=4)])
    output.loss.backward()
    assert output.loss.dtype == output.embeddings.dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_directions_need_two_dimensions():
    with pytest.raises(ValueError, match=r"hidden must be 2 or more.*got 1"):
        make(hidden=1)


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_bad_weight_is_refused(value):
    with pytest.raises(ValueError, match=f"kl_weight must be 0 or more, got {value}"):
        make(kl_weight=value)
