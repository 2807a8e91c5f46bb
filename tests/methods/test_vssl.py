"""VSSL's terms by quadrature, and its loss against a slow re-implementation in float64."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats
from torch import nn

from vje.methods.vssl import VSSL, cosine_terms, gaussian_terms
from vje.networks.encoders import Encoder
from vje.posterior import DiagonalGaussian
from vje.random import Draws, Stream

BATCH, DIM, HIDDEN, LATENT, FLOOR = 5, 6, 24, 4, 0.2

means, variances = st.floats(-3, 3), st.floats(0.05, 5)


def gaussians(*parameters):
    """Two Gaussians of one feature from their means and variances."""
    m_q, v_q, m_p, v_p = (torch.tensor([x], dtype=torch.float64) for x in parameters)
    return DiagonalGaussian(m_q, v_q), DiagonalGaussian(m_p, v_p)


@settings(max_examples=25)
@given(m_q=means, v_q=variances, m_p=means, v_p=variances)
def test_gaussian_terms_are_the_integrals(m_q, v_q, m_p, v_p):
    q, p = stats.norm(m_q, math.sqrt(v_q)), stats.norm(m_p, math.sqrt(v_p))
    x, step = np.linspace(*q.interval(1 - 1e-14), 4001, retstep=True)
    nll, kl = (t.item() for t in gaussian_terms(*gaussians(m_q, v_q, m_p, v_p)))
    assert nll == pytest.approx(integrate.simpson(-q.pdf(x) * p.logpdf(x), dx=step), rel=1e-6, abs=1e-7)
    assert kl == pytest.approx(integrate.simpson(q.pdf(x) * (q.logpdf(x) - p.logpdf(x)), dx=step), rel=1e-6, abs=1e-7)


def test_terms_are_averages_over_features():
    torch.manual_seed(0)
    parameters = [torch.randn(3, 7), torch.rand(3, 7) + 0.1, torch.randn(3, 7), torch.rand(3, 7) + 0.1]
    q, p = DiagonalGaussian(*parameters[:2]), DiagonalGaussian(*parameters[2:])
    together = gaussian_terms(q, p)
    singly = [gaussian_terms(*gaussians(*(x[1, i].item() for x in parameters))) for i in range(7)]
    for term, values in zip(together, zip(*singly, strict=True), strict=True):
        assert term[1].item() == pytest.approx(sum(values).item() / 7, rel=1e-5)


@settings(max_examples=25)
@given(gap=means, v_p=st.floats(0.2, 3))
def test_the_best_variance_is_half_the_teachers_whatever_the_residual(gap, v_p):
    """Why there is a floor: a teacher that follows the student halves it again and again."""

    def loss(v):
        return sum(gaussian_terms(*gaussians(gap, v, 0.0, v_p))).item()

    best = optimize.minimize_scalar(loss, bounds=(1e-3, 10), method="bounded", options={"xatol": 1e-8}).x
    assert best == pytest.approx(v_p / 2, rel=1e-3)


def test_cosine_terms_are_angles_alone():
    generator = np.random.default_rng(0)
    s, m_q, m_p = generator.normal(size=(3, 6, 5))
    v_q, v_p = generator.uniform(0.1, 2, size=(2, 6, 5))
    scales = generator.uniform(0.1, 9, size=(5, 6, 1))

    def torch_terms(*arrays):
        s, m_q, v_q, m_p, v_p = map(torch.tensor, arrays)
        return cosine_terms(s, DiagonalGaussian(m_q, v_q), DiagonalGaussian(m_p, v_p))

    arrays = (s, m_q, v_q, m_p, v_p)
    nll, kl = torch_terms(*arrays)
    for b in range(6):
        half_chord = [  # 1 - cosine is half the squared distance of unit vectors
            ((x / math.dist(x, [0] * 5) - y / math.dist(y, [0] * 5)) ** 2).sum() / 2
            for x, y in ((s[b], m_p[b]), (m_q[b], m_p[b]), (v_q[b], v_p[b]))
        ]
        assert nll[b].item() == pytest.approx(half_chord[0], rel=1e-9)
        assert kl[b].item() == pytest.approx((half_chord[1] + half_chord[2]) / 2, rel=1e-9)
    for term, scaled in zip((nll, kl), torch_terms(*(a * x for a, x in zip(scales, arrays, strict=True))), strict=True):
        torch.testing.assert_close(term, scaled)


# The method


def make(seed=0, **options):
    """A model whose teacher is far from its student, in float64."""
    torch.manual_seed(seed)
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, DIM)), DIM)
    model = VSSL(encoder, hidden=HIDDEN, latent=LATENT, variance_floor=FLOOR, **options).double()
    for module in (model.head, model.predict, model.target, model.target_head):
        for p in module.parameters():
            nn.init.normal_(p, std=0.7)
    return model


def two_views(seed=1, side=4, batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, side, side, generator=generator, dtype=torch.float64) for _ in range(2)]


def draws(first=0, batch=BATCH):
    return Draws(seed=3, step=11, positions=torch.arange(first, first + batch))


def whiten(x, norm=None):
    x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    return x if norm is None else x * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def gaussian_by_hand(head, z):
    w = [layer.weight.detach().numpy() for layer in (head.body[0], head.mean[0], head.variance)]
    hidden = np.maximum(whiten(np.einsum("bi,hi->bh", z, w[0]), head.body[1]), 0)
    raw = np.einsum("bh,lh->bl", hidden, w[2]) + head.variance.bias.detach().numpy()
    return whiten(np.einsum("bh,lh->bl", hidden, w[1])), FLOOR + np.logaddexp(0, raw)


def predict_by_hand(network, x):
    first, norm, _, last = network
    hidden = np.maximum(whiten(np.einsum("bi,hi->bh", x, first.weight.detach().numpy()), norm), 0)
    return np.einsum("bh,lh->bl", hidden, last.weight.detach().numpy())


def expected_loss(model, views, noise, kl_weight):
    """Loops over images and directions; noise ``[B, 2, latent]``."""
    student = [gaussian_by_hand(model.head, model.encoder(view).detach().numpy()) for view in views]
    teacher = [gaussian_by_hand(model.target_head, model.target(view).numpy()) for view in views]
    if model.predictor:
        student = [(predict_by_hand(model.predict, m), v) for m, v in student]

    def apart(x, y):
        return 1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y)

    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    losses = []
    for b in range(BATCH):
        for i, j in ((0, 1), (1, 0)):
            (m_q, v_q), (m_p, v_p) = ((x[b] for x in side) for side in (student[i], teacher[j]))
            if model.objective == "gaussian":
                s = m_q[:, None] + np.sqrt(v_q)[:, None] * nodes  # Gauss-Hermite quadrature for each feature
                nll, neg_entropy = (
                    (np.mean(stats.norm.logpdf(s, m[:, None], np.sqrt(v)[:, None]), 0) @ weights).item() * sign
                    for m, v, sign in ((m_p, v_p, -1), (m_q, v_q, 1))
                )
                kl = nll + neg_entropy
            else:
                nll = apart(m_q + np.sqrt(v_q) * noise[b, i], m_p)
                kl = (apart(m_q, m_p) + apart(v_q, v_p)) / 2
            losses.append(nll + kl_weight * kl)
    return np.mean(losses)


@pytest.mark.parametrize("predictor", [True, False])
@pytest.mark.parametrize(("objective", "kl_weight"), [("cosine", 1.0), ("cosine", 0.2), ("gaussian", 0.5)])
def test_the_loss_equals_the_slow_reference(objective, kl_weight, predictor):
    model, views = make(objective=objective, kl_weight=kl_weight, predictor=predictor), two_views()
    output = model(views, draws())
    noise = draws().normal(Stream.POSTERIOR, 2 * LATENT).view(BATCH, 2, LATENT).numpy()
    assert output.loss.item() == pytest.approx(expected_loss(model, views, noise, kl_weight), rel=1e-6)
    assert sorted(output.parts) == ["cosine", "kl", "loss", "nll", "posterior_variance"]
    assert torch.equal(output.embeddings, model.encoder(views[0]).float())


@pytest.mark.parametrize("objective", ["cosine", "gaussian"])
def test_gradients_reach_the_student_and_not_the_teacher(objective):
    model = make(objective=objective)
    model(two_views(), draws()).loss.backward()
    student = [*model.encoder.parameters(), *model.head.parameters(), *model.predict.parameters()]
    assert all(p.grad.abs().sum() > 0 for p in student)
    assert all(p.grad is None for p in [*model.target.parameters(), *model.target_head.parameters()])
    assert {p for p in model.parameters() if p.requires_grad} == set(student)


def test_the_teacher_is_a_copy_of_encoder_and_head_that_follows():
    torch.manual_seed(0)
    model = VSSL("resnet8", hidden=16, latent=8)
    pairs = [(model.target, model.encoder), (model.target_head, model.head)]
    assert all(torch.equal(p, q) for a, b in pairs for p, q in zip(a.parameters(), b.parameters(), strict=True))
    for p in model.parameters():
        nn.init.normal_(p)
    before = copy.deepcopy(model)
    model.after_step(torch.tensor(0.75))
    olds = [(before.target, before.encoder), (before.target_head, before.head)]
    for (slow, _), (old, lead) in zip(pairs, olds, strict=True):
        for p, a, b in zip(slow.parameters(), old.parameters(), lead.parameters(), strict=True):
            torch.testing.assert_close(p, 0.75 * a + 0.25 * b)
    assert model.target_encoder is model.target


def test_processes_that_share_a_batch_see_its_noise():
    """In evaluation mode, where images do not see each other, the mean of the parts' losses is that of the whole."""
    model, views = make().eval(), two_views()
    whole = model(views, draws()).loss
    parts = [model([v[a:b] for v in views], draws(a, b - a)).loss * (b - a) / BATCH for a, b in ((0, 2), (2, BATCH))]
    torch.testing.assert_close(sum(parts), whole)


def test_without_draws_noise_comes_from_the_global_generator():
    model, views = make(), two_views()
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(model(views).loss.item())
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("objective", ["cosine", "gaussian"])
def test_a_step_under_autocast(objective):
    torch.manual_seed(0)
    model, seen = VSSL("resnet8", objective=objective, hidden=16, latent=8), []
    for module in (model.encoder, model.target):
        module.register_forward_hook(lambda module, given, out: seen.append(len(out)))
    with torch.autocast("cpu", torch.bfloat16):
        output = model([view.float() for view in two_views(side=8, batch=4)])
    output.loss.backward()
    assert seen == [4] * 4
    assert output.loss.dtype == output.embeddings.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_under_autocast_the_variance_is_not_rounded():
    """It is the softplus in float64 of what the linear layer gave in bfloat16."""
    model, seen = make().float(), []
    model.head.variance.register_forward_hook(lambda module, given, out: seen.append(out.detach()))
    with torch.autocast("cpu", torch.bfloat16):
        output = model([view.float() for view in two_views()], draws())
    assert [raw.dtype for raw in seen] == [torch.bfloat16] * 2
    expected = FLOOR + np.logaddexp(0, torch.cat(seen).double().numpy()).mean()
    assert output.parts["posterior_variance"].item() == pytest.approx(expected, rel=1e-6)


def test_statistics_are_of_the_students_gaussian():
    model, views = make(), two_views()
    model(views)
    z = model.eval().encoder(views[0]).detach()
    hidden = model.head.body(z)
    variance = FLOOR + np.logaddexp(0, model.head.variance(hidden).detach().numpy())
    np.testing.assert_allclose(model.statistics(z)["variance"].detach(), variance.mean(1))
    np.testing.assert_allclose(model.ood_scores(z)["variance_trace"].detach(), variance.sum(1))
    torch.testing.assert_close(model.spaces(z)["mean"], model.head.mean(hidden))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "angular"}, "objective must be one of gaussian, cosine, got 'angular'"),
        ({"kl_weight": -0.5}, r"kl_weight must be 0 or more, got -0\.5"),
        ({"variance_floor": 0.0}, r"variance_floor must be positive, got 0\.0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        VSSL("resnet8", hidden=8, latent=4, **options)
