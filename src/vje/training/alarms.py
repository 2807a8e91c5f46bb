"""What can go wrong in training, noticed and said in words."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from vje.errors import UserError
from vje.runs import write_atomically


class NonFinite(UserError):
    """The loss or its gradient became infinite or NaN."""


def non_finite(step: int, parts: dict[str, float], batch: dict[str, Tensor], folder: Path | None) -> NonFinite:
    """Save the batch that did it, and make the error that says so.

    The weights are still those that met the batch: the bad update was not applied.
    """
    offenders = [f"{name} = {value}" for name, value in parts.items() if not math.isfinite(value)]
    others = [f"{name} = {value:.4g}" for name, value in parts.items() if math.isfinite(value)]
    what = ", ".join(offenders) or "not finite in another process"
    message = f"training stopped at step {step}: {what} (the rest: {', '.join(others) or 'none'})."
    if folder is not None:
        file = folder / f"bad-batch-step-{step}.safetensors"
        write_atomically(file, save({name: x.detach().cpu().contiguous() for name, x in batch.items()}))
        message += f" The batch is saved in {file}."
    return NonFinite(
        f"{message} Try a lower --lr, a longer --warmup-epochs, --clip-norm 1, or --precision float32; "
        "then look at the batch for damaged images."
    )


@dataclass
class CollapseWatch:
    """Watches the epochs' records for representations that say nothing; each warning is given once.

    >>> watch = CollapseWatch(dim=512, chance=10.0, patience=0)
    >>> healthy = {"epoch": 5, "variance": 0.65, "kl": 140.0, "effective_rank": 80.0}
    >>> watch(healthy), [w[:34] for w in watch(healthy | {"variance": 0.999, "kl": 0.4})]
    ([], ['The posterior has collapsed to the'])
    """

    dim: int  # embedding dimension D
    chance: float | None = None  # k-NN accuracy in percent of always guessing the commonest class; None without labels
    patience: int = 3  # epochs before anything is judged
    watch_rank: bool = True  # whether a falling effective rank is a bad sign
    remedy: str = "a lower --lr or a larger --batch"  # what to try where the embeddings collapse
    said: set[str] = field(default_factory=set)  # warnings already given, by key
    peak_rank: float = 0.0  # largest effective rank so far

    def __call__(self, record: dict[str, Any]) -> list[str]:
        """New warnings for an epoch's record."""
        rank = float(record.get("effective_rank", math.inf))
        found = self._judge(record, rank) if record["epoch"] > self.patience else {}
        if math.isfinite(rank):
            self.peak_rank = max(self.peak_rank, rank)
        new = {key: text for key, text in found.items() if key not in self.said}
        self.said |= new.keys()
        return list(new.values())

    def _judge(self, record: dict[str, Any], rank: float) -> dict[str, str]:
        found = {}
        variance, kl = record.get("variance"), record.get("kl")
        if variance is not None and kl is not None and abs(variance - 1) < 0.02 and kl < 0.005 * self.dim:
            found["prior"] = (
                f"The posterior has collapsed to the prior (mean variance {variance:.3f}, KL {kl:.2f} over {self.dim} "
                "features): it says the same of every image. Try a smaller --beta or a smaller --nu."
            )
        if variance is not None and variance < 1e-3:
            found["floor"] = (
                f"The posterior variance has collapsed to its floor (mean {variance:.2g}): the model claims certainty. "
                "Keep the KL term on, and try a larger --beta or at least one sample (--samples 1)."
            )
        if self.watch_rank and (rank < 0.25 * self.peak_rank or rank < 2):
            found["rank"] = (
                f"The embeddings are collapsing: effective rank {rank:.1f} of {self.dim}, down from "
                f"{max(self.peak_rank, rank):.1f}. Try {self.remedy}."
            )
        accuracy = record.get("knn", {}).get("z")
        if accuracy is not None and self.chance is not None and accuracy < _above(self.chance):
            found["chance"] = (
                f"k-NN accuracy of z is {accuracy:.1f}%, about chance ({self.chance:.1f}%): the representation has "
                "learned nothing of the classes yet. If it stays there, look at --crop-area and --lr."
            )
        return found

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"said": sorted(self.said), "peak_rank": self.peak_rank}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.said, self.peak_rank = set(state["said"]), state["peak_rank"]


def _above(chance: float) -> float:
    """Percent that is clearly more than chance; a fifth more would be over 100 where one class is most of the data.

    >>> _above(10.0), _above(95.0)
    (12.0, 96.0)
    """
    return chance + 0.2 * min(chance, 100 - chance)
