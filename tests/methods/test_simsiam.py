"""SimSiam against a slow re-implementation in float64, and its head against the published numbers."""

import numpy as np
import pytest
import torch
from torch import nn

from vje.methods.simsiam import SimSiam, simsiam_loss
from vje.networks.encoders import Encoder
from vje.training.optimizer import build_optimizer

BATCH, DIM, HIDDEN, BOTTLENECK = 5, 6, 7, 3


def make(seed=0, **options):
    torch.manual_seed(seed)
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, DIM)), DIM)
    model = SimSiam(encoder, **{"hidden": HIDDEN, "layers": 2, "bottleneck": BOTTLENECK, **options}).double()
    for module in (model.projector, model.predictor):
        for p in module.parameters():
            nn.init.normal_(p, std=0.7)  # batch norms too, so that each is seen to matter
    return model


def two_views(seed=1, side=4, batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, side, side, generator=generator, dtype=torch.float64) for _ in range(2)]


def by_hand(network, x):
    """A head in training mode, in numpy: whitens with the batch's own biased variance."""
    for module in network:
        p = {name: value.detach().numpy() for name, value in module.named_parameters()}
        if isinstance(module, nn.Linear):
            x = np.stack([p["weight"] @ row for row in x]) + p.get("bias", 0)
        elif isinstance(module, nn.BatchNorm1d):
            x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * p.get("weight", 1) + p.get("bias", 0)
        else:
            x = np.where(x > 0, x, 0)
    return x


def expected_loss(model, views, joint):
    z = [model.encoder(view).detach().numpy() for view in views]
    if joint:
        y = np.split(by_hand(model.projector, np.concatenate(z)), 2)
        p = np.split(by_hand(model.predictor, np.concatenate(y)), 2)
    else:
        y = [by_hand(model.projector, x) for x in z]
        p = [by_hand(model.predictor, x) for x in y]
    losses = []
    for b in range(BATCH):
        for i, j in ((0, 1), (1, 0)):
            unit = [v / np.sqrt((v**2).sum()) for v in (p[i][b], y[j][b])]
            losses.append(((unit[0] - unit[1]) ** 2).sum() / 2 - 1)  # a cosine from a distance
    return np.mean(losses)


@pytest.mark.parametrize("batch_norm", ["joint", "separate"])
@pytest.mark.parametrize("layers", [2, 3])
def test_the_loss_equals_the_slow_reference(batch_norm, layers):
    model, views = make(batch_norm=batch_norm, layers=layers), two_views()
    views[1] = 2 * views[1] + 1  # so that the views' statistics differ
    output = model(views)
    assert output.loss.item() == pytest.approx(expected_loss(model, views, batch_norm == "joint"), rel=1e-10)
    assert output.parts["loss"] == output.loss
    assert torch.equal(output.embeddings, model.encoder(views[0]).float())
    assert not output.embeddings.requires_grad


def test_the_loss_ignores_lengths_and_is_symmetric_in_the_views():
    p, y = (torch.randn(8, 5, generator=torch.Generator().manual_seed(i)) for i in range(2))
    lengths = torch.linspace(0.1, 9, 8).unsqueeze(1)
    torch.testing.assert_close(simsiam_loss(p * lengths, y), simsiam_loss(p, y))
    torch.testing.assert_close(simsiam_loss(p.roll(4, 0), y.roll(4, 0)), simsiam_loss(p, y))
    assert -1 <= simsiam_loss(p, y) <= 1


def test_the_projection_is_a_constant_where_it_is_compared_with():
    """The gradient is that of the prediction's path alone: finite differences with the other side held still."""
    torch.manual_seed(0)
    p, y = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    simsiam_loss(p @ weight, y @ weight).backward()
    direction = torch.randn_like(weight)
    fixed = (y @ weight).detach()
    with torch.no_grad():
        ahead, behind = (simsiam_loss(p @ (weight + h * direction), fixed) for h in (1e-6, -1e-6))
    assert (weight.grad * direction).sum().item() == pytest.approx(((ahead - behind) / 2e-6).item(), rel=1e-6)
    y.requires_grad_()
    assert torch.autograd.grad(simsiam_loss(p.requires_grad_(), y), y, allow_unused=True) == (None,)


def test_at_resnet50_the_head_has_the_published_size():
    with torch.device("meta"):
        model = SimSiam("resnet50", hidden=2048, layers=3, bottleneck=512)
    size = {name: sum(p.numel() for p in module.parameters()) for name, module in model.named_children()}
    assert round((size["projector"] + size["predictor"]) / 1e6, 1) == 14.7
    assert round(sum(size.values()) / 1e6, 1) == 38.2
    biases = [f"{name}" for name, m in model.named_modules() if isinstance(m, nn.Linear) and m.bias is not None]
    assert biases == ["predictor.3"]  # the authors' only one
    assert not any(p.numel() for p in model.projector[-1].parameters())  # normalised without scale and shift


@pytest.mark.parametrize("fixed", [True, False])
def test_the_predictors_learning_rate_stays(fixed):
    model = make(fixed_predictor_rate=fixed)
    lr = torch.tensor(0.1)
    optimizer = build_optimizer(model, "sgd", lr, 0.9, 5e-4, model.constant_rate())
    lr.fill_(0.01)
    rates = {p: round(float(group["lr"]), 6) for group in optimizer.param_groups for p in group["params"]}
    assert {rates[p] for p in model.predictor.parameters()} == {0.1 if fixed else 0.01}
    assert {rates[p] for p in [*model.encoder.parameters(), *model.projector.parameters()]} == {0.01}


def test_a_step_trains_every_parameter():
    torch.manual_seed(0)
    model = SimSiam("resnet8", hidden=16, layers=2, bottleneck=8)
    with torch.autocast("cpu", torch.bfloat16):
        output = model([view.float() for view in two_views(side=8, batch=4)])
    output.loss.backward()
    assert output.loss.dtype == output.embeddings.dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.target_encoder is None
