"""SwAV's assignments and loss against a slow re-implementation in float64."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vje.methods.swav import SwAV, sinkhorn, swapped_prediction_loss
from vje.recipes import load_recipe
from vje.training.optimizer import build_optimizer


def reference_assignments(scores, epsilon, iterations):
    """The transport plan by its two scaling vectors, with the paper's marginals 1/K and 1/N."""
    kernel = np.exp(np.asarray(scores, dtype=np.float64) / epsilon)  # [N, K]
    samples, prototypes = kernel.shape
    u = np.ones(samples)
    for _ in range(iterations):
        v = 1 / prototypes / (kernel.T @ u)
        u = 1 / samples / (kernel @ v)
    return samples * u[:, None] * kernel * v[None, :]


def reference_loss(y, weights, temperature=0.1, epsilon=0.05, iterations=3):
    """y ``[2, B, P]``: code of one view, softmax of the other, image by image."""
    y, weights = np.asarray(y, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (y, weights)]
    scores = unit[0] @ unit[1].T
    codes = [reference_assignments(view, epsilon, iterations) for view in scores]
    losses = []
    for t, s in ((0, 1), (1, 0)):
        for c, q in zip(scores[t], codes[s], strict=True):
            log_partition = math.log(sum(math.exp(x / temperature) for x in c))
            losses.append(-sum(qk * (ck / temperature - log_partition) for qk, ck in zip(q, c, strict=True)))
    return np.mean(losses)


def random_scores(samples, prototypes, seed=0):
    return 2 * torch.rand(samples, prototypes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def two_views(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, 8, 8, generator=generator) for _ in range(2)]


def make(**options):
    torch.manual_seed(0)
    return SwAV("resnet8", **{"hidden": 16, "projection": 8, "prototypes": 5, "frozen_steps": 0, **options})


# Assignments


@settings(max_examples=30)
@given(
    samples=st.integers(1, 12),
    prototypes=st.integers(2, 9),
    epsilon=st.floats(0.05, 1),
    iterations=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_sinkhorn_equals_the_transport_plan(samples, prototypes, epsilon, iterations, seed):
    scores = random_scores(samples, prototypes, seed)
    found = sinkhorn(scores, epsilon, iterations)
    np.testing.assert_allclose(found, reference_assignments(scores, epsilon, iterations), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1)  # every sample is assigned once


@pytest.mark.parametrize(("samples", "prototypes"), [(12, 4), (4, 12)])
def test_with_enough_iterations_prototypes_are_used_alike(samples, prototypes):
    found = sinkhorn(random_scores(samples, prototypes), epsilon=0.2, iterations=500)
    np.testing.assert_allclose(found.sum(0), samples / prototypes, rtol=1e-6)


def test_a_prototype_that_all_like_and_a_sample_that_likes_all_are_nothing_special():
    scores = random_scores(6, 4)
    popular, keen = scores + random_scores(1, 4, seed=1), scores + random_scores(6, 1, seed=2)
    torch.testing.assert_close(sinkhorn(popular), sinkhorn(scores))
    torch.testing.assert_close(sinkhorn(keen, 0.3, 500), sinkhorn(scores, 0.3, 500))  # this only in the limit


def test_a_tiny_epsilon_gives_a_matching_in_float32():
    scores = torch.eye(3)[[2, 0, 1]]
    torch.testing.assert_close(sinkhorn(scores, epsilon=1e-3), scores)


def test_assignments_carry_no_gradient():
    assert not sinkhorn(random_scores(3, 2).requires_grad_()).requires_grad


def test_the_loss_of_perfect_predictions_is_the_entropy_of_the_codes():
    codes = torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1).repeat(2, 1)
    entropy = -(codes * codes.log()).sum(1).mean()
    torch.testing.assert_close(swapped_prediction_loss(0.1 * codes.log(), codes), entropy)


# The method


@pytest.mark.parametrize("options", [{}, {"temperature": 0.3, "epsilon": 0.2, "iterations": 1}])
def test_a_step_of_the_method(options):
    model, seen = make(**options).double(), []
    model.projector.register_forward_hook(lambda *args: seen.append(args[-1].detach()))
    output = model([view.double() for view in two_views()])
    assert len(seen) == 1  # both views in one pass
    expected = reference_loss(seen[0].view(2, 4, 8), model.prototype_weights.detach(), **options)
    assert output.loss.item() == pytest.approx(expected, rel=1e-10)
    assert output.embeddings.shape == (4, 256)
    output.loss.backward()
    trained = (*model.encoder.parameters(), *model.projector.parameters(), model.prototype_weights)
    assert all(p.grad.abs().sum() > 0 for p in trained)


def test_the_length_of_prototypes_does_not_matter():
    model, views = make(), two_views()
    loss = model(views).loss
    with torch.no_grad():
        model.prototype_weights.mul_(torch.linspace(0.1, 3, 5).unsqueeze(1))
    torch.testing.assert_close(model(views).loss, loss)


def test_prototypes_start_on_the_sphere():
    """Where their length sets how far a step turns them."""
    torch.testing.assert_close(make().prototype_weights.detach().square().sum(1), torch.ones(5))


def test_gradients_treat_the_codes_as_constants():
    """The gradient in the scores is (softmax - code of the other view) / (2B tau)."""
    scores = random_scores(6, 4).requires_grad_()
    codes = torch.cat([sinkhorn(view) for view in scores.chunk(2)])
    swapped_prediction_loss(scores, codes, temperature=0.3).backward()
    expected = ((scores / 0.3).softmax(1) - codes[[3, 4, 5, 0, 1, 2]]) / (6 * 0.3)
    torch.testing.assert_close(scores.grad, expected.detach())


def test_prototypes_stand_still_at_the_start():
    model = make(frozen_steps=2)
    for step in range(4):
        model.zero_grad()
        model(two_views(step)).loss.backward()
        assert (model.prototype_weights.grad.abs().sum() > 0) == (step >= 2)
        assert all(p.grad.abs().sum() > 0 for p in model.projector.parameters())
        model(two_views(step))  # another micro-batch
        model.after_step(1.0)
    assert model.steps == 4  # optimiser steps alone count


def optimizer_of(model, kind=None, weight_decay=None):
    """That of the recipe for CIFAR, or another."""
    recipe = load_recipe("cifar10-swav").optimizer
    decay = recipe.weight_decay if weight_decay is None else weight_decay
    return build_optimizer(model, kind or recipe.optimizer, torch.tensor(recipe.lr), recipe.sgd_momentum, decay)


def take_steps(model, optimizer, steps):
    """Whole steps, with gradients of two micro-batches; yields the prototypes after each."""
    for step in steps:
        optimizer.zero_grad()
        for part in range(2):
            model(two_views(2 * step + part)).loss.backward()
        optimizer.step()
        model.after_step(1.0)
        yield model.prototype_weights.detach().clone()


def turned(a, b):
    """The largest angle between rows, in degrees."""
    a, b = (x.double() / x.double().norm(dim=1, keepdim=True) for x in (a, b))
    return np.degrees(2 * np.arcsin((a - b).norm(dim=1).max().item() / 2))


def test_the_recipes_optimizer_does_not_turn_frozen_prototypes():
    model = make(frozen_steps=12)
    optimizer, before = optimizer_of(model), model.prototype_weights.detach().clone()
    decay = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert isinstance(optimizer, torch.optim.Adam) and decay[model.prototype_weights] > 0  # which alone turns them
    assert all(torch.equal(after, before) for after in take_steps(model, optimizer, range(12)))
    *_, after = take_steps(model, optimizer, range(12, 15))
    assert turned(before, after) > 0.1


@pytest.mark.parametrize("kind", ["sgd", "lars", "adam", "adamw"])
def test_no_optimizer_moves_frozen_prototypes_even_with_momentum(kind):
    model = make(frozen_steps=3)
    optimizer, before = optimizer_of(model, kind, weight_decay=0.1), model.prototype_weights.detach().clone()
    moments = optimizer.state[model.prototype_weights]
    moments["exp_avg" if kind.startswith("adam") else "momentum_buffer"].normal_()
    assert all(torch.equal(after, before) for after in take_steps(model, optimizer, range(3)))
    (after,) = take_steps(model, optimizer, [3])
    assert turned(before, after) > 0


def test_prototypes_that_were_loaded_are_frozen_as_they_were_loaded():
    one = make(frozen_steps=4)
    optimizer = optimizer_of(one)
    *_, before = take_steps(one, optimizer, range(2))
    other = make(frozen_steps=4)
    with torch.no_grad():
        other.prototype_weights.normal_()
    other.load_state_dict(one.state_dict())
    resumed = optimizer_of(other)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(torch.equal(after, before) for after in take_steps(other, resumed, range(2, 4)))
    *_, after = take_steps(other, resumed, range(4, 6))
    *_, expected = take_steps(one, optimizer, range(2, 6))
    assert torch.equal(after, expected) and not torch.equal(after, before)


def test_what_is_saved_is_the_prototypes_and_the_count_alone():
    """Files from before prototypes were put back can still be loaded."""
    own = {name for name in make().state_dict() if not name.startswith(("encoder.", "projector."))}
    assert own == {"prototype_weights", "steps"}


def test_under_autocast_the_loss_is_float32():
    model, seen = make(), []
    model.projector.register_forward_hook(lambda *args: seen.append(args[-1].detach()))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(two_views()).loss
    assert seen[0].dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    expected = reference_loss(seen[0].view(2, 4, 8).float(), model.prototype_weights.detach())
    assert loss.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, r"temperature must be positive.*got 0\.0"),
        ({"epsilon": -0.1}, r"epsilon must be positive.*got -0\.1"),
        ({"prototypes": 1}, "prototypes must be 2 or more.*got 1"),
        ({"iterations": 0}, "iterations 1 or more, got 5 and 0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
