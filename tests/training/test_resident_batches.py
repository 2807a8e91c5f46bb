"""Images on the device come in the order that streamed ones do."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from vje.build import build_loop
from vje.build_data import build_data
from vje.data.order import global_batch
from vje.errors import UserError
from vje.training.batches import ResidentBatches
from vje.training.distributed import World

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


def test_a_batch_must_be_shared_evenly():
    assert [World(size=size).share(8) for size in (1, 2, 8)] == [8, 4, 1]
    with pytest.raises(UserError, match="a batch of 8 cannot be shared evenly by 3 processes: change --batch"):
        World(size=3).share(8)


def test_labels_are_those_of_the_images_where_a_file_cannot_be_read(tmp_path, small_config):
    """Two folders of pictures, dark and bright; a file that is no picture has no label either."""
    for name, level in (("bright", 200), ("dark", 20)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("RGB", (8, 8), (level,) * 3).save(tmp_path / "set" / name / f"{i:02}.png")
    (tmp_path / "set" / "bright" / "03.png").write_text("no picture")
    config = replace(small_config, data=replace(small_config.data, data=str(tmp_path / "set"), workers=0))
    batches = build_loop(config, build_data(config), torch.device("cpu"), World()).batches
    batches.start_epoch(0, 0)
    for step in map(torch.tensor, range(batches.steps_per_epoch)):
        (images,), labels = batches.fetch(step), batches.labels(step)
        assert torch.equal((images.float().mean((1, 2, 3)) < 100).long(), labels)  # classes by name: bright, dark
