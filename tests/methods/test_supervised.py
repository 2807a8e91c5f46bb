"""Supervised training: the cross-entropy written out, and what the method asks of its caller."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from vje.build import build_method
from vje.methods.supervised import Supervised
from vje.networks.encoders import Encoder
from vje.preprocessing import Preprocessing
from vje.recipes import load_recipe

CLASSES, BATCH, DIM = 4, 6, 5
LABELS = torch.tensor([0, 3, 1, 1, 2, 3])


def make(**options):
    torch.manual_seed(0)
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(12, DIM)), DIM)
    return Supervised(encoder, classes=CLASSES, **options).double()


def images(batch=BATCH, side=2):
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(1))


def reference(model, x, labels):
    """Loss and accuracy, one image and one class at a time."""
    w = [p.detach().numpy() for p in (*model.encoder.parameters(), *model.classifier.parameters())]
    losses, right = [], []
    for image, label in zip(x.flatten(1).numpy(), labels.tolist(), strict=True):
        logits = w[2] @ (w[0] @ image + w[1]) + w[3]
        probabilities = np.exp(logits) / np.exp(logits).sum()
        wanted = np.full(CLASSES, model.label_smoothing / CLASSES)
        wanted[label] += 1 - model.label_smoothing
        losses.append(-sum(wanted[c] * math.log(probabilities[c]) for c in range(CLASSES)))
        right.append(max(range(CLASSES), key=lambda c: logits[c]) == label)
    return np.mean(losses), np.mean(right)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_loss_and_accuracy_equal_the_slow_reference(label_smoothing):
    model, x = make(label_smoothing=label_smoothing), images().double()
    output = model([x], labels=LABELS)
    loss, accuracy = reference(model, x, LABELS)
    assert output.loss.item() == pytest.approx(loss, rel=1e-10)
    assert output.parts["accuracy"].item() == pytest.approx(accuracy)
    assert 0 < accuracy < 1
    output.loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())
    torch.testing.assert_close(output.embeddings, model.embed(x).float())


def test_it_learns_a_batch_by_heart():
    torch.manual_seed(0)
    model, x = Supervised("resnet8", classes=CLASSES), images(side=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(20):
        output = model([x], labels=LABELS)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    assert output.parts["accuracy"] == 1


def test_under_autocast_the_loss_is_float32():
    model, x = make().float(), images()
    with torch.autocast("cpu", torch.bfloat16):
        output = model([x], labels=LABELS)
    assert output.loss.dtype == output.embeddings.dtype == torch.float32
    assert output.loss.item() == pytest.approx(reference(model, x, LABELS)[0], rel=0.02)


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "imagenet1k", "digits"])
def test_recipes_load_and_only_crop_and_flip(data):
    config = load_recipe(f"{data}-supervised")
    config.check()
    a = config.augment
    assert (a.jitter, a.grayscale, a.blur, a.solarize) == (0, 0, (0, 0), (0, 0))


def test_the_data_says_how_many_classes_there_are():
    preprocessing = Preprocessing(size=8, crop=8, channels=1, mean=[0.0], std=[1.0])
    model = build_method(load_recipe("digits-supervised"), preprocessing, classes=6)
    assert model.classes == model.classifier.out_features == 6
    assert (model.needs_labels, model.views) == (True, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, "classes must be 2 or more.*got 1"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\).*got 1\.0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Supervised("resnet8", **options)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="got none: pass labels="):
        make()([images().double()])
    with pytest.raises(ValueError, match="one view of each image, got 2"):
        make()([images().double()] * 2, labels=LABELS)
