import hashlib

import pytest
import torch

from vje.data.order import epoch_order, global_batch, steps_per_epoch
from vje.errors import UserError


def test_orders_are_reproducible_permutations() -> None:
    before = torch.get_rng_state()
    order = epoch_order(1000, seed=3, epoch=5)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert torch.equal(order, epoch_order(1000, seed=3, epoch=5))
    assert not torch.equal(order, epoch_order(1000, seed=3, epoch=6))
    assert not torch.equal(order, epoch_order(1000, seed=4, epoch=5))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (7, 3), (12345, -1)])
def test_which_order_it_is_belongs_to_the_run_format(seed: int, epoch: int) -> None:
    """A resumed run goes on with the images that it would have had: torch's permutation for 63 bits of a hash."""
    number = int(hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()[::-1].hex(), 16) // 2
    expected = torch.randperm(50, generator=torch.Generator().manual_seed(number))
    assert torch.equal(epoch_order(50, seed, epoch), expected)


def test_an_epoch_of_batches_shows_each_image_once() -> None:
    assert steps_per_epoch(10, 3) == 3
    second = torch.cat([global_batch(10, 3, seed=0, step=step) for step in range(3, 6)])
    assert torch.equal(second, epoch_order(10, 0, epoch=1)[:9])
    global_batch(10, 3, seed=0, step=3).zero_()
    assert torch.equal(second[:3], global_batch(10, 3, seed=0, step=3))


def test_mistakes() -> None:
    with pytest.raises(UserError, match="batch of 256 from 100 images"):
        steps_per_epoch(100, 256)
    with pytest.raises(UserError, match="batch of 0 from 100 images"):
        steps_per_epoch(100, 0)
