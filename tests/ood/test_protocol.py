import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from vje.evaluation.features import Features
from vje.methods.supervised import Supervised
from vje.methods.vje import VJE
from vje.ood.protocol import build_scorer, compare, mean_and_std, summarize


def features(z: torch.Tensor, labels: torch.Tensor | None = None) -> Features:
    return Features(z, None, torch.arange(len(z)), [], labels)


@pytest.fixture(scope="module")
def setting() -> tuple[VJE, Features, torch.Tensor, torch.Tensor]:
    """Two clusters to know, and points far from both."""
    torch.manual_seed(0)
    centres = torch.rand(2, 256) * 4
    labels = torch.arange(200) % 2
    bank = centres[labels] + 0.3 * torch.randn(200, 256)
    inside = centres[torch.arange(60) % 2] + 0.3 * torch.randn(60, 256)
    outside = torch.rand(40, 256) * 4 + 0.3 * torch.randn(40, 256)
    return VJE("resnet8").eval(), features(bank, labels), inside, outside


def test_every_score_is_there_and_finite(
    setting: tuple[VJE, Features, torch.Tensor, torch.Tensor],
) -> None:
    model, bank, _, outside = setting
    found = build_scorer(model, bank, samples=2)(outside)
    wanted = "nll nll_directional nll_radial nll_centered neg_elbo variance_trace neg_kl neg_anisotropy nll_mc "
    wanted += "knn mahalanobis mahalanobis_class feature_norm msp energy react vim"
    assert set(found) == set(wanted.split())
    assert all(len(x) == len(outside) and np.isfinite(x).all() for x in found.values())


def test_detectors_tell_strangers_from_clusters(setting: tuple[VJE, Features, torch.Tensor, torch.Tensor]) -> None:
    model, bank, inside, outside = setting
    scorer = build_scorer(model, bank, (inside[:20], outside[:20]))
    result = compare(scorer(inside[20:]), {"far": scorer(outside[20:])}, {"far": False})
    for name in ("knn", "mahalanobis_class"):
        assert result["scores"][name]["far"]["auroc"] > 99
    assert set(scorer.chosen) == {"knn", "mahalanobis", "mahalanobis_class", "react"} and scorer.usual == {}


def test_without_validation_images_detectors_have_their_usual_settings(
    setting: tuple[VJE, Features, torch.Tensor, torch.Tensor],
) -> None:
    scorer = build_scorer(*setting[:2])
    assert scorer.chosen == {}
    assert scorer.usual == {"knn": 50, "mahalanobis": 1, "mahalanobis_class": 1, "react": 90.0}
    assert scorer.detectors["knn"].settings == {"k": 50}
    assert scorer.detectors["react"].settings == {"percentile": 90.0}
    for name in ("mahalanobis", "mahalanobis_class"):  # on directions, as short features are near every mean
        assert bool(scorer.detectors[name].settings["unit"])


@pytest.mark.parametrize("told_by", ["length", "direction"])
def test_validation_images_choose_between_raw_features_and_directions(told_by: str) -> None:
    torch.manual_seed(0)
    model, generator = VJE("resnet8").eval(), torch.Generator().manual_seed(0)

    def images(count: int, length: float = 1.0, turn: float = 0.0) -> torch.Tensor:
        """Directions within a cone, lengths of any kind unless they are what tells."""
        x = torch.randn(count, 256, generator=generator) / 16 + turn
        x = torch.nn.functional.normalize(x + 2 * torch.eye(256)[0], dim=1)
        spread = 0.01 if told_by == "length" else 2.0
        return length * x * torch.exp(spread * torch.randn(count, 1, generator=generator))

    strangers = images(50, length=1.2) if told_by == "length" else images(50, turn=0.02)
    scorer = build_scorer(model, features(images(800)), (images(50), strangers))
    assert scorer.chosen["mahalanobis"] == (0 if told_by == "length" else 1)


def test_without_labels_or_training_features_the_rest_still_runs(
    setting: tuple[VJE, Features, torch.Tensor, torch.Tensor],
) -> None:
    model, bank, inside, _ = setting
    assert set(build_scorer(model, features(bank.z)).detectors) == {"knn", "mahalanobis", "feature_norm"}
    assert "nll" in build_scorer(model, None)(inside)
    found = [build_scorer(model, x).classifier for x in (None, features(bank.z), bank)]
    assert found == [None, None, "fitted"]


def test_numbers_are_percent_and_the_summary_is_a_mean_of_means() -> None:
    rng = np.random.default_rng(0)
    inside = {"nll": rng.normal(size=300)}
    outside = {name: {"nll": rng.normal(shift, size=200)} for name, shift in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    result = compare(inside, outside, {"a": True, "b": False, "c": False})
    for name, found in outside.items():
        truth = np.r_[np.zeros(300), np.ones(200)]
        expected = 100 * roc_auc_score(truth, np.r_[inside["nll"], found["nll"]])
        assert result["scores"]["nll"][name]["auroc"] == pytest.approx(expected, abs=1e-9)
    auroc = {name: result["scores"]["nll"][name]["auroc"] for name in outside}
    far = (auroc["b"] + auroc["c"]) / 2
    assert result["summary"]["nll"] == pytest.approx({"near": auroc["a"], "far": far, "avg": (auroc["a"] + far) / 2})


def test_sets_of_ones_own_have_only_an_average() -> None:
    assert summarize({"x": 60.0, "y": 80.0}, {"x": None, "y": None}) == {"avg": 70.0}


def test_several_runs_give_mean_and_sample_deviation() -> None:
    merged = mean_and_std([{"s": {"near": 1.0}}, {"s": {"near": 2.0}}, {"s": {"near": 6.0}}])
    assert merged["s"]["near"] == pytest.approx({"mean": 3.0, "std": np.std([1, 2, 6], ddof=1)})


def test_a_trained_classifier_is_judged_by_its_own_logits():
    torch.manual_seed(0)
    model = Supervised("resnet8", classes=3).eval()
    z, labels = torch.rand(40, 256), torch.arange(40) % 3
    scorer = build_scorer(model, Features(z, None, torch.arange(40), [], labels))
    logits = z.double() @ model.classifier.weight.double().T + model.classifier.bias.double()
    found = scorer(z)
    np.testing.assert_allclose(found["energy"], -logits.logsumexp(1).detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(found["msp"], 1 - logits.softmax(1).amax(1).detach().numpy(), rtol=1e-5)
    assert "nll" not in found and scorer.classifier == "own"
