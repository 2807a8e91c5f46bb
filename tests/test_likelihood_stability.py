"""The likelihood where arithmetic is hard: coincident, antipodal and zero vectors, extreme variances, few bits."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from vje.likelihood import directional_nll, gaussian_kl, radial_nll, standard_nll

DTYPES = [torch.float32, torch.float64]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs_at_angle(theta, batch, dim, seed=0):
    """Targets and samples, ``[batch, dim]``, with the angle theta between them."""
    s = torch.nn.functional.normalize(normal(batch, dim, seed=seed), dim=-1)
    e = normal(batch, dim, seed=seed + 1)
    e = torch.nn.functional.normalize(e - (e * s).sum(-1, keepdim=True) * s, dim=-1)
    return math.cos(theta) * s + math.sin(theta) * e, s


def differentiable(*tensors):
    return tuple(x.detach().clone().requires_grad_() for x in tensors)


@pytest.mark.parametrize("nu", [1.0, 3.0, math.inf])
def test_gradients_of_every_term(nu):
    z, s, v = differentiable(normal(3, 5), normal(3, 5, seed=1), normal(3, 5, seed=2).exp())
    assert gradcheck(lambda *x: directional_nll(*x, nu=nu), (z, s, v))
    assert gradcheck(lambda *x: directional_nll(*x, nu=nu, center_variance=True), (z, s, v))
    assert gradcheck(lambda *x: radial_nll(*x, nu=nu), (z, s))
    assert gradcheck(lambda *x: standard_nll(*x, nu=nu), (z, s, v))
    assert gradcheck(gaussian_kl, (s, v))


@pytest.mark.parametrize("dim", [2, 3, 6])
@pytest.mark.parametrize("theta", [0.0, 1e-9, 1e-4, 0.0632, 0.0633, 0.3, math.pi / 2, 3.0, math.pi - 0.02])
def test_directional_gradients_at_any_angle(theta, dim):
    """0.0632 and 0.0633 straddle sin^2(theta/2) = 1e-3; at 0 the function is smooth although arccos is not."""
    z, s = pairs_at_angle(theta, 2, dim)
    z, s, v = differentiable(2 * z, 3 * s, normal(2, dim, seed=2).exp())
    assert gradcheck(directional_nll, (z, s, v), eps=1e-7, atol=1e-5, rtol=1e-5)


def test_where_the_vectors_coincide_only_the_determinant_pulls():
    """At theta = 0 both Q and the curvature are stationary, which leaves 1/2 sum log v + 1/2 log sum n^2/v."""
    n = torch.nn.functional.normalize(normal(7), dim=-1)
    z, s, v = differentiable(n, 2 * n, normal(7, seed=1).exp())
    value = directional_nll(z, s, v)
    by_z, by_s, by_v = torch.autograd.grad(value, (z, s, v))
    w, c = 1 / v.detach(), (n**2 / v.detach()).sum()
    assert value.item() == pytest.approx((0.5 * v.detach().log().sum() + 0.5 * c.log()).item(), rel=1e-12)
    torch.testing.assert_close(by_z, torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(by_s, (n * w / c - n) / 2)  # d/ds of 1/2 log(sum s^2 w / |s|^2), |s| = 2
    torch.testing.assert_close(by_v, 0.5 * w - 0.5 * n**2 * w**2 / c)


def vectors(case, batch, dim):
    z, s = normal(batch, dim), normal(batch, dim, seed=1)
    zero, one_hot = torch.zeros(2, batch, dim, dtype=torch.float64)
    one_hot[:, 0] = 1
    return {
        "random": (z, s),
        "equal": (s, s),
        "parallel": (3 * s, s),
        "opposite": (-s, s),
        "nearly-opposite": pairs_at_angle(math.pi - 1e-5, batch, dim),
        "zero-target": (zero, s),
        "zero-sample": (z, zero),
        "both-zero": (zero, zero),
        "short": (1e-9 * z, 1e-9 * s),
        "minute": (z, 1e-20 * s),
        "one-hot": (one_hot, one_hot.roll(1, -1)),
    }[case]


def variances(batch, dim):
    ends = torch.tensor([1e-5, 1e5], dtype=torch.float64)
    mixed = ends[torch.randint(2, (batch, dim), generator=torch.Generator().manual_seed(0))]
    ones = torch.ones(batch, dim, dtype=torch.float64)
    return [1e-5 * ones, ones, 1e5 * ones, mixed]


@pytest.mark.parametrize(
    "case",
    [
        "random",
        "equal",
        "parallel",
        "opposite",
        "nearly-opposite",
        "zero-target",
        "zero-sample",
        "both-zero",
        "short",
        "minute",
        "one-hot",
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients_are_finite(case, dtype):
    for dim in (2, 3, 512, 4096):
        for variance in variances(2, dim):
            z, s, v = (x.to(dtype) for x in (*vectors(case, 2, dim), variance))
            for nu in (1.0, math.inf):
                terms = {
                    "directional": lambda z, s, v, nu=nu: directional_nll(z, s, v, nu),
                    "centered": lambda z, s, v, nu=nu: directional_nll(z, s, v, nu, center_variance=True),
                    "radial": lambda z, s, v, nu=nu: radial_nll(z, s, nu) + 0 * v.sum(-1),
                    "standard": lambda z, s, v, nu=nu: standard_nll(z, s, v, nu),
                    "kl": lambda z, s, v: gaussian_kl(s, v) + 0 * z.sum(-1),
                }
                for name, term in terms.items():
                    leaves = differentiable(z, s, v)
                    value = term(*leaves)
                    assert value.dtype == dtype
                    assert value.isfinite().all(), (name, dim, nu)
                    gradients = torch.autograd.grad(value.sum(), leaves)
                    assert all(gradient.isfinite().all() for gradient in gradients), (name, dim, nu)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [3, 512])
def test_the_antipode_is_held_at_a_finite_depth(dim, dtype):
    """The curvature term keeps falling towards pi, and stops a little short of it."""
    values = []
    for gap in (0.3, 0.03, 0.004, 0.0):
        z, s = (x.to(dtype) for x in pairs_at_angle(math.pi - gap, 4, dim))
        values.append(directional_nll(z, s, torch.ones(4, dim, dtype=dtype)))
    assert (torch.stack(values).diff(dim=0) < 0).all()
    deepest = (dim - 2) * math.log(math.pi / math.sqrt(torch.finfo(dtype).eps))
    assert (values[-1] > -deepest - 1).all()


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 2.5e-3), (torch.float64, 1.1e-7)])
def test_up_to_two_milliradians_from_the_antipode_nothing_is_held(dtype, gap):
    """In float32; a tenth of a microradian in float64."""
    z = torch.tensor([-math.cos(gap), math.sin(gap), 0.0], dtype=dtype)
    s = torch.tensor([1.0, 0.0, 0.0], dtype=dtype)
    theta = math.pi - gap
    expected = theta**2 / 2 + math.log(math.sin(gap) / theta)
    value = directional_nll(z, s, torch.ones(3, dtype=dtype), nu=math.inf).item()
    assert value == pytest.approx(expected, rel=1e-4 if dtype == torch.float32 else 1e-8)


@pytest.mark.parametrize("length", [1.5e-6, 1e-5, 1.0])
def test_norms_of_more_than_a_millionth_are_what_they_are(length):
    short = torch.tensor([0.6 * length, 0.8 * length], dtype=torch.float64)
    one = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert radial_nll(short, one).item() == pytest.approx(math.log1p((1 - length) ** 2), rel=1e-12, abs=1e-15)
    angle = math.acos(0.8)
    flat = directional_nll(short, one, torch.ones(2, dtype=torch.float64), nu=math.inf).item()
    assert flat == pytest.approx(angle**2 / 2, rel=1e-12)


@pytest.mark.parametrize("cosine", [None, 0.9999, 0.5, -0.35, -0.92, -0.99])
def test_float32_is_close_to_float64_at_512_features(cosine):
    if cosine is None:
        z, s = normal(64, 512), normal(64, 512, seed=1)
    else:
        z, s = pairs_at_angle(math.acos(cosine), 64, 512)
    single = [x.float() for x in (17 * z, 7.5 * s, (0.6 * normal(64, 512, seed=3) - 0.5).exp())]
    results = []
    for tensors in (single, [x.double() for x in single]):  # the same numbers, so that only arithmetic differs
        leaves = differentiable(*tensors)
        value = directional_nll(*leaves) + radial_nll(*leaves[:2]) + standard_nll(*leaves)
        results.append((value.detach().double(), [g.double() for g in torch.autograd.grad(value.sum(), leaves)]))
    (value32, gradients32), (value64, gradients64) = results
    assert (value32 - value64).abs().max() < 2e-3
    for got, expected in zip(gradients32, gradients64, strict=True):
        assert ((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < 2e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_are_computed_in_float32(dtype):
    z, s, v = (x.to(dtype) for x in (normal(4, 512), normal(4, 512, seed=1), normal(4, 512, seed=2).exp()))
    single = z.float(), s.float(), v.float()
    for half, full in (
        (directional_nll(z, s, v), directional_nll(*single)),
        (directional_nll(z, single[1], single[2]), directional_nll(*single)),
        (radial_nll(z, s), radial_nll(*single[:2])),
        (standard_nll(z, s, v), standard_nll(*single)),
        (gaussian_kl(s, v), gaussian_kl(*single[1:])),
    ):
        assert half.dtype == torch.float32
        assert torch.equal(half, full)
