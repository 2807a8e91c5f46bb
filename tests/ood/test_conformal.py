import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from vje.errors import UserError
from vje.ood.conformal import Calibration, outliers, p_values, threshold

# Few values, so that ties are common, with infinities and the two zeros, which are equal.
tied = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, np.inf])
scores = st.lists(tied | st.floats(allow_nan=False), min_size=1, max_size=30)
alphas = st.sampled_from([0.01, 0.05, 0.1, 0.29, 0.58, 0.9]) | st.floats(1e-6, 1 - 1e-6)


def brute_force(calibration: list[float], score: float) -> float:
    return (1 + sum(c >= score for c in calibration)) / (len(calibration) + 1)


@given(scores, scores)
def test_p_values_equal_brute_force(calibration: list[float], new: list[float]) -> None:
    assert p_values(calibration, new).tolist() == [brute_force(calibration, score) for score in new]


@given(scores, scores)
def test_larger_scores_never_have_larger_p_values(calibration: list[float], new: list[float]) -> None:
    p = p_values(calibration, np.sort(new))
    assert (np.diff(p) <= 0).all()
    assert (p >= 1 / (len(calibration) + 1)).all() and (p <= 1).all()


@given(scores, scores, alphas)
def test_threshold_says_what_the_p_value_says(calibration: list[float], new: list[float], alpha: float) -> None:
    flagged = outliers(p_values(calibration, new), alpha)
    assert flagged.tolist() == (np.asarray(new) > threshold(calibration, alpha)).tolist()


@given(st.integers(1, 400), alphas)
def test_threshold_is_exact_where_alpha_times_n_rounds(n: int, alpha: float) -> None:
    calibration, new = np.arange(n), np.arange(-1, n + 1)
    flagged = outliers(p_values(calibration, new), alpha)
    assert flagged.tolist() == (new > threshold(calibration, alpha)).tolist()


@pytest.mark.parametrize("n", [1, 19, 49, 68, 99, 199])
def test_a_rate_that_is_a_hair_below_a_p_value_does_not_reach_it(n: int) -> None:
    """The p-values are r / (n + 1), and scores 0 to n - 1 have the threshold n - r where r of them are allowed."""
    for r in range(1, n + 1):
        exact = r / (n + 1)
        for alpha, allowed in ((np.nextafter(exact, 0), r - 1), (exact, r), (np.nextafter(exact, 1), r)):
            assert threshold(range(n), alpha) == (n - allowed if allowed else np.inf)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("decimals", [None, 0], ids=["continuous", "tied"])
def test_false_alarm_rate_over_many_splits(alpha: float, decimals: int | None) -> None:
    """A fresh image and n = 99 calibration images drawn together: alpha is met exactly, and with ties never passed."""
    rng = np.random.default_rng(0)
    trials, n = 20_000, 99
    draws = rng.standard_cauchy((trials, n + 1)) * 2
    draws = draws if decimals is None else draws.round(decimals)
    rate = np.mean([outliers(p_values(row[1:], row[0]), alpha) for row in draws])
    error = 4 * np.sqrt(alpha * (1 - alpha) / trials)
    assert rate <= alpha + error
    if decimals is None:
        assert rate >= alpha - error


def test_false_alarm_rate_of_splits_of_one_pool() -> None:
    """Held-out scores divided again and again, half to calibrate with and half as fresh images."""
    rng = np.random.default_rng(1)
    pool = np.concatenate([rng.normal(-500, 40, 350), rng.gumbel(-400, 80, 49)])
    rates = []
    for _ in range(1000):
        rng.shuffle(pool)
        rates.append(outliers(p_values(pool[:199], pool[199:]), 0.1).mean())
    assert abs(np.mean(rates) - 0.1) < 4 * np.std(rates) / np.sqrt(len(rates))


def test_shape_is_kept() -> None:
    assert p_values([1.0, 2.0], np.zeros((2, 3))).shape == (2, 3)
    assert p_values([1.0, 2.0], 1.5) == 2 / 3


def test_unusable_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="2 of 3 scores are NaN"):
        p_values([1.0], [np.nan, 0.0, np.nan])
    with pytest.raises(UserError, match="1 of 2 calibration scores are NaN"):
        threshold([1.0, np.nan], 0.1)
    with pytest.raises(UserError, match="at least one image"):
        p_values([], [1.0])
    for alpha in (0.0, 1.0, -0.1, np.nan):
        with pytest.raises(UserError, match="between 0 and 1"):
            outliers([0.5], alpha)
        with pytest.raises(UserError, match="between 0 and 1"):
            threshold([0.5], alpha)


def test_calibration_file(tmp_path) -> None:
    file = tmp_path / "calibration.safetensors"
    written = Calibration(np.array([-np.inf, 0.1, 7.0]), "nll", "birds", "abc", "def")
    written.save(file)
    read = Calibration.read(file)
    assert read.scores.tolist() == written.scores.tolist() and read.resolution == 1 / 4
    assert (read.score, read.data, read.fingerprint, read.weights) == ("nll", "birds", "abc", "def")
    with safe_open(file, framework="numpy") as content:
        assert json.loads(content.metadata()["calibration"])["n"] == 3
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"cannot be read as a calibration.*vje calibrate"):
        Calibration.read(file)
