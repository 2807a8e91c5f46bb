"""Metrics against scikit-learn, counting by hand, and the theory of two Gaussians."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, norm
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

from vje.errors import UserError
from vje.ood.metrics import (
    METRICS,
    all_metrics,
    aupr_in,
    aupr_out,
    auroc,
    bootstrap_interval,
    fpr95_id_positive,
    fpr95_ood_positive,
)

few_values = st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 0.1, 0.1 + 2**-56, 1.0, 3.5, math.inf])
any_values = st.floats(-1e6, 1e6) | st.sampled_from([-math.inf, math.inf])
many_sizes = st.lists(few_values, min_size=1, max_size=60) | st.lists(any_values, min_size=1, max_size=60)


def finite(scores):
    """The same order without infinities, which scikit-learn refuses."""
    return np.clip(np.asarray(scores, dtype=np.float64), -1e9, 1e9)


def labelled(id_scores, ood_scores):
    is_ood = np.concatenate([np.zeros(len(id_scores)), np.ones(len(ood_scores))])
    return is_ood, np.concatenate([finite(id_scores), finite(ood_scores)])


def area_under_precision_recall(truth, scores):
    precision, recall, _ = precision_recall_curve(truth, scores)
    return auc(recall, precision)


def share_flagged(positives, negatives):
    """Of the negatives, those at or above the highest threshold that finds 95% of the positives; by counting."""
    for t in sorted(set(positives), reverse=True):
        if Fraction(sum(x >= t for x in positives), len(positives)) >= Fraction(95, 100):
            return sum(x >= t for x in negatives) / len(negatives)
    raise AssertionError("the lowest threshold finds all")


# Against scikit-learn and counting


@settings(max_examples=200)
@given(many_sizes, many_sizes)
def test_areas_equal_scikit_learn(id_scores, ood_scores):
    is_ood, scores = labelled(id_scores, ood_scores)
    assert auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(is_ood, scores), abs=1e-12)
    assert aupr_out(id_scores, ood_scores) == pytest.approx(area_under_precision_recall(is_ood, scores), abs=1e-12)
    assert aupr_in(id_scores, ood_scores) == pytest.approx(area_under_precision_recall(1 - is_ood, -scores), abs=1e-12)


@settings(max_examples=200)
@given(many_sizes, many_sizes)
def test_false_positive_rates_equal_counting_and_scikit_learn(id_scores, ood_scores):
    found = fpr95_ood_positive(id_scores, ood_scores), fpr95_id_positive(id_scores, ood_scores)
    flipped = [-x for x in id_scores], [-x for x in ood_scores]
    assert found == (share_flagged(ood_scores, id_scores), share_flagged(*flipped))
    is_ood, scores = labelled(id_scores, ood_scores)
    for value, truth, sign in zip(found, (is_ood, 1 - is_ood), (1, -1), strict=True):
        fpr, tpr, _ = roc_curve(truth, sign * scores, drop_intermediate=False)
        assert value == pytest.approx(fpr[tpr >= 0.95].min(), abs=1e-12)


@pytest.mark.parametrize(("count_id", "count_ood"), [(3, 4000), (4000, 3), (1000, 700)])
def test_imbalanced_asymmetric_scores(count_id, count_ood):
    generator = np.random.default_rng(count_id)
    id_scores = generator.gamma(2.0, size=count_id).round(1).astype(np.float32)
    ood_scores = (generator.exponential(3.0, size=count_ood) - 0.5).round(1).astype(np.float32)
    is_ood, scores = labelled(id_scores, ood_scores)
    assert auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(is_ood, scores), abs=1e-12)
    assert aupr_out(id_scores, ood_scores) == pytest.approx(area_under_precision_recall(is_ood, scores), abs=1e-12)
    assert aupr_in(id_scores, ood_scores) == pytest.approx(area_under_precision_recall(1 - is_ood, -scores), abs=1e-12)


def test_hundreds_of_thousands_of_scores():
    generator = np.random.default_rng(0)
    id_scores, ood_scores = generator.normal(size=100_000), generator.normal(1.0, 2.0, size=200_000)
    pairs = mannwhitneyu(ood_scores, id_scores).statistic
    assert auroc(id_scores, ood_scores) == pytest.approx(pairs / 2e10, abs=1e-12)


# Small examples, and metrics that are easily confused


def test_hand_worked_example_with_a_tie():
    id_scores, ood_scores = [1, 2, 3, 4], [3, 5]
    assert auroc(id_scores, ood_scores) == (2 + 0.5 + 4) / 8
    # finding OOD, highest first: 5 -> (1/2, 1), 4 -> (1/2, 1/2), 3 -> (1, 1/2)
    assert aupr_out(id_scores, ood_scores) == pytest.approx(0.5 * 1 + 0.5 * 0.5, abs=1e-15)
    # finding ID, lowest first: 1 -> (1/4, 1), 2 -> (1/2, 1), 3 -> (3/4, 3/4), 4 -> (1, 4/5)
    expected = 0.5 * 1 + 0.25 * (1 + 0.75) / 2 + 0.25 * (0.75 + 0.8) / 2
    assert aupr_in(id_scores, ood_scores) == pytest.approx(expected, abs=1e-15)


def test_precision_recall_areas_cannot_be_swapped():
    """Of a useless score the area is about the share of the positive class."""
    generator = np.random.default_rng(0)
    id_scores, ood_scores = generator.normal(size=9000), generator.normal(size=1000)
    assert aupr_in(id_scores, ood_scores) == pytest.approx(0.9, abs=0.02)
    assert aupr_out(id_scores, ood_scores) == pytest.approx(0.1, abs=0.02)
    named = all_metrics(id_scores, ood_scores)
    assert named["aupr_in"] > 0.8
    assert named["aupr_out"] < 0.2


def test_false_positive_rates_cannot_be_swapped():
    id_scores, ood_scores = [0.0, 1.0, 2.0, 3.0], [2.5, 4.0, 5.0]
    assert fpr95_ood_positive(id_scores, ood_scores) == 1 / 4  # all OOD lie at 2.5 or above, and so does the ID 3
    assert fpr95_id_positive(id_scores, ood_scores) == 1 / 3  # all ID lie at 3 or below, and so does the OOD 2.5
    named = all_metrics(id_scores, ood_scores)
    assert (named["fpr95_ood_positive"], named["fpr95_id_positive"]) == (1 / 4, 1 / 3)


def test_a_larger_score_means_out_of_distribution():
    assert all_metrics([0.0, 1.0], [2.0, 3.0]) == {
        "auroc": 1.0,
        "aupr_in": 1.0,
        "aupr_out": 1.0,
        "fpr95_ood_positive": 0.0,
        "fpr95_id_positive": 0.0,
    }
    assert auroc([2.0, 3.0], [0.0, 1.0]) == 0.0


@pytest.mark.parametrize("count", [20, 21, 43, 45, 51])
def test_rounding_takes_no_area_above_one(count):
    """Twenty recalls of a twentieth each add up to a little more than one in floating point."""
    assert all_metrics([-1.0, 0.0], range(1, count + 1))["aupr_out"] == 1.0
    assert all_metrics(range(-count, 0), [1.0, 2.0])["aupr_in"] == 1.0


def test_exactly_95_percent_is_enough():
    twenty = np.arange(20.0)
    assert fpr95_ood_positive([1.0, 0.5], twenty) == 0.5  # 19 of the 20 lie at 1 or above
    assert fpr95_id_positive(twenty, [18.0, 18.5]) == 0.5


def test_points_inside_straight_pieces_of_the_curve_count():
    twenty = np.arange(20.0)  # the curve is the diagonal, of which scikit-learn by default keeps the ends alone
    assert fpr95_ood_positive(twenty, twenty) == fpr95_id_positive(twenty, twenty) == 0.95


# Properties


@settings(max_examples=60)
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=40), st.lists(st.integers(-20, 20), min_size=1, max_size=40))
def test_only_the_order_matters(id_scores, ood_scores):
    a, b = np.asarray(id_scores, dtype=np.float64), np.asarray(ood_scores, dtype=np.float64)
    expected = all_metrics(a, b)
    for transform in (np.exp, lambda x: 3 * x - 7, lambda x: x**3, lambda x: np.where(x == 20, np.inf, x)):
        assert all_metrics(transform(a), transform(b)) == expected
    permuted = np.random.default_rng(0).permutation(a)
    assert all_metrics(permuted, b) == expected


@settings(max_examples=60)
@given(many_sizes, many_sizes)
def test_all_metrics_are_the_single_ones_and_mirror_each_other(id_scores, ood_scores):
    values = all_metrics(id_scores, ood_scores)
    assert values == {name: metric(id_scores, ood_scores) for name, metric in METRICS.items()}
    assert all(type(value) is float and 0 <= value <= 1 for value in values.values())
    mirrored = all_metrics([-x for x in ood_scores], [-x for x in id_scores])
    assert mirrored["auroc"] == pytest.approx(values["auroc"], abs=1e-12)
    assert (mirrored["aupr_in"], mirrored["aupr_out"]) == (values["aupr_out"], values["aupr_in"])
    assert mirrored["fpr95_id_positive"] == values["fpr95_ood_positive"]
    assert mirrored["fpr95_ood_positive"] == values["fpr95_id_positive"]


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_any_array_will_do(metric):
    id_scores, ood_scores = [0.0, 1.0, 2.5], [1.0, 2.0, 3.0, 4.0]
    expected = metric(id_scores, ood_scores)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert metric(torch.tensor(id_scores, dtype=dtype), torch.tensor(ood_scores, requires_grad=True)) == expected
    assert metric(np.float32(id_scores), np.asarray(ood_scores)) == expected


def test_values_that_float32_cannot_tell_apart_do_not_tie_in_float64():
    assert auroc([1.0], [1.0 + 2**-40]) == 1.0
    assert auroc(np.float32([0.1]), np.float64([0.1])) == 0.0  # the float32 nearest 0.1 is above it
    assert auroc(np.float32([0.1]), np.float32([0.1])) == 0.5


# Mistakes


@pytest.mark.parametrize("metric", [*METRICS.values(), all_metrics], ids=[*METRICS, "all_metrics"])
def test_nan_and_empty_scores_are_refused(metric):
    good = [0.0, 1.0]
    with pytest.raises(UserError, match=r"2 of the 3 id_scores are NaN"):
        metric([math.nan, 1.0, math.nan], good)
    with pytest.raises(ValueError, match=r"1 of the 1 id_scores and 2 of the 2 ood_scores are NaN"):
        metric([math.nan], [math.nan, math.nan])
    with pytest.raises(UserError, match=r"1 of the 4 ood_scores are NaN"):
        metric(good, torch.tensor([1.0, 2.0, math.nan, 3.0]))
    with pytest.raises(UserError, match="id_scores is empty"):
        metric([], good)
    with pytest.raises(UserError, match="ood_scores is empty"):
        metric(good, np.zeros(0))
    with pytest.raises(UserError, match=r"ood_scores .* got shape \[2, 1\]"):
        metric(good, np.zeros((2, 1)))


# The bootstrap


def gaussians(seed, count_id, count_ood, shift):
    generator = np.random.default_rng(seed)
    return generator.normal(size=count_id), generator.normal(shift, 1.0, size=count_ood)


def test_bootstrap_intervals_cover_the_auroc_of_two_gaussians():
    shift, trials = 1.0, 40
    truth = norm.cdf(shift / math.sqrt(2))
    covered = 0
    for seed in range(trials):
        low, high = bootstrap_interval(auroc, *gaussians(seed, 120, 80, shift), confidence=0.9, samples=60, seed=seed)
        covered += low <= truth <= high
    assert 30 <= covered < trials  # 36 expected; 29 or fewer have a probability of 0.15% at a true coverage of 0.9


def test_bootstrap_intervals_have_the_width_that_theory_predicts():
    scores = gaussians(0, 2000, 1000, 1.0)
    low, high = bootstrap_interval(lambda a, b: float(np.mean(b) - np.mean(a)), *scores, samples=500)
    expected = 2 * norm.ppf(0.975) * math.sqrt(np.var(scores[0]) / 2000 + np.var(scores[1]) / 1000)
    assert high - low == pytest.approx(expected, rel=0.15)
    assert low < np.mean(scores[1]) - np.mean(scores[0]) < high


def test_bootstrap_is_a_function_of_the_seed_and_the_scores():
    scores = gaussians(1, 50, 40, 0.5)
    state = np.random.get_state()[1].copy()
    first = bootstrap_interval(aupr_in, *scores, samples=20, seed=3)
    assert (np.random.get_state()[1] == state).all()
    assert bootstrap_interval(aupr_in, torch.tensor(scores[0][::-1].copy()), scores[1], samples=20, seed=3) == first
    assert bootstrap_interval(aupr_in, *scores, samples=20, seed=4) != first
    low, high = bootstrap_interval(aupr_in, *scores, confidence=0.5, samples=20, seed=3)
    assert first[0] < low < high < first[1]


def test_bootstrap_resamples_each_side_by_itself():
    seen = []

    def record(id_scores, ood_scores):
        seen.append((sorted(id_scores), sorted(ood_scores)))
        return 0.5

    assert bootstrap_interval(record, [0.0, 1.0, 2.0], [10.0, 11.0], samples=50) == (0.5, 0.5)
    assert len(seen) == 50
    assert all(len(a) == 3 and set(a) <= {0.0, 1.0, 2.0} for a, _ in seen)
    assert all(len(b) == 2 and set(b) <= {10.0, 11.0} for _, b in seen)
    assert len({tuple(a) for a, _ in seen}) > 5


def test_bootstrap_refuses_what_has_no_meaning():
    with pytest.raises(UserError, match=r"confidence .* got 95"):
        bootstrap_interval(auroc, [0.0], [1.0], confidence=95)
    for none in (0, 1):
        with pytest.raises(UserError, match=f"confidence .* got {none}"):
            bootstrap_interval(auroc, [0.0], [1.0], confidence=none)
    with pytest.raises(UserError, match="at least one sample"):
        bootstrap_interval(auroc, [0.0], [1.0], samples=0)
    with pytest.raises(UserError, match="1 of the 1 id_scores are NaN"):
        bootstrap_interval(auroc, [math.nan], [1.0])
