import math

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


def test_the_feature_that_disagrees_contributes_most() -> None:
    z, s, v = torch.ones(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    z[4] = -1.0
    assert directional_contributions(z, s, v).argmax() == 4


def test_identical_directions_share_equally() -> None:
    z, v = torch.ones(4), torch.full((4,), 2.0)
    torch.testing.assert_close(directional_contributions(z, z, v), directional_nll(z, z, v).expand(4) / 4)
