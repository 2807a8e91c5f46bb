"""LARS against a reference in numpy that knows nothing of tensors, groups or devices."""

import numpy as np
import pytest
import torch
from torch import nn

from vje.training.lars import LARS

RATES = [0.5, 1.0, 2.0, 1.5, 0.1]


def reference(weights, gradients, rates, momentum, decay, trust=None, limit=False):
    """The path of one weight; ``trust=None`` is plain SGD."""
    w, v, path = weights.astype(np.float64), np.zeros(weights.shape), []
    for raw, rate in zip(gradients, rates, strict=True):
        g = raw + decay * w
        factor = 1.0 if trust is None else trust * np.sqrt((w**2).sum() / (g**2).sum())
        v = momentum * v + (min(factor / rate, 1.0) if limit else factor) * g
        w = w - rate * v
        path.append(w)
    return path


def parameter(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))


def gradient(p, number):
    generator = torch.Generator().manual_seed(100 + number)
    return 3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)


def take_steps(optimizer, parameters, rates=RATES):
    """Steps with made-up gradients; the weights after each."""
    path = []
    for number, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"].fill_(rate)
        for p in parameters:
            p.grad = gradient(p, number)
        optimizer.step()
        path.append([p.detach().clone() for p in parameters])
    return path


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("trust", [1e-3, 0.02, 1.0])
@pytest.mark.parametrize("limit", [False, True])
def test_steps_are_the_reference_s(momentum, decay, trust, limit):
    matrix, kernel, bias = parameter((4, 3)), parameter((2, 3, 3, 3), seed=1), parameter((5,), seed=2)
    lr = torch.tensor(0.0, dtype=torch.float64)
    groups = [{"params": [matrix, kernel]}, {"params": [bias], "weight_decay": 0.0, "adapt": False}]
    start = [p.detach().numpy().copy() for p in (matrix, kernel, bias)]
    path = take_steps(LARS(groups, lr, momentum, decay, trust, limit), [matrix, kernel, bias])
    for i, p in enumerate((matrix, kernel, bias)):
        gradients = [gradient(p, number).numpy() for number in range(len(RATES))]
        plain = p is bias
        chosen = (0.0, None, False) if plain else (decay, trust, limit)
        expected = reference(start[i], gradients, RATES, momentum, *chosen)
        for ours, theirs in zip(path, expected, strict=True):
            np.testing.assert_allclose(ours[i].numpy(), theirs, rtol=1e-12, atol=1e-14)


def test_without_momentum_a_step_is_a_share_of_the_weight():
    """Whatever the gradient's size, |change| = lr * trust * |w|."""
    for size in (1e-20, 1.0, 1e20):
        p = parameter((6, 6))
        before = p.detach().clone()
        p.grad = size * gradient(p, 0)
        LARS([p], torch.tensor(0.5, dtype=torch.float64), momentum=0.0, trust=0.01).step()
        assert (p - before).norm().item() == pytest.approx(0.5 * 0.01 * before.norm().item(), rel=1e-9)


def test_a_limited_step_is_the_smaller_of_sgd_s_and_the_share():
    """|change| = min(lr |g|, trust |w|), whatever the gradient's size and the rate."""
    for size in (1e-20, 1e-3, 1.0, 1e20):
        for rate in (0.0, 0.01, 2.0):
            p = parameter((6, 6))
            before = p.detach().clone()
            p.grad = size * gradient(p, 0)
            LARS([p], torch.tensor(rate, dtype=torch.float64), momentum=0.0, trust=0.01, limit=True).step()
            expected = min(rate * p.grad.norm().item(), 0.01 * before.norm().item())
            assert (p - before).norm().item() == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_the_scale_of_the_loss_is_the_rate_of_what_is_not_adapted():
    """Gradients and decay times s: weights go the same way, and biases as if their rate were s times as large."""
    paths = []
    for scale, bias_rate in ((1.0, 0.024), (0.024, 1.0)):
        weight, bias = parameter((4, 4)), parameter((4,), seed=1)
        lr = torch.tensor(0.3, dtype=torch.float64)
        groups = [
            {"params": [weight], "weight_decay": 0.1 * scale},
            {"params": [bias], "lr": bias_rate * lr, "adapt": False},
        ]
        optimizer = LARS(groups, lr)
        for number in range(4):
            for p in (weight, bias):
                p.grad = scale * gradient(p, number)
            optimizer.step()
        paths.append([weight.detach(), bias.detach()])
    torch.testing.assert_close(paths[0], paths[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_zero_weights_and_zero_gradients_are_not_divided_by(decay):
    zero_weight, zero_gradient, both = (parameter((3, 2), seed=i) for i in range(3))
    with torch.no_grad():
        zero_weight.zero_()
        both.zero_()
    start = zero_gradient.detach().clone()
    zero_weight.grad, zero_gradient.grad = gradient(zero_weight, 0), torch.zeros_like(zero_gradient)
    both.grad = torch.zeros_like(both)
    lr = torch.tensor(0.5, dtype=torch.float64)
    LARS([zero_weight, zero_gradient, both], lr, weight_decay=decay, trust=0.01).step()
    torch.testing.assert_close(zero_weight.detach(), -0.5 * gradient(zero_weight, 0))  # as SGD would
    # Only the decay pulls, and it is scaled to its share of the weight.
    torch.testing.assert_close(zero_gradient.detach(), start * (1 - 0.5 * 0.01 * (decay > 0)))
    assert not both.any()


def test_parameters_without_gradient_are_left_alone():
    p, q = parameter((2, 2)), parameter((2, 2), seed=1)
    before = q.detach().clone()
    p.grad = gradient(p, 0)
    optimizer = LARS([p, q], torch.tensor(0.1, dtype=torch.float64))
    optimizer.step()
    assert torch.equal(q, before)
    assert q not in optimizer.state


def make_stoppable():
    weight, bias = parameter((4, 3)), parameter((3,), seed=1)
    groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "adapt": False}]
    optimizer = LARS(groups, torch.tensor(0.1, dtype=torch.float64))
    optimizer.found_inf = torch.zeros(())
    return optimizer, [weight, bias]


def state_of(optimizer, parameters):
    return [x.detach().clone() for p in parameters for x in (p, optimizer.state[p]["momentum_buffer"])]


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_a_stopped_step_changes_nothing_and_the_next_goes_on(bad):
    optimizer, parameters = make_stoppable()
    reference_optimizer, others = make_stoppable()
    take_steps(optimizer, parameters, [0.1, 0.2])
    take_steps(reference_optimizer, others, [0.1, 0.2])

    before = state_of(optimizer, parameters)
    optimizer.found_inf.fill_(1)
    for p in parameters:
        p.grad = gradient(p, 9) if bad is None else torch.full_like(p, bad)
    optimizer.step()
    assert all(torch.equal(x, y) for x, y in zip(state_of(optimizer, parameters), before, strict=True))

    optimizer.found_inf.zero_()
    take_steps(optimizer, parameters, [0.3])
    take_steps(reference_optimizer, others, [0.3])
    after, expected = state_of(optimizer, parameters), state_of(reference_optimizer, others)
    assert all(torch.equal(x, y) for x, y in zip(after, expected, strict=True))
    assert not torch.equal(after[0], before[0])


def test_a_first_step_that_is_stopped_leaves_no_momentum():
    optimizer, parameters = make_stoppable()
    start = [p.detach().clone() for p in parameters]
    optimizer.found_inf.fill_(1)
    for p in parameters:
        p.grad = torch.full_like(p, float("nan"))
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(parameters, start, strict=True))
    assert not any(optimizer.state[p]["momentum_buffer"].any() for p in parameters)


def test_half_precision_weights_keep_their_type():
    p = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    p.grad = torch.ones_like(p)
    LARS([p], torch.tensor(0.5), trust=0.5).step()
    assert p.dtype == torch.bfloat16
    torch.testing.assert_close(p.detach().float(), torch.full((4, 4), 0.75))
