"""t-SNE: of directions alone, going on from where it was, and on as many threads as it is told."""

import threading

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE, trustworthiness
from threadpoolctl import threadpool_info, threadpool_limits

from vje.reporting.geometry import tsne


@pytest.fixture(scope="module")
def digits():
    pixels = load_digits().data[::3].astype(np.float32)  # 600 of them
    return pixels / np.linalg.norm(pixels, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def places(digits):
    return tsne(digits)


def test_lengths_do_not_count(digits, places):
    longer = digits * 2.0 ** np.random.default_rng(0).integers(-3, 3, (len(digits), 1)).astype(np.float32)
    np.testing.assert_array_equal(tsne(longer), places)
    assert trustworthiness(digits, places) > 0.98


def test_a_model_that_moves_a_little_moves_the_map_a_little(digits, places):
    noisy = digits + np.random.default_rng(0).normal(0, 0.02, digits.shape).astype(np.float32)
    before = places.copy()
    after = tsne(noisy, start=places)
    assert (places == before).all() and np.corrcoef(after.ravel(), places.ravel())[0, 1] > 0.95  # 0.99 and more
    assert trustworthiness(noisy, after) > 0.97


def test_a_model_that_moves_a_lot_has_a_map_of_its_own(digits, places):
    noisy = digits + np.random.default_rng(0).normal(0, 0.1, digits.shape).astype(np.float32)
    before, after, new = (trustworthiness(noisy, x) for x in (places, tsne(noisy, start=places), tsne(noisy)))
    assert after > before + 0.01 and after > new - 0.03


@pytest.mark.parametrize("count", [5, 9])
def test_a_handful_of_points_with_twins_and_one_without_a_direction(count):
    features = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    features[1] = features[0]
    features[-1] = 0
    for start in (None, tsne(features)):
        places = tsne(features, start=start)
        assert places.shape == (count, 2) and places.dtype == np.float32 and np.isfinite(places).all()


def threads():
    """That each OpenMP there is would use, if the calling thread asked it to."""
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"}


def test_it_takes_no_more_threads_than_told_and_leaves_others_theirs(digits, monkeypatch):
    """One for the live map, and as many as before for the thread that trains."""
    inside, looked, found = threading.Event(), threading.Event(), []
    fit = TSNE.fit_transform

    def note(self, features):
        found.append(threads())
        inside.set()
        assert looked.wait(30)
        return fit(self, features)

    def draw():
        with threadpool_limits(2, user_api="openmp"):
            tsne(digits[:9], threads=1)
            found.append(threads())

    monkeypatch.setattr(TSNE, "fit_transform", note)
    with threadpool_limits(3, user_api="openmp"):
        beside = threading.Thread(target=draw)
        beside.start()
        assert inside.wait(30) and threads() == {3}
        looked.set()
        beside.join()
        assert found == [{1}, {2}] and threads() == {3}
