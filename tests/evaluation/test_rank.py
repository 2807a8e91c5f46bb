"""Effective rank against its definition, by way of numpy's singular values."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vje.evaluation.rank import effective_rank, effective_rank_of_gram


def reference(x):
    """exp(entropy) of the normalised singular values (Roy and Vetterli, definition 1)."""
    singular = np.linalg.svd(x, compute_uv=False)
    p = singular[singular > 0] / singular.sum()
    return math.exp(-(p * np.log(p)).sum())


def matrix(rows, columns, decay=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) @ np.diag(np.exp(-decay * np.arange(columns)))


@settings(max_examples=40)
@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 40),
    decay=st.sampled_from([0.0, 0.1, 0.5, 2.0]),
    seed=st.integers(0, 1000),
)
def test_it_is_the_definition(rows, columns, decay, seed):
    x = matrix(rows, columns, decay, seed)
    assert effective_rank(torch.from_numpy(x)) == pytest.approx(reference(x), rel=1e-5)


def test_known_cases():
    assert effective_rank(torch.eye(7)) == pytest.approx(7)
    assert effective_rank(3 * torch.eye(7)[:, :4]) == pytest.approx(4)
    assert effective_rank(torch.diag(torch.tensor([1.0, 1.0, 0.0]))) == pytest.approx(2)
    p = np.array([0.5, 0.3, 0.2])
    assert effective_rank(torch.diag(torch.from_numpy(p))) == pytest.approx(math.exp(-(p * np.log(p)).sum()))


def test_it_lies_between_one_and_the_rank():
    x = torch.from_numpy(matrix(50, 8, decay=0.3)) @ torch.from_numpy(matrix(8, 30, seed=1))
    assert 1 < effective_rank(x) < 8
    assert effective_rank(1e6 * x) == pytest.approx(effective_rank(x))
    assert effective_rank(x.float()) == pytest.approx(effective_rank(x), rel=1e-4)


def test_one_direction_has_rank_one():
    x = torch.outer(torch.arange(1.0, 21), torch.randn(64, generator=torch.Generator().manual_seed(0)))
    assert effective_rank(x) == pytest.approx(1, abs=1e-3)
    assert effective_rank(x[:1]) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_rounding_is_not_rank_at_any_scale(scale):
    rng = np.random.default_rng(0)
    x = scale * torch.from_numpy(rng.integers(-9, 10, (300, 3)) @ rng.integers(-9, 10, (3, 512))).double()
    singular = np.linalg.svd(x.numpy(), compute_uv=False)[:3]
    p = singular / singular.sum()
    expected = math.exp(-(p * np.log(p)).sum())
    assert effective_rank(x) == pytest.approx(expected, rel=1e-6)
    if scale == 1:
        assert effective_rank_of_gram((x.T @ x).float()) == pytest.approx(expected, rel=1e-6)  # float32 holds integers


def test_it_can_be_summed_up_over_batches():
    x = torch.from_numpy(matrix(100, 12, decay=0.2))
    gram = sum(batch.T @ batch for batch in x.split(17))
    assert effective_rank_of_gram(gram) == pytest.approx(effective_rank(x), rel=1e-12)
    single = sum(batch.T @ batch for batch in x.float().split(17))
    assert effective_rank_of_gram(single) == pytest.approx(effective_rank(x), rel=1e-4)


def test_degenerate_matrices():
    assert effective_rank(torch.zeros(5, 3)) == 0.0
    assert effective_rank(torch.zeros(0, 3)) == 0.0
    for bad in (math.nan, math.inf):
        x = torch.ones(5, 3)
        x[2, 1] = bad
        assert math.isnan(effective_rank(x))
