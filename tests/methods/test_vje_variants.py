"""What theory says of each variant of VJE: samples, loss terms, likelihoods, centring."""

import math

import pytest
import torch
from torch import nn

from vje.likelihood import directional_nll, gaussian_kl, radial_nll, standard_nll
from vje.methods.vje import VJE
from vje.networks.encoders import Encoder

BATCH, DIM = 6, 8
TERMS = ("directional", "radial", "kl")


def make(**options):
    torch.manual_seed(0)
    model = VJE(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, DIM)), DIM), ratio=0.5, **options)
    for p in model.inference.parameters():
        nn.init.normal_(p, std=0.7)
    return model.double()


def views():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, 3, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2)]


def gradients(model, of=None):
    torch.manual_seed(2)  # the same noise every time
    loss = model(views()).loss if of is None else of(model)
    chosen = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(chosen.items(), found, strict=True)}


def observed_and_posterior(model):
    z = model.encoder(torch.cat(views()))
    return z.detach().roll(BATCH, 0), model.inference(z)


def test_without_samples_the_variance_learns_from_the_explicit_v_alone():
    """The sample is the mean, so the likelihood reaches the variance head only where v stands in its formula."""

    def by_hand(model):
        observed, posterior = observed_and_posterior(model)
        mean, v = posterior.mean.detach(), posterior.variance
        return (directional_nll(observed, mean, v) + gaussian_kl(mean, v)).mean()

    model = make(samples=0)
    actual, expected = gradients(model), gradients(model, by_hand)
    sampled = gradients(make(samples=1))
    for name in ("inference.variance.weight", "inference.variance.bias"):
        torch.testing.assert_close(actual[name], expected[name])
        assert (sampled[name] - expected[name]).abs().max() > 1e-2  # with samples there is another path
    radial = gradients(make(samples=0, terms=["radial"]))
    assert radial["inference.variance.weight"].abs().max() == 0  # it knows s alone, and s knows no v
    assert gradients(make(samples=1, terms=["radial"]))["inference.variance.weight"].abs().max() > 0


@pytest.mark.parametrize("samples", [0, 1, 16])
@pytest.mark.parametrize("target", ["stop-gradient", "ema"])
def test_any_number_of_samples_runs_each_network_once(samples, target):
    model, calls = make(samples=samples, target=target), []
    networks = {"encoder": model.encoder, "inference": model.inference, "target": model.target}
    for name, network in networks.items():
        if network is not None:
            network.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(views())
    assert sorted(calls) == sorted(name for name, network in networks.items() if network is not None)


@pytest.mark.parametrize("off", TERMS)
def test_a_term_that_is_off_takes_exactly_its_gradient_with_it(off):
    everything, without = gradients(make()), gradients(make(terms=[term for term in TERMS if term != off]))
    alone = gradients(make(terms=[off]))
    assert max(g.abs().max() for g in alone.values()) > 1e-3
    for name, gradient in everything.items():
        torch.testing.assert_close(gradient - without[name], alone[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("samples", [0, 1])
@pytest.mark.parametrize("terms", [TERMS, ["directional"], ["radial"], ["kl"]])
def test_parameters_without_a_gradient_are_announced(terms, samples):
    """Processes that wait for each other's gradients must know; the method itself leaves none out."""
    model = make(terms=terms, samples=samples)
    model(views()).loss.backward()
    unused = any(p.grad is None for p in model.parameters())
    assert model.leaves_unused() or not unused
    if terms == TERMS and samples:
        assert not unused and not model.leaves_unused()
    if terms == ["radial"] and not samples:
        assert unused  # the variance is nowhere in it


def test_an_isotropic_posterior_has_one_variance_and_q_is_the_squared_angle_over_it():
    model = make(isotropic=True)
    observed, posterior = observed_and_posterior(model)
    alpha = posterior.variance[:, 0]
    torch.testing.assert_close(posterior.variance, alpha[:, None].expand(-1, DIM))
    theta = torch.arccos(nn.functional.cosine_similarity(observed, posterior.mean))
    plain = directional_nll(observed, posterior.mean, posterior.variance, nu=math.inf)
    at_one = directional_nll(observed, posterior.mean, torch.ones_like(observed), nu=math.inf)
    log_det = (DIM - 1) / 2 * alpha.log()  # on the tangent space
    torch.testing.assert_close(2 * (plain - log_det - at_one) + theta**2, theta**2 / alpha, rtol=1e-8, atol=1e-8)


def test_the_shared_variance_learns_from_all_features_at_once():
    """Its gradient is the sum of those that a variance a feature would have: D times as steep, at the same rate."""
    shared, apart = make(isotropic=True), make()
    state = {name: x for name, x in shared.state_dict().items() if "inference.variance" not in name}
    apart.load_state_dict(state, strict=False)
    with torch.no_grad():
        apart.inference.variance.weight.copy_(shared.inference.variance.weight.expand(DIM, -1))
        apart.inference.variance.bias.copy_(shared.inference.variance.bias.expand(DIM))
    one, each = gradients(shared), gradients(apart)
    for name, gradient in one.items():
        head = "inference.variance" in name
        torch.testing.assert_close(gradient, each[name].sum(0, keepdim=True) if head else each[name])


@pytest.mark.parametrize("likelihood", ["factorized", "standard"])
def test_the_gaussian_limit_of_the_whole_objective(likelihood):
    limit, near, far = (gradients(make(nu=nu, likelihood=likelihood)) for nu in (math.inf, 1e8, 1.0))
    for name, gradient in limit.items():
        torch.testing.assert_close(near[name], gradient, rtol=1e-4, atol=1e-4)
    assert any((far[name] - gradient).abs().max() > 0.1 for name, gradient in limit.items())


@pytest.mark.parametrize("factor", [1e-3, 0.5, 40.0])
def test_centring_forgets_the_scale_of_the_variance(factor):
    observed, posterior = observed_and_posterior(make())
    arguments, v = (observed, posterior.mean), posterior.variance
    torch.testing.assert_close(
        directional_nll(*arguments, factor * v, center_variance=True),
        directional_nll(*arguments, v, center_variance=True),
    )
    # Uncentred, as nu grows: Q/2 divides by the factor, and the log-determinant on the tangent space adds its part.
    q_half = directional_nll(*arguments, v, math.inf) - directional_nll(*arguments, 1e12 * v, math.inf)
    q_half = q_half + (DIM - 1) / 2 * math.log(1e12)
    change = directional_nll(*arguments, factor * v, math.inf) - directional_nll(*arguments, v, math.inf)
    expected = q_half * (1 / factor - 1) + (DIM - 1) / 2 * math.log(factor)
    torch.testing.assert_close(change, expected, rtol=1e-6, atol=1e-6)


def test_centring_leaves_the_kl_alone():
    centred, plain = (make(center_variance=on)(views()).parts for on in (True, False))
    torch.testing.assert_close(centred["kl"], plain["kl"])
    assert (centred["nll_directional"] - plain["nll_directional"]).abs() > 1e-3


def test_only_the_standard_likelihood_feels_the_norm_of_both():
    observed, posterior = observed_and_posterior(make())
    mean, v = posterior.mean, posterior.variance
    for factor in (0.1, 10.0):
        torch.testing.assert_close(
            directional_nll(factor * observed, factor * mean, v), directional_nll(observed, mean, v)
        )
        change = standard_nll(factor * observed, factor * mean, v) - standard_nll(observed, mean, v)
        assert (change * math.copysign(1, factor - 1) > 0).all()  # shrinking both lowers it: the norm pathology


def test_standard_runs_report_direction_and_norm_without_learning_from_them():
    model = make(likelihood="standard", nu=2.0)
    torch.manual_seed(2)
    output = model(views())
    observed, posterior = observed_and_posterior(model)
    torch.manual_seed(2)
    sample = posterior.sample(torch.randn(1, 2 * BATCH, DIM, dtype=torch.float64))
    v = posterior.variance
    torch.testing.assert_close(
        output.parts["nll_directional"], directional_nll(observed, sample, v, 2.0).mean().detach()
    )
    torch.testing.assert_close(output.parts["nll_radial"], radial_nll(observed, sample, 2.0).mean().detach())
    expected = (standard_nll(observed, sample, v, 2.0).mean() + gaussian_kl(posterior.mean, v).mean()).detach()
    torch.testing.assert_close(output.loss.detach(), expected)
