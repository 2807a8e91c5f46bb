import math

import numpy as np
import pytest
import torch

from vje.likelihood import directional_contributions, directional_nll


@pytest.mark.parametrize("nu", [1.0, 7.0, math.inf])
@pytest.mark.parametrize("center", [False, True])
def test_contributions_sum_to_the_nll(nu: float, center: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    z, s = (torch.randn(20, 30, generator=generator, dtype=torch.float64) for _ in range(2))
    v = torch.rand(20, 30, generator=generator, dtype=torch.float64) + 0.05
    parts = directional_contributions(z, s, v, nu, center)
    assert parts.shape == (20, 30)
    torch.testing.assert_close(parts.sum(-1), directional_nll(z, s, v, nu, center), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("nu", [2.5, math.inf])
def test_each_term_is_shared_out_by_the_features_parts_of_it(nu: float) -> None:
    """Student-t by Q, log c by c, curvature by the squared log-map: in numpy, with the angle from its cosine."""
    rng = np.random.default_rng(0)
    z, s, v = rng.normal(size=9), rng.normal(size=9), rng.uniform(0.2, 3.0, 9)
    a, n = z / np.linalg.norm(z), s / np.linalg.norm(s)
    theta = np.arccos(a @ n)
    t = theta / np.sin(theta) * (a - np.cos(theta) * n)
    c = n**2 / v
    of_q = (t - (t * n / v).sum() / c.sum() * n) ** 2 / v
    q = of_q.sum()
    student = q / 2 if math.isinf(nu) else (nu + 8) / 2 * np.log(1 + q / nu)
    curvature = 7 * np.log(np.sin(theta) / theta)
    expected = student * of_q / q + np.log(v) / 2 + np.log(c.sum()) / 2 * c / c.sum() + curvature * t**2 / (t @ t)
    parts = directional_contributions(*(torch.from_numpy(x) for x in (z, s, v)), nu)
    np.testing.assert_allclose(parts.numpy(), expected, rtol=1e-9, atol=1e-10)


def test_contributions_of_a_sample_without_direction_sum_to_it_too() -> None:
    z = torch.tensor([[3.0, 0.0, 4.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
    v = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).expand(2, 3)
    for s in (torch.zeros_like(z), 1e-300 * z):
        parts = directional_contributions(z, s, v)
        assert parts.isfinite().all()
        torch.testing.assert_close(parts.sum(-1), directional_nll(z, s, v), rtol=1e-12, atol=1e-10)


def test_the_feature_that_disagrees_contributes_most() -> None:
    z, s, v = torch.ones(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    z[4] = -1.0
    assert directional_contributions(z, s, v).argmax() == 4


def test_identical_directions_share_equally() -> None:
    z, v = torch.ones(4), torch.full((4,), 2.0)
    torch.testing.assert_close(directional_contributions(z, z, v), directional_nll(z, z, v).expand(4) / 4)
