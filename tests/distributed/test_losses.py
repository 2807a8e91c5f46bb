"""Losses that look across samples: two processes with half the batch each against one with all of it, in float64."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vje.methods import find_method
from vje.networks.encoders import Encoder
from vje.random import Draws

HEAD = {"hidden": 7, "projection": 4}
SIAMESE = {"hidden": 7, "layers": 2, "bottleneck": 4}
CASES = {
    "simclr": ("simclr", HEAD),
    "moco": ("moco", {**HEAD, "queue": 21}),  # no multiple of a batch
    "moco-asymmetric": ("moco", {**HEAD, "queue": 21, "symmetric": False}),
    "swav": ("swav", {**HEAD, "prototypes": 5, "frozen_steps": 1}),
    "supervised": ("supervised", {"classes": 3}),
    "vicreg": ("vicreg", {"hidden": 7}),
    "barlow": ("barlow", {"hidden": 7}),
    "lejepa": ("lejepa", {**HEAD, "slices": 16}),
    "vi-simsiam": ("vi-simsiam", {**SIAMESE, "kappa_from": "embedding"}),
    "vi-simsiam-projection": ("vi-simsiam", {**SIAMESE, "kappa_from": "projection"}),
}
STEPS, BATCH, DIM = 3, 8, 6


def build(name):
    """A case's method on a linear encoder, with nothing that normalises over the images of a process."""
    torch.manual_seed(0)
    method, options = CASES[name]
    model = find_method(method)(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(12, DIM)), DIM), **options)
    for parent in list(model.modules()):
        for child, module in parent.named_children():
            if isinstance(module, nn.BatchNorm1d):
                setattr(parent, child, nn.Identity())
    return model.double()


def train(name, rank, world):
    """Some steps with this process's share of each batch: losses, gradients, and the buffers at the end."""
    model, generator = build(name), torch.Generator().manual_seed(1)
    forward = DistributedDataParallel(model) if world > 1 else model
    found, rows = {}, slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    for step in range(STEPS):
        images = torch.randn(2, BATCH, 3, 2, 2, generator=generator, dtype=torch.float64)
        labels = torch.randint(3, (BATCH,), generator=generator)
        draws = Draws(seed=0, step=step, positions=torch.arange(BATCH)[rows])
        output = forward(list(images[: model.views, rows]), draws, labels[rows])
        output.loss.backward()
        loss = output.loss.detach().clone()
        if world > 1:  # some losses are of the process's own images, some of all
            dist.all_reduce(loss)
        found[f"{step} loss"] = loss / world
        for key, p in model.named_parameters():
            if p.requires_grad:
                found[f"{step} gradient of {key}"] = p.grad.clone()
                p.data -= 0.1 * p.grad
                p.grad = None
        model.after_step(0.5)
    return found | {f"buffer {key}": x.clone() for key, x in model.named_buffers()}


def work(folder):
    """What each of the two processes does."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name in CASES:
        save_file(train(name, rank, 2), folder / f"{name}-{rank}.safetensors")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # as vje/__main__.py does, and why: one time in six Python's own end aborted


def test_two_processes_find_what_one_finds(cli_env, tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = cli_env({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
    command = [sys.executable, *launcher, __file__, str(tmp_path)]
    finished = subprocess.run(command, env=environment, timeout=100, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    for name in CASES:
        one = train(name, 0, 1)
        assert all(x.abs().sum() > 0 for key, x in one.items() if key.startswith(f"{STEPS - 1} gradient")), name
        for rank in range(2):
            two = load_file(tmp_path / f"{name}-{rank}.safetensors")
            assert two.keys() == one.keys()
            for key, x in one.items():
                torch.testing.assert_close(two[key], x, rtol=1e-6, atol=1e-9, msg=f"{name}, process {rank}: {key}")


if __name__ == "__main__":
    work(Path(sys.argv[1]))
