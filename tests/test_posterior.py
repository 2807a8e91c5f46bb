"""The diagonal Gaussian posterior against numpy and torch.distributions."""

import warnings

import numpy as np
import torch

from vje.posterior import DiagonalGaussian


def posterior(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return DiagonalGaussian(mean, torch.randn(*shape, generator=generator, dtype=torch.float64).exp())


def test_sample_is_the_mean_plus_scaled_noise_and_broadcasts_over_samples():
    q = posterior(4, 6)
    noise = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    samples = q.sample(noise)
    assert samples.shape == (3, 4, 6)
    for k in range(3):
        expected = q.mean.numpy() + np.sqrt(q.variance.numpy()) * noise[k].numpy()
        np.testing.assert_allclose(samples[k].numpy(), expected, rtol=1e-14)


def test_sample_without_noise_has_the_posterior_moments():
    q = posterior(5)
    wide = DiagonalGaussian(q.mean.expand(100_000, 5), q.variance.expand(100_000, 5))
    torch.manual_seed(0)
    samples = wide.sample()
    standard_error = (q.variance / 100_000).sqrt()
    assert ((samples.mean(0) - q.mean).abs() < 5 * standard_error).all()
    torch.testing.assert_close(samples.var(0), q.variance, rtol=0.03, atol=0)


def test_gradients_reach_mean_and_variance_through_the_sample():
    mean, variance = torch.zeros(3, requires_grad=True), torch.full((3,), 4.0, requires_grad=True)
    noise = torch.tensor([1.0, -2.0, 0.5])
    by_mean, by_variance = torch.autograd.grad(DiagonalGaussian(mean, variance).sample(noise).sum(), (mean, variance))
    torch.testing.assert_close(by_mean, torch.ones(3))
    torch.testing.assert_close(by_variance, noise / 4)  # d sqrt(v) / dv = 1 / (2 sqrt(v)), v = 4


def test_kl_is_to_the_standard_normal():
    q = posterior(4, 6)
    normal = torch.distributions.Independent(torch.distributions.Normal(q.mean, q.variance.sqrt()), 1)
    zeros = torch.zeros_like(q.mean)
    prior = torch.distributions.Independent(torch.distributions.Normal(zeros, zeros + 1), 1)
    torch.testing.assert_close(q.kl(), torch.distributions.kl_divergence(normal, prior))


def test_statistics_equal_numpys():
    q = posterior(4, 6)
    v = q.variance.numpy()
    np.testing.assert_allclose(q.mean_variance().numpy(), v.mean(-1), rtol=1e-14)
    np.testing.assert_allclose(q.anisotropy().numpy(), np.std(v, -1) / np.mean(v, -1), rtol=1e-12)


def test_an_isotropic_posterior_has_no_anisotropy():
    q = DiagonalGaussian(torch.zeros(2, 512), torch.tensor([[0.3], [7.0]]).expand(2, 512))
    torch.testing.assert_close(q.anisotropy(), torch.zeros(2), rtol=0, atol=1e-6)


def test_statistics_of_no_image_are_empty_without_a_warning():
    q = posterior(0, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [x().shape for x in (q.kl, q.mean_variance, q.anisotropy)] == [(0,)] * 3
