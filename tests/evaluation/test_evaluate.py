"""What ``evaluation.json`` holds, recomputed from the images in another way."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from vje.evaluation.evaluate import evaluate, in_chunks, knn_of_features
from vje.evaluation.features import Features, compute_features
from vje.methods.supervised import Supervised

STATISTICS = {"variance", "kl", "nll", "nll_directional", "nll_radial", "anisotropy", "cosine_mean_z"}


def pixels(source):
    return torch.from_numpy(source.planes(range(len(source))))


@pytest.mark.parametrize("target", ["ema", "stop-gradient"])
def test_keys(target, make_model, make_source):
    model = make_model(target=target)
    bank, test = compute_features(model, make_source(40)), compute_features(model, make_source(12, seed=1))
    result = evaluate(model, bank, test)
    assert set(result) == {"images", "knn", "posterior", "norms", "effective_rank"}
    assert set(result["posterior"]) == STATISTICS
    assert set(result["knn"]) == {"k", "bank", "z", "mean"} | ({"target"} if target == "ema" else set())
    assert (result["images"], result["knn"]["k"], result["knn"]["bank"]) == (12, 20, 40)
    assert all(isinstance(value, float) for value in result["posterior"].values())


@pytest.mark.parametrize("which", ["neither", "bank", "test", "no bank"])
def test_without_labels_the_rest_still_works(which, make_model, make_source):
    model = make_model()
    bank = compute_features(model, make_source(40, labelled=which == "bank"))
    test = compute_features(model, make_source(12, seed=1, labelled=which in ("test", "no bank")))
    result = evaluate(model, None if which == "no bank" else bank, test)
    assert set(result) == {"images", "posterior", "norms", "effective_rank"}
    assert set(result["posterior"]) == STATISTICS


@pytest.mark.parametrize("options", [{}, {"nu": 5.0, "center_variance": True}, {"likelihood": "standard"}])
def test_posterior_statistics_are_means_of_the_scores(options, make_model, make_source):
    model, source = make_model(**options), make_source(12, seed=1)
    result = evaluate(model, None, compute_features(model, source))
    scores = model.score(pixels(source))
    for name in STATISTICS:
        assert result["posterior"][name] == pytest.approx(scores[name].double().mean().item(), rel=1e-4), name
    posterior, z = model.posterior(pixels(source)), model.embed(pixels(source))
    assert result["norms"]["z"] == pytest.approx(z.norm(dim=1).mean().item(), rel=1e-4)
    assert result["norms"]["mean"] == pytest.approx(posterior.mean.norm(dim=1).mean().item(), rel=1e-4)
    singular = np.linalg.svd(z.detach().double().numpy(), compute_uv=False)
    p = singular / singular.sum()
    assert result["effective_rank"] == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-3)


@pytest.mark.parametrize("k", [1, 5, 20])
def test_knn_is_in_percent_and_of_the_right_space(k, make_model, make_source):
    model, sources = make_model(), (make_source(60), make_source(24, seed=1))
    bank, test = (compute_features(model, source) for source in sources)
    found = evaluate(model, bank, test, k)["knn"]
    with torch.no_grad():
        prepared = [model.preprocessing.normalize(model.preprocessing.fit(pixels(source))) for source in sources]
        spaces = {
            "z": [model.encoder(x) for x in prepared],
            "mean": [model.inference(model.encoder(x)).mean for x in prepared],
            "target": [model.target(x) for x in prepared],
        }
    for name, (a, b) in spaces.items():
        judge = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07))
        expected = 100 * judge.fit(a.double().numpy(), sources[0].labels).score(b.double().numpy(), sources[1].labels)
        assert found[name] == pytest.approx(expected, abs=100 / 24 + 1e-6)  # one image may be a tie within rounding
    assert max(found[name] for name in spaces) > 1  # percent


def test_spaces_are_not_mixed_up(make_model):
    labels = torch.arange(200) % 4
    random = torch.randn(400, 24, generator=torch.Generator().manual_seed(0))
    perfect = torch.nn.functional.one_hot(labels, 24).float()
    bank, test = (Features(z, perfect, torch.arange(200), [], labels) for z in random.split(200))
    found = knn_of_features(make_model(), bank, test)
    assert found["target"] == 100.0
    assert found["z"] < 50
    bank, test = (Features(perfect, z, torch.arange(200), [], labels) for z in random.split(200))
    found = knn_of_features(make_model(), bank, test)
    assert found["z"] == found["mean"] == 100.0
    assert found["target"] < 50


def test_chunks_do_not_matter(make_model, make_source):
    model = make_model()
    z = compute_features(model, make_source(12)).z
    whole, pieces = in_chunks(model, model.statistics, z), in_chunks(model, model.statistics, z, rows=5)
    assert set(whole) == STATISTICS
    for name, values in whole.items():
        assert values.shape == (12,)
        assert torch.allclose(values, pieces[name], rtol=1e-4), name
    means = [in_chunks(model, model.spaces, z, rows)["mean"] for rows in (12, 5)]
    assert torch.allclose(*means, atol=1e-5)


def test_the_same_images_are_their_own_neighbours(make_model, make_source):
    model = make_model()
    bank = compute_features(model, make_source(20))
    assert knn_of_features(model, bank, bank, k=1) == {"z": 100.0, "mean": 100.0, "target": 100.0}


@pytest.mark.parametrize("classes", [3, 7])
def test_the_accuracy_of_its_own_classifier(classes):
    """A head that reads the class off the embedding, with known mistakes; classes it has no output for are missed."""
    model = Supervised("resnet8", classes=classes)
    dim = model.encoder.dim
    with torch.no_grad():
        model.classifier.weight.copy_(torch.eye(classes, dim))
        model.classifier.bias.zero_()
    labels = torch.arange(60) % classes
    z = 6.0 * torch.nn.functional.one_hot(labels, dim) - torch.arange(dim) / dim  # below the class: 0, 1, 2, ...
    truth = labels.clone()
    truth[:6] = (labels[:6] + 1) % classes  # among the next five, unless they are more
    truth[6:9] = 99
    found = evaluate(model, None, Features(z, None, torch.arange(60), [], truth))["classifier"]
    assert found["top1"] == pytest.approx(100 * 51 / 60)
    order = [[c, *(i for i in range(classes) if i != c)][:5] for c in labels.tolist()]
    assert found["top5"] == pytest.approx(100 * np.mean([t in o for t, o in zip(truth.tolist(), order, strict=True)]))
    assert "classifier" not in evaluate(model, None, Features(z, None, torch.arange(60), [], None))
