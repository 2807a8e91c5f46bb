"""SimSiam as a user of lightly trains it on CIFAR-10: the peer that ``speed.py`` measures.

Heads, loss and transform are lightly's, with the sizes of its example; the encoder is the one that VJE trains. What the
example lacks and any user can add is added: bfloat16 autocast, channels-last tensors, pinned memory and workers that
live on. Views are not blurred, as is usual at 32 px.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead
from lightly.transforms.simsiam_transform import SimSiamTransform
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from vje.networks.encoders import Encoder


class TwoViews(Dataset[Any]):
    """Pixels ``[N, H, W, 3]`` to PIL images, as torchvision's CIFAR10 does it, to lightly's views."""

    def __init__(self, pixels: NDArray[np.uint8], size: int) -> None:
        self.pixels, self.transform = pixels, SimSiamTransform(input_size=size, gaussian_blur=0.0)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.pixels[index]))


def loader_batches(
    pixels: NDArray[np.uint8], size: int, batch: int, workers: int, device: torch.device
) -> Iterator[Sequence[Tensor]]:
    """Batches of views for ever, made by worker processes."""
    loader = DataLoader(
        TwoViews(pixels, size),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
    )
    while True:
        yield from loader


def build_step(encoder: Encoder, batches: Iterator[Sequence[Tensor]], device: torch.device) -> Callable[[], object]:
    """One training step on the next batch."""
    project = nn.Sequential(encoder, SimSiamProjectionHead(encoder.dim, 512, 128))
    predict = SimSiamPredictionHead(128, 64, 128)
    model: Any = nn.ModuleList([project, predict])
    model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4)
    loss_of = NegativeCosineSimilarity()

    def step() -> None:
        x0, x1 = (x.to(device, non_blocking=True, memory_format=torch.channels_last) for x in next(batches))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            z0, z1 = project(x0), project(x1)
            loss = 0.5 * (loss_of(z1.detach(), predict(z0)) + loss_of(z0.detach(), predict(z1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
