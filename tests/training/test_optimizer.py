"""Our set-up of SGD against torch's plain one, and what is decayed."""

import copy

import pytest
import torch
from torch import nn

from vje.methods.vje import VJE
from vje.networks.encoders import build_encoder
from vje.training.optimizer import build_optimizer

RATES = [0.05, 0.1, 0.2, 0.15, 0.02]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 5)).double()


def backward(module, number):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(6, 3, 4, 4, generator=generator, dtype=torch.float64)
    module.zero_grad()
    module(x).pow(2).mean().backward()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_plain_sgd(momentum, weight_decay):
    ours = network()
    theirs = copy.deepcopy(ours)
    lr = torch.tensor(1.0, dtype=torch.float64)
    optimizer = build_optimizer(ours, "sgd", lr, momentum, weight_decay)
    decayed = [p for p in theirs.parameters() if p.ndim > 1]
    others = [p for p in theirs.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    plain = torch.optim.SGD(groups, lr=1.0, momentum=momentum, fused=False, foreach=False)
    for number, rate in enumerate(RATES):
        lr.fill_(rate)
        for group in plain.param_groups:
            group["lr"] = rate
        backward(ours, number)
        backward(theirs, number)
        optimizer.step()
        plain.step()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("normalization", ["batch", "group"])
def test_norm_layers_and_biases_are_not_decayed(normalization):
    encoder = build_encoder("resnet8", small_images=True, normalization=normalization)
    model = VJE(encoder, target="ema")
    optimizer = build_optimizer(model, "sgd", torch.tensor(0.1), 0.9, weight_decay=5e-4)
    decay = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    expected = {}
    for module in [*model.encoder.modules(), *model.inference.modules()]:
        normalises = isinstance(module, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm)
        for name, p in module.named_parameters(recurse=False):
            expected[p] = 0.0 if normalises or name == "bias" else 5e-4
    assert set(expected.values()) == {0.0, 5e-4}
    assert decay == expected  # and so the EMA's parameters are not there


def test_the_first_step_is_not_special():
    module = network()
    optimizer = build_optimizer(module, "sgd", torch.tensor(0.1), 0.9, 0.0)
    assert all(not optimizer.state[p]["momentum_buffer"].any() for p in module.parameters())
    assert build_optimizer(network(), "sgd", torch.tensor(0.1), 0.0, 0.0).state == {}
