"""Which images make which batch: a pure function of the seed and the step, the same for any number of processes."""

from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor

from vje.errors import UserError


@lru_cache(maxsize=2)
def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch visits ``count`` images: a permutation, int64 ``[count]``.

    >>> epoch_order(5, seed=0, epoch=1).sort().values
    tensor([0, 1, 2, 3, 4])
    """
    digest = blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randperm(count, generator=generator)


def steps_per_epoch(count: int, batch_size: int) -> int:
    """Whole batches in an epoch; the rest of the images have their turn in other epochs, since the order changes."""
    if not 0 < batch_size <= count:
        raise UserError(f"a batch of {batch_size} from {count} images; the batch size must be from 1 to {count}")
    return count // batch_size


def global_batch(count: int, batch_size: int, seed: int, step: int) -> Tensor:
    """Indices of the images of a step, counted over all epochs from 0: int64 ``[batch_size]``."""
    epoch, place = divmod(step, steps_per_epoch(count, batch_size))
    return epoch_order(count, seed, epoch)[place * batch_size : (place + 1) * batch_size].clone()
