"""Batch norm in groups against the usual layer on each part of the batch, one after the other."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from vje.networks.encoders import build_encoder
from vje.networks.normalization import GroupedBatchNorm2d, group_batch_norm, interleaved, restored


def layers(groups, features=3):
    """A grouped layer, and for each part a usual one with the same affine weights."""
    torch.manual_seed(0)
    layer = GroupedBatchNorm2d(features, groups).double()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    usual = nn.BatchNorm2d(features).double()
    usual.load_state_dict(layer.state_dict())
    return layer, [copy.deepcopy(usual) for _ in range(groups)]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_values_and_gradients_are_those_of_the_parts(groups, images, side):
    layer, apart = layers(groups)
    x = torch.randn(groups * images, 3, side, side + 1, dtype=torch.float64) * 3 + 1
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    direction = torch.randn_like(x)
    expected = torch.cat([bn(part) for bn, part in zip(apart, theirs.chunk(groups), strict=True)])
    assert_close(layer(ours), expected)
    (layer(ours) * direction).sum().backward()
    (expected * direction).sum().backward()
    assert_close(ours.grad, theirs.grad)
    assert_close(layer.weight.grad, sum(bn.weight.grad for bn in apart))
    assert_close(layer.bias.grad, sum(bn.bias.grad for bn in apart))


def test_running_statistics_are_the_mean_over_the_parts():
    layer, apart = layers(2)
    for _ in range(3):
        x = torch.randn(6, 3, 2, 2, dtype=torch.float64) * 2 - 1
        layer(x)
        for bn, part in zip(apart, x.chunk(2), strict=True):
            bn(part)
    assert_close(layer.running_mean, (apart[0].running_mean + apart[1].running_mean) / 2)
    assert_close(layer.running_var, (apart[0].running_var + apart[1].running_var) / 2)
    assert layer.num_batches_tracked == 3


def test_evaluation_is_that_of_the_usual_layer():
    layer, (usual, _) = layers(2)
    layer(torch.randn(4, 3, 2, 2, dtype=torch.float64))
    usual.load_state_dict(layer.state_dict())
    x = torch.randn(5, 3, 2, 2, dtype=torch.float64)  # need not divide
    assert_close(layer.eval()(x), usual.eval()(x))


def test_statistics_of_bfloat16_are_taken_in_float32():
    layer, x = GroupedBatchNorm2d(1, 2), torch.full((4, 1, 16, 16), 256.0)
    x += torch.arange(4).view(4, 1, 1, 1) * 2  # 256 to 262: exact in bfloat16, their squares are not
    found = layer(x.bfloat16())
    assert found.dtype == torch.bfloat16
    assert_close(found[:, 0, 0, 0].float(), torch.tensor([-1.0, 1, -1, 1]))


def test_a_network_keeps_its_weights_and_their_names():
    encoder = build_encoder("resnet8", small_images=True).train()
    for buffer in encoder.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    grouped = copy.deepcopy(encoder)
    group_batch_norm(grouped, 2)
    kinds = {type(m) for m in grouped.modules() if isinstance(m, nn.BatchNorm2d)}
    assert kinds == {GroupedBatchNorm2d}
    theirs, ours = encoder.state_dict(), grouped.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    x = torch.randn(6, 3, 8, 8)
    expected = torch.cat([copy.deepcopy(encoder)(part) for part in x.chunk(2)])
    assert_close(grouped(x), expected, rtol=1e-4, atol=1e-4)


@given(st.integers(1, 5), st.integers(1, 5))
def test_dealt_out_every_part_has_as_many_of_each_part(groups, each):
    x = torch.arange(groups * groups * each)
    dealt = interleaved(x, groups)
    parts = x // (groups * each)
    for part in dealt.chunk(groups):
        assert torch.bincount(parts[part], minlength=groups).tolist() == [each] * groups
    assert torch.equal(restored(dealt, groups), x)


@pytest.mark.parametrize(("images", "groups"), [(6, 3), (12, 2), (10, 5)])
def test_the_order_comes_back_whatever_the_shape(images, groups):
    x = torch.randn(images, 2, 3)
    assert torch.equal(restored(interleaved(x, groups), groups), x)
