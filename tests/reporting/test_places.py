"""t-SNE for the live map: its pieces against their definitions, the whole against scikit-learn's."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE, trustworthiness

from vje.reporting.places import affinities, gradient, principal, settling


@pytest.fixture(scope="module")
def digits():
    pixels = load_digits().data[::6].astype(np.float32)  # 300 of them
    return pixels / np.linalg.norm(pixels, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def settled(digits):
    *_, last = settling(digits, principal(digits), first=True)
    return last


def divergence(places, joint):
    """The Kullback-Leibler divergence that t-SNE minimises, written out."""
    squared = ((places[:, None] - places[None]) ** 2).sum(2)
    near = 1 / (1 + squared)
    np.fill_diagonal(near, 0)
    rows = joint > 0
    return float((joint[rows] * np.log(joint[rows] / (near / near.sum())[rows])).sum())


def test_the_gradient_is_that_of_the_divergence():
    rng = np.random.default_rng(0)
    joint = affinities(rng.normal(size=(12, 5)), perplexity=3).astype(np.float64)
    places = rng.normal(size=(12, 2))
    slope = np.empty_like(places)
    for at in np.ndindex(places.shape):
        step = np.zeros_like(places)
        step[at] = 1e-5
        slope[at] = (divergence(places + step, joint) - divergence(places - step, joint)) / 2e-5
    np.testing.assert_allclose(gradient(places, joint), slope, rtol=1e-5, atol=1e-8)


def test_affinities_have_the_perplexity(digits):
    few = digits[:60].astype(np.float64)
    conditional = np.zeros((60, 60))
    for row, point in enumerate(few):
        others = np.arange(60) != row
        squared = ((few[others] - point) ** 2).sum(1)
        sharpness = brentq(lambda x, s=squared: entropy(softmax(-np.exp(x) * s)) - np.log(7), -5, 20)
        conditional[row, others] = softmax(-np.exp(sharpness) * squared)
    expected = (conditional + conditional.T) / 120
    np.testing.assert_allclose(affinities(digits[:60], perplexity=7), expected, rtol=1e-3, atol=1e-8)


def test_principal_components(digits):
    expected = PCA(2, svd_solver="full").fit_transform(digits)
    found = principal(digits)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-4)


def test_as_good_a_map_as_scikit_learns(digits, settled):
    theirs = TSNE(2, init="pca", random_state=0).fit_transform(digits)
    joint = affinities(digits)
    assert divergence(settled, joint) < 1.1 * divergence(theirs, joint)
    assert trustworthiness(digits, settled) > trustworthiness(digits, theirs) - 0.01


def test_a_model_that_moves_a_little_moves_the_map_a_little(digits, settled):
    noise = np.random.default_rng(0).normal(0, 0.02, digits.shape).astype(np.float32)
    *_, after = settling(digits + noise, settled, first=False)
    moved = np.linalg.norm(after - settled, axis=1)
    # of the spread: 0.06 to 0.16 by the last bit of the arithmetic (correlation 0.99); a new map is 1 away (0.5)
    assert np.median(moved) < 0.35 * settled.std() and np.corrcoef(after.ravel(), settled.ravel())[0, 1] > 0.95
    assert trustworthiness(digits + noise, after) > 0.97


@pytest.mark.parametrize("count", [5, 9])
def test_a_handful_of_points_and_twins_among_them(count):
    features = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    features[1] = features[0]
    *_, places = settling(features, principal(features), first=True)
    assert places.shape == (count, 2) and places.dtype == np.float32 and np.isfinite(places).all()
