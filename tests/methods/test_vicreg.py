"""VICReg against sums written out in float64, and where each of its terms must vanish."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard
from torch import nn

from vje.methods.vicreg import VICReg, vicreg_terms
from vje.networks.encoders import Encoder
from vje.recipes import load_recipe


def reference_terms(first, second):
    """One pair of samples and one pair of features at a time: Cov(a, b) is half the mean product of differences."""
    count, dim = first.shape
    invariance = sum((first[b, i] - second[b, i]) ** 2 for b in range(count) for i in range(dim)) / (count * dim)
    variance = covariance = 0.0
    for x in (first, second):
        for i in range(dim):
            for j in range(dim):
                products = [(x[a, i] - x[b, i]) * (x[a, j] - x[b, j]) for a in range(count) for b in range(a)]
                value = sum(products) / (count * (count - 1))
                if i == j:
                    variance += max(0.0, 1 - (value + 1e-4) ** 0.5) / dim / 2
                else:
                    covariance += value**2 / dim
    return invariance, variance, covariance


def orthogonal(count=8, dim=7):
    """Features of zero mean and unit variance (unbiased), uncorrelated."""
    return torch.tensor(hadamard(count)[:, 1 : dim + 1] * ((count - 1) / count) ** 0.5, dtype=torch.float64)


def linear_encoder(dim=6):
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, dim)), dim)


def two_views(batch=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2)]


def make(**options):
    torch.manual_seed(0)
    return VICReg(linear_encoder(), **{"hidden": 4, "layers": 1, **options}).double()


# The terms


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(1, 4), st.floats(0.01, 3), st.floats(-5, 5), st.integers(0, 2**31), st.booleans())
def test_the_terms_are_the_sums_written_out(count, dim, scale, shift, seed, correlated):
    rng = np.random.default_rng(seed)
    first, second = scale * rng.standard_normal((2, count, dim)) + shift
    if correlated:
        first[:, -1] = first[:, 0]
    terms = vicreg_terms(torch.tensor(first), torch.tensor(second))
    np.testing.assert_allclose([x.item() for x in terms], reference_terms(first, second), rtol=1e-9, atol=1e-9)


def test_the_loss_is_zero_at_perfect_invariance_unit_variance_and_decorrelation():
    x = orthogonal()
    for term in vicreg_terms(x, x.clone()):
        assert term.item() == pytest.approx(0, abs=1e-12)


def test_each_term_sees_its_own_fault_alone():
    x = orthogonal()
    invariance, variance, covariance = vicreg_terms(x, -x)
    assert invariance.item() == pytest.approx(4 * 7 / 8)  # the mean of (2x)^2, and x^2 averages (B - 1) / B
    assert (variance.item(), covariance.item()) == pytest.approx((0, 0), abs=1e-12)

    small = 0.5 * x  # both views: the mean of the two hinges is one of them
    invariance, variance, covariance = vicreg_terms(small, small)
    assert variance.item() == pytest.approx(1 - (0.25 + 1e-4) ** 0.5)
    assert (invariance.item(), covariance.item()) == pytest.approx((0, 0), abs=1e-12)
    assert vicreg_terms(x, small)[1].item() == pytest.approx(variance.item() / 2)
    assert vicreg_terms(2 * x, 2 * x)[1].item() == 0  # a hinge: more variance costs nothing

    same = x[:, :1].expand(-1, 7)  # D (D - 1) covariances of 1, over D, in each view
    invariance, variance, covariance = vicreg_terms(same, same)
    assert covariance.item() == pytest.approx(2 * 6)
    assert (invariance.item(), variance.item()) == pytest.approx((0, 0), abs=1e-12)


def test_a_collapsed_batch_has_the_largest_variance_term_and_a_finite_gradient():
    x = torch.full((4, 3), 2.0, requires_grad=True)
    invariance, variance, covariance = vicreg_terms(x, x)
    assert (invariance.item(), variance.item(), covariance.item()) == pytest.approx((0, 0.99, 0))
    variance.backward()
    assert x.grad.isfinite().all()


def test_gradients_reach_both_views():
    rng = np.random.default_rng(0)
    first, second = (torch.tensor(x, requires_grad=True) for x in 0.5 * rng.standard_normal((2, 4, 3)))
    assert torch.autograd.gradcheck(vicreg_terms, (first, second))


# The method


def test_the_loss_is_the_weighted_sum_for_the_expander_s_outputs():
    model, views = make(invariance=3.0, variance=5.0, covariance=7.0), two_views()
    first, second = (model.expander(model.encoder(x)).detach().numpy() for x in views)
    expected = reference_terms(first, second)
    output = model(views)
    assert output.loss.item() == pytest.approx(3 * expected[0] + 5 * expected[1] + 7 * expected[2], rel=1e-10)
    parts = {name: x.item() for name, x in output.parts.items()}
    names = ("invariance_loss", "variance_loss", "covariance_loss")
    assert parts == pytest.approx({"loss": output.loss.item(), **dict(zip(names, expected, strict=True))}, rel=1e-6)
    torch.testing.assert_close(output.embeddings, model.encoder(views[0]).float())
    assert not output.embeddings.requires_grad


def test_the_views_are_normalised_apart_unless_told_otherwise():
    views = two_views()
    views[1] = 3 * views[1] + 1
    apart, joint = make(layers=3), make(layers=3, batch_norm="joint")
    expander = copy.deepcopy(apart.expander)
    z = [apart.encoder(x) for x in views]
    separate = [expander(x).detach().numpy() for x in z]
    together = expander(torch.cat(z)).detach().chunk(2)
    for model, outputs in ((apart, separate), (joint, [x.numpy() for x in together])):
        weights = np.array([25, 25, 1])
        assert model(views).loss.item() == pytest.approx(weights @ reference_terms(*outputs), rel=1e-9)


def test_under_autocast_the_loss_is_float32():
    model, views = make().float(), [x.float() for x in two_views()]
    seen = []
    model.expander.register_forward_hook(lambda *args: seen.append(args[-1].detach()))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(views)
    assert [x.dtype for x in seen] == [torch.bfloat16] * 2
    expected = np.array([25, 25, 1]) @ reference_terms(*(x.double().numpy() for x in seen))
    assert output.loss.dtype == torch.float32
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_expander_has_the_paper_s_number_of_parameters():
    config = load_recipe("imagenet1k-vicreg")
    with torch.device("meta"):
        model = VICReg(config.encoder.encoder, hidden=config.settings.hidden, layers=config.settings.layers)
    expander, total = (sum(p.numel() for p in module.parameters()) for module in (model.expander, model))
    assert (round(expander / 1e6, 1), round(total / 1e6, 1)) == (151.0, 174.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variance": -1.0}, r"variance is a weight in the loss and must be 0 or more, got -1\.0"),
        ({"covariance": float("nan")}, "covariance is a weight .* got nan"),
        ({"layers": 0}, "hidden and layers of 1 or more, got 8192 and 0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        VICReg(linear_encoder(), **options)
