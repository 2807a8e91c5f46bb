"""Margin, radius, distance, tertiles and rank correlations against hand-worked cases, explicit loops and scipy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from vje.errors import UserError
from vje.evaluation.geometry import STATISTICS, geometry, place, spearman, tertiles, training_curves


def test_margin_and_radius_by_hand():
    """Class 0 at 0 and 60 degrees (centre at 30), class 1 at 90 (its own centre); lengths matter to distances."""
    angles = torch.tensor([0.0, 60.0, 90.0]).deg2rad()
    means = torch.stack([angles.cos(), angles.sin()], 1) * torch.tensor([[1.0], [5.0], [0.1]])
    found = place(means, torch.tensor([0, 0, 1]))
    cos = [math.cos(math.radians(a)) for a in (0, 30, 60, 90)]
    assert found.radius.tolist() == pytest.approx([1 - cos[1], 1 - cos[1], 0.0], abs=1e-6)
    assert found.margin.tolist() == pytest.approx([cos[1] - cos[3], cos[1] - cos[1], 1 - cos[2]], abs=1e-6)
    apart = math.sqrt(1 + 25 - 2 * 5 * cos[2])  # between (1, 0) and the one at 60 degrees; the centre is half-way
    assert found.distance.tolist() == pytest.approx([apart / 2, apart / 2, 0.0], abs=1e-6)


def test_margin_equals_an_explicit_loop():
    generator = torch.Generator().manual_seed(0)
    means, labels = torch.randn(40, 6, generator=generator), torch.randint(0, 4, (40,), generator=generator) * 3
    x = means.double().numpy()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    centres = {int(c): x[labels.numpy() == c].mean(0) for c in labels.unique()}
    raw = {int(c): means.double().numpy()[labels.numpy() == c].mean(0) for c in labels.unique()}
    for i, (margin, radius, distance) in enumerate(zip(*vars(place(means, labels)).values(), strict=True)):
        cosine = {c: x[i] @ centre / np.linalg.norm(centre) for c, centre in centres.items()}
        own = cosine.pop(int(labels[i]))
        assert float(margin) == pytest.approx(own - max(cosine.values()), abs=1e-6)
        assert float(radius) == pytest.approx(1 - own, abs=1e-6)
        assert float(distance) == pytest.approx(np.linalg.norm(means[i].numpy() - raw[int(labels[i])]), abs=1e-5)


def test_digits_are_not_lost_where_the_means_are_far_from_the_origin():
    generator = torch.Generator().manual_seed(0)
    near, labels = torch.randn(300, 4, generator=generator), torch.arange(300) % 2
    means = 2**13 + near.mul(2**8).round() / 2**8  # which float32 holds
    x = means.double().numpy()
    centres = np.stack([x[labels.numpy() == c].mean(0) for c in (0, 1)])
    expected = np.linalg.norm(x - centres[labels.numpy()], axis=1)
    np.testing.assert_allclose(place(means, labels).distance.numpy(), expected, rtol=1e-6)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    centre = unit[labels.numpy() == 0].mean(0)
    radius = 1 - unit[0] @ centre / np.linalg.norm(centre)
    assert place(means, labels).radius[0].item() == pytest.approx(radius, rel=1e-3, abs=1e-12)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=60))
def test_tertiles_partition_exactly_and_in_order(values):
    x = torch.tensor(values)
    third = tertiles(x)
    sizes = third.bincount(minlength=3)
    assert sizes.sum() == len(x) and sizes.max() - sizes.min() <= 1
    for low in (0, 1):
        assert x[third == low].max() <= x[third == low + 1].min()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=40))
def test_spearman_is_the_correlation_of_mean_ranks(pairs):
    x, y = np.array(pairs, dtype=float).T
    if x.std() == 0 or y.std() == 0:
        return
    expected = np.corrcoef(rankdata(x), rankdata(y))[0, 1]
    assert spearman(torch.tensor(x), torch.tensor(y)) == pytest.approx(expected, abs=1e-12)


def test_the_table_has_the_means_and_deviations_of_each_third():
    generator = torch.Generator().manual_seed(1)
    means, labels = torch.randn(31, 5, generator=generator), torch.arange(31) % 3
    margin = place(means, labels).margin
    statistics = {name: torch.randn(31, generator=generator) for name in STATISTICS} | {
        "nll": -margin,
        "kl": 3 * margin + 1,
    }
    found = geometry(means, labels, statistics)
    order = margin.argsort()
    for title, rows in zip(("low", "mid", "high"), np.array_split(order.numpy(), 3), strict=True):
        for name in STATISTICS:
            values = statistics[name].double().numpy()[rows]
            assert found["tertiles"][title][name]["mean"] == pytest.approx(values.mean())
            assert found["tertiles"][title][name]["std"] == pytest.approx(values.std(ddof=1))
        assert found["tertiles"][title]["images"] == len(rows)
    assert found["spearman"]["margin"]["nll"] == pytest.approx(-1)
    assert found["spearman"]["margin"]["kl"] == pytest.approx(1)


def test_one_class_has_no_margin():
    with pytest.raises(UserError, match="two or more"):
        place(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))


def test_what_was_not_recorded_is_not_among_the_curves():
    assert training_curves([]) == training_curves([{"epoch": 1, "loss": 2.0}]) == {}
    baseline = [{"epoch": 1, "loss": 2.0, "effective_rank": 4.0}, {"epoch": 3, "loss": 1.0, "effective_rank": 5.0}]
    assert training_curves(baseline) == {"epoch": [1, 3], "effective_rank": [4.0, 5.0]}
    gaps = [{"epoch": 1, "kl": "nan"}, {"epoch": 2}]
    assert training_curves(gaps) == {"epoch": [1, 2], "kl": ["nan", None]}
