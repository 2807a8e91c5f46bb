"""BYOL against a slow re-implementation in float64, and its head against the published numbers."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from vje.methods.byol import BYOL, byol_loss
from vje.networks.encoders import Encoder
from vje.recipes import load_recipe

BATCH, DIM = 5, 6


def make(seed=0, **options):
    """A model whose target is far from what is trained, in float64."""
    torch.manual_seed(seed)
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, DIM)), DIM)
    model = BYOL(encoder, hidden=24, projection=4, **options).double()
    for module in (model.projector, model.predictor, model.target, model.target_projector):
        for p in module.parameters():
            nn.init.normal_(p, std=0.7)
    return model


def two_views(seed=1, side=4, batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, side, side, generator=generator) for _ in range(2)]


def by_hand(network, x):
    """A head in training mode, in numpy."""
    first, norm, _, last = network
    w, gamma, beta, v = (p.detach().numpy() for p in (first.weight, norm.weight, norm.bias, last.weight))
    hidden = np.einsum("bi,hi->bh", x, w)
    hidden = gamma * (hidden - hidden.mean(0)) / (hidden.var(0) + 1e-5) ** 0.5 + beta
    return np.einsum("bh,oh->bo", np.maximum(hidden, 0), v)


def expected_loss(model, views, joint):
    def through(encoder, *heads):
        x = [encoder(view.double()).detach().numpy() for view in views]
        for head in heads:
            x = np.split(by_hand(head, np.concatenate(x)), 2) if joint else [by_hand(head, part) for part in x]
        return x

    q, y = through(model.encoder, model.projector, model.predictor), through(model.target, model.target_projector)
    total = 0.0
    for b in range(BATCH):
        for a, t in ((q[0][b], y[1][b]), (q[1][b], y[0][b])):
            total += (
                (a / np.linalg.norm(a) - t / np.linalg.norm(t)) ** 2
            ).sum()  # a distance, where the code has cosines
    return total / BATCH


@pytest.mark.parametrize("batch_norm", ["joint", "separate"])
def test_the_loss_equals_the_slow_reference(batch_norm):
    model, views = make(batch_norm=batch_norm), two_views()
    views[1] = 2 * views[1] + 1  # so that the views' statistics differ
    output = model([view.double() for view in views])
    assert output.loss.dtype == torch.float64
    assert output.loss.item() == pytest.approx(expected_loss(model, views, batch_norm == "joint"), rel=1e-8)
    assert output.embeddings.dtype == torch.float32
    torch.testing.assert_close(output.embeddings, model.encoder(views[0].double()).detach().float())


def test_the_loss_is_four_times_that_of_mean_cosines():
    q, y = (torch.randn(8, 5, generator=torch.Generator().manual_seed(i)) for i in range(2))
    cosines = torch.nn.functional.cosine_similarity(q, torch.cat([y[4:], y[:4]]))
    torch.testing.assert_close(byol_loss(q, y), 4 - 4 * cosines.mean())
    assert byol_loss(y.roll(4, 0) * torch.linspace(0.1, 9, 8).unsqueeze(1), y).abs() < 1e-6


def test_gradients_reach_what_is_trained_and_nothing_else():
    model, views = make(), [view.double() for view in two_views()]
    model(views).loss.backward()
    trained = [model.encoder, model.projector, model.predictor]
    assert all(p.grad.abs().sum() > 0 for module in trained for p in module.parameters())
    targets = [*model.target.parameters(), *model.target_projector.parameters()]
    assert all(p.grad is None and not p.requires_grad for p in targets)
    y = torch.randn(6, 4, requires_grad=True)
    assert torch.autograd.grad(byol_loss(torch.randn(6, 4, requires_grad=True), y), y, allow_unused=True) == (None,)


def test_the_target_is_a_copy_of_encoder_and_projector_that_follows():
    torch.manual_seed(0)
    model = BYOL("resnet8", hidden=16, projection=8)
    pairs = [(model.target, model.encoder), (model.target_projector, model.projector)]
    for slow, fast in pairs:
        for p, q in zip(slow.parameters(), fast.parameters(), strict=True):
            assert torch.equal(p, q)
            assert p.data_ptr() != q.data_ptr()
    for p in model.parameters():
        nn.init.normal_(p)
    before = copy.deepcopy(model)
    model.after_step(torch.tensor(0.75))
    olds = [(before.target, before.encoder), (before.target_projector, before.projector)]
    for (slow, fast), (old, lead) in zip(pairs, olds, strict=True):
        for p, a, b in zip(slow.parameters(), old.parameters(), lead.parameters(), strict=True):
            torch.testing.assert_close(p, 0.75 * a + 0.25 * b)
        assert all(torch.equal(p, q) for p, q in zip(fast.parameters(), lead.parameters(), strict=True))
    predictors = zip(model.predictor.parameters(), before.predictor.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in predictors)
    assert model.target_encoder is model.target


def test_four_encoder_passes_a_step():
    model, views, seen = BYOL("resnet8", hidden=16, projection=8), two_views(side=8, batch=4), []
    model.encoder.register_forward_hook(lambda module, given, out: seen.append(("online", len(out), out.requires_grad)))
    model.target.register_forward_hook(lambda module, given, out: seen.append(("target", len(out), out.requires_grad)))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(views)
    output.loss.backward()
    assert sorted(seen) == [("online", 4, True)] * 2 + [("target", 4, False)] * 2
    assert output.loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_at_resnet50_the_head_has_the_published_size():
    """Projector 2048-4096-256 and predictor 256-4096-256, weights and batch norms alone."""
    with torch.device("meta"):
        model = BYOL("resnet50")
    head = [*model.projector.parameters(), *model.predictor.parameters()]
    assert sum(p.numel() for p in head) == (2048 + 256 + 256 + 256) * 4096 + 2 * 2 * 4096
    assert round(sum(p.numel() for p in head) / 1e6, 1) == 11.6
    assert round(sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6, 1) == 35.1
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == 68.0


@pytest.mark.parametrize(("data", "momentum"), [("cifar10", 0.99), ("cifar100", 0.99), ("imagenet1k", 0.99)])
def test_recipes_load(data, momentum):
    config = load_recipe(f"{data}-byol")
    config.check()
    settings = config.settings
    assert (settings.hidden, settings.projection, settings.target_momentum) == (4096, 256, momentum)
    assert config.augment.solarize == (0.0, 0.2)
    load_recipe("digits-byol").check()
