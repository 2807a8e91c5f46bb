"""Our set-up of SGD, LARS and AdamW against plain ones, what is decayed, and what keeps its learning rate."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from vje.methods.vje import VJE
from vje.networks.encoders import build_encoder
from vje.recipes import load_recipe
from vje.runs import RunFolder
from vje.training import checkpoint
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


# Adam, AdamW and LARS


def numpy_adam(w, gradients, rates, penalty, decay):
    """The path of one weight (Loshchilov and Hutter 2019, algorithm 2, with torch's defaults)."""
    m, v, path = np.zeros_like(w), np.zeros_like(w), []
    for t, (raw, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        g = raw + penalty * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - rate * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + decay * w)
        path.append(w)
    return path


def numpy_lars(w, gradients, rates, decay, adapt):
    v, path = np.zeros_like(w), []
    for raw, rate in zip(gradients, rates, strict=True):
        g = raw + decay * w
        v = 0.9 * v + (1e-3 * np.linalg.norm(w) / np.linalg.norm(g) * g if adapt else g)
        w = w - rate * v
        path.append(w)
    return path


def expected_path(kind, w, gradients, decay):
    if kind == "lars":
        return numpy_lars(w, gradients, RATES, decay, w.ndim > 1)
    return numpy_adam(w, gradients, RATES, *((decay, 0.0) if kind == "adam" else (0.0, decay)))


@pytest.mark.parametrize("kind", ["adam", "adamw", "lars"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_the_reference_s(kind, weight_decay):
    module = network()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1)  # no bias or norm starts at zero, so that each would be seen to be decayed or adapted
    start = [p.detach().numpy().copy() for p in module.parameters()]
    lr = torch.tensor(1.0, dtype=torch.float64)
    optimizer = build_optimizer(module, kind, lr, 0.9, weight_decay)
    gradients, path = [], []
    for number, rate in enumerate(RATES):
        lr.fill_(rate)
        backward(module, number)
        gradients.append([p.grad.numpy().copy() for p in module.parameters()])
        optimizer.step()
        path.append([p.detach().numpy().copy() for p in module.parameters()])
    for i, w in enumerate(start):
        expected = expected_path(kind, w, [g[i] for g in gradients], weight_decay if w.ndim > 1 else 0.0)
        np.testing.assert_allclose([weights[i] for weights in path], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["sgd", "lars", "adam", "adamw"])
def test_a_stopped_step_changes_no_weight_and_no_state(kind):
    module = network()
    optimizer = build_optimizer(module, kind, torch.tensor(0.1, dtype=torch.float64), 0.9, 0.1)
    optimizer.found_inf = torch.zeros(())
    backward(module, 0)
    optimizer.step()

    def everything():
        state = [x.clone() for p in module.parameters() for x in optimizer.state[p].values()]
        return [p.detach().clone() for p in module.parameters()] + state

    before = everything()
    optimizer.found_inf.fill_(1)
    for p in module.parameters():
        p.grad = torch.full_like(p, float("nan"))
    optimizer.step()
    assert all(torch.equal(x, y) for x, y in zip(everything(), before, strict=True))
    optimizer.found_inf.zero_()
    backward(module, 1)
    optimizer.step()
    assert not any(torch.equal(x, y) for x, y in zip(everything(), before, strict=True))


@pytest.mark.parametrize("kind", ["sgd", "lars", "adam", "adamw"])
def test_state_is_there_before_the_first_step(kind):
    """A checkpoint of any step then fits a new optimiser, and a captured graph has its buffers."""
    module = network()
    optimizer = build_optimizer(module, kind, torch.tensor(0.1, dtype=torch.float64), 0.9, 0.1)
    names = [{name: x.shape for name, x in optimizer.state[p].items()} for p in module.parameters()]
    assert not any(x.any() for p in module.parameters() for x in optimizer.state[p].values())
    backward(module, 0)
    optimizer.step()
    assert [{name: x.shape for name, x in optimizer.state[p].items()} for p in module.parameters()] == names


def test_without_momentum_lars_has_no_state():
    module = network()
    optimizer = build_optimizer(module, "lars", torch.tensor(0.1, dtype=torch.float64), 0.0, 0.1)
    backward(module, 0)
    optimizer.step()
    assert optimizer.state == {}


# Parameters whose rate is constant


@pytest.mark.parametrize("kind", ["sgd", "lars", "adam", "adamw"])
def test_constant_parameters_keep_their_rate(kind):
    """Each parameter goes as it would if all had its own schedule; gradients are given, so that none feels others."""

    def run(constant, rates):
        module = network()
        chosen = list(module[3].parameters()) if constant else []
        lr = torch.tensor(rates[0], dtype=torch.float64)
        optimizer = build_optimizer(module, kind, lr, 0.9, 0.1, chosen)
        for number, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"].fill_(rate)  # where the trainer writes to
            generator = torch.Generator().manual_seed(number)
            for p in module.parameters():
                p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            optimizer.step()
        return module

    mixed, changing, fixed = run(True, RATES), run(False, RATES), run(False, [RATES[0]] * len(RATES))
    for layer, other in ((0, changing), (1, changing), (3, fixed)):
        for p, q in zip(mixed[layer].parameters(), other[layer].parameters(), strict=True):
            assert torch.equal(p, q)
    assert not torch.equal(changing[3].weight, fixed[3].weight)


@pytest.mark.parametrize("kind", ["sgd", "lars", "adam", "adamw"])
def test_constant_parameters_are_decayed_like_others(kind):
    module = network()
    optimizer = build_optimizer(module, kind, torch.tensor(0.1), 0.9, 0.1, module[3].parameters())
    decay = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay == {p: 0.1 if p.ndim > 1 else 0.0 for p in module.parameters()}


# A run that stops and goes on


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("lejepa", {"optimizer": "adamw"}),
        ("vicreg", {"optimizer": "lars"}),
        ("vicreg", {"optimizer": "lars", "sgd_momentum": 0.0}),
    ],
    ids=["adamw", "lars", "lars-without-momentum"],
)
def test_a_run_is_resumed_bit_for_bit(train, make_npz, tmp_path, method, settings):
    recipe = load_recipe(f"digits-{method}")
    config = replace(
        recipe,
        data=replace(recipe.data, data=str(make_npz(tmp_path / "small.npz", train=32, test=12))),
        settings=replace(recipe.settings, hidden=16),
        optimizer=replace(recipe.optimizer, epochs=1, batch=8, **settings),
        run=replace(recipe.run, device="cpu"),
    )
    train(config, tmp_path / "whole")
    torch.manual_seed(1)  # a new process would not know the old one's random state
    assert train(config, tmp_path / "pieces", stop_after=2).steps_done == 2
    train(config, tmp_path / "pieces")
    (ours, _), (expected, _) = (checkpoint.newest(RunFolder(tmp_path / x).checkpoints) for x in ("pieces", "whole"))
    assert ours.info["step"] == expected.info["step"] == 4
    assert ours.tensors.keys() == expected.tensors.keys()
    assert [name for name, x in ours.tensors.items() if not torch.equal(x, expected.tensors[name])] == []


@pytest.mark.parametrize(("kind", "name"), [("adam", "Adam"), ("adamw", "AdamW")])
def test_adam_may_be_captured_where_there_is_a_gpu(monkeypatch, kind, name):
    """Torch refuses to capture one that was not told of it; on the CPU there is nothing to capture."""
    seen = {}

    def record(groups, **options):
        seen.update(options)
        return torch.optim.SGD(groups)

    class OnGPU(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(torch.optim, name, record)
    build_optimizer(network(), kind, torch.tensor(0.1).as_subclass(OnGPU), 0.9, 0.0)
    assert seen["capturable"] is True
    build_optimizer(network(), kind, torch.tensor(0.1), 0.9, 0.0)
    assert seen["capturable"] is False
