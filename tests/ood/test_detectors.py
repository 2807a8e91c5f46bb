"""Feature-space detectors against scikit-learn, scipy, brute force and numbers worked out by hand."""

import math
import warnings

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from scipy import optimize
from scipy.special import logsumexp, softmax
from sklearn.covariance import EmpiricalCovariance
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from vje.errors import UserError
from vje.ood import base
from vje.ood.detectors import DETECTORS, KNN, MSP, Detector, Energy, FeatureNorm, Mahalanobis, ReAct, ViM
from vje.ood.linear import LinearClassifier, fit_linear
from vje.ood.metrics import auroc

DIM, CLASSES = 6, 3
LOGIT_DETECTORS = (MSP, Energy, ReAct, ViM)


def features(count, seed=0, dim=DIM):
    """Correlated, away from the origin, with features on different scales."""
    generator = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(dim, dim)) * np.linspace(0.3, 3.0, dim)
    return torch.tensor(generator.normal(size=(count, dim)) @ mixing + np.arange(dim), dtype=torch.float32)


def labelled(count, seed=0):
    """Classes that overlap, of different sizes, numbered 2, 5 and 9."""
    y = torch.tensor([2, 5, 9])[torch.arange(count) % 7 % CLASSES]
    x = features(count, seed)
    x[:, 0] += 2.0 * (y == 5)
    x[:, 3] -= 3.0 * (y == 9)
    return x, y


def random_classifier(seed=0, classes=CLASSES, dim=DIM):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    return LinearClassifier(weight, torch.randn(classes, generator=generator, dtype=torch.float64))


def fitted(kind):
    x, y = labelled(90)
    detector = kind(k=7) if kind is KNN else kind()
    return detector.fit(x, y)


def close(found, expected, rtol=1e-6, atol=1e-6):
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=rtol, atol=atol)


# Nearest neighbours


@pytest.mark.parametrize("k", [1, 5, 40])
def test_knn_equals_scikit_learn_and_brute_force(k):
    bank, queries = features(40), features(25, seed=1)
    unit_bank, unit_queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (bank.numpy(), queries.numpy()))
    found = KNN(k).fit(bank).score(queries)
    distances, _ = NearestNeighbors(n_neighbors=k).fit(unit_bank).kneighbors(unit_queries)
    close(found, distances[:, -1], atol=1e-6)
    every = [sorted(math.dist(q, b) for b in unit_bank)[k - 1] for q in unit_queries]
    close(found, every, atol=1e-6)


def test_knn_with_fewer_training_images_than_neighbours_takes_the_farthest():
    bank, queries = features(4), features(3, seed=1)
    torch.testing.assert_close(KNN(50).fit(bank).score(queries), KNN(4).fit(bank).score(queries), rtol=0, atol=0)


def test_knn_ignores_length_and_keeps_its_digits_for_close_neighbours():
    detector = KNN(1).fit(torch.tensor([[3.0, 0.0, 0.0]]))
    near = torch.tensor([[1.0, 1e-5, 0.0], [70.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    close(detector.score(near), [1e-5, 0.0, 1.0], rtol=1e-5, atol=0)


# Mahalanobis


def test_one_gaussian_equals_scikit_learn_and_numpy():
    bank, queries = features(200), features(30, seed=1)
    found = Mahalanobis(ridge=0.0).fit(bank).score(queries)
    close(found, EmpiricalCovariance().fit(bank.double().numpy()).mahalanobis(queries.double().numpy()), rtol=1e-5)
    x, q = bank.double().numpy(), queries.double().numpy()
    precision = np.linalg.inv(np.cov(x.T, bias=True))
    close(found, [(row - x.mean(0)) @ precision @ (row - x.mean(0)) for row in q], rtol=1e-5)


def test_class_conditional_takes_the_nearest_class_under_the_shared_covariance():
    (x, y), queries = labelled(120), features(30, seed=1)
    found = Mahalanobis(class_conditional=True, ridge=0.0).fit(x, y).score(queries)
    groups = [x[y == c].double().numpy() for c in (2, 5, 9)]
    scatter = sum((g - g.mean(0)).T @ (g - g.mean(0)) for g in groups)
    precision = np.linalg.inv(scatter / 120)
    expected = [min((q - g.mean(0)) @ precision @ (q - g.mean(0)) for g in groups) for q in queries.double().numpy()]
    close(found, expected, rtol=1e-5)


def test_class_conditional_by_hand():
    """Two classes with means (0, 0) and (10, 0); within each, variance 1 along the first axis and 4 along the other."""
    around = torch.tensor([[1.0, 2.0], [-1.0, 2.0], [1.0, -2.0], [-1.0, -2.0]])
    x = torch.cat([around, around + torch.tensor([10.0, 0.0])])
    y = torch.tensor([0] * 4 + [1] * 4)
    queries = torch.tensor([[0.0, 4.0], [7.0, 0.0], [5.0, 0.0]])
    close(Mahalanobis(class_conditional=True, ridge=0.0).fit(x, y).score(queries), [4.0, 9.0, 25.0])
    close(Mahalanobis(ridge=0.0).fit(x).score(queries), [25 / 26 + 4, 4 / 26, 0.0])  # one mean (5, 0), variances 26, 4


def test_the_ridge_is_relative_to_the_mean_variance():
    x, queries = features(50), features(10, seed=1)
    covariance = np.cov(x.double().numpy().T, bias=True)
    precision = np.linalg.inv(covariance + 0.1 * np.trace(covariance) / DIM * np.eye(DIM))
    difference = queries.double().numpy() - x.double().numpy().mean(0)
    expected = np.einsum("nd,de,ne->n", difference, precision, difference)
    close(Mahalanobis(ridge=0.1).fit(x).score(queries), expected, rtol=1e-5)
    close(Mahalanobis(ridge=0.1).fit(1e-4 * x).score(1e-4 * queries), expected, rtol=1e-4)


def test_unit_measures_directions_alone():
    bank, queries = features(200), features(30, seed=1)
    x, q = (f / np.linalg.norm(f, axis=1, keepdims=True) for f in (bank.double().numpy(), queries.double().numpy()))
    expected = EmpiricalCovariance().fit(x).mahalanobis(q)
    detector = Mahalanobis(ridge=0.0, unit=True).fit(bank)
    close(detector.score(queries), expected, rtol=1e-4)
    close(detector.score(100 * queries), expected, rtol=1e-4)


def test_fewer_images_than_features_and_dead_features_are_no_obstacle():
    x = features(4)
    x[:, 2] = 7.0
    scores = Mahalanobis().fit(x).score(torch.cat([x, x + torch.eye(DIM)[2]]))
    assert scores.isfinite().all()
    assert scores[4:].min() > 1000 * scores[:4].max()


# Norms and logits


def test_feature_norm_is_minus_the_norm():
    x = features(20)
    close(FeatureNorm().fit(x).score(x), -np.linalg.norm(x.numpy(), axis=1))


def test_msp_equals_one_minus_scipys_softmax():
    x, classifier = features(20), random_classifier()
    logits = x.double().numpy() @ classifier.weight.numpy().T + classifier.bias.numpy()
    close(MSP(classifier=classifier).fit(x).score(x), 1 - softmax(logits, axis=1).max(1))


def test_msp_tells_very_confident_inputs_apart():
    classifier = LinearClassifier(torch.eye(2), torch.zeros(2))
    x = torch.tensor([[20.0, 0.0], [25.0, 0.0]])
    close(MSP(classifier).fit(x).score(x), [math.exp(-20), math.exp(-25)], rtol=1e-4, atol=0)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_energy_equals_scipys_logsumexp(temperature):
    x, classifier = features(20), random_classifier()
    logits = x.double().numpy() @ classifier.weight.numpy().T + classifier.bias.numpy()
    found = Energy(temperature, classifier=classifier).fit(x).score(x)
    close(found, -temperature * logsumexp(logits / temperature, axis=1))


def test_react_by_hand():
    classifier = LinearClassifier(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.5, 0.0]))
    training = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 10.0]])
    # sorted entries 0 1 2 3 4 10: the 80th percentile is the entry at 0.8 * 5, which is 4
    queries = torch.tensor([[1.0, 2.0], [6.0, 2.0], [9.0, 9.0]])
    expected = [
        -math.log(math.exp(1.5) + math.exp(4.0)),
        -math.log(math.exp(4.5) + math.exp(4.0)),
        -math.log(math.exp(4.5) + math.exp(8.0)),
    ]
    close(ReAct(80, classifier).fit(training).score(queries), expected)


def test_react_with_nothing_to_clip_is_energy_and_fits_the_percentile_of_all_entries():
    x, classifier = features(50), random_classifier()
    torch.testing.assert_close(
        ReAct(100, classifier).fit(x).score(x), Energy(classifier=classifier).fit(x).score(x), rtol=0, atol=0
    )
    clipped = np.minimum(x.numpy(), np.percentile(x.numpy(), 90)).astype(np.float64)
    logits = clipped @ classifier.weight.numpy().T + classifier.bias.numpy()
    close(ReAct(classifier=classifier).fit(x).score(x), -logsumexp(logits, axis=1))


def test_vim_by_hand():
    """W has the rows (2, 0, 0) and (0, 1, 0) and b = (2, 3), so the logits vanish at o = (-1, -3, 0)."""
    classifier = LinearClassifier(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([2.0, 3.0]))
    around = torch.tensor([[4.0, 0.0, 1.0], [-4.0, 0.0, 1.0], [0.0, 3.0, -1.0], [0.0, -3.0, -1.0]])
    training = around + torch.tensor([-1.0, -3.0, 0.0])
    # Mean squares around o are 8, 4.5 and 1 with no products: the principal plane is that of the first two axes, and
    # the residual is |third|, of mean 1. The logits are (2, 1) times the first two: maxima 8, 0, 3, 0, of mean 11/4.
    alpha = 11 / 4
    queries = torch.tensor([[0.0, -3.0, 2.0], [-1.0, 1.0, -3.0]])
    energies = [math.log(math.exp(2.0) + 1), math.log(1 + math.exp(4.0))]
    close(ViM(2, classifier).fit(training).score(queries), [2 * alpha - energies[0], 3 * alpha - energies[1]])
    # With one principal direction the residual has the second and third coordinate: mean (1 + 1 + 2 sqrt(10)) / 4.
    alpha = 11 / (2 + 2 * math.sqrt(10))
    expected = [2 * alpha - energies[0], 5 * alpha - energies[1]]
    close(ViM(1, classifier).fit(training).score(queries), expected)


def test_vim_equals_the_formulas_of_the_paper():
    x, queries, classifier = features(60), features(20, seed=1), random_classifier()
    weight, bias = classifier.weight.numpy(), classifier.bias.numpy()
    shifted, shifted_queries = (z.double().numpy() + np.linalg.pinv(weight) @ bias for z in (x, queries))
    np.testing.assert_allclose(weight @ (-np.linalg.pinv(weight) @ bias) + bias, 0, atol=1e-12)  # logits at the origin
    _, _, directions = np.linalg.svd(shifted)  # the most important first
    null = np.eye(DIM) - directions[:4].T @ directions[:4]
    alpha = (shifted @ weight.T).max(1).mean() / np.linalg.norm(shifted @ null, axis=1).mean()
    logits = shifted_queries @ weight.T
    expected = alpha * np.linalg.norm(shifted_queries @ null, axis=1) - logsumexp(logits, axis=1)
    close(ViM(4, classifier).fit(x).score(queries), expected, rtol=1e-5)


def test_vim_of_one_feature_has_all_of_it_outside_the_subspace():
    """Logits x and -x: the origin is 0, and |x| is the virtual logit and the largest real one of training images."""
    classifier = LinearClassifier(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    detector = ViM(classifier=classifier).fit(torch.tensor([[1.0], [-2.0], [5.0]]))
    queries = [0.0, 0.5, -3.0]
    close(detector.score(torch.tensor(queries)[:, None]), [abs(x) - math.log(2 * math.cosh(x)) for x in queries])


def test_vim_does_not_count_training_images_even_where_they_have_no_residual():
    x, classifier = features(20), random_classifier()
    x = (x - x[:1]) @ torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]))
    classifier = LinearClassifier(classifier.weight, torch.zeros(CLASSES, dtype=torch.float64))  # the origin is 0
    once, often = (ViM(3, classifier).fit(bank).fitted["alpha"] for bank in (x, x.repeat(7, 1)))
    assert once.isfinite() and often.item() == pytest.approx(once.item(), rel=1e-6)


@pytest.mark.parametrize(("width", "dim"), [(6, 3), (999, 499), (1000, 512), (1499, 512), (1500, 1000)])
def test_vims_subspace_by_default(width, dim):
    detector = ViM(classifier=random_classifier(dim=width)).fit(features(3, dim=width))
    assert detector.fitted["residual"].shape == (width, width - dim)


# The linear classifier


@pytest.mark.parametrize("weight_decay", [1e-1, 1e-4])
def test_linear_classifier_equals_scikit_learn(weight_decay):
    x, y = labelled(150)
    x[:, 4] = 1000 + 0.01 * x[:, 4]  # standardising is what makes this feature count
    x = torch.cat([x, torch.full((150, 1), 3.0)], 1).double()  # and it must survive one that does not vary
    scaler = StandardScaler().fit(x.numpy())
    reference = LogisticRegression(C=1 / (weight_decay * 150), tol=1e-9, max_iter=10_000)
    reference.fit(scaler.transform(x.numpy()), y.numpy())
    found = fit_linear(x, y, weight_decay).logits(x).softmax(1)
    np.testing.assert_allclose(found.numpy(), reference.predict_proba(scaler.transform(x.numpy())), atol=1e-4)


def test_linear_classifier_is_where_the_gradient_vanishes():
    x, y = labelled(90)
    classifier = fit_linear(x, y, weight_decay=1e-3)
    std, targets = x.double().std(0, correction=0), y.unique(return_inverse=True)[1]
    weight, bias = classifier.weight.clone().requires_grad_(), classifier.bias.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x.double() @ weight.T + bias, targets)
    loss = loss + 0.5e-3 * (weight * std).square().sum()
    by_weight, by_bias = torch.autograd.grad(loss, (weight, bias))
    assert (by_weight / std).abs().max() < 1e-6
    assert by_bias.abs().max() < 1e-6


@pytest.mark.parametrize("constant", [0.0, -3.0, 1e4])
def test_a_feature_that_is_always_the_same_changes_nothing(constant):
    x, y = labelled(60)
    dead = torch.full((60, 1), constant)
    with_it = fit_linear(torch.cat([x, dead], 1), y, weight_decay=1e-2)
    expected = fit_linear(x, y, weight_decay=1e-2).logits(x).softmax(1)
    torch.testing.assert_close(with_it.logits(torch.cat([x, dead], 1)).softmax(1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("spread", "counts"), [(1.5e-6, True), (0.5e-6, False)])
def test_less_than_a_millionth_of_the_mean_is_noise(spread, counts):
    x = torch.tensor([[1 - spread], [1 + spread]], dtype=torch.float64)
    found = fit_linear(x, torch.tensor([0, 1]), weight_decay=0.1).logits(x).softmax(1)
    # of the standardised feature, -1 and 1, the best logits are -w and w times it, with sigmoid(-2 w) = 0.1 w
    w = optimize.brentq(lambda w: 1 / (1 + math.exp(2 * w)) - 0.1 * w, 0, 9)
    assert found[1, 1].item() == pytest.approx(1 / (1 + math.exp(-2 * w)) if counts else 0.5, abs=1e-4)


def test_linear_classifier_separates_what_is_separable_and_is_deterministic():
    x, y = labelled(90)
    x = x + 30 * torch.eye(DIM)[y.unique(return_inverse=True)[1]]
    first, second = fit_linear(x, y), fit_linear(x.clone(), y.clone())
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)
    assert (y.unique()[first.logits(x).argmax(1)] == y).all()


def test_features_that_go_together_are_told_apart_and_what_is_left_is_warned_of():
    """The optimum by Newton's method on the whole Hessian, where plain L-BFGS would take thousands of iterations."""
    rng = np.random.default_rng(0)
    mixing = np.linalg.qr(rng.normal(size=(12, 12)))[0] * np.logspace(0, -4, 12)
    x = rng.normal(size=(200, 12)) @ mixing @ rng.normal(size=(12, 12))
    y = (x @ rng.normal(size=12) + 0.3 * rng.normal(size=200) * x.std() > 0).astype(np.int64)
    scaled, decay = (x - x.mean(0)) / x.std(0), 1e-4
    design, theta = (
        np.hstack([scaled, np.ones((200, 1))]),
        np.zeros(13),
    )  # of the difference of the logits
    penalty = np.diag([decay / 2] * 12 + [0.0])  # on V and -V: half of the difference each
    for _ in range(60):
        p = 1 / (1 + np.exp(-design @ theta))
        slope = design.T @ (p - y) / 200 + penalty @ theta
        theta -= np.linalg.solve((design.T * (p * (1 - p))) @ design / 200 + penalty, slope)
    assert np.abs(slope).max() < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logits = fit_linear(x, y).logits(torch.from_numpy(x))
    np.testing.assert_allclose((logits[:, 1] - logits[:, 0]).numpy(), design @ theta, rtol=1e-4, atol=1e-4)
    with pytest.warns(UserWarning, match="has not converged after 2 iterations"):
        fit_linear(x, y, max_iterations=2)


def test_where_classes_are_easy_to_tell_apart_the_order_of_images_does_not_count():
    """More features than images, and classes that one of them tells apart."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = np.maximum(rng.normal(size=(60, 90)) + 3 * np.eye(3)[y] @ rng.normal(size=(3, 90)), 0)
    order, queries = rng.permutation(60), torch.from_numpy(rng.normal(size=(5, 90)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = fit_linear(x, y).logits(queries), fit_linear(x[order], y[order]).logits(queries)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-3)
    scaled = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    reference = LogisticRegression(C=1 / (1e-4 * 60), tol=1e-12, max_iter=100_000).fit(scaled, y)
    at = (queries.numpy() - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    np.testing.assert_allclose(one.softmax(1).numpy(), reference.predict_proba(at), atol=1e-3)


def test_numbers_of_numpy_and_torch_are_numbers():
    x, y = labelled(60)
    for detector, same in (
        (KNN(np.int64(5)), KNN(5)),
        (ViM(np.int64(2)), ViM(2)),
        (Energy(np.float32(1)), Energy(1.0)),
        (Energy(torch.tensor(2.0)), Energy(2.0)),
        (ReAct(np.int64(90)), ReAct(90)),
    ):
        assert torch.equal(detector.fit(x, y).score(x), same.fit(x, y).score(x))
        assert all(type(value) in (int, float, type(None)) for value in detector.settings.values())


def test_vims_origin_of_a_given_classifier():
    """Real directions count, however little a feature that hardly varies lets them weigh; rounding does not."""
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(4, 9)), rng.normal(size=4)
    features = torch.from_numpy(rng.normal(size=(50, 9)))
    for common, scale in ((1.0, 1.0), (1.0, 1e9), (1e-6, 1.0)):
        w = weight - weight.mean(0) * (1 - common)
        w[:, 0] *= scale
        classifier = LinearClassifier(torch.from_numpy(w), torch.from_numpy(bias))
        origin = ViM(3, classifier).fit(features).fitted["origin"].numpy()
        left = w @ origin + bias  # the logits at the origin
        left = left if common == 1 else left - left.mean()
        np.testing.assert_allclose(left, 0, atol=1e-6)
        assert np.linalg.norm(origin) < 10


def test_vims_origin_does_not_hang_on_rounding():
    """A fitted softmax's rows sum to zero but for rounding; the pseudo-inverse must not invert that."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 600)
    x = rng.normal(size=(4, 20))[y] * 2 + rng.normal(size=(600, 20))
    queries, order = rng.normal(size=(3, 20)) * 3, rng.permutation(600)
    found = [
        ViM().fit(a, b).score(q)
        for a, b, q in ((x, y, queries), (x[order], y[order], queries), (3 * x, y, 3 * queries))
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-5)
    fitted = ViM().fit(x, y).fitted
    u, s, v = np.linalg.svd(fitted["weight"].numpy(), full_matrices=False)
    expected = -(v[:3].T / s[:3]) @ u[:, :3].T @ fitted["bias"].numpy()  # three directions tell four classes apart
    np.testing.assert_allclose(fitted["origin"].numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: KNN(2.0), "k is a whole number"),
        (lambda: KNN(math.nan), "k is a whole number"),
        (lambda: ViM(2.5), "dim is a whole number"),
        (lambda: Mahalanobis(ridge=-1), "ridge of 0 or more"),
        (lambda: Mahalanobis(ridge=math.nan), "ridge of 0 or more"),
        (lambda: Mahalanobis(ridge=0).fit(torch.randn(5, 20)), "5 rows of 20.*larger ridge"),
        (lambda: ViM().fit(torch.zeros(50, 20), torch.arange(50) % 2), "do not vary"),
        (lambda: Energy(LinearClassifier(torch.eye(2), torch.zeros(2))), "a classifier is classifier="),
        (lambda: ReAct(LinearClassifier(torch.eye(2), torch.zeros(2))), "a classifier is classifier="),
        (lambda: MSP(torch.nn.Linear(2, 2, bias=False)), "weight .* and a bias"),
    ],
)
def test_what_a_detector_cannot_be_made_or_fitted_with(make, words):
    with pytest.raises(UserError, match=words):
        make()


def test_linear_classifier_can_be_fitted_where_gradients_are_off():
    x, y = labelled(30)
    expected = fit_linear(x, y).weight
    with torch.no_grad():
        assert torch.equal(fit_linear(x.requires_grad_(), y).weight, expected)
    with torch.inference_mode():
        assert torch.equal(fit_linear(x * 1, y).weight, expected)


# What every detector does


@pytest.mark.parametrize("kind", DETECTORS.values(), ids=DETECTORS.keys())
def test_chunks_do_not_matter(kind, monkeypatch):
    queries = features(31, seed=1)
    whole = fitted(kind).score(queries)
    sizes = []
    monkeypatch.setattr(base, "BLOCK", 4 * DIM)
    score_chunk = kind._score
    monkeypatch.setattr(kind, "_score", lambda self, piece: sizes.append(len(piece)) or score_chunk(self, piece))
    torch.testing.assert_close(fitted(kind).score(queries), whole, rtol=1e-5, atol=1e-6)
    assert sizes == [4] * 7 + [3]
    sizes.clear()
    monkeypatch.setattr(base, "CHUNK", 2 * 90)  # a bank of 90 rows leaves room for two queries at a time
    torch.testing.assert_close(fitted(kind).score(queries), whole, rtol=1e-5, atol=1e-6)
    assert max(sizes) == (2 if kind is KNN else 4)


@pytest.mark.parametrize("kind", DETECTORS.values(), ids=DETECTORS.keys())
def test_saved_and_loaded_it_gives_the_same_scores(kind, tmp_path):
    queries = features(10, seed=1)
    detector = fitted(kind)
    expected = detector.score(queries)
    path = tmp_path / "detector.safetensors"
    detector.save(path)
    for loaded in (Detector.load(path), kind.load(str(path)), kind.from_state(detector.state())):
        assert type(loaded) is kind
        assert loaded.settings == detector.settings
        assert torch.equal(loaded.score(queries), expected)
    with safe_open(path, framework="pt") as content:
        assert content.metadata()["detector"] == kind.__name__


@pytest.mark.parametrize("kind", DETECTORS.values(), ids=DETECTORS.keys())
def test_scores_are_one_a_row_for_any_precision_and_any_number_of_rows(kind):
    detector, x = fitted(kind), features(10, seed=1).bfloat16()
    expected = detector.score(x.double())
    assert expected.dtype == torch.float64
    assert expected.shape == (10,)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        torch.testing.assert_close(detector.score(x.to(dtype)), expected.float(), rtol=1e-5, atol=1e-6)
    assert detector.score(x[:0]).shape == (0,)
    assert not detector.score(x.float().requires_grad_()).requires_grad


@pytest.mark.parametrize("kind", DETECTORS.values(), ids=DETECTORS.keys())
def test_a_larger_score_means_out_of_distribution(kind):
    """Each class along its own axis; the others short, between the classes, and shifted along the remaining axes."""
    noise = torch.randn(900, DIM, generator=torch.Generator().manual_seed(0))
    y = torch.arange(600) % CLASSES
    x = 10 * torch.eye(DIM)[y] + noise[:600]
    outside = torch.tensor([2.0, 2.0, 2.0, 3.0, 3.0, 3.0]) + noise[600:]
    detector = kind().fit(x[:300], y[:300])
    assert auroc(detector.score(x[300:]), detector.score(outside)) > 0.95


def test_the_logit_detectors_share_a_classifier_and_then_need_no_labels():
    x, y = labelled(90)
    classifier = fit_linear(x, y)
    for kind in LOGIT_DETECTORS:
        assert torch.equal(kind(classifier=classifier).fit(x).score(x), kind().fit(x, y).score(x))


def test_fitting_again_forgets_the_first_time():
    first, second = labelled(60), labelled(60, seed=7)
    for kind in DETECTORS.values():
        again = kind().fit(*first).fit(*second).score(second[0])
        assert torch.equal(again, kind().fit(*second).score(second[0]))


# What features and labels may be given as


@pytest.mark.parametrize("kind", DETECTORS.values(), ids=DETECTORS.keys())
def test_tensors_arrays_and_lists_give_the_same(kind):
    (x, y), queries = labelled(60), features(12, seed=1)
    expected = kind().fit(x, y).score(queries)
    forms = [torch.Tensor.numpy, torch.Tensor.tolist, list, lambda t: list(t.numpy()), lambda t: tuple(t.tolist())]
    for form in forms:
        found = kind().fit(form(x), form(y)).score(form(queries))
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, expected)
        assert torch.equal(kind().fit(x, y).score(form(queries)), expected)
    precise = kind().fit(x.double(), y).score(queries.double())
    assert precise.dtype == torch.float64
    assert torch.equal(kind().fit(x.double().numpy(), y.numpy()).score(queries.double().numpy()), precise)


def test_unusual_arrays_are_taken():
    (x, y), queries = labelled(60), features(12, seed=1)
    expected = Mahalanobis(class_conditional=True).fit(x, y).score(queries)
    array = x.numpy().copy()
    array.flags.writeable = False
    for bank in (array, array[::-1][::-1], np.asfortranarray(array), array.astype(">f4")):
        for labels in (y.int().numpy(), y.double().numpy(), y.numpy().astype(np.uint16), y.float()):
            assert torch.equal(Mahalanobis(class_conditional=True).fit(bank, labels).score(queries), expected)
    assert torch.equal(KNN(3).fit(array[::-1]).score(queries), KNN(3).fit(x.flip(0)).score(queries))
    counts = np.arange(12).reshape(4, 3)
    whole = FeatureNorm().fit(counts).score(counts)
    assert whole.dtype == torch.float32
    close(whole, -np.linalg.norm(counts, axis=1))


def reference(kind, bank, y, queries, classifier):
    """The scores by numpy, scipy and scikit-learn, in float64."""
    if kind is KNN:
        unit_bank, unit_queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (bank, queries))
        return NearestNeighbors(n_neighbors=7, algorithm="kd_tree").fit(unit_bank).kneighbors(unit_queries)[0][:, -1]
    if kind is Mahalanobis:
        means = np.stack([bank[y == c].mean(0) for c in np.unique(y)])
        within = bank - means[np.searchsorted(np.unique(y), y)]
        precision = np.linalg.inv(within.T @ within / len(bank))
        difference = queries[:, None] - means
        return np.einsum("ncd,de,nce->nc", difference, precision, difference).min(1)
    if kind is FeatureNorm:
        return -np.linalg.norm(queries, axis=1)
    weight, bias = classifier.weight.numpy(), classifier.bias.numpy()
    clipped = np.minimum(queries, np.percentile(bank, 90)) if kind is ReAct else queries
    logits = clipped @ weight.T + bias
    if kind is MSP:
        return 1 - softmax(logits, axis=1).max(1)
    virtual = np.zeros(len(queries))
    if kind is ViM:
        origin = -np.linalg.pinv(weight) @ bias
        residual = np.linalg.svd(bank - origin)[2][DIM // 2 :].T
        alpha = (bank @ weight.T + bias).max(1).sum() / np.linalg.norm((bank - origin) @ residual, axis=1).sum()
        virtual = alpha * np.linalg.norm((queries - origin) @ residual, axis=1)
    return virtual - logsumexp(logits, axis=1)


@pytest.mark.parametrize("kind", DETECTORS.values(), ids=DETECTORS.keys())
def test_float64_features_have_the_digits_of_float64(kind):
    generator = np.random.default_rng(5)
    y = labelled(90)[1].numpy()
    bank, queries = generator.normal(size=(90, DIM)) + y[:, None] / 9, generator.normal(size=(40, DIM))
    classifier = random_classifier()
    given = {KNN: {"k": 7}, Mahalanobis: {"class_conditional": True, "ridge": 0.0}, FeatureNorm: {}}
    detector = kind(**given.get(kind, {"classifier": classifier})).fit(bank, y)
    found = detector.score(queries)
    assert found.dtype == torch.float64
    expected = reference(kind, bank, y, queries, classifier)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-9)
    again = kind.from_state(detector.state()).score(queries)
    assert torch.equal(again, found)
    close(detector.score(queries.astype(np.float32)), expected, rtol=1e-4, atol=1e-4)


def test_one_gaussian_in_float64_equals_scikit_learn():
    bank, queries = features(200).double().numpy(), features(30, seed=1).double().numpy()
    expected = EmpiricalCovariance().fit(bank).mahalanobis(queries)
    np.testing.assert_allclose(Mahalanobis(ridge=0.0).fit(bank).score(queries).numpy(), expected, rtol=1e-9)


def test_the_ridge_shrinks_each_principal_direction_as_documented():
    x = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # variances 4.5 and 0.5, of mean 2.5
    queries = np.array([[1.0, 0.0], [0.0, 1.0]])
    found = Mahalanobis(ridge=0.2).fit(x).score(queries)
    np.testing.assert_allclose(found.numpy(), [1 / (4.5 + 0.5), 1 / (0.5 + 0.5)], rtol=1e-12)


def test_float64_queries_of_a_float32_bank_keep_their_digits():
    detector = KNN(1).fit(torch.tensor([[1.0, 0.0]]))
    found = detector.score(np.array([[1.0, 1e-12]]))
    assert found.item() == pytest.approx(1e-12, rel=1e-9)


def test_the_linear_classifier_takes_arrays_and_lists():
    x, y = labelled(30)
    expected = fit_linear(x, y).weight
    for form in (torch.Tensor.numpy, torch.Tensor.tolist):
        assert torch.equal(fit_linear(form(x), form(y)).weight, expected)


# Mistakes


@pytest.mark.parametrize("kind", DETECTORS.values(), ids=DETECTORS.keys())
def test_wrong_shapes_and_types_are_refused_for_arrays_and_lists(kind):
    x, y = labelled(20)
    name, detector = kind.__name__, fitted(kind)
    for wrong, got in ((x[0], r"\[6\]"), (x[None], r"\[1, 20, 6\]"), (x[:0], r"\[0, 6\]"), (x[:, :0], r"\[20, 0\]")):
        for form in (torch.Tensor.numpy, torch.Tensor.clone):
            with pytest.raises(
                UserError, match=rf"{name} needs features of shape \[N, D\], one row an image, got {got}"
            ):
                kind().fit(form(wrong), y)
    with pytest.raises(UserError, match=r"20 rows, but labels of shape \[19\]"):
        kind().fit(x.numpy(), y.tolist()[:19])
    with pytest.raises(UserError, match=r"20 rows, but labels of shape \[20, 1\]"):
        kind().fit(x.numpy(), y.numpy()[:, None])
    for labels in ([0.5] * 20, [math.nan] * 20, [math.inf] * 20):
        with pytest.raises(UserError, match=f"{name} needs labels that are whole numbers"):
            kind().fit(x, labels)
    for labels in (["cat"] * 20, np.array(["cat"] * 20)):
        with pytest.raises(UserError, match=f"{name} cannot use these labels"):
            kind().fit(x, labels)
    for wrong in ([[1.0, 2.0], [3.0]], [["a"]], None, "features", [x[0], x[0, :3]], np.array([[object()]])):
        with pytest.raises(UserError, match=f"{name} cannot use these features"):
            kind().fit(wrong, y)
        with pytest.raises(UserError, match=f"{name} cannot use these features"):
            detector.score(wrong)
    with pytest.raises(UserError, match=r"real numbers, got torch\.complex64"):
        kind().fit(x.to(torch.complex64), y)
    for wrong, got in (
        ([], r"\[0\]"),
        ([1.0] * 6, r"\[6\]"),
        (np.zeros((3, 4)), r"\[3, 4\]"),
        (x[None], r"\[1, 20, 6\]"),
    ):
        with pytest.raises(UserError, match=rf"{name} was fitted on features of 6 dimensions, .* {got}"):
            detector.score(wrong)


@pytest.mark.parametrize("kind", DETECTORS.values(), ids=DETECTORS.keys())
def test_scoring_or_saving_before_fitting_is_refused(kind, tmp_path):
    with pytest.raises(UserError, match=f"this {kind.__name__} has not been fitted"):
        kind().score(features(2))
    with pytest.raises(UserError, match="has not been fitted"):
        kind().save(tmp_path / "x.safetensors")


@pytest.mark.parametrize("kind", DETECTORS.values(), ids=DETECTORS.keys())
def test_features_of_another_dimension_are_refused(kind):
    with pytest.raises(UserError, match=rf"{kind.__name__} .* 6 dimensions, .* \[3, 4\]"):
        fitted(kind).score(torch.zeros(3, 4))
    with pytest.raises(UserError, match=r"6 dimensions, .* \[6\]"):
        fitted(kind).score(torch.zeros(6))


def test_missing_labels_are_named_with_the_detector():
    for kind in LOGIT_DETECTORS:
        with pytest.raises(UserError, match=f"{kind.__name__} needs labels"):
            kind().fit(features(10))
    with pytest.raises(UserError, match=r"Mahalanobis\(class_conditional=True\) needs labels"):
        Mahalanobis(class_conditional=True).fit(features(10))


def test_what_cannot_be_fitted_is_refused():
    x, y = labelled(10)
    broken = x.clone()
    broken[[1, 4], 2] = torch.tensor([math.nan, math.inf])
    with pytest.raises(UserError, match="2 of the 10 rows"):
        KNN().fit(broken)
    with pytest.raises(UserError, match=r"10 rows, but labels of shape \[9\]"):
        MSP().fit(x, y[:9])
    with pytest.raises(UserError, match=r"got \[0, 6\]"):
        KNN().fit(x[:0])
    with pytest.raises(UserError, match="do not vary"):
        Mahalanobis().fit(torch.ones(5, 3))
    with pytest.raises(UserError, match="only class 2"):
        Energy().fit(x, torch.full_like(y, 2))
    with pytest.raises(UserError, match="classifier of 4 dimensions and features of 6"):
        ReAct(classifier=random_classifier(dim=4)).fit(x)
    with pytest.raises(UserError, match=r"the features' 6, got dim=6"):
        ViM(dim=6, classifier=random_classifier()).fit(x)


def test_settings_without_meaning_are_refused():
    with pytest.raises(UserError, match="k=0"):
        KNN(0)
    with pytest.raises(UserError, match="positive temperature, got 0"):
        Energy(temperature=0)
    with pytest.raises(UserError, match="from 0 to 100, got 101"):
        ReAct(percentile=101)
    with pytest.raises(UserError, match="weight_decay must be positive"):
        fit_linear(*labelled(10), weight_decay=0.0)
    with pytest.raises(UserError, match=r"got \[2, 3\] and \[3\]"):
        LinearClassifier(torch.zeros(2, 3), torch.zeros(3))


def test_files_that_hold_no_such_detector_are_refused(tmp_path):
    path = tmp_path / "knn.safetensors"
    fitted(KNN).save(path)
    with pytest.raises(UserError, match=r"holds a KNN, not a ViM: use KNN\.load"):
        ViM.load(path)
    with pytest.raises(UserError, match="cannot be read as a detector"):
        Detector.load(tmp_path / "nothing.safetensors")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="cannot be read as a detector"):
        Detector.load(path)
    for metadata in (None, {"format": "vje-detector", "detector": "Oracle"}, {"detector": "KNN"}):
        save_file({"x": torch.zeros(1)}, path, metadata)
        with pytest.raises(UserError, match="not a detector that this version knows"):
            Detector.load(path)
    with pytest.raises(UserError, match="not the state of a KNN: missing or unknown are bank"):
        KNN.from_state({"setting.k": torch.tensor(3), "width": torch.tensor(6)})
    with pytest.raises(UserError, match=r"unknown are p\."):
        KNN.from_state(fitted(KNN).state() | {"setting.p": torch.tensor(3)})
