"""Barlow Twins against sums written out in float64, and where its terms must vanish."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard
from torch import nn

from vje.methods.barlow import BarlowTwins, barlow_terms
from vje.networks.encoders import Encoder
from vje.recipes import load_recipe


def reference_terms(first, second):
    """Raw moments, one pair of features at a time."""
    count, dim = first.shape
    invariance = redundancy = 0.0
    for i in range(dim):
        for j in range(dim):
            a, b = first[:, i], second[:, j]
            covariance = sum(a * b) / count - sum(a) * sum(b) / count**2
            spread = [sum(x * x) / count - (sum(x) / count) ** 2 + 1e-5 for x in (a, b)]
            value = covariance / (spread[0] * spread[1]) ** 0.5
            if i == j:
                invariance += (value - 1) ** 2
            else:
                redundancy += value**2
    return invariance, redundancy


def orthogonal(count=8, dim=7):
    return torch.tensor(hadamard(count)[:, 1 : dim + 1], dtype=torch.float64)


def linear_encoder(dim=6):
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, dim)), dim)


def two_views(batch=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2)]


def make(**options):
    torch.manual_seed(0)
    return BarlowTwins(linear_encoder(), **{"hidden": 4, "layers": 1, **options}).double()


# The terms


@settings(max_examples=30)
@given(st.integers(2, 8), st.integers(1, 5), st.floats(0.1, 10), st.floats(-3, 3), st.integers(0, 2**31))
def test_the_terms_are_the_sums_written_out(count, dim, scale, shift, seed):
    rng = np.random.default_rng(seed)
    first, second = scale * rng.standard_normal((2, count, dim)) + shift
    terms = barlow_terms(torch.tensor(first), torch.tensor(second))
    np.testing.assert_allclose([x.item() for x in terms], reference_terms(first, second), rtol=1e-6, atol=1e-8)


def test_the_loss_is_zero_at_perfect_correlation_and_decorrelation():
    """Up to the epsilon under each standard deviation."""
    x = orthogonal()
    invariance, redundancy = barlow_terms(x, x)
    assert invariance.item() == pytest.approx(7 * 1e-10, rel=1e-3)
    assert redundancy.item() == pytest.approx(0, abs=1e-12)


def test_known_cross_correlations():
    x = orthogonal()
    assert [y.item() for y in barlow_terms(x, -x)] == pytest.approx([4 * 7, 0], rel=1e-4)  # each -1
    assert [y.item() for y in barlow_terms(x[:, :3], x[:, 3:6])] == pytest.approx([3, 0])  # all 0
    assert [y.item() for y in barlow_terms(x, x.roll(1, 1))] == pytest.approx([7, 7], rel=1e-4)  # another's
    same = x[:, :1].expand(-1, 7)
    assert [y.item() for y in barlow_terms(same, same)] == pytest.approx([0, 42], rel=1e-4, abs=1e-4)  # all 1
    assert [y.item() for y in barlow_terms(0 * x, 0 * x)] == [7, 0]  # collapsed


def test_the_scale_and_shift_of_a_feature_do_not_matter():
    rng = np.random.default_rng(0)
    first, second = (torch.tensor(x) for x in rng.standard_normal((2, 6, 3)))
    moved = first * torch.tensor([2.0, 5.0, 9.0]) + torch.tensor([1.0, -2.0, 3.0])
    for ours, theirs in zip(barlow_terms(moved, 4 * second - 1), barlow_terms(first, second), strict=True):
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-4)


def test_gradients_reach_both_views():
    rng = np.random.default_rng(0)
    first, second = (torch.tensor(x, requires_grad=True) for x in rng.standard_normal((2, 5, 3)))
    assert torch.autograd.gradcheck(barlow_terms, (first, second))


# The method


def test_the_loss_is_the_weighted_sum_for_the_projections():
    model, views = make(lambd=0.3, loss_scale=0.1), two_views()
    invariance, redundancy = reference_terms(*(model.projector(model.encoder(x)).detach().numpy() for x in views))
    output = model(views)
    assert output.loss.item() == pytest.approx(0.1 * (invariance + 0.3 * redundancy), rel=1e-9)
    parts = {name: x.item() for name, x in output.parts.items()}
    expected = {"loss": output.loss.item(), "invariance": invariance, "redundancy": redundancy}
    assert parts == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(output.embeddings, model.encoder(views[0]).float())
    assert not output.embeddings.requires_grad


def test_the_views_are_normalised_apart_unless_told_otherwise():
    views = two_views()
    views[1] = 3 * views[1] + 1
    apart, joint = make(layers=3), make(layers=3, batch_norm="joint")
    projector = copy.deepcopy(apart.projector)
    z = [apart.encoder(x) for x in views]
    separate = [projector(x).detach().numpy() for x in z]
    together = [x.numpy() for x in projector(torch.cat(z)).detach().chunk(2)]
    for model, outputs in ((apart, separate), (joint, together)):
        invariance, redundancy = reference_terms(*outputs)
        assert model(views).loss.item() == pytest.approx(invariance + 0.0051 * redundancy, rel=1e-7)


def test_under_autocast_the_loss_is_float32():
    model, views = make().float(), [x.float() for x in two_views()]
    seen = []
    model.projector.register_forward_hook(lambda *args: seen.append(args[-1].detach()))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(views)
    assert [x.dtype for x in seen] == [torch.bfloat16] * 2
    invariance, redundancy = reference_terms(*(x.double().numpy() for x in seen))
    assert output.loss.dtype == torch.float32
    assert output.loss.item() == pytest.approx(invariance + 0.0051 * redundancy, rel=1e-5)


def test_the_imagenet_recipe_has_the_authors_rates():
    """0.2 for weights and 0.0048 for biases at batch 256, decay 1e-6; LARS scales out the loss for weights alone."""
    config = load_recipe("imagenet1k-barlow")
    rate = config.optimizer.lr * 256 / config.optimizer.batch
    assert (rate, rate * config.settings.loss_scale) == pytest.approx((0.2, 0.0048))
    assert config.optimizer.weight_decay / config.settings.loss_scale == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambd": -0.1}, r"lambd is the weight of the redundancy term and must be 0 or more, got -0\.1"),
        ({"loss_scale": 0.0}, r"loss_scale must be positive .* got 0\.0"),
        ({"hidden": 0}, "hidden and layers of 1 or more, got 0 and 3"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BarlowTwins(linear_encoder(), **options)
