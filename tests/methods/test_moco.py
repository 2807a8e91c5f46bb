"""MoCo's loss, queue and key encoder against a slow re-implementation in float64."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import vje
from vje.methods.moco import MoCo, info_nce_loss
from vje.networks.encoders import Encoder

BATCH, DIM = 3, 6


def make(seed=0, **options):
    """A linear encoder, and keys from weights of their own."""
    torch.manual_seed(seed)
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(12, DIM)), DIM)
    model = MoCo(encoder, hidden=7, projection=4, **{"queue": 8, **options}).double()
    for p in (*model.target.parameters(), *model.target_projector.parameters()):
        nn.init.normal_(p, std=0.5)
    return model


def two_views(seed=1, batch=BATCH, dtype=torch.float64, shape=(3, 2, 2)):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, *shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)]


def project(encoder, projector, image):
    """Unit projection of one image."""
    w = [p.detach().numpy() for p in (*encoder.parameters(), *projector.parameters())]
    z = w[0] @ image.flatten().numpy() + w[1]
    y = w[4] @ np.maximum(w[2] @ z + w[3], 0) + w[5]
    return y / math.sqrt((y**2).sum())


def reference_loss(model, views):
    """Each query against its key and the queue, one at a time; the mean over images of the sum over directions."""
    queue, total = model.negatives.numpy().copy(), 0.0
    for i, j in ((0, 1), (1, 0)) if model.symmetric else ((0, 1),):
        for b in range(len(views[0])):
            q = project(model.encoder, model.projector, views[i][b])
            k = project(model.target, model.target_projector, views[j][b])
            positive = math.exp(q @ k / model.temperature)
            total -= math.log(positive / (positive + sum(math.exp(q @ n / model.temperature) for n in queue)))
    return total / len(views[0])


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_loss_equals_the_slow_reference_step_after_step(symmetric):
    model = make(symmetric=symmetric, temperature=0.3)
    for seed in range(3):
        views = two_views(seed)
        expected = reference_loss(model, views)
        assert model(views).loss.item() == pytest.approx(expected, rel=1e-10)


def test_queries_need_no_unit_length_and_equal_similarities_leave_chance():
    key, negatives = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, -1.0]] * 9)
    assert info_nce_loss(torch.tensor([[5.0, 0.0]]), key, negatives, 0.1).item() == pytest.approx(math.log(10))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("queue", [2, 8, 100])
def test_the_queue_holds_the_newest_keys(queue, symmetric):
    """Also if it is shorter than a batch, or no multiple of one."""
    model = make(queue=queue, symmetric=symmetric)
    first = model.negatives.clone().numpy()
    keys = []
    for seed in range(3):
        views = two_views(seed)
        model(views)
        order = (1, 0) if symmetric else (1,)
        keys = [project(model.target, model.target_projector, x) for i in order for x in views[i]] + keys
    np.testing.assert_allclose(model.negatives, np.concatenate([keys, first])[:queue], rtol=1e-10)
    assert np.allclose(np.linalg.norm(model.negatives, axis=1), 1)


def test_in_evaluation_mode_the_queue_stays():
    model = make().eval()
    before = model.negatives.clone()
    model(two_views())
    assert torch.equal(model.negatives, before)


@pytest.mark.parametrize("symmetric", [True, False])
def test_gradients_reach_what_is_trained_and_nothing_else(symmetric):
    model = make(symmetric=symmetric)
    views = [view.requires_grad_() for view in two_views()]
    model(views).loss.backward()
    trained = [*model.encoder.parameters(), *model.projector.parameters()]
    assert all(p.grad.abs().sum() > 0 for p in trained)
    assert {id(p) for p in model.parameters() if p.requires_grad} == {id(p) for p in trained}
    assert all(p.grad is None for p in (*model.target.parameters(), *model.target_projector.parameters()))
    assert (views[1].grad is None) == (not symmetric)  # a key is a constant


def test_after_step_moves_key_encoder_and_projector():
    model = make()
    before = copy.deepcopy(model)
    model.after_step(torch.tensor(0.75))
    for name in ("target", "target_projector"):
        leader = model.encoder if name == "target" else model.projector
        for p, old, lead in zip(
            getattr(model, name).parameters(), getattr(before, name).parameters(), leader.parameters(), strict=True
        ):
            torch.testing.assert_close(p, 0.75 * old + 0.25 * lead)
    assert model.target_encoder is model.target


def test_a_real_encoder_starts_with_equal_keys_and_survives_saving(tmp_path):
    torch.manual_seed(0)
    model = MoCo("resnet8", hidden=16, projection=8, queue=11, symmetric=False, temperature=0.4)
    for p, q in zip(model.encoder.parameters(), model.target.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.data_ptr() != q.data_ptr()
    views = two_views(batch=4, dtype=torch.float32, shape=(3, 8, 8))
    output = model(views)
    output.loss.backward()
    assert output.loss.isfinite()
    assert output.embeddings.shape == (4, 256)
    loaded = vje.load(model.save(tmp_path))
    assert isinstance(loaded, MoCo)
    assert loaded.hyperparameters() == model.hyperparameters()
    assert torch.equal(loaded.negatives, model.negatives)
    assert loaded(views).loss == model.eval()(views).loss
    assert torch.equal(loaded.embed(views[0]), model.embed(views[0]))


def test_under_autocast_queue_and_loss_are_float32():
    model, views = make().float(), two_views(dtype=torch.float32)
    expected = copy.deepcopy(model)(views).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(views).loss
    assert loss.dtype == model.negatives.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("symmetric", [True, False])
def test_under_autocast_similarities_are_not_rounded(symmetric):
    """The loss of the projections that bfloat16 gave, with their similarities in float64."""
    model, seen = make(symmetric=symmetric).float(), {}
    for name in ("projector", "target_projector"):
        getattr(model, name).register_forward_hook(lambda *args, name=name: seen.update({name: args[-1].detach()}))
    queue = model.negatives.double().numpy().copy()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(two_views(dtype=torch.float32)).loss.item()
    assert seen["projector"].dtype == torch.bfloat16
    q, k = (seen[name].double().numpy() for name in ("projector", "target_projector"))
    q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, k))
    positive = (q * k).sum(1) / 0.2
    logits = np.concatenate([positive[:, None], q @ queue.T / 0.2], 1)
    expected = (np.log(np.exp(logits).sum(1)) - positive).mean() * (2 if symmetric else 1)
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature must be positive.*got -1\.0"),
        ({"temperature": 0.0}, r"temperature must be positive.*got 0\.0"),
        ({"queue": 0}, "queue must be .*got 0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


# Shuffled batch norm


def convolutional(**options):
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, DIM, 2), nn.BatchNorm2d(DIM), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = MoCo(Encoder(nn.Sequential(*layers), DIM), hidden=7, projection=4, queue=8, **options).double()
    for p in (*model.target.parameters(), *model.target_projector.parameters()):
        nn.init.normal_(p, std=0.5)
    return model


def test_queries_and_keys_are_normalised_among_different_images():
    model, plain = convolutional(groups=2), convolutional()
    plain.load_state_dict(model.state_dict())
    views = two_views(batch=8, shape=(3, 4, 4))
    near, dealt = torch.arange(8).chunk(2), (torch.tensor([0, 4, 1, 5]), torch.tensor([2, 6, 3, 7]))
    total = 0.0
    for i, j in ((0, 1), (1, 0)):
        query, key = torch.empty(8, 4, dtype=torch.float64), torch.empty(8, 4, dtype=torch.float64)
        for part in near:
            query[part] = plain.projector(plain.encoder(views[i][part])).detach()
        for part in dealt:
            key[part] = plain.target_projector(plain.target(views[j][part])).detach()
        key /= key.norm(dim=1, keepdim=True)
        total += info_nce_loss(query, key, model.negatives, model.temperature).item()
    assert model(views).loss.item() == pytest.approx(total, rel=1e-10)
    assert plain(views).loss.item() != pytest.approx(total, rel=1e-3)


def test_the_key_encoder_still_follows_the_trained_one():
    model = convolutional(groups=2, target_momentum=0.5)
    online = dict(model.encoder.named_parameters())
    expected = {name: (p + online[name]) / 2 for name, p in model.target.named_parameters()}
    model.after_step(0.5)
    for name, p in model.target.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name].detach())


def test_an_impossible_number_of_groups_is_refused():
    with pytest.raises(ValueError, match="groups must be 1"):
        make(groups=0)
