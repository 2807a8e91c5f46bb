"""Losses and their gradients against those of lightly, where that is installed (`pip install lightly`)."""

import pytest
import torch
from torch.nn.functional import normalize

from vje.methods.barlow import barlow_terms
from vje.methods.byol import byol_loss
from vje.methods.lejepa import prediction_loss, sigreg
from vje.methods.moco import info_nce_loss
from vje.methods.simclr import nt_xent_loss
from vje.methods.simsiam import simsiam_loss
from vje.methods.swav import sinkhorn, swapped_prediction_loss
from vje.methods.vicreg import vicreg_terms

losses = pytest.importorskip("lightly.loss")

B, P = 12, 7


@pytest.fixture
def views():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(B, P, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2)]


def agree(ours, theirs, inputs, rtol=1e-10, atol=1e-12):
    """Values and gradients are the same."""
    torch.testing.assert_close(ours, theirs.reshape(()), rtol=rtol, atol=0.0)
    got, expected = (torch.autograd.grad(loss, inputs, retain_graph=True) for loss in (ours, theirs.sum()))
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


def test_simclr(views):
    agree(nt_xent_loss(torch.cat(views), 0.3), losses.NTXentLoss(temperature=0.3)(*views), views)


def test_moco(views):
    queue = normalize(torch.randn(20, P, dtype=torch.float64), dim=1)
    theirs = losses.NTXentLoss(temperature=0.2, memory_bank_size=(20, P))
    theirs.memory_bank.bank = queue.clone()
    query, key = views[0], views[1].detach()
    agree(info_nce_loss(query, normalize(key, dim=1), queue, 0.2), theirs(query, key), [query])


def test_barlow(views):
    invariance, redundancy = barlow_terms(*views)
    agree(invariance + 0.005 * redundancy, losses.BarlowTwinsLoss(lambda_param=0.005)(*views), views)


def test_vicreg(views):
    invariance, variance, covariance = vicreg_terms(*views)
    agree(25 * invariance + 25 * variance + covariance, losses.VICRegLoss()(*views), views)


def test_simsiam_and_byol(views):
    cosine = losses.NegativeCosineSimilarity()
    targets = [torch.randn(B, P, dtype=torch.float64) for _ in range(2)]
    theirs = (cosine(views[0], targets[1]) + cosine(views[1], targets[0])) / 2
    agree(simsiam_loss(torch.cat(views), torch.cat(targets)), theirs, views)
    agree(byol_loss(torch.cat(views), torch.cat(targets)), 4 + 4 * theirs, views)


def test_swav(views):
    scores = [normalize(view, dim=1) for view in views]  # as if features were prototypes
    assignments = torch.cat([sinkhorn(x.detach(), 0.05, 3) for x in scores])
    agree(swapped_prediction_loss(torch.cat(scores), assignments, 0.1), losses.SwaVLoss()(scores, []), views)


def test_lejepa(views, monkeypatch):
    module = pytest.importorskip("lightly.loss.lejepa_loss")
    directions = normalize(torch.randn(P, 32, dtype=torch.float64), dim=0)
    theirs = module.SIGReg(knots=17, t_max=3.0, num_vectors=32).double()
    monkeypatch.setattr(theirs, "_generate_unit_vectors", lambda *args, **options: directions)
    y = torch.stack(views)
    for view in views:  # the weights of its integral are rounded to float32
        agree(sigreg(view, directions, 33, 3.0), theirs(view), [view], rtol=1e-6, atol=1e-8)
    agree(prediction_loss(y), module.lejepa_invariance_loss(all_proj=y, global_proj=y), views)
