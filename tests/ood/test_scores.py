import pytest
import scipy.stats
import torch

from vje.likelihood import directional_nll, radial_nll
from vje.methods.vje import VJE
from vje.ood import scores as module
from vje.ood.scores import model_scores


def model_and_embeddings(**options: object) -> tuple[VJE, torch.Tensor]:
    torch.manual_seed(0)
    model = VJE("resnet8", **options).eval()  # type: ignore[arg-type]
    return model, torch.randn(23, 256).abs()


def test_signs_make_larger_mean_more_out_of_distribution() -> None:
    model, z = model_and_embeddings()
    found, raw, q = model_scores(model, z), model.score_embeddings(z), model.inference(z)
    torch.testing.assert_close(found["nll"], raw["nll"])
    torch.testing.assert_close(found["nll"], found["nll_directional"] + found["nll_radial"])
    torch.testing.assert_close(found["variance_trace"], q.variance.sum(-1))
    torch.testing.assert_close(found["neg_kl"], -q.kl())
    torch.testing.assert_close(found["neg_anisotropy"], -q.variance.std(-1, correction=0) / q.variance.mean(-1))


def test_centring_takes_the_amount_of_variance_out() -> None:
    """It equals the NLL of variances whose geometric mean was brought to 1, in float64, and does not see a factor."""
    model, z = model_and_embeddings(nu=3.0, beta=0.5)
    found, q = model_scores(model, z), model.inference(z)
    variance = q.variance.detach().double()
    unit = variance / torch.as_tensor(scipy.stats.gmean(variance.numpy(), axis=1))[:, None]
    mean = q.mean.detach().double()
    expected = directional_nll(z.double(), mean, unit, 3.0) + radial_nll(z.double(), mean, 3.0)
    torch.testing.assert_close(found["nll_centered"].double(), expected, rtol=1e-4, atol=1e-2)
    scaled = directional_nll(z.double(), mean, 7 * variance, 3.0, center_variance=True) + radial_nll(
        z.double(), mean, 3.0
    )
    torch.testing.assert_close(scaled, expected)
    torch.testing.assert_close(found["neg_elbo"], found["nll"] - 0.5 * found["neg_kl"])


def test_sampled_nll_is_the_mean_over_posterior_samples() -> None:
    model, z = model_and_embeddings()
    found = model_scores(model, z, samples=2000, seed=1)["nll_mc"]
    q = model.inference(z)
    s = q.sample(torch.randn(2000, *z.shape, generator=torch.Generator().manual_seed(7)))
    values = directional_nll(z, s, q.variance) + radial_nll(z, s)
    error = values.std(0) / 2000**0.5
    assert ((found - values.mean(0)).abs() < 6 * error * 2**0.5).all()


@pytest.mark.parametrize("likelihood", ["factorized", "standard"])
def test_two_samples_by_hand(likelihood: str) -> None:
    """In float64, from the noise that the seed stands for, with the density of each likelihood written out."""
    model, z = model_and_embeddings(likelihood=likelihood, nu=2.0)
    found = model_scores(model, z, samples=2, seed=5)["nll_mc"]
    q, generator = model.inference(z), torch.Generator().manual_seed(5)
    x, mean, v = (y.detach().double() for y in (z, q.mean, q.variance))
    expected = torch.zeros(len(z), dtype=torch.float64)
    for _ in range(2):
        s = mean + v.sqrt() * torch.randn(z.shape, generator=generator).double()
        if likelihood == "standard":
            log_det, squares = v.log().sum(1), ((x - s) ** 2 / v).sum(1)
            expected += (2 + 256) / 2 * (1 + squares / 2).log() + log_det / 2
        else:
            lengths = x.norm(dim=1) - s.norm(dim=1)
            expected += directional_nll(x, s, v, 2.0) + (2 + 1) / 2 * (1 + lengths**2 / 2).log()
    torch.testing.assert_close(found.double(), expected / 2, rtol=1e-5, atol=1e-3)
    assert "nll_mc" not in model_scores(model, z)


def test_chunks_do_not_matter(monkeypatch: object) -> None:
    model, z = model_and_embeddings()
    whole = model_scores(model, z)
    monkeypatch.setattr(module, "ROWS", 5)  # type: ignore[attr-defined]
    for name, values in model_scores(model, z).items():
        torch.testing.assert_close(values, whole[name])


def test_standard_likelihood_is_scored_as_such() -> None:
    model, z = model_and_embeddings(likelihood="standard")
    q = model.inference(z)
    distance = ((z - q.mean) ** 2 / q.variance).sum(-1)
    expected = (1 + 256) / 2 * torch.log1p(distance) + 0.5 * q.variance.log().sum(-1)
    torch.testing.assert_close(model_scores(model, z)["nll"], expected)
