"""Checkpoints: everything training needs to go on as if it had never stopped, in one safetensors file.

No pickle is involved in either direction: tensors are safetensors, the rest is JSON in the file's header.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vje.errors import UserError
from vje.runs import write_atomically

if TYPE_CHECKING:
    from vje.training.step import TrainStep

FORMAT = "vje-checkpoint-1"
KEPT = 2


class BadCheckpoint(UserError):
    """A file that is not a checkpoint, or only part of one."""


@dataclass(frozen=True)
class Checkpoint:
    """A training state."""

    tensors: dict[str, Tensor]  # by dotted name: ``method.*``, ``optimizer.*``, ``state.*``, ``random.*``
    info: dict[str, Any]  # step, epoch, elapsed time and whatever the loop wants kept


def capture(step: "TrainStep", info: dict[str, Any]) -> Checkpoint:
    """The present state of a training step, copied to the CPU."""
    tensors = {name: x.detach().cpu().contiguous().clone() for name, x in _live_tensors(step)}
    tensors["random.cpu"] = torch.get_rng_state()
    if step.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(step.device)
    return Checkpoint(tensors, info)


@torch.no_grad()
def restore(step: "TrainStep", checkpoint: Checkpoint) -> None:
    """Write a checkpoint into a training step, in place."""
    live = dict(_live_tensors(step))
    saved = {name: x for name, x in checkpoint.tensors.items() if not name.startswith("random.")}
    wrong = [name for name in sorted(live.keys() | saved.keys()) if _shape(live, name) != _shape(saved, name)]
    if wrong:
        first = wrong[0]
        raise UserError(
            f"the checkpoint does not fit this model: {len(wrong)} tensors differ, such as {first} "
            f"({_shape(saved, first)} in the checkpoint, {_shape(live, first)} in the model)."
        )
    for name, x in live.items():
        x.copy_(saved[name])
    torch.set_rng_state(checkpoint.tensors["random.cpu"])
    if step.device.type == "cuda" and "random.cuda" in checkpoint.tensors:
        torch.cuda.set_rng_state(checkpoint.tensors["random.cuda"], step.device)


def _shape(tensors: dict[str, Tensor], name: str) -> tuple[int, ...] | str:
    return tuple(tensors[name].shape) if name in tensors else "absent"


def _live_tensors(step: "TrainStep") -> Iterator[tuple[str, Tensor]]:
    for name, x in step.method.state_dict().items():
        yield f"method.{name}", x
    for name, p in step.method.named_parameters():
        for key, value in step.optimizer.state.get(p, {}).items():
            if isinstance(value, Tensor):
                yield f"optimizer.{name}.{key}", value
    for name, x in vars(step.state).items():
        yield f"state.{name}", x


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint atomically, and keep only the last few up to it.

    What goes with the older ones: unreadable files of later steps, which were passed over, and what a kill cut short.
    """
    file = folder / f"step-{checkpoint.info['step']:09d}.safetensors"
    header = {"format": FORMAT, "info": json.dumps(checkpoint.info)}
    write_atomically(file, save(checkpoint.tensors, metadata=header))
    files = sorted(folder.glob("step-*.safetensors"))
    here = files.index(file)
    for old in [*files[: max(0, here + 1 - KEPT)], *files[here + 1 :], *folder.glob(".step-*.partial")]:
        old.unlink(missing_ok=True)
    return file


def read(file: Path) -> Checkpoint:
    """Read a checkpoint; anything else is refused, and nothing in it is ever executed."""
    try:
        with safe_open(file, framework="pt") as content:
            header = content.metadata() or {}
            if header.get("format") != FORMAT:
                found = header.get("format", "none")
                raise BadCheckpoint(f"{file} is not a checkpoint of this program (format {found}, not {FORMAT}).")
            return Checkpoint({name: content.get_tensor(name) for name in content.keys()}, json.loads(header["info"]))
    except (SafetensorError, json.JSONDecodeError, KeyError, OSError) as error:
        raise BadCheckpoint(f"{file} cannot be read as a checkpoint: it is cut short or foreign ({error}).") from None


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest readable checkpoint of a folder, and what was wrong with those passed over."""
    complaints: list[str] = []
    for file in sorted(folder.glob("step-*.safetensors"), reverse=True):
        try:
            return read(file), complaints
        except BadCheckpoint as error:
            complaints.append(str(error))
    return None, complaints
