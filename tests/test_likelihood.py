"""The likelihood against independent derivations: a tangent basis, quadrature, torch.distributions, limits."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.legendre import leggauss
from scipy.special import gammaln

from vje.likelihood import directional_nll, gaussian_kl, radial_nll, standard_nll

seeds = st.integers(0, 2**32 - 1)
degrees = st.sampled_from([0.3, 1.0, 3.0, 50.0, math.inf])


def student_t_kernel(q, nu, k):
    return 0.5 * q if math.isinf(nu) else 0.5 * (nu + k) * np.log1p(q / nu)


def reference_directional(target, sample, variance, nu):
    """-log density of the target's direction, from coordinates in an orthonormal basis B of the tangent space."""
    n, z = sample / np.linalg.norm(sample), target / np.linalg.norm(target)
    dim = len(n)
    basis = scipy.linalg.null_space(n[None])  # [D, D - 1]
    across = basis.T @ z
    theta = np.arctan2(np.linalg.norm(across), n @ z)
    t = theta * across / np.linalg.norm(across)
    scale = (
        basis.T @ np.diag(variance) @ basis
    )  # the Gaussian's (and the Student-t's) scale matrix in the tangent space
    q = t @ np.linalg.solve(scale, t)
    log_jacobian = (dim - 2) * (np.log(np.sin(theta)) - np.log(theta))
    return student_t_kernel(q, nu, dim - 1) + 0.5 * np.linalg.slogdet(scale)[1] + log_jacobian


def pair_at_angle(rng, dim, theta):
    """Two vectors of random norms with the angle theta between them, and their first one's direction."""
    n = rng.normal(size=dim)
    n /= np.linalg.norm(n)
    e = rng.normal(size=dim)
    e -= (e @ n) * n
    e /= np.linalg.norm(e)
    return 5 * rng.random() * (math.cos(theta) * n + math.sin(theta) * e), (0.1 + rng.random()) * n


def tensors(*arrays):
    return tuple(torch.from_numpy(np.asarray(x)) for x in arrays)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@settings(max_examples=300)
@given(seeds, st.integers(2, 40), degrees, st.floats(1e-4, math.pi - 5e-3), st.floats(0, 2))
def test_directional_nll_equals_the_density_in_an_explicit_tangent_basis(seed, dim, nu, theta, spread):
    rng = np.random.default_rng(seed)
    target, sample = pair_at_angle(rng, dim, theta)
    variance = np.exp(spread * rng.normal(size=dim))
    actual = directional_nll(*tensors(target, sample, variance), nu=nu).item()
    assert actual == pytest.approx(reference_directional(target, sample, variance, nu), rel=1e-10, abs=1e-10)


@settings(max_examples=50)
@given(seeds, st.integers(2, 40), degrees, st.floats(0.01, 3.0))
def test_centering_is_the_plain_function_at_variance_over_its_geometric_mean(seed, dim, nu, theta):
    rng = np.random.default_rng(seed)
    target, sample = pair_at_angle(rng, dim, theta)
    variance = np.exp(1 + rng.normal(size=dim))
    centered = variance / np.prod(variance ** (1 / dim))
    actual = directional_nll(*tensors(target, sample, variance), nu=nu, center_variance=True).item()
    assert actual == pytest.approx(reference_directional(target, sample, centered, nu), rel=1e-10, abs=1e-10)


def log_constant(nu, k):
    """Log of the normalising constant of a k-dimensional Student-t, which the loss leaves out."""
    if math.isinf(nu):
        return -k / 2 * math.log(2 * math.pi)
    return gammaln((nu + k) / 2) - gammaln(nu / 2) - k / 2 * math.log(nu * math.pi)


def graded_nodes(end, nodes=24, panels=60):
    """Gauss-Legendre nodes and weights on (0, end), in panels that shrink towards both ends."""
    inner = np.geomspace(1e-9, 0.5, panels)
    edges = end * np.concatenate([[0], inner, 1 - inner[-2::-1], [1]])
    x, w = leggauss(nodes)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + x)).ravel(), (half * w).ravel()


@pytest.mark.parametrize("nu", [0.7, 1.0, 4.0, math.inf])
def test_on_the_circle_the_density_integrates_to_the_mass_within_pi(nu):
    sample, variance = np.array([math.cos(0.4), math.sin(0.4)]), np.array([0.5, 3.0])
    theta, weight = graded_nodes(math.pi)
    total = 0.0
    for side in (-1, 1):
        points = np.stack([np.cos(0.4 + side * theta), np.sin(0.4 + side * theta)], 1)
        nll = directional_nll(*tensors(points, sample, variance), nu=nu).numpy()
        total += (weight * np.exp(log_constant(nu, 1) - nll)).sum()

    tangent = np.array([-math.sin(0.4), math.cos(0.4)])
    scale = math.sqrt(tangent @ (variance * tangent))
    t = scipy.stats.norm if math.isinf(nu) else scipy.stats.t(nu)
    mass = t.cdf(math.pi / scale) - t.cdf(-math.pi / scale)
    assert total == pytest.approx(mass, abs=1e-6)
    assert total < 1


@pytest.mark.parametrize("nu", [0.7, 1.0, 4.0, math.inf])
def test_on_the_sphere_the_density_integrates_to_the_mass_within_pi(nu):
    sample = np.array([0.48, -0.6, 0.64])
    variance = np.array([0.3, 1.0, 4.0])
    basis = scipy.linalg.null_space(sample[None])  # [3, 2]
    theta, weight = graded_nodes(math.pi)
    phi = np.arange(240) * (2 * math.pi / 240)  # the trapezoid rule converges geometrically on a circle
    around = np.stack([np.cos(phi), np.sin(phi)], 1)
    points = np.cos(theta)[:, None, None] * sample + np.sin(theta)[:, None, None] * (around @ basis.T)
    nll = directional_nll(*tensors(points, sample, variance), nu=nu).numpy()
    total = (weight[:, None] * np.sin(theta)[:, None] * np.exp(log_constant(nu, 2) - nll)).sum() * 2 * math.pi / 240

    # The tangent plane's Student-t in polar coordinates: the integral over the radius has a closed form.
    scale = basis.T @ np.diag(variance) @ basis
    across = np.linspace(0, 2 * math.pi, 4001)[:-1]
    direction = np.stack([np.cos(across), np.sin(across)], 1)
    a = (direction @ np.linalg.inv(scale) * direction).sum(1)
    inside = 1 - (
        np.exp(-0.5 * a * math.pi**2) if math.isinf(nu) else (1 + a * math.pi**2 / nu) ** (-nu / 2)
    )  # 2-D: integral of r p(r) dr
    mass = (inside / a).mean() / math.sqrt(np.linalg.det(scale))
    assert total == pytest.approx(mass, abs=1e-6)
    assert total < 1


@pytest.mark.parametrize("factor", [1e-3, 0.5, 7.0, 1e5])
def test_directional_nll_ignores_the_norms(factor):
    z, s, v = normal(5, 16), normal(5, 16, seed=1), normal(5, 16, seed=2).exp()
    expected = directional_nll(z, s, v)
    torch.testing.assert_close(directional_nll(factor * z, s, v), expected, rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(directional_nll(z, factor * s, v), expected, rtol=1e-12, atol=1e-11)


def test_rotations_leave_every_term_alone_when_the_variance_is_isotropic():
    z, s, v = normal(5, 12), normal(5, 12, seed=1), torch.full((5, 12), 0.37, dtype=torch.float64)
    rotation = torch.linalg.qr(normal(12, 12, seed=2)).Q
    for nu in (1.0, math.inf):
        for nll in (directional_nll, standard_nll):
            torch.testing.assert_close(nll(z @ rotation, s @ rotation, v, nu), nll(z, s, v, nu), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(radial_nll(z @ rotation, s @ rotation, nu), radial_nll(z, s, nu))
    aniso = normal(5, 12, seed=3).exp()
    assert (directional_nll(z @ rotation, s @ rotation, aniso) - directional_nll(z, s, aniso)).abs().min() > 1e-3


def test_permuting_the_features_permutes_the_gradients():
    z, s, v = normal(5, 12), normal(5, 12, seed=1), normal(5, 12, seed=2).exp()
    order = torch.randperm(12, generator=generator())
    for nll in (directional_nll, standard_nll):
        plain = [x.clone().requires_grad_() for x in (z, s, v)]
        permuted = [x[:, order].clone().requires_grad_() for x in (z, s, v)]
        value, other = nll(*plain), nll(*permuted)
        torch.testing.assert_close(other, value)
        grads, others = torch.autograd.grad(value.sum(), plain), torch.autograd.grad(other.sum(), permuted)
        for grad, expected in zip(others, grads, strict=True):
            torch.testing.assert_close(grad, expected[:, order])


@pytest.mark.parametrize("nu", [1.0, 2.5, math.inf])
def test_an_isotropic_variance_scales_the_squared_angle(nu):
    rng, dim, alpha, theta = np.random.default_rng(0), 9, 0.3, 1.2
    target, sample = pair_at_angle(rng, dim, theta)
    q = theta**2 / alpha
    log_det = (dim - 1) / 2 * math.log(alpha)  # alpha times the identity of the tangent space
    expected = student_t_kernel(q, nu, dim - 1) + log_det + (dim - 2) * math.log(math.sin(theta) / theta)
    actual = directional_nll(*tensors(target, sample, np.full(dim, alpha)), nu=nu).item()
    assert actual == pytest.approx(expected, rel=1e-12)


def test_samples_broadcast_against_targets_and_variances():
    z, s, v = normal(4, 6), normal(3, 4, 6, seed=1), normal(4, 6, seed=2).exp()
    for nll in (directional_nll, standard_nll, lambda z, s, _: radial_nll(z, s)):
        together = nll(z, s, v)
        assert together.shape == (3, 4)
        one_by_one = [[nll(z[b], s[k, b], v[b]) for b in range(4)] for k in range(3)]
        torch.testing.assert_close(together, torch.tensor(one_by_one, dtype=torch.float64))
    torch.testing.assert_close(directional_nll(z, s[0], v[0]), directional_nll(z, s[0], v[0].expand(4, 6)))


def test_a_large_nu_is_close_to_the_gaussian_limit():
    z, s, v = normal(8, 20), normal(8, 20, seed=1), normal(8, 20, seed=2).exp()
    for nll in (directional_nll, standard_nll):
        torch.testing.assert_close(nll(z, s, v, 1e8), nll(z, s, v, math.inf), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(radial_nll(z, s, 1e8), radial_nll(z, s, math.inf), rtol=1e-6, atol=1e-6)


def test_the_gaussian_standard_nll_with_fixed_isotropic_variance_is_the_squared_error():
    z, s, lam = normal(8, 20), normal(8, 20, seed=1), 0.7
    nll = standard_nll(z, s, torch.full((8, 20), lam, dtype=torch.float64), nu=math.inf)
    torch.testing.assert_close(nll, ((z - s) ** 2).sum(-1) / (2 * lam) + 10 * math.log(lam))


@pytest.mark.parametrize("nu", [0.5, 1.0, 6.0])
def test_standard_nll_is_the_multivariate_student_t_up_to_its_constant(nu):
    z, s, v = normal(7), normal(7, seed=1), normal(7, seed=2).exp()
    log_p = scipy.stats.multivariate_t(loc=s.numpy(), shape=np.diag(v.numpy()), df=nu).logpdf(z.numpy())
    assert standard_nll(z, s, v, nu).item() == pytest.approx(log_constant(nu, 7) - log_p, rel=1e-12)


@pytest.mark.parametrize("nu", [0.5, 1.0, 6.0])
def test_radial_nll_is_a_scalar_student_t_on_the_norm_up_to_its_constant(nu):
    z, s = normal(7), normal(7, seed=1)
    log_p = scipy.stats.t(nu).logpdf(math.sqrt((z**2).sum()) - math.sqrt((s**2).sum()))
    assert radial_nll(z, s, nu).item() == pytest.approx(log_constant(nu, 1) - log_p, rel=1e-12)


def test_without_nu_every_likelihood_is_cauchy():
    z, s, v = normal(7), normal(7, seed=1), normal(7, seed=2).exp()
    log_p = scipy.stats.multivariate_t(loc=s.numpy(), shape=np.diag(v.numpy()), df=1).logpdf(z.numpy())
    assert standard_nll(z, s, v).item() == pytest.approx(log_constant(1.0, 7) - log_p, rel=1e-12)
    log_p = scipy.stats.cauchy.logpdf(math.sqrt((z**2).sum()) - math.sqrt((s**2).sum()))
    assert radial_nll(z, s).item() == pytest.approx(-math.log(math.pi) - log_p, rel=1e-12)
    assert directional_nll(z, s, v).item() == pytest.approx(reference_directional(z.numpy(), s.numpy(), v.numpy(), 1.0))


@pytest.mark.parametrize("theta", [1e-3, 0.05, 0.2, 1.0, 2.5])
@pytest.mark.parametrize("dim", [2, 3, 64])
def test_without_curvature_the_gaussian_unit_directional_nll_is_half_the_squared_angle(dim, theta):
    target, sample = pair_at_angle(np.random.default_rng(1), dim, theta)
    nll = directional_nll(*tensors(target, sample, np.ones(dim)), nu=math.inf).item()
    flat = nll - (dim - 2) * math.log(math.sin(theta) / theta)
    assert flat == pytest.approx(theta**2 / 2, rel=1e-9, abs=1e-13)
    assert abs(flat - (1 - math.cos(theta))) <= theta**4 / 24 + 1e-13  # the cosine loss, for small angles


def test_gaussian_kl_equals_torch_distributions():
    mean, variance = normal(6, 30), normal(6, 30, seed=1).exp()
    posterior = torch.distributions.Normal(mean, variance.sqrt())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    expected = torch.distributions.kl_divergence(posterior, prior).sum(-1)
    torch.testing.assert_close(gaussian_kl(mean, variance), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nu", [0.25, 1.0, 9.0])
def test_the_radial_gradient_is_bounded_and_reaches_its_bound(nu):
    bound = (nu + 1) / (2 * math.sqrt(nu))
    residual = torch.cat([torch.linspace(-9.5, 900, 4000, dtype=torch.float64), torch.tensor([math.sqrt(nu)])])
    direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
    sample = ((10 + residual)[:, None] * direction).requires_grad_()
    target = torch.tensor([10.0, 0.0], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(radial_nll(target, sample, nu).sum(), sample)
    size = gradient.norm(dim=-1)
    assert size.max() <= bound + 1e-12
    assert size[-1].item() == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("nu", [0.0, -1.0, math.nan])
def test_a_bad_nu_is_refused(nu):
    z = torch.ones(3)
    for call in (lambda: directional_nll(z, z, z, nu), lambda: radial_nll(z, z, nu), lambda: standard_nll(z, z, z, nu)):
        with pytest.raises(ValueError, match=r"nu must be positive.*got"):
            call()


def test_mismatched_feature_dimensions_are_refused_with_the_shapes():
    three, four = torch.ones(2, 3), torch.ones(2, 4)
    with pytest.raises(ValueError, match=r"target.*\(2, 3\).*sample.*\(2, 4\).*variance.*\(2, 3\)"):
        directional_nll(three, four, three)
    with pytest.raises(ValueError, match=r"last dimension"):
        standard_nll(three, three, torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"mean.*\(2, 3\).*variance.*\(2, 4\)"):
        gaussian_kl(three, four)
    with pytest.raises(ValueError, match=r"last dimension"):
        radial_nll(torch.tensor(1.0), torch.tensor(1.0))
