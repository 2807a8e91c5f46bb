"""Encoders by name: shapes, stems, kinds of normalisation, and errors that help."""

from dataclasses import asdict

import pytest
import torch
from torch import nn

from vje.networks.encoders import Encoder, build_encoder


def spatial_size(encoder, layer, side, channels=3):
    """Side of a layer's feature map for an image of the given side."""
    sizes = []
    handle = getattr(encoder.network, layer).register_forward_hook(lambda *args: sizes.append(args[-1].shape[-1]))
    with torch.no_grad():
        encoder.eval()(torch.zeros(1, channels, side, side))
    handle.remove()
    return sizes[0]


@pytest.mark.parametrize(
    ("name", "dim", "millions"), [("resnet8", 256, None), ("resnet18", 512, 11.18), ("resnet50", 2048, 23.51)]
)
def test_dimensions_and_sizes(name, dim, millions):
    encoder = build_encoder(name)
    assert isinstance(encoder, Encoder)
    assert encoder.dim == dim
    with torch.no_grad():
        z = encoder.eval()(torch.randn(2, 3, 32, 32))
    assert z.shape == (2, dim)
    assert (z >= 0).all()  # pooled after a ReLU
    if millions is not None:  # torchvision's published sizes, without the classifier
        assert sum(p.numel() for p in encoder.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)


def test_the_small_stem_keeps_resolution():
    small, large = build_encoder("resnet18", small_images=True), build_encoder("resnet18")
    conv = small.network.conv1
    assert (conv.kernel_size, conv.stride, conv.padding, conv.bias) == ((3, 3), (1, 1), (1, 1), None)
    assert spatial_size(small, "layer1", 32) == 32
    assert spatial_size(small, "layer4", 32) == 4
    assert spatial_size(large, "layer1", 32) == 8
    assert spatial_size(large, "layer4", 32) == 1


def test_the_smallest_encoder_has_three_stages_and_works_at_eight_pixels():
    encoder = build_encoder("resnet8")
    assert encoder.architecture.small_images
    assert spatial_size(encoder, "layer1", 8) == 8
    assert spatial_size(encoder, "layer3", 8) == 2
    assert not list(encoder.network.layer4.parameters())


@pytest.mark.parametrize("small_images", [False, True])
def test_grey_input(small_images):
    encoder = build_encoder("resnet18", channels=1, small_images=small_images)
    assert encoder.network.conv1.in_channels == 1
    assert encoder(torch.randn(2, 1, 32, 32)).shape == (2, 512)
    fan_out = 64 * (9 if small_images else 49)
    assert encoder.network.conv1.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.15)


def layers(encoder, kind):
    return [module for module in encoder.modules() if isinstance(module, kind)]


def test_group_norm_treats_each_image_alone():
    torch.manual_seed(0)
    encoder = build_encoder("resnet8", normalization="group")
    assert not layers(encoder, nn.modules.batchnorm._BatchNorm)
    assert len(layers(encoder, nn.GroupNorm)) == len(layers(build_encoder("resnet8"), nn.BatchNorm2d))
    images = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(encoder(images)[:1], encoder(images[:1]), rtol=1e-4, atol=1e-5)


def test_frozen_norm_does_not_learn_from_batches():
    torch.manual_seed(0)
    encoder = build_encoder("resnet8", normalization="frozen").train()
    assert not layers(encoder, nn.modules.batchnorm._BatchNorm)
    before = {name: value.clone() for name, value in encoder.named_buffers()}
    assert before
    images = torch.randn(4, 3, 8, 8)
    training = encoder(images)
    assert all(torch.equal(value, before[name]) for name, value in encoder.named_buffers())
    torch.testing.assert_close(training[:1], encoder.eval()(images[:1]), rtol=1e-4, atol=1e-5)


def test_batch_norm_is_the_default():
    assert layers(build_encoder("resnet8"), nn.BatchNorm2d)


@pytest.mark.parametrize(
    ("name", "dim", "options"),
    [
        ("vit_tiny_patch16_224", 192, {"image_size": 32}),
        ("resnet10t", 512, {"image_size": 32}),
        ("resnet10t", 512, {"channels": 1}),
        ("mobilenetv3_small_050", 1024, {}),
    ],
)
def test_timm_models(name, dim, options):
    pytest.importorskip("timm")
    encoder = build_encoder(name, **options)
    assert encoder.dim == dim
    assert encoder.training
    assert encoder(torch.randn(2, options.get("channels", 3), 32, 32)).shape == (2, dim)


def test_a_timm_resnet_takes_the_small_stem():
    pytest.importorskip("timm")
    encoder = build_encoder("resnet26", small_images=True)
    assert encoder.network.conv1.stride == (1, 1)
    assert spatial_size(encoder, "layer1", 32) == 32


def test_a_model_without_a_resnet_stem_refuses_the_small_one():
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match=r"'vit_tiny_patch16_224' has no ResNet stem.*small_images off"):
        build_encoder("vit_tiny_patch16_224", small_images=True)


def test_an_unknown_name_is_answered_with_near_ones():
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match="no encoder is called 'resnt18'; did you mean resnet18") as error:
        build_encoder("resnt18")
    suggestions = str(error.value).split("did you mean ")[1].rstrip("?").split(" or ")
    assert len(suggestions) == len(set(suggestions))
    with pytest.raises(ValueError, match=r"'xqz'; there are resnet8, .*resnet18.* and timm's"):
        build_encoder("xqz")


def test_bad_normalizations_are_refused():
    with pytest.raises(ValueError, match="normalization must be one of batch, group, frozen, got 'layer'"):
        build_encoder("resnet18", normalization="layer")
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match="for torchvision ResNets"):
        build_encoder("resnet10t", normalization="group")


def test_the_architecture_rebuilds_the_encoder():
    first = build_encoder("resnet8", channels=1, normalization="group")
    second = build_encoder(**asdict(first.architecture))
    assert second.architecture == first.architecture
    second.load_state_dict(first.state_dict())
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(first(images), second(images))
