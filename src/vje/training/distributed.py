"""Several processes: torchrun starts them, this finds out who is who, and one of them writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from vje.errors import UserError


@dataclass(frozen=True)
class World:
    """This process's place among the others."""

    rank: int = 0  # number of this process; 0 writes
    size: int = 1  # how many there are
    local_rank: int = 0  # number of this process on its machine, which is also its GPU

    @property
    def writes(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, batch: int) -> int:
        """Images of a global batch that fall to each process."""
        if batch % self.size:
            raise UserError(f"a batch of {batch} cannot be shared evenly by {self.size} processes: change --batch.")
        return batch // self.size

    def sum(self, x: Tensor) -> Tensor:
        """Sum of a tensor over all processes."""
        if self.size > 1:
            x = x.clone()
            dist.all_reduce(x)
        return x

    def any(self, *flags: bool) -> list[bool]:
        """Whether each flag is up in some process; every process gets the same answer."""
        if self.size == 1:
            return list(flags)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        x = torch.tensor(flags, dtype=torch.int32, device=device)
        dist.all_reduce(x, dist.ReduceOp.MAX)
        return [bool(flag) for flag in x.tolist()]


@contextmanager
def world(device: str) -> Iterator[World]:
    """Join the processes that torchrun started; alone without it.

    Args:
        device: kind of device the processes compute on; it decides how they talk (nccl on GPUs, gloo elsewhere).
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    here = World(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", "0")))
    if device == "cuda":
        torch.cuda.set_device(here.local_rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield here
        here.any(True)  # none leaves, for torchrun to end the others if it does so badly, before all have written
    finally:
        dist.destroy_process_group()
