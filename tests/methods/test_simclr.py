"""SimCLR's loss against the paper's formula, one pair at a time in float64, and against cases done by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vje.methods.simclr import SimCLR, nt_xent_loss


def reference_loss(y, temperature):
    """Eq. 1 as it stands: rows of y are view 1 of each image, then view 2."""
    y = np.asarray(y, dtype=np.float64)
    rows, images, losses = len(y), len(y) // 2, []
    for i in range(rows):
        cosine = [y[i] @ y[k] / math.sqrt(y[i] @ y[i]) / math.sqrt(y[k] @ y[k]) for k in range(rows)]
        positive = math.exp(cosine[(i + images) % rows] / temperature)
        losses.append(-math.log(positive / sum(math.exp(cosine[k] / temperature) for k in range(rows) if k != i)))
    return np.mean(losses)


def random_rows(rows, dim=6, seed=0):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def two_views(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, 8, 8, generator=generator) for _ in range(2)]


def make(**options):
    torch.manual_seed(0)
    return SimCLR("resnet8", hidden=16, projection=8, **options)


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
@pytest.mark.parametrize("images", [1, 2, 5])
def test_the_loss_equals_the_slow_reference(images, temperature):
    y = random_rows(2 * images)
    assert nt_xent_loss(y, temperature).item() == pytest.approx(reference_loss(y, temperature), rel=1e-10, abs=1e-12)


def test_a_single_image_has_nothing_to_be_confused_with():
    assert nt_xent_loss(random_rows(2)).item() == pytest.approx(0, abs=1e-12)


def test_two_images_by_hand():
    """Image 1 looks along x in both views; image 2 along y, then 30 degrees off it towards x."""
    half, root = 0.5, math.sqrt(3) / 2
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [half, root]], dtype=torch.float64)
    by_hand = [
        math.log(math.e + 1 + math.exp(half)) - 1,  # image 1, view 1: sees 1, 0, half
        math.log(1 + 1 + math.exp(root)) - root,  # image 2, view 1: sees 0, 0, root
        math.log(math.e + 1 + math.exp(half)) - 1,  # image 1, view 2: as view 1
        math.log(math.exp(half) + math.exp(root) + math.exp(half)) - root,  # image 2, view 2
    ]
    assert nt_xent_loss(y, temperature=1.0).item() == pytest.approx(sum(by_hand) / 4, rel=1e-12)


@settings(max_examples=30)
@given(images=st.integers(2, 6), temperature=st.floats(0.05, 3), seed=st.integers(0, 99))
def test_lengths_order_of_images_and_of_views_do_not_matter(images, temperature, seed):
    y = random_rows(2 * images, seed=seed)
    loss = nt_xent_loss(y, temperature)
    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    lengths = 0.1 + random_rows(2 * images, 1, seed + 1).abs()
    same = [lengths * y, torch.cat([y[order], y[images + order]]), y.roll(images, 0)]
    for other in same:
        torch.testing.assert_close(nt_xent_loss(other, temperature), loss)
    assert 0 <= loss <= math.log(2 * images - 1) + 2 / temperature


def test_a_step_of_the_method_and_its_gradients():
    model, views, seen = make(temperature=0.2), two_views(), []
    model.projector.register_forward_hook(lambda *args: seen.append(args[-1].detach()))
    output = model(views)
    assert len(seen) == 1  # both views in one pass
    assert output.loss.item() == pytest.approx(reference_loss(seen[0], 0.2), rel=1e-5)
    assert output.parts == {"loss": output.loss.detach()}
    assert output.embeddings.shape == (4, 256)
    output.loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in (*model.encoder.parameters(), *model.projector.parameters()))


def test_under_autocast_the_loss_is_float32():
    model, seen = make(), []
    model.projector.register_forward_hook(lambda *args: seen.append(args[-1].detach()))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(two_views()).loss
    assert seen[0].dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(reference_loss(seen[0].float(), 0.5), rel=1e-5)


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match=r"temperature must be positive.*got 0\.0"):
        make(temperature=0.0)
    with pytest.raises(ValueError, match="two views of each image, got 1"):
        make()(two_views()[:1])
