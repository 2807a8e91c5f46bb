"""Weighted k-NN against a slow implementation in float64 and against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from vje.errors import UserError
from vje.evaluation import knn
from vje.evaluation.knn import knn_accuracy, knn_predict

TEMPERATURE = 0.07


def blobs(bank=300, queries=80, dim=16, classes=7, seed=0, spread=1.5):
    """Overlapping classes: neither trivial nor hopeless."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(classes, dim))
    labels = [rng.integers(0, classes, count) for count in (bank, queries)]
    features = [centers[y] + spread * rng.normal(size=(len(y), dim)) for y in labels]
    return [torch.from_numpy(x).float() for x in features], [torch.from_numpy(y) for y in labels]


def reference(bank, labels, query, k):
    """Votes of one query's neighbours by class, and whether it is clear who they are."""
    cosine = bank @ query / (np.linalg.norm(bank, axis=1) * np.linalg.norm(query))
    order = np.argsort(-cosine)
    nearest, next_best = order[:k], order[k : k + 1]
    votes = np.bincount(labels[nearest], np.exp(cosine[nearest] / TEMPERATURE), minlength=labels.max() + 1)
    neighbours_clear = not len(next_best) or cosine[nearest[-1]] - cosine[next_best[0]] > 1e-5
    ranked = np.sort(votes)[::-1]
    return votes, neighbours_clear and (len(ranked) == 1 or ranked[0] > ranked[1] * (1 + 1e-3))


@settings(max_examples=60)
@given(
    bank=st.integers(1, 40),
    queries=st.integers(1, 10),
    dim=st.integers(1, 8),
    classes=st.integers(1, 5),
    k=st.integers(1, 60),
    seed=st.integers(0, 2**16),
)
def test_it_is_the_slow_implementation(bank, queries, dim, classes, k, seed):
    rng = np.random.default_rng(seed)
    x, q = rng.normal(size=(bank, dim)), rng.normal(size=(queries, dim))
    labels = rng.integers(0, classes, bank)
    features = [torch.from_numpy(v).float() for v in (x, q)]
    predicted = knn_predict(features[0], torch.from_numpy(labels), features[1], k, TEMPERATURE).numpy()
    for query, answer in zip(q, predicted, strict=True):
        votes, clear = reference(x, labels, query, k)
        if clear:
            assert answer == votes.argmax()
        assert answer in labels


@pytest.mark.parametrize("k", [1, 20, 300, 1000])
def test_it_is_scikit_learns(k):
    (bank, queries), (bank_labels, query_labels) = blobs()
    judge = KNeighborsClassifier(
        min(k, len(bank)), metric="cosine", weights=lambda distance: np.exp((1 - distance) / TEMPERATURE)
    ).fit(bank.double().numpy(), bank_labels.numpy())
    expected = judge.predict(queries.double().numpy())
    assert np.array_equal(knn_predict(bank, bank_labels, queries, k, TEMPERATURE).numpy(), expected)
    accuracy = knn_accuracy(bank, bank_labels, queries, query_labels, k)
    assert accuracy == pytest.approx(100 * np.mean(expected == query_labels.numpy()))
    assert 20 < accuracy < 100


@pytest.mark.parametrize("chunk", [1, 299, 300, 2999, 10**6])
def test_chunks_do_not_matter(chunk, monkeypatch):
    (bank, queries), (labels, _) = blobs()
    whole = knn_predict(bank, labels, queries, 20, TEMPERATURE)
    monkeypatch.setattr(knn, "CHUNK", chunk)
    assert torch.equal(knn_predict(bank, labels, queries, 20, TEMPERATURE), whole)


def test_only_directions_count():
    (bank, queries), (labels, _) = blobs()
    scale = torch.rand(len(bank), 1, generator=torch.Generator().manual_seed(0)) * 100 + 0.01
    predicted = knn_predict(bank, labels, queries, 20, TEMPERATURE)
    assert torch.equal(knn_predict(bank * scale, labels, queries * 1e-3, 20, TEMPERATURE), predicted)


def test_half_precision_features_are_compared_in_float32():
    (bank, queries), (labels, _) = blobs()
    bank, queries = bank.bfloat16(), queries.bfloat16()
    expected = knn_predict(bank.double().float(), labels, queries.double().float(), 20, TEMPERATURE)
    assert torch.equal(knn_predict(bank, labels, queries, 20, TEMPERATURE), expected)
    assert torch.equal(knn_predict(bank.float(), labels, queries, 20, TEMPERATURE), expected)


@pytest.mark.parametrize("apart", [1e-2, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("k", [1, 20])
def test_features_that_are_nearly_parallel_are_told_apart(apart, k):
    """Cosines differ by ``apart`` squared, less than float32 rounds a cosine by; the features' own digits have it."""
    (bank, queries), (bank_labels, query_labels) = blobs(spread=0.5)
    common = 3 + torch.randn(16, generator=torch.Generator().manual_seed(0))
    bank, queries = (common + apart * x for x in (bank, queries))
    units = [x.double() / x.double().norm(dim=1, keepdim=True) for x in (queries, bank)]
    nearest = torch.cdist(*units, compute_mode="donot_use_mm_for_euclid_dist").topk(k, largest=False).indices
    votes = torch.nn.functional.one_hot(bank_labels[nearest], 7).sum(1)
    first, second = votes.topk(2).values.T
    clear = first > second + 1  # the rest hangs on the nearest of all, or on weights of votes
    predicted = knn_predict(bank, bank_labels, queries, k, TEMPERATURE)
    expected = votes.argmax(1)
    if k == 1:
        assert (predicted == expected).double().mean() > 0.98
    else:
        assert clear.sum() > 50 and torch.equal(predicted[clear], expected[clear])
    assert knn_accuracy(bank, bank_labels, queries, query_labels, k) > 90


def test_a_zero_feature_is_at_right_angles_to_nearly_parallel_ones():
    bank = torch.tensor([[1.0, 2e-4], [0.0, 0.0], [1.0, 3e-4]])
    assert knn_predict(bank, torch.arange(3), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 1, TEMPERATURE).tolist() == [
        0,
        1,
    ]


def test_at_a_low_temperature_the_nearest_neighbour_decides():
    """Also where exp(similarity / temperature) is beyond float32, as exp(200) is."""
    bank, labels = torch.tensor([[1.0, 0.3], [1.0, 0.4], [1.0, 0.06]]), torch.tensor([0, 0, 1])
    assert knn_predict(bank, labels, torch.tensor([[1.0, 0.05]]), 3, temperature=0.005).tolist() == [1]
    far = torch.tensor([[0.5, 0.1, -2.0]])  # at a cosine of 0.24 from the nearest
    assert knn_predict(torch.eye(3), torch.tensor([1, 2, 0]), far, 3, temperature=0.005).tolist() == [1]


def test_twenty_neighbours_vote_unless_told_otherwise():
    """The ten nearest are of class 1 and the others of class 0, all at nearly the same angle: eleven outvote ten."""
    angles = 1e-3 * torch.arange(1, 41)
    bank, labels = torch.stack([angles.cos(), angles.sin()], 1), (torch.arange(40) < 10).long()
    query, truth = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert knn_accuracy(bank, labels, query, truth) == 100
    assert knn_accuracy(bank, labels, query, truth, k=21) == 0


def test_a_near_neighbour_outvotes_several_far_ones():
    bank = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.6], [0.5, 0.7]])
    labels = torch.tensor([0, 1, 1, 1])
    query = torch.tensor([[1.0, 0.02]])
    assert knn_predict(bank, labels, query, 4, TEMPERATURE).tolist() == [0]
    assert knn_predict(bank, labels, query, 4, temperature=100.0).tolist() == [1]  # nearly equal votes


def test_class_numbers_may_be_enormous():
    bank, queries = torch.eye(3), torch.eye(3)[[2, 0, 1]]
    labels = torch.tensor([3, 10**12, 7])
    assert knn_predict(bank, labels, queries, 1, 0.07).tolist() == [7, 3, 10**12]


def test_classes_may_have_gaps_and_the_test_set_others():
    bank, labels = torch.eye(3), torch.tensor([4, 900, 17])
    assert knn_accuracy(bank, labels, torch.eye(3), labels, k=1) == 100.0
    assert knn_accuracy(bank, labels, torch.eye(3), torch.tensor([4, 5, 6]), k=1) == pytest.approx(100 / 3)


def test_opposite_and_zero_features_are_counted():
    bank, labels = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    assert knn_predict(bank, labels, torch.tensor([[-1.0, 0.0]]), 2, TEMPERATURE).tolist() == [1]
    assert knn_predict(bank[:1], labels[:1], torch.tensor([[-1.0, 0.0]]), 1, TEMPERATURE).tolist() == [0]


def test_mistakes():
    features, labels = torch.eye(3), torch.arange(3)
    for k in (0, -1):
        with pytest.raises(UserError, match=f"at least one neighbour, got k={k}"):
            knn_accuracy(features, labels, features, labels, k=k)
    with pytest.raises(UserError, match="at least one test image"):
        knn_accuracy(features, labels, features[:0], labels[:0])
    with pytest.raises(UserError, match="at least one training image"):
        knn_accuracy(features[:0], labels[:0], features, labels)
    for of_bank, of_queries in (
        (labels[:2], labels),
        (labels, labels[:1]),
        (labels[:, None], labels),
        (labels, labels[:, None]),
    ):
        with pytest.raises(UserError, match="and as many classes"):
            knn_accuracy(features, of_bank, features, of_queries)
    with pytest.raises(UserError, match="features of one width, got 2 and 3"):
        knn_accuracy(features, labels, features[:, :2], labels)
    for broken in (math.nan, math.inf):
        other = features.clone()
        other[1, 2] = broken
        with pytest.raises(UserError, match="1 of 3 training images"):
            knn_accuracy(other, labels, features, labels)
        with pytest.raises(UserError, match="1 of 3 test images"):
            knn_accuracy(features, labels, other, labels)
    for temperature in (0.0, -0.07, math.nan):
        with pytest.raises(UserError, match="positive temperature"):
            knn_accuracy(features, labels, features, labels, temperature=temperature)


def test_arrays_are_taken_as_tensors_are():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 3, 40)
    expected = knn_accuracy(*map(torch.from_numpy, (x[:30], y[:30], x[30:], y[30:])), k=5)
    assert knn_accuracy(x[:30], y[:30], x[30:], y[30:], k=5) == expected
