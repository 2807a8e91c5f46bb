"""Feature spaces of stored features and of images as they come agree with the model's own answers."""

import numpy as np
import pytest
import torch

from vje.cli.probe_images import EncodedBatches
from vje.data.augment import Augmentation
from vje.data.resident import load_resident
from vje.data.stream import Crops
from vje.evaluation.evaluate import encoded_spaces, space_names, stored_spaces
from vje.evaluation.features import compute_features
from vje.training.batches import ResidentBatches, StreamBatches

ALL = ["z", "mean", "target"]


def plain(flip=0.0):
    """An augmentation that changes nothing, or only mirrors."""
    return Augmentation(8, area=(1.0, 1.0), ratio=(1.0, 1.0), flip=flip, jitter=0.0, grayscale=0.0)


@torch.no_grad()
def expected(model, pixels):
    x = model.preprocessing.normalize(pixels)
    z = model.encoder(x)
    return {"z": z, "mean": model.inference(z).mean, "target": model.target(x)}


def test_names(make_model):
    assert space_names(make_model()) == ALL
    assert space_names(make_model(target="stop-gradient")) == ["z", "mean"]


@pytest.mark.parametrize("names", [["z"], ["target"], ["mean"], ["target", "z"], ALL])
def test_spaces_of_stored_features_and_of_images(names, make_model, make_source):
    model, source = make_model(), make_source(12)
    pixels = load_resident(source, 10, 8, 3).images
    stored = stored_spaces(model, compute_features(model, source), names)
    encoded = encoded_spaces(model, pixels.float() / 255, names)
    assert list(stored) == list(encoded) == names
    for name in names:
        assert torch.allclose(stored[name], expected(model, pixels)[name], atol=1e-5)
        assert torch.allclose(encoded[name], expected(model, pixels)[name], atol=1e-5)


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_batches_of_images_on_the_device(flip, make_model, make_source):
    model = make_model()
    pixels = load_resident(make_source(20), 10, 8, 3).images
    places = torch.arange(20) + 100  # of a larger set
    images = ResidentBatches(pixels, 6, 6, 0, seed=1, labels=places)
    batches = EncodedBatches(model, images, plain(flip), ALL, batch=6, seed=1)
    assert batches.steps_per_epoch == 3
    truth = expected(model, pixels.flip(-1) if flip else pixels)
    orders = []
    for epoch in range(2):
        seen = list(batches.epoch(epoch))
        for features, rows in seen:
            for name in ALL:
                assert torch.allclose(features[name], truth[name][rows - 100], atol=1e-4)
        orders.append(torch.cat([rows for _, rows in seen]).tolist())
        assert len(set(orders[-1])) == 18
    assert orders[0] != orders[1]


def test_batches_that_are_streamed(make_model, make_source):
    model, source = make_model(), make_source(20)
    square = source.subset(range(20))
    square.images = source.images[:, 2:10, 1:9]  # the crop at the centre, so that there is nothing to resize
    crops = Crops(square.labelled(np.arange(20)), size=8, channels=3, seed=1, area=(1.0, 1.0), ratio=(1.0, 1.0))
    images = StreamBatches(crops, 7, 7, 0, epochs=2, workers=0, device=torch.device("cpu"))
    batches = EncodedBatches(model, images, plain(), ALL, batch=7, seed=1)
    truth = expected(model, torch.from_numpy(square.planes(range(20))))
    count = 0
    for epoch in range(2):
        for features, rows in batches.epoch(epoch):
            for name in ALL:
                assert torch.allclose(features[name], truth[name][rows], atol=1e-4)
            count += len(rows)
    batches.close()
    assert count == 2 * 14


def test_crops_differ_from_epoch_to_epoch_but_not_from_run_to_run(make_model, make_source):
    model, pixels = make_model(), load_resident(make_source(12), 10, 8, 3).images

    def features():
        images = ResidentBatches(pixels, 12, 12, 0, seed=1, labels=torch.arange(12))
        batches = EncodedBatches(model, images, Augmentation(8, jitter=0.0, grayscale=0.0), ["z"], batch=12, seed=1)
        found = [next(batches.epoch(epoch)) for epoch in range(2)]
        return [each["z"][rows.argsort()] for each, rows in found]

    first, second = features()
    assert not torch.allclose(first, second, atol=1e-2)
    assert all(torch.equal(a, b) for a, b in zip(features(), (first, second), strict=True))
