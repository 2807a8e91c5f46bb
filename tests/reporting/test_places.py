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


@pytest.mark.parametrize(
    ("count", "given", "perplexity"),
    [(60, {"perplexity": 7}, 7), (120, {}, 30), (10, {}, 3)],
    ids=["as asked for", "as usual", "a third of the others"],
)
def test_affinities_have_the_perplexity(digits, count, given, perplexity):
    few = digits[:count].astype(np.float64)
    conditional = np.zeros((count, count))
    for row, point in enumerate(few):
        others = np.arange(count) != row
        squared = ((few[others] - point) ** 2).sum(1)
        sharpness = brentq(lambda x, s=squared: entropy(softmax(-np.exp(x) * s)) - np.log(perplexity), -5, 20)
        conditional[row, others] = softmax(-np.exp(sharpness) * squared)
    expected = (conditional + conditional.T) / (2 * count)
    np.testing.assert_allclose(affinities(digits[:count], **given), expected, rtol=1e-3, atol=1e-8)


def test_affinities_of_points_in_almost_one_direction(digits):
    few = digits[:60]  # all as long as each other: a coordinate that they share only shrinks their differences
    features = np.c_[np.ones(60, np.float32), 0.03 * few]
    expected = affinities(few, perplexity=7)
    np.testing.assert_allclose(affinities(features, perplexity=7), expected, atol=0.02 * expected.max())


def test_principal_components(digits):
    expected = PCA(2, svd_solver="full").fit_transform(digits)
    found = principal(digits)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-4)


def test_only_directions_count(digits):
    longer = digits * np.random.default_rng(0).uniform(0.1, 9, (len(digits), 1)).astype(np.float32)
    np.testing.assert_allclose(affinities(longer), affinities(digits), rtol=1e-2, atol=1e-8)
    found, expected = principal(longer), principal(digits)
    np.testing.assert_allclose(found * np.sign((found * expected).sum(axis=0)), expected, atol=1e-4)


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


def test_a_model_that_moves_a_lot_has_a_map_of_its_own(digits, settled):
    noisy = digits + np.random.default_rng(0).normal(0, 0.1, digits.shape).astype(np.float32)
    *_, new = settling(noisy, principal(noisy), first=True)
    *_, after = settling(noisy, settled, first=False)
    joint = affinities(noisy)
    # 1.0 to 1.2 times that of a new map by the last bit of the arithmetic; 1.5 to 1.7 before
    assert divergence(after, joint) < 1.35 * divergence(new, joint) < divergence(settled, joint)


def test_a_step_leaves_the_places_before_it_alone(digits, settled):
    before, steps = settled.copy(), settling(digits, settled, first=False)
    first = next(steps)
    kept = first.copy()
    second = next(steps)
    assert (settled == before).all() and (first == kept).all() and (second != first).any()


@pytest.mark.parametrize("count", [5, 9])
def test_a_handful_of_points_with_twins_and_one_without_a_direction(count):
    features = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    features[1] = features[0]
    features[-1] = 0
    *_, places = settling(features, principal(features), first=True)
    assert places.shape == (count, 2) and places.dtype == np.float32 and np.isfinite(places).all()
