"""What a run folder says of training: its epochs, whether it diverged, and whether there is anything to measure."""

import math
from typing import Any

from vje.runs import RunFolder


def read_epochs(folder: RunFolder) -> list[dict[str, Any]]:
    """The epochs recorded so far; lines that are none, and k-NN accuracies that are no table, are passed over."""
    records = [record for record in folder.metrics() if isinstance(record.get("epoch"), int)]
    return [{k: x for k, x in record.items() if k != "knn" or isinstance(x, dict)} for record in records]


def read_failure(folder: RunFolder) -> dict[str, Any]:
    """Where and why training stopped: ``step`` and ``message``; empty if the loss stayed finite."""
    there = (folder.path / "failed.json").exists() and not folder.model_file.exists()
    return folder.read("failed") if there else {}


def has_model(folder: RunFolder) -> bool:
    """Whether there is a model, or a checkpoint to take it from."""
    return folder.model_file.exists() or checkpoint_step(folder) is not None


def checkpoint_step(folder: RunFolder) -> int | None:
    """The step of the newest checkpoint, by its name."""
    digits = (file.stem.partition("-")[2] for file in folder.checkpoints.glob("step-*.safetensors"))
    return max((int(step) for step in digits if step.isdigit()), default=None)


def no_model(folder: RunFolder) -> str:
    """What is to be said of a run that has none."""
    return "has neither a model nor a checkpoint" + ("" if read_failure(folder) else " yet")


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and no truth value.

    >>> is_number(2), is_number("nan"), is_number(math.nan), is_number(True)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
