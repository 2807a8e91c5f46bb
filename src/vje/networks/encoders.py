"""Encoders: torchvision's ResNets for the paper's models, timm for any other."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

Normalization = Literal["batch", "group", "frozen"]


@dataclass(frozen=True)
class Architecture:
    """What it takes to build an encoder again.

    Attributes:
        name: "resnet8" or "resnet14" (three stages, D = 256), "resnet18", "resnet34", "resnet50", "resnet101", or any
            timm model.
        channels: colour channels of the input.
        small_images: 3x3 first convolution of stride 1 and no max-pooling, for images of 32 px or so.
        normalization: "batch", "group" (32 groups), or "frozen" batch-norm statistics.
        image_size: side of the input; only timm models with position embeddings need it.
    """

    name: str
    channels: int = 3
    small_images: bool = False
    normalization: Normalization = "batch"
    image_size: int | None = None


class UnknownEncoder(ValueError):
    """There is no encoder of that name, as far as can be told here."""


class Encoder(nn.Module):
    """An image network without its classifier: images ``[B, C, H, W]`` to pooled features z ``[B, D]``.

    Args:
        network: module that gives pooled features.
        dim: their number D.
        architecture: how to build the network again; without it a model can be trained but not saved.
    """

    def __init__(self, network: nn.Module, dim: int, architecture: Architecture | None = None) -> None:
        super().__init__()
        self.network, self.dim, self.architecture = network, dim, architecture

    def forward(self, images: Tensor) -> Tensor:
        """Pooled features of a batch."""
        features: Tensor = self.network(images)
        if features.shape[1:] != (self.dim,):
            raise ValueError(
                f"the encoder gives {list(features.shape)} and not [B, {self.dim}]: pool what it gives, and tell "
                "vje.Encoder its width"
            )
        return features


def build_encoder(
    name: str,
    *,
    channels: int = 3,
    small_images: bool | None = None,
    normalization: Normalization = "batch",
    image_size: int | None = None,
    pretrained: bool = False,
) -> Encoder:
    """Build an encoder by name; see :class:`Architecture` for the arguments.

    Args:
        name: a torchvision ResNet, or a timm model.
        channels: colour channels.
        small_images: stem for small images; by default only the three-stage networks have it.
        normalization: kind of normalisation layer (torchvision ResNets only).
        image_size: side of the input, for timm models that must know.
        pretrained: load timm's pretrained weights (fetched on first use).

    >>> build_encoder("resnet18", small_images=True).dim
    512
    """
    if small_images is None:
        small_images = name in _OWN
    architecture = Architecture(name, channels, small_images, normalization, image_size)
    if normalization not in get_args(Normalization):
        raise ValueError(f"normalization must be one of {', '.join(get_args(Normalization))}, got {normalization!r}")
    if name in _RESNETS and not pretrained:
        network, dim = _torchvision_resnet(architecture)
    else:
        network, dim = _timm_model(architecture, pretrained)
    if small_images:
        _use_small_stem(network, channels, name)
    return Encoder(network, dim, architecture)


_OWN = ("resnet8", "resnet14")
_RESNETS: dict[str, tuple[str, list[int]]] = {
    "resnet8": ("BasicBlock", [1, 1, 1, 0]),
    "resnet14": ("BasicBlock", [2, 2, 2, 0]),
    "resnet18": ("BasicBlock", [2, 2, 2, 2]),
    "resnet34": ("BasicBlock", [3, 4, 6, 3]),
    "resnet50": ("Bottleneck", [3, 4, 6, 3]),
    "resnet101": ("Bottleneck", [3, 4, 23, 3]),
}


def _torchvision_resnet(architecture: Architecture) -> tuple[nn.Module, int]:
    from torchvision.models import resnet

    block, layers = _RESNETS[architecture.name]
    three_stages = layers[3] == 0
    network = resnet.ResNet(
        getattr(resnet, block), [*layers[:3], max(layers[3], 1)], norm_layer=_norm_layer(architecture.normalization)
    )
    dim: int = network.fc.in_features
    network.fc = nn.Identity()
    if three_stages:
        network.layer4, dim = nn.Identity(), dim // 2
    if architecture.channels != 3 and not architecture.small_images:
        network.conv1 = _convolution(architecture.channels, kernel_size=7, stride=2, padding=3)
    return network, dim


def _norm_layer(kind: Normalization) -> Callable[[int], nn.Module]:
    if kind == "group":
        return lambda channels: nn.GroupNorm(min(32, channels), channels)
    if kind == "frozen":
        from torchvision.ops import FrozenBatchNorm2d

        frozen: Callable[[int], nn.Module] = FrozenBatchNorm2d
        return frozen
    return nn.BatchNorm2d


def _timm_model(architecture: Architecture, pretrained: bool) -> tuple[nn.Module, int]:
    try:
        import timm
    except ImportError:
        if pretrained:
            raise UnknownEncoder(
                "pretrained weights are timm's, which is not installed: pip install 'vje[timm]'"
            ) from None
        raise UnknownEncoder(
            f"encoder {architecture.name!r} is not one of {', '.join(_RESNETS)}, and timm, which may know it, "
            "is not installed: pip install 'vje[timm]'"
        ) from None
    base = architecture.name.split(".")[0]
    if architecture.name in _OWN and pretrained:
        raise ValueError(f"there are no pretrained weights for {architecture.name}; choose a timm model")
    if not timm.is_model(base):
        close = difflib.get_close_matches(base, {*_RESNETS, *timm.list_models()}, n=3)
        known = f"; there are {', '.join(_RESNETS)} and timm's, such as convnext_tiny"
        hint = f"; did you mean {' or '.join(close)}?" if close else known
        raise UnknownEncoder(f"no encoder is called {architecture.name!r}{hint}")
    if architecture.normalization != "batch":
        raise ValueError(f"normalization={architecture.normalization!r} is for torchvision ResNets, not timm models")
    network: Any
    arguments: dict[str, Any] = {"num_classes": 0, "in_chans": architecture.channels, "pretrained": pretrained}
    sized = arguments if architecture.image_size is None else arguments | {"img_size": architecture.image_size}
    try:
        network = timm.create_model(architecture.name, **sized)
    except TypeError:  # convolutional models take any size and no such argument
        network = timm.create_model(architecture.name, **arguments)
    with torch.no_grad():  # some models pool to another width than num_features says
        side = architecture.image_size or network.default_cfg["input_size"][-1]
        training = network.training
        dim = network.eval()(torch.zeros(1, architecture.channels, side, side)).shape[-1]
        network.train(training)
    return network, dim


def _use_small_stem(network: nn.Module, channels: int, name: str) -> None:
    if not isinstance(getattr(network, "conv1", None), nn.Conv2d) or not hasattr(network, "maxpool"):
        raise ValueError(f"encoder {name!r} has no ResNet stem for small images; turn small_images off")
    network.conv1 = _convolution(channels, kernel_size=3, stride=1, padding=1)
    network.maxpool = nn.Identity()


def _convolution(channels: int, kernel_size: int, stride: int, padding: int) -> nn.Conv2d:
    """First convolution, initialised as torchvision initialises those of its ResNets."""
    convolution = nn.Conv2d(channels, 64, kernel_size, stride, padding, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
