"""Images on the device come in the order that streamed ones do."""

import pytest
import torch

from vje.data.order import global_batch
from vje.errors import UserError
from vje.training.batches import ResidentBatches

COUNT, BATCH, SEED = 11, 4, 5
IMAGES = torch.arange(COUNT, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2).contiguous()


def shown(batches, step):
    [images] = batches.fetch(torch.tensor(step))
    assert images.shape[1:] == (3, 2, 2)
    return images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_step_has_its_images_divided_among_the_processes(world):
    share = BATCH // world
    ranks = [ResidentBatches(IMAGES, BATCH, share, rank * share, SEED) for rank in range(world)]
    for step in range(6):
        for batches in ranks:
            batches.start_epoch(step // 2, step % 2)
            batches.advance()
        together = [image for batches in ranks for image in shown(batches, step)]
        assert together == global_batch(COUNT, BATCH, SEED, step).tolist()


def test_an_epoch_shows_no_image_twice_and_the_next_has_another_order():
    batches = ResidentBatches(IMAGES, BATCH, BATCH, 0, SEED)
    assert batches.steps_per_epoch == 2
    epochs = []
    for epoch in range(2):
        batches.start_epoch(epoch, 0)
        epochs.append(shown(batches, 2 * epoch) + shown(batches, 2 * epoch + 1))
    assert all(len(set(images)) == 8 for images in epochs)
    assert epochs[0] != epochs[1]
    assert batches.notes() == {}


def test_fewer_images_than_a_batch_are_refused():
    with pytest.raises(UserError, match="a batch of 12 from 11 images"):
        ResidentBatches(IMAGES, 12, 12, 0, SEED)
