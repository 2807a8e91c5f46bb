"""Variational Joint Embedding on CIFAR-10, in one page: python examples/minimal.py [--epochs 200].

The whole method with the public API and nothing else: two views, a posterior for each, the likelihood of the other
view's embedding, a KL term, an EMA target; then k-NN, and the score of an image. `vje train cifar10-ema` does this
faster, with a target whose momentum starts at 0.99, and can be interrupted and resumed.
"""

import argparse
import math

import torch
from torch import Tensor

import vje
from vje.random import Stream


def make_model(images: Tensor) -> vje.VJE:
    """ResNet-18 with a stem for 32 px, and the preprocessing that fits the training images."""
    scaled = images.float() / 255
    mean, std = scaled.mean((0, 2, 3)).tolist(), scaled.std((0, 2, 3)).tolist()
    side = images.shape[-1]
    return vje.VJE(
        vje.build_encoder("resnet18", small_images=True),
        nu=1.0,  # heavy tails: Student-t with one degree of freedom
        beta=1.0,  # weight of the KL term
        target="ema",
        preprocessing=vje.Preprocessing(side, side, 3, mean, std),
    )


def train(model: vje.VJE, images: Tensor, epochs: int, batch: int = 256, lr: float = 0.05, seed: int = 0) -> None:
    """SGD with a warm-up and a cosine; weight decay on matrices only."""
    device = images.device
    views = [
        vje.Augmentation(images.shape[-1], blur=1.0),  # BYOL's two views
        vje.Augmentation(images.shape[-1], blur=0.1, solarize=0.2),
    ]
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 5e-4}, {"params": plain}]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9)
    per_epoch = len(images) // batch
    total, warmup = epochs * per_epoch, min(10, epochs / 10) * per_epoch
    model.train()
    for step in range(total):
        if step % per_epoch == 0:
            order = torch.randperm(len(images), device=device)
        chosen = images[order[(step % per_epoch) * batch :][:batch]]
        draws = vje.Draws(seed, step, torch.arange(batch, device=device))
        pair = [
            model.preprocessing.normalize(view(chosen, draws, stream))
            for view, stream in zip(views, (Stream.VIEW_1, Stream.VIEW_2), strict=True)
        ]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            output = model(pair, draws)  # the likelihood itself is computed in float32
        cosine = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        for group in optimizer.param_groups:
            group["lr"] = lr * min((step + 1) / warmup, cosine if step >= warmup else 1.0)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        model.after_step(1 - (1 - 0.996) * 0.5 * (1 + math.cos(math.pi * step / total)))
        if (step + 1) % per_epoch == 0:
            parts = "  ".join(f"{name} {value:.2f}" for name, value in output.parts.items())
            print(f"epoch {(step + 1) // per_epoch}/{epochs}  {parts}", flush=True)


@torch.no_grad()
def embed(model: vje.VJE, images: Tensor) -> Tensor:
    """Embeddings z of uint8 images."""
    model.eval()
    return torch.cat([model.embed(chunk) for chunk in images.split(500)])


def main() -> None:
    """Train, evaluate, score."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--epochs", type=int, default=200)
    arguments = parser.parse_args()
    from torchvision.datasets import CIFAR10

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sets = [CIFAR10(arguments.data_dir, train=part, download=True) for part in (True, False)]
    (images, labels), (test_images, test_labels) = (
        (torch.as_tensor(s.data).permute(0, 3, 1, 2).to(device), torch.as_tensor(s.targets, device=device))
        for s in sets
    )
    model = make_model(images).to(device)
    train(model, images, arguments.epochs)
    accuracy = vje.knn_accuracy(embed(model, images), labels, embed(model, test_images), test_labels)
    print(f"k-NN accuracy of z: {accuracy:.2f}%")
    noise = torch.randint(0, 256, (500, 3, 32, 32), dtype=torch.uint8, device=device)
    for name, some in (("test images", test_images[:500]), ("noise", noise)):
        print(f"negative log-likelihood of {name}: {model.score(some)['nll'].mean():.1f}")
    print(f"saved to {model.save('runs/minimal')}")


if __name__ == "__main__":
    main()
