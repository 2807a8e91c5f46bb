"""The moving average, against its formula."""

import copy

import pytest
import torch
from torch import nn

from vje.networks.target import moving_average


def network(seed):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)).double()
    module(torch.randn(8, 3, 4, 4, dtype=torch.float64))  # moves the batch-norm statistics away from their start
    return module


def snapshot(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors}


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.996, 1.0])
@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_target_moves_by_the_formula(momentum, buffers, as_tensor):
    target, online = network(0), network(1)
    online[1].num_batches_tracked.fill_(7)
    before = snapshot(target.state_dict().items())
    leader = snapshot(online.state_dict().items())
    moving_average(target, online, torch.tensor(momentum, dtype=torch.float64) if as_tensor else momentum, buffers)

    parameters = dict(target.named_parameters())
    for name, value in target.state_dict().items():
        if name in parameters or (buffers and value.is_floating_point()):
            expected = momentum * before[name] + (1 - momentum) * leader[name]
        else:
            expected = before[name]
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(online.state_dict()[name], leader[name], rtol=0, atol=0)


def test_unasked_it_leaves_the_batch_norm_statistics_of_the_target():
    target, online = network(0), network(1)
    before = snapshot(target.named_buffers())
    moving_average(target, online, 0.3)
    assert all(torch.equal(value, before[name]) for name, value in target.named_buffers())
    assert not torch.equal(before["1.running_mean"], online[1].running_mean)


def test_many_steps_forget_the_start_geometrically():
    target, online = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
    gap = (target.weight - online.weight).detach()
    for _ in range(50):
        moving_average(target, online, 0.9)
    torch.testing.assert_close(target.weight - online.weight, 0.9**50 * gap, rtol=1e-8, atol=1e-12)


def test_the_average_is_outside_the_graph():
    online = network(0)
    target = copy.deepcopy(online).requires_grad_(False)
    moving_average(target, online, 0.5)
    assert all(p.grad_fn is None and not p.requires_grad for p in target.parameters())


def test_a_module_without_parameters_is_left_alone():
    moving_average(nn.ReLU(), nn.ReLU(), 0.5, buffers=True)
