"""How long the training that is left may take: by the speed of runs that are there, or by a stated guess."""

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vje.experiments.plan import Job
from vje.runs import Damaged, RunFolder

SPEED = {
    "digits": (1_438, 1_000),
    "cifar10": (50_000, 30_000),
    "cifar100": (50_000, 30_000),
    "stl10": (105_000, 10_000),
    "tiny-imagenet": (100_000, 7_000),
    "imagenet100": (126_689, 1_000),
    "imagenet1k": (1_281_167, 1_000),
}
"""Training images, and images a second to expect of one H200: measured for CIFAR, guesses for the rest."""


def estimate(jobs: list[Job], out: Path) -> tuple[float, set[str]]:
    """Seconds of training that are left, and the recipes whose speed is assumed, as no run here shows it."""
    measured = {recipe: statistics.median(seconds) for recipe, seconds in _epoch_seconds(out).items()}
    total, assumed = 0.0, set()
    for job in jobs:
        if "train" in job.steps and not job.obstacle:
            left = job.run.epochs - job.folder.epochs_done()
            images, speed = SPEED.get(job.run.data(), (50_000, 10_000))
            if job.run.recipe not in measured:
                assumed.add(job.run.recipe)
            total += left * measured.get(job.run.recipe, images / speed)
    return total, assumed


def _epoch_seconds(out: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for recipe, records in _records(out):
        speeds = [r["seconds"] for r in records if "seconds" in r and r.get("images_per_second", 0) > 0]
        found.setdefault(recipe, []).extend([statistics.median(speeds)] if speeds else [])
    return {recipe: seconds for recipe, seconds in found.items() if seconds}


def _records(out: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for file in sorted(out.glob("*/config.json")):
        folder = RunFolder(file.parent)
        with contextlib.suppress(Damaged):
            yield str(folder.read("config").get("recipe", "")), folder.metrics()
