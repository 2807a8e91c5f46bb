"""The inference network: its size, its initial state, and its output against numpy."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from vje.methods.vje import VJE
from vje.networks.encoders import build_encoder
from vje.networks.inference import InferenceNetwork


def count(module, trainable=False):
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable)


@pytest.mark.parametrize("dim", [512, 2048])
def test_parameters_are_those_of_the_paper(dim):
    h = dim // 4
    layers = dim * h + h * h + 2 * (2 * h)  # two linear maps without bias, two layer norms
    heads = 2 * (h * dim + dim)
    assert count(InferenceNetwork(dim)) == layers + heads


def test_the_papers_resnet50_model_has_its_published_size():
    model = VJE(build_encoder("resnet50"), target="ema")
    assert round(count(model.inference) / 1e6, 1) == 3.4
    assert round(count(model, trainable=True) / 1e6, 1) == 26.9
    assert round(count(model) / 1e6, 1) == 50.4


@pytest.mark.parametrize(("dim", "hidden"), [(512, 128), (2048, 512), (10, 2)])
def test_the_bottleneck_is_a_quarter_of_the_features(dim, hidden):
    network = InferenceNetwork(dim)
    assert network.mean.in_features == network.variance.in_features == hidden


def test_weights_start_xavier_uniform_and_head_biases_at_zero():
    torch.manual_seed(0)
    network = InferenceNetwork(512)
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 4
    for linear in linears:
        bound = math.sqrt(6 / (linear.in_features + linear.out_features))
        weight = linear.weight.detach()
        assert 0.99 * bound < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
        assert weight.mean().abs() < 0.02 * bound
    assert [linear.bias is None for linear in linears] == [True, True, False, False]
    assert network.mean.bias.count_nonzero() == network.variance.bias.count_nonzero() == 0


def test_the_variance_starts_near_softplus_of_zero():
    torch.manual_seed(0)
    network = InferenceNetwork(512)
    with torch.no_grad():
        posterior = network(torch.randn(64, 512).relu())
        assert posterior.variance.mean().item() == pytest.approx(math.log(2), abs=0.06)
        network.variance.weight.zero_()
        exact = network(torch.randn(4, 512)).variance
    torch.testing.assert_close(exact, torch.full((4, 512), math.log(2) + 1e-5))


def test_the_variance_has_a_floor():
    network = InferenceNetwork(8)
    nn.init.constant_(network.variance.bias, -1e3)
    torch.testing.assert_close(network(torch.randn(4, 8)).variance, torch.full((4, 8), 1e-5))


def test_forward_equals_numpy():
    torch.manual_seed(0)
    network = InferenceNetwork(12, ratio=0.5).double()
    for p in network.parameters():
        nn.init.normal_(p)  # layer norms and biases too, so that each is seen to matter
    z = torch.randn(5, 12, dtype=torch.float64)
    p = {name: value.detach().numpy() for name, value in network.named_parameters()}

    x = z.numpy()
    for linear, layer_norm in ((0, 1), (3, 4)):
        x = x @ p[f"bottleneck.{linear}.weight"].T
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = np.maximum(x * p[f"bottleneck.{layer_norm}.weight"] + p[f"bottleneck.{layer_norm}.bias"], 0)
    mean = x @ p["mean.weight"].T + p["mean.bias"]
    variance = np.logaddexp(0, x @ p["variance.weight"].T + p["variance.bias"]) + 1e-5

    posterior = network(z)
    np.testing.assert_allclose(posterior.mean.detach().numpy(), mean, rtol=1e-10)
    np.testing.assert_allclose(posterior.variance.detach().numpy(), variance, rtol=1e-10)


def test_an_isotropic_network_shares_one_variance():
    network = InferenceNetwork(16, isotropic=True)
    assert network.variance.out_features == 1
    posterior = network(torch.randn(5, 16))
    assert posterior.mean.shape == posterior.variance.shape == (5, 16)
    assert torch.equal(posterior.variance, posterior.variance[:, :1].expand(5, 16))
    assert posterior.variance[:, 0].unique().numel() == 5
    posterior.variance.sum().backward()
    assert network.variance.weight.grad.count_nonzero() > 0


def test_a_bottleneck_without_units_is_refused():
    with pytest.raises(ValueError, match=r"0\.25.*3 features"):
        InferenceNetwork(3)
